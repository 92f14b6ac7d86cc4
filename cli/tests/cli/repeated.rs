//! Requests that are sent again, and changes of one version of a job.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::command::Home;
use crate::http::Recorder;

/// A server that loses its first answer.
fn losing(head: &'static str, body: &'static str) -> Recorder {
    let requests = AtomicUsize::new(0);
    Recorder::start(move |_| {
        if requests.fetch_add(1, Ordering::SeqCst) == 0 {
            return (String::new(), String::new());
        }
        (head.to_owned(), body.to_owned())
    })
}

#[test]
fn a_trigger_whose_answer_is_lost_is_sent_again_with_the_same_key() {
    let home = Home::new();
    let server = losing("200 OK", r#"{"runs":[7],"duplicate":true}"#);
    let said = home
        .run(&["--url", &server.url, "trigger", "report"])
        .good();
    assert_eq!(said, "run 7\n");
    let requests = server.requests();
    let keys: Vec<_> = requests
        .iter()
        .map(|request| request.header("idempotency-key"))
        .collect();
    assert_eq!(keys.len(), 2);
    assert!(keys[0].is_some() && keys[0] == keys[1], "{keys:?}");
    assert_eq!(requests[0].body, requests[1].body);
    home.run(&["--url", &server.url, "trigger", "report"])
        .good();
    let requests = server.requests();
    let other = requests[2].header("idempotency-key");
    assert_ne!(other, requests[0].header("idempotency-key"));
}

#[test]
fn a_key_of_the_user_is_sent_as_it_is() {
    let home = Home::new();
    let server = losing("200 OK", r#"{"runs":[7],"duplicate":true}"#);
    let args = ["--url", &server.url, "trigger", "report", "--key", "k 1"];
    let said = home.run(&args).good();
    assert!(said.contains("created earlier"), "{said}");
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert_eq!(request.header("idempotency-key"), None);
        assert!(request.body.contains("\"k 1\""), "{}", request.body);
    }
}

#[test]
fn a_token_whose_secret_is_lost_is_named() {
    let home = Home::new();
    let server = losing(
        "409 Conflict",
        r#"{"type":"cueline:already-created","title":"x","status":409,"detail":"the token 0123456789abcdef exists"}"#,
    );
    let args = [
        "--url",
        &server.url,
        "token",
        "create",
        "ci",
        "--grant",
        "viewer",
    ];
    let ended = home.run(&args);
    assert_eq!(ended.status, 1, "{ended:#?}");
    for part in ["0123456789abcdef", "create another one"] {
        assert!(ended.stderr.contains(part), "{ended:#?}");
    }
}

#[test]
fn a_change_of_one_version_has_its_entity_tag() {
    const JOB: &str = r#"{"id":17,"version":3,"name":"report","group":"default","schedule":{"every":"1h"},
        "handler":{"native":"x"},"next_fire":null,"last":null,"day":{}}"#;
    let home = Home::new();
    let server = Recorder::start(|line| {
        let body = if line.starts_with("GET") {
            JOB
        } else {
            r#"{"id":17,"name":"report"}"#
        };
        ("200 OK".to_owned(), body.to_owned())
    });
    for (command, tag) in [
        (
            &["pause", "report", "--if-version", "2"][..],
            Some("\"17-2\""),
        ),
        (&["delete", "report", "--if-version", "3"], Some("\"17-3\"")),
        (&["resume", "report"], None),
    ] {
        let args = [&["--url", &server.url, "job"][..], command].concat();
        home.run(&args).good();
        let requests = server.requests();
        let last = requests.last().expect("a request");
        assert_eq!(last.header("if-match"), tag, "{command:?}");
    }
    let wrong = ["job", "pause", "report", "--if-version", "0"];
    assert_eq!(home.run(&wrong).status, 2);
}
