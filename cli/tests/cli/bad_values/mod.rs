//! A table of bad values. Each is refused with a message that names the field and says what would be right: in a job file, by
//! the API, and by the command where it has a flag for the field. Each field of the OpenAPI document has a row.

mod flags;
mod rows;
mod schema;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::command::Home;
use crate::server::Server;
use rows::{Kind, Row};

/// What was said about a row: the field and the message.
type Said = BTreeMap<String, Vec<(String, String)>>;

/// The path of a field without the place of its definition in a list.
fn own_path(kind: Kind, field: &str) -> &str {
    let Some((place, rest)) = field.split_once(']') else {
        return field;
    };
    let list = place.split('[').next().unwrap_or_default();
    let is_of_definitions = kind
        .table()
        .is_some_and(|one| list == one || list.strip_suffix('s') == Some(one));
    if is_of_definitions {
        rest.trim_start_matches('.')
    } else {
        field
    }
}

/// The complaints about `said`, if it is not exactly the row's field and message.
fn complaints(row: &Row, where_: &str, said: &[(String, String)], all: &mut String) {
    let wanted = row.reported_field();
    let fits = |(field, message): &(String, String)| {
        own_path(row.kind, field) == wanted && message.contains(&row.says)
    };
    if said.len() != 1 || !fits(&said[0]) {
        writeln!(all, "{where_}: {row}\n    said: {said:?}").expect("a text");
    }
}

/// A value in TOML. Its basic strings have the escapes of JSON.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(toml).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|(key, value)| format!("{} = {}", Value::from(key.as_str()), toml(value)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

fn job_file(kind: Kind, body: &Map<String, Value>) -> String {
    let mut text = format!("[[{}]]\n", kind.table().expect("in job files"));
    for (key, value) in body.iter().filter(|(_, value)| !value.is_null()) {
        writeln!(text, "{} = {}", Value::from(key.as_str()), toml(value)).expect("a text");
    }
    text
}

/// Applies all rows at once, each from a file of its own.
fn said_of_files(rows: &[Row]) -> Said {
    let home = Home::new();
    let mut args = vec!["job".to_owned(), "apply".to_owned()];
    let in_files: Vec<&Row> = rows.iter().filter(|r| r.kind.table().is_some()).collect();
    for row in &in_files {
        let name = format!("{}.toml", row.id);
        home.write(&name, job_file(row.kind, &row.body));
        args.extend(["-f".to_owned(), name]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = home.run(&args);
    assert_eq!(ended.status, 2, "{ended:#?}");
    assert!(ended.stderr.ends_with("nothing was applied\n"));
    let mut said = Said::new();
    for line in ended.stderr.lines() {
        let Some((id, rest)) = line
            .strip_prefix("error: ")
            .and_then(|l| l.split_once(".toml:"))
        else {
            continue;
        };
        let (number, rest) = rest.split_once(": ").expect("a line number");
        assert!(number.parse::<u32>().is_ok_and(|n| n > 0), "{line}");
        // `job "a": ` is before the field, unless the name itself is missing.
        let rest = match rest.strip_prefix("job \"") {
            Some(named) => named.split_once("\": ").expect("a name").1,
            None => rest,
        };
        let (field, message) = rest.split_once(": ").unwrap_or(("", rest));
        let of_row = said.entry(id.to_owned()).or_default();
        of_row.push((field.to_owned(), message.to_owned()));
    }
    said
}

/// Sends each row to the API.
async fn said_of_requests(server: &Server, rows: &[Row]) -> Said {
    cueline_runtime::tls::install_provider();
    let token = std::fs::read_to_string(server.home.path().join("data/admin.token"));
    let token = token.expect("a token");
    let client = reqwest::Client::builder()
        .no_proxy()
        .build()
        .expect("a client");
    let mut said = Said::new();
    for row in rows {
        let body = Value::Object(row.body.clone());
        let (path, body) = match row.kind {
            Kind::Job => ("jobs/apply", json!({ "jobs": [body] })),
            Kind::Calendar => ("calendars/apply", json!({ "calendars": [body] })),
            Kind::Script => ("scripts/apply", json!({ "scripts": [body] })),
            Kind::Window => ("windows", body),
            Kind::Pause => ("pauses", body),
            Kind::Backfill => ("jobs/nightly/backfills", body),
            Kind::Trigger => ("jobs/nightly/trigger", body),
        };
        let url = format!("http://127.0.0.1:{}/api/v1/{path}", server.port());
        let request = client.post(url).bearer_auth(token.trim()).json(&body);
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("a body");
        let problem: Value = serde_json::from_str(&text).expect("JSON");
        let is_refused = [400, 422].contains(&status);
        let errors = problem["errors"].as_array().filter(|_| is_refused);
        let errors = errors.cloned().unwrap_or_default();
        let errors = errors.iter().map(|error| {
            let text = |key: &str| error[key].as_str().expect("a text").to_owned();
            (text("field"), text("message"))
        });
        said.insert(row.id.clone(), errors.collect());
    }
    said
}

#[test]
fn each_bad_value_gets_a_message_that_names_the_field_and_says_what_would_be_right() {
    let rows = rows::all();
    let mut all = String::new();
    let of_files = said_of_files(&rows);
    let none = Vec::new();
    for row in rows.iter().filter(|row| row.kind.table().is_some()) {
        let said = of_files.get(&row.id).unwrap_or(&none);
        complaints(row, "file", said, &mut all);
    }
    let server = Server::start();
    server.apply(
        "[[job]]\nname = \"nightly\"\nschedule = { cron = \"0 2 * * *\" }\nhandler = { shell = \"true\" }\n",
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let of_requests = runtime.block_on(said_of_requests(&server, &rows));
    for row in &rows {
        let said = &of_requests[&row.id];
        complaints(row, "request", said, &mut all);
        // People who move from files to the API read the same words.
        if let Some(of_file) = of_files.get(&row.id)
            && !of_file
                .iter()
                .map(|(_, m)| m)
                .eq(said.iter().map(|(_, m)| m))
        {
            writeln!(all, "differs: {row}\n    {of_file:?}\n    {said:?}").expect("a text");
        }
    }
    flags::check(&server, &rows, &mut all);
    assert!(all.is_empty(), "\n{all}");
}

#[test]
fn each_field_of_the_document_has_a_bad_value() {
    let rows = rows::all();
    let missing = schema::fields_without_a_row(&rows);
    assert!(
        missing.is_empty(),
        "add rows to cli/tests/cli/bad_values/rows.txt for {missing:#?}"
    );
}
