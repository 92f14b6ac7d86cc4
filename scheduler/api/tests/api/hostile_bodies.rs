//! Bodies that no honest client sends.

use crate::hostile::{assert_alive, assert_refused, posted};
use crate::raw::{Raw, post};
use crate::server::Server;

#[tokio::test]
async fn bodies_that_are_made_to_confuse() {
    let deep = format!("{{\"jobs\": {}", "[".repeat(100_000));
    let object = format!("{}1{}", "{\"a\":".repeat(2_000), "}".repeat(2_000));
    let twice = br#"{"dry_run": true, "dry_run": false, "jobs": []}"#;
    let job_twice = br#"{"jobs": [{"name": "a", "handler": {"native": "x"}, "name": "b", "schedule": {"manual": true}}]}"#;
    let large = format!("{{\"jobs\": [{}7]}}", "7,".repeat(1_000_000));
    assert_refused(&[
        (
            "100,000 lists in each other",
            post("/api/v1/jobs/apply", deep.as_bytes()),
            &[400],
        ),
        (
            "2,000 objects in each other",
            post("/api/v1/jobs/apply", object.as_bytes()),
            &[400],
        ),
        (
            "a key that is given twice",
            post("/api/v1/jobs/apply", twice),
            &[400],
        ),
        (
            "a name that is given twice",
            post("/api/v1/jobs/apply", job_twice),
            &[400],
        ),
        (
            "a million wrong jobs",
            post("/api/v1/jobs/apply", large.as_bytes()),
            &[422],
        ),
        (
            "no UTF-8",
            post("/api/v1/jobs/apply", b"{\"jobs\": \"\xff\"}"),
            &[400],
        ),
        (
            "a NUL in a parameter",
            post("/api/v1/jobs/none/trigger", br#"{"params": "a\u0000b"}"#),
            &[400],
        ),
        (
            "a NUL in a key",
            post(
                "/api/v1/jobs/none/trigger",
                br#"{"idempotency_key": "\u0000"}"#,
            ),
            &[400],
        ),
        (
            "escapes of a terminal in a name",
            post(
                "/api/v1/jobs/apply",
                br#"{"jobs": [{"name": "\u001b[2J\u009b31m"}]}"#,
            ),
            &[422],
        ),
        (
            "escapes of a terminal in a field",
            post(
                "/api/v1/jobs/apply",
                br#"{"\u001b]0;title\u0007": 1, "jobs": []}"#,
            ),
            &[400],
        ),
        (
            "a number beyond every range",
            post(
                "/api/v1/preview",
                br#"{"schedule": {"every": "1h"}, "n": 1e400}"#,
            ),
            &[400],
        ),
    ])
    .await;
}

#[tokio::test]
async fn bodies_over_the_limit_end_with_413_however_they_are_sent() {
    let server = Server::start().await;
    let long = vec![b' '; cueline_api::MAX_BODY_BYTES + 1_000_000];
    let mut chunks = Vec::new();
    for part in long.chunks(60_000) {
        chunks.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        chunks.extend_from_slice(part);
        chunks.extend_from_slice(b"\r\n");
    }
    chunks.extend_from_slice(b"0\r\n\r\n");
    for (name, bytes) in [
        ("declared", post("/api/v1/jobs/apply", &long)),
        (
            "in chunks",
            posted(&["Transfer-Encoding: chunked"], &chunks),
        ),
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(&bytes).await;
        // The response may be lost, because the server does not read the rest.
        let reply = raw.reply().await;
        assert!(reply.is_none_or(|reply| reply.status == 413), "{name}");
        assert_alive(&server, name).await;
    }
}
