//! The handler, environment and limits of a service.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::exec::{Command, Specifiers, Variables, commands, quoted, words};
use super::unit::{Unit, span};
use crate::import::{Draft, duration};

/// The search path that systemd gives to the services of the system.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Settings that are understood, or that mean nothing for a job.
const KNOWN: [&str; 21] = [
    "Type",
    "ExecStart",
    "ExecStartPre",
    "ExecStartPost",
    "ExecCondition",
    "Environment",
    "EnvironmentFile",
    "PassEnvironment",
    "UnsetEnvironment",
    "User",
    "DynamicUser",
    "WorkingDirectory",
    "TimeoutStartSec",
    "TimeoutSec",
    "TimeoutStopSec",
    "RuntimeMaxSec",
    "SyslogIdentifier",
    "StandardOutput",
    "StandardError",
    "StandardInput",
    "RemainAfterExit",
];

/// Writes what the service says into the draft.
pub(super) fn read(draft: &mut Draft, unit: &Unit, name: &str) -> Result<(), String> {
    let specifiers = Specifiers {
        unit: name.to_owned(),
    };
    let kind = unit.last("Service", "Type").unwrap_or("simple");
    if kind == "forking" {
        return Err(
            "Type=forking: the program leaves its work to a child and ends; give it an option to stay in the foreground, and Type=oneshot"
                .to_owned(),
        );
    }
    if unit.flag("Service", "DynamicUser")? {
        return Err(
            "DynamicUser=yes: a job has no user of its own making; give it a User= and try again"
                .to_owned(),
        );
    }
    if let Some(input) = unit
        .last("Service", "StandardInput")
        .filter(|i| *i != "null")
    {
        return Err(format!(
            "StandardInput={input}: a job has the field stdin; write the job by hand"
        ));
    }
    let env = environment(draft, unit, &specifiers)?;
    let commands = all_commands(draft, unit, &specifiers, &env)?;
    let process = process(draft, unit, &specifiers, env)?;
    handler(draft, &commands, process);
    limits(draft, unit, kind)?;
    conditions(draft, unit);
    rest(draft, unit);
    Ok(())
}

fn environment(
    draft: &mut Draft,
    unit: &Unit,
    specifiers: &Specifiers,
) -> Result<BTreeMap<String, String>, String> {
    let mut env = BTreeMap::new();
    for setting in unit.all("Service", "Environment") {
        let words =
            words(&setting.value).map_err(|e| format!("Environment={}: {e}", setting.value))?;
        for word in words {
            let text = specifiers.expand(&word.text)?;
            let (name, value) = text
                .split_once('=')
                .ok_or_else(|| format!("Environment={text}: NAME=value is expected"))?;
            env.insert(name.to_owned(), value.to_owned());
        }
    }
    for file in unit.all("Service", "EnvironmentFile") {
        draft.left_out(format!(
            "EnvironmentFile={}: write its variables into handler.env, or name secrets there",
            file.value
        ));
    }
    for names in unit.all("Service", "PassEnvironment") {
        draft.left_out(format!(
            "PassEnvironment={}: write the variables into handler.env",
            names.value
        ));
    }
    for names in unit.all("Service", "UnsetEnvironment") {
        for name in names.value.split_whitespace() {
            env.remove(name);
        }
    }
    Ok(env)
}

fn all_commands(
    draft: &mut Draft,
    unit: &Unit,
    specifiers: &Specifiers,
    env: &BTreeMap<String, String>,
) -> Result<Vec<Command>, String> {
    let is_complete = unit.all("Service", "EnvironmentFile").is_empty()
        && unit.all("Service", "PassEnvironment").is_empty()
        && unit.last("Service", "User").is_none();
    let variables = Variables {
        known: env,
        is_complete,
    };
    let mut found = Vec::new();
    for key in ["ExecStartPre", "ExecStart", "ExecStartPost"] {
        for setting in unit.all("Service", key) {
            let commands = commands(&setting.value, specifiers, &variables)
                .map_err(|e| format!("{key}={}: {e}", setting.value))?;
            if key == "ExecStart" && commands.is_empty() {
                return Err(format!("{key}={}: a program is expected", setting.value));
            }
            found.extend(commands);
        }
    }
    if unit.all("Service", "ExecStart").is_empty() {
        return Err("there is no ExecStart=; a program is expected there".to_owned());
    }
    let has_user = unit
        .last("Service", "User")
        .is_some_and(|user| user != "root");
    for command in &found {
        let program = &command.argv[0];
        if command.is_privileged && has_user {
            return Err(format!(
                "{program} has a prefix '+' or '!': it runs with other rights than the rest; write a job of its own for it"
            ));
        }
        if let Some(argv0) = &command.argv0 {
            draft.left_out(format!(
                "the name {argv0:?} that {program} gets by the prefix '@'"
            ));
        }
    }
    Ok(found)
}

fn process(
    draft: &mut Draft,
    unit: &Unit,
    specifiers: &Specifiers,
    mut env: BTreeMap<String, String>,
) -> Result<Map<String, Value>, String> {
    env.entry("PATH".to_owned())
        .or_insert_with(|| PATH.to_owned());
    let mut process = Map::new();
    process.insert("clear_env".to_owned(), true.into());
    process.insert("env".to_owned(), json!(env));
    match unit.last("Service", "WorkingDirectory") {
        // The home directory of the user, as without `cwd`.
        Some("~") => {}
        Some(folder) => {
            let folder = match folder.strip_prefix('-') {
                Some(folder) => {
                    draft.changed(format!(
                        "WorkingDirectory=-{folder}: a run fails if the directory does not exist"
                    ));
                    folder
                }
                None => folder,
            };
            process.insert("cwd".to_owned(), specifiers.expand(folder)?.into());
        }
        None => {
            process.insert("cwd".to_owned(), "/".into());
        }
    }
    if let Some(user) = unit.last("Service", "User") {
        process.insert("run_as".to_owned(), specifiers.expand(user)?.into());
    }
    Ok(process)
}

/// One command is a `command`. Several, or one that may fail, are a script that stops at the first failure.
fn handler(draft: &mut Draft, commands: &[Command], process: Map<String, Value>) {
    let mut fields = process;
    if let [only] = commands
        && !only.may_fail
    {
        fields.insert("argv".to_owned(), json!(only.argv));
        draft.set("handler", json!({ "command": fields }));
        return;
    }
    let mut script = "set -e\n".to_owned();
    for command in commands {
        let words: Vec<String> = command.argv.iter().map(|word| quoted(word)).collect();
        script.push_str(&words.join(" "));
        script.push_str(if command.may_fail { " || true\n" } else { "\n" });
    }
    fields.insert("script".to_owned(), script.into());
    fields.insert("interpreter".to_owned(), "sh".into());
    draft.changed("its commands are one shell script, because a job has one handler");
    draft.set("handler", json!({ "shell": fields }));
}

fn limits(draft: &mut Draft, unit: &Unit, kind: &str) -> Result<(), String> {
    let read = |key: &str| {
        unit.last("Service", key)
            .map(|text| span(text).map_err(|e| format!("{key}={text}: {e}")))
            .transpose()
            .map(Option::flatten)
    };
    // The work of a oneshot service is its start.
    let start = match read("TimeoutStartSec")? {
        None => read("TimeoutSec")?,
        given => given,
    };
    let timeout = if kind == "oneshot" {
        start
    } else {
        read("RuntimeMaxSec")?
    };
    // 0 turns the limit off.
    if let Some(ms) = timeout.filter(|ms| *ms > 0) {
        draft.set("timeout", duration(ms));
    }
    if let Some(ms) = read("TimeoutStopSec")? {
        draft.set("kill_grace", duration(ms));
    }
    Ok(())
}

/// Conditions would make systemd skip a start.
fn conditions(draft: &mut Draft, unit: &Unit) {
    let mut found: Vec<String> = unit
        .in_section("Unit")
        .filter(|s| s.key.starts_with("Condition") || s.key.starts_with("Assert"))
        .filter(|s| !s.value.is_empty())
        .map(|s| format!("{}={}", s.key, s.value))
        .collect();
    for setting in unit.all("Service", "ExecCondition") {
        found.push(format!("ExecCondition={}", setting.value));
    }
    if !found.is_empty() {
        draft.pause(format!(
            "a job has no conditions ({}); put them into the command, then resume the job",
            found.join(", ")
        ));
    }
}

/// Names what is left in one note.
fn rest(draft: &mut Draft, unit: &Unit) {
    const QUIET: [&str; 4] = [
        "Description",
        "Documentation",
        "DefaultDependencies",
        "SourcePath",
    ];
    let mut names: Vec<&str> = unit
        .settings
        .iter()
        .filter(|s| match s.section.as_str() {
            "Service" => !KNOWN.contains(&s.key.as_str()),
            "Unit" => {
                !QUIET.contains(&s.key.as_str())
                    && !s.key.starts_with("Condition")
                    && !s.key.starts_with("Assert")
            }
            "Install" => false,
            section => !section.starts_with("X-"),
        })
        .map(|s| s.key.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    if !names.is_empty() {
        draft.left_out(format!(
            "settings without a counterpart: {}",
            names.join(", ")
        ));
    }
}
