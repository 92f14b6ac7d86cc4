//! The rows whose definition the command can express by flags.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::rows::{Kind, Row};
use crate::server::Server;

/// The flags of a command that stand for fields.
fn flags(
    kind: Kind,
) -> (
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
) {
    match kind {
        Kind::Window => (
            &["window", "add"],
            &[
                ("all_namespaces", "--all-namespaces"),
                ("group", "--group"),
                ("labels", "--label"),
                ("start", "--start"),
                ("end", "--end"),
                ("cron", "--cron"),
                ("timezone", "--timezone"),
                ("duration", "--duration"),
                ("reason", "--reason"),
                ("owner", "--owner"),
            ],
        ),
        Kind::Pause => (
            &["pause"],
            &[
                ("all", "--all"),
                ("all_namespaces", "--all-namespaces"),
                ("group", "--group"),
                ("labels", "--label"),
                ("reason", "--reason"),
                ("for", "--for"),
                ("until", "--until"),
            ],
        ),
        Kind::Backfill => (
            &["backfill", "start", "nightly", "--dry-run"],
            &[
                ("from", "--from"),
                ("to", "--to"),
                ("parallel", "--parallel"),
                ("include_excluded", "--include-excluded"),
            ],
        ),
        Kind::Trigger => (
            &["trigger", "nightly"],
            &[
                ("params", "--param"),
                ("idempotency_key", "--key"),
                ("run_at", "--at"),
            ],
        ),
        Kind::Calendar => (
            &["calendar", "import", "a.ics"],
            &[("name", "--name"), ("timezone", "--timezone")],
        ),
        Kind::Script => (
            &["script", "save", "a", "--file", "a.sh"],
            &[("language", "--language"), ("remark", "--remark")],
        ),
        Kind::Job => (
            &["cron", "next"],
            &[("timezone", "--tz"), ("dialect", "--dialect")],
        ),
    }
}

/// Fields whose bad values a command line cannot have: texts that are good, and numbers that are texts there.
const WITHOUT_A_BAD_TEXT: [&str; 7] = [
    "--all",
    "--all-namespaces",
    "--include-excluded",
    "--label",
    "--owner",
    "--param",
    "--remark",
];

/// The arguments for a definition. `None` if flags cannot express it.
fn arguments(row: &Row) -> Option<Vec<String>> {
    let (command, flags) = flags(row.kind);
    let field = row.field.trim_start_matches("schedule.");
    let is_flag = flags.iter().any(|(own, _)| *own == field);
    if !is_flag && field != "-" && field != "cron" {
        return None;
    }
    let mut args: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    let mut body: Map<String, Value> = match row.kind {
        Kind::Job if row.field.starts_with("schedule.") => {
            row.body["schedule"].as_object()?.clone()
        }
        Kind::Job => return None,
        _ => row.body.clone(),
    };
    match row.kind {
        // The expression is a positional argument, and so are the names of scripts. Files have the rest.
        Kind::Job => args.push(body.remove("cron")?.as_str()?.to_owned()),
        Kind::Calendar if field == "-" => return None,
        Kind::Calendar => {
            body.remove("weekdays");
        }
        Kind::Script => {
            let (name, text) = (body.remove("name"), body.remove("text"));
            let is_good = name == Some("a".into()) && text == Some("true".into());
            is_good.then_some(())?;
        }
        _ => {}
    }
    // A key with `null` is one that is left out, and a command may have a default for it.
    let is_left_out = body.get(&row.field).is_some_and(Value::is_null);
    if is_left_out && matches!(row.kind, Kind::Backfill | Kind::Calendar | Kind::Script) {
        return None;
    }
    for (key, value) in &body {
        if value.is_null() {
            continue;
        }
        let (_, flag) = flags.iter().find(|(field, _)| field == key)?;
        match value {
            Value::Bool(true) => args.push((*flag).to_owned()),
            Value::String(text) if !text.contains('\0') => args.push(format!("{flag}={text}")),
            Value::Number(number) => args.push(format!("{flag}={number}")),
            _ => return None,
        }
    }
    Some(args)
}

/// Whether the type of a field is wrong, which a command line cannot express: all its values are texts.
fn is_of_a_wrong_type(row: &Row) -> bool {
    [
        "a text is expected",
        "a name is expected",
        "a table of texts is expected",
        "is given; give",
    ]
    .iter()
    .any(|says| row.says.contains(says))
}

pub(super) fn check(server: &Server, rows: &[Row], all: &mut String) {
    server.home.write("a.sh", "true\n");
    server.home.write(
        "a.ics",
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:a\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTAMP:20270101T000000Z\r\nDTSTART;VALUE=DATE:20270101\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n",
    );
    let mut applied = BTreeSet::new();
    for row in rows.iter().filter(|row| !is_of_a_wrong_type(row)) {
        let Some(args) = arguments(row) else { continue };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let field = row.field.trim_start_matches("schedule.");
        let of_field = flags(row.kind).1.iter().find(|(own, _)| *own == field);
        let ended = server.run(&args);
        let flag = of_field.map_or("", |(_, flag)| flag);
        let names_it = ended.stderr.contains(&format!("{field}: "))
            || (!flag.is_empty() && ended.stderr.contains(flag))
            || ended.stderr.contains(&row.says)
            // All that may be missing is named.
            || (field == "-" && ended.stderr.contains("--all|--all-namespaces|--group"));
        if ended.status != 2 || !ended.stderr.starts_with("error: ") || !names_it {
            writeln!(all, "command {args:?}: {row}\n    {ended:?}").expect("a text");
        }
        applied.insert(flag);
    }
    for (kind, ..) in Kind::ALL {
        for (_, flag) in flags(kind).1 {
            if !applied.contains(flag) && !WITHOUT_A_BAD_TEXT.contains(flag) {
                writeln!(all, "no row of {kind:?} is applied by {flag}").expect("a text");
            }
        }
    }
}
