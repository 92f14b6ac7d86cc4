//! Environment variables: `CUELINE_` and a key in capitals.
//!
//! One environment may serve several roles, so a setting that this role does not have is passed over. A name that nobody knows is
//! refused, as an unknown key of the file is.

use std::ffi::OsString;

use super::nearest::nearest;
use super::raw::Raw;
use super::settings::{Role, Setting};

const PREFIX: &str = "CUELINE_";

/// Variables that are no settings of a role: of commands, of logs, and what a handler tells the process that it starts.
const OTHERS: [&str; 16] = [
    "CUELINE_CONFIG",
    "CUELINE_URL",
    "CUELINE_TOKEN",
    "CUELINE_LOG",
    "CUELINE_RUN_ID",
    "CUELINE_ATTEMPT",
    "CUELINE_JOB",
    "CUELINE_FIRE_TIME",
    "CUELINE_FIRE_TIME_MS",
    "CUELINE_PARAMS",
    "CUELINE_SHARD_INDEX",
    "CUELINE_SHARD_TOTAL",
    "CUELINE_SHARD_ITEM",
    "CUELINE_EXECUTOR",
    "CUELINE_WORKER_STATE",
    "CUELINE_WORKER_GUARD",
];

/// What the environment says, with everything that is wrong in it. An empty variable is as good as none.
pub fn read(
    role: Role,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> (Vec<(&'static str, Raw)>, Vec<String>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        if value.is_empty() {
            continue;
        }
        match setting_of(role, name) {
            Some(setting) => match text_of(setting, &value) {
                Ok(raw) => found.push((setting.key, raw)),
                Err(problem) => problems.push(format!("{name}: {problem}")),
            },
            None if is_known(name) => {}
            None => problems.push(unknown(name)),
        }
    }
    problems.sort_unstable();
    (found, problems)
}

fn setting_of(role: Role, name: &str) -> Option<&'static Setting> {
    role.settings().iter().find(|s| s.variable() == name)
}

fn text_of(setting: &Setting, value: &OsString) -> Result<Raw, String> {
    let text = value.to_str().ok_or("is not UTF-8 text")?;
    Raw::from_text(setting.shape, text)
}

fn is_known(name: &str) -> bool {
    OTHERS.contains(&name)
        || Role::ALL
            .into_iter()
            .any(|role| setting_of(role, name).is_some())
        || name.starts_with("CUELINE_TEST_")
        || is_service_link(name)
}

/// Kubernetes tells each container of every service: one that is called `cueline` gives it `CUELINE_SERVICE_HOST`,
/// `CUELINE_PORT_7800_TCP` and more, see <https://kubernetes.io/docs/tutorials/services/connect-applications-service/>.
fn is_service_link(name: &str) -> bool {
    let numbered = || {
        name.match_indices("_PORT_").any(|(at, part)| {
            let rest = &name[at + part.len()..];
            rest.starts_with(|c: char| c.is_ascii_digit())
        })
    };
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || numbered()
}

fn unknown(name: &str) -> String {
    // Without what all have in common, which makes everything alike.
    let bare = |name: &str| name.trim_start_matches(PREFIX).to_owned();
    let all: Vec<String> = Role::ALL
        .into_iter()
        .flat_map(Role::settings)
        .map(|setting| bare(&setting.variable()))
        .chain(OTHERS.map(bare))
        .collect();
    match nearest(&bare(name), all.iter().map(String::as_str)) {
        Some(word) => format!("{name}: unknown variable; did you mean \"{PREFIX}{word}\"?"),
        None => format!(
            "{name}: unknown variable; variables are {PREFIX} and a key of docs/configuration.md in capitals"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(variables: &[(&str, &str)]) -> (Vec<(&'static str, Raw)>, Vec<String>) {
        read(
            Role::Worker,
            variables.iter().map(|(n, v)| (n.into(), v.into())),
        )
    }

    #[test]
    fn settings_are_taken_and_others_left() {
        let (found, problems) = asked(&[
            ("CUELINE_ALLOW", "shell, http"),
            ("CUELINE_LOG_JSON", "true"),
            ("CUELINE_STORE", "of the scheduler"),
            ("CUELINE_GROUP", ""),
            ("CUELINE_RUN_ID", "7"),
            ("CUELINE_TEST_NATS_BIN", "x"),
            ("PATH", "x"),
        ]);
        let allowed = Raw::List(vec!["shell".into(), "http".into()]);
        assert_eq!(found, [("allow", allowed), ("log_json", Raw::Switch(true))]);
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn what_kubernetes_sets_is_no_mistake() {
        for name in [
            "CUELINE_SERVICE_HOST",
            "CUELINE_SERVICE_PORT_HTTP",
            "CUELINE_PORT",
            "CUELINE_PORT_7800_TCP_ADDR",
            "CUELINE_SCHEDULER_SERVICE_PORT",
        ] {
            assert!(asked(&[(name, "x")]).1.is_empty(), "{name}");
        }
    }

    #[test]
    fn unknown_ones_and_wrong_values_are_named() {
        let (_, problems) = asked(&[("CUELINE_BROKR", "x"), ("CUELINE_LOG_JSON", "yes")]);
        assert_eq!(
            problems,
            [
                "CUELINE_BROKR: unknown variable; did you mean \"CUELINE_BROKER\"?",
                "CUELINE_LOG_JSON: \"yes\" given; true or false is expected",
            ]
        );
    }
}
