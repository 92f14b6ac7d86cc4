//! Warns about unknown environment variables.

use cueline_interface::suggest::nearest;

use super::schema;

const PREFIX: &str = "CUELINE_";

/// Variables of commands and logs, and variables that handlers set for their processes.
const OTHERS: [&str; 23] = [
    "CUELINE_CONFIG",
    "CUELINE_URL",
    "CUELINE_CONTEXT",
    "CUELINE_TOKEN",
    "CUELINE_NAMESPACE",
    "CUELINE_CA_FILE",
    "CUELINE_CLIENT_CERT",
    "CUELINE_CLIENT_KEY",
    "CUELINE_LOG",
    "CUELINE_BENCH_STORE",
    "CUELINE_BENCH_BROKER",
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

/// Warnings about variables that are ignored because Cueline has no such setting.
///
/// They are no errors. For a Service that is called `cueline`, Kubernetes sets `CUELINE_PORT`, `CUELINE_SERVICE_HOST`
/// and more in every container, see
/// <https://kubernetes.io/docs/tutorials/services/connect-applications-service/>. Settings of other roles are ignored
/// without a warning, because one environment may serve several roles.
pub(super) fn warnings(names: impl IntoIterator<Item = String>) -> Vec<String> {
    // The second is a secret's value.
    let families = ["CUELINE_TEST_", "CUELINE_SECRET_"];
    let is_other = |name: &String| {
        OTHERS.contains(&name.as_str()) || families.iter().any(|family| name.starts_with(*family))
    };
    let mut unknown: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with(PREFIX) && !is_other(name))
        .collect();
    // The settings of all roles are defined only for names that may be theirs.
    if unknown.is_empty() {
        return Vec::new();
    }
    let mut known: Vec<String> = schema::all()
        .map(|(_, definition)| schema::variable(&definition).to_owned())
        .collect();
    unknown.retain(|name| !known.contains(name));
    unknown.sort_unstable();
    known.extend(OTHERS.map(str::to_owned));

    // Names are compared without the prefix, because it makes all names similar.
    let bare = |name: &str| name.trim_start_matches(PREFIX).to_owned();
    let words: Vec<String> = known.iter().map(|name| bare(name)).collect();
    let (mut warnings, mut others) = (Vec::new(), Vec::new());
    for name in unknown {
        match nearest(&bare(&name), words.iter().map(String::as_str)) {
            Some(word) => warnings.push(format!(
                "{name}: unknown variable, ignored; did you mean \"{PREFIX}{word}\"?"
            )),
            None => others.push(name),
        }
    }
    if !others.is_empty() {
        warnings.push(format!(
            "{}: unknown variables, ignored; docs/configuration.md lists the known ones",
            others.join(", ")
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(names: &[&str]) -> Vec<String> {
        warnings(names.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn settings_of_any_role_and_variables_of_jobs_are_known() {
        let names = [
            "CUELINE_ALLOW",
            "CUELINE_STORE",
            "CUELINE_RUN_ID",
            "CUELINE_CONTEXT",
            "CUELINE_NAMESPACE",
            "CUELINE_TEST_NATS_BIN",
            "CUELINE_SECRET_DB",
            "CUELINE_SECRETS_DIR",
            "PATH",
        ];
        assert!(asked(&names).is_empty());
    }

    #[test]
    fn slips_are_named_with_what_was_meant_and_others_on_one_line() {
        assert_eq!(
            asked(&["CUELINE_SERVICE_HOST", "CUELINE_BROKR", "CUELINE_PORT"]),
            [
                "CUELINE_BROKR: unknown variable, ignored; did you mean \"CUELINE_BROKER\"?",
                "CUELINE_PORT, CUELINE_SERVICE_HOST: unknown variables, ignored; docs/configuration.md lists the known ones",
            ]
        );
    }
}
