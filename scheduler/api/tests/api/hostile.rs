//! Requests that no honest client sends. Each is refused or its connection closed, and the server continues.

mod connections;
mod framing;
mod headers;
mod parsing;
mod problems;
mod targets;
mod texts;

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::raw::{Raw, request};
use crate::server::Server;

/// The connection is closed without a response, or its response is lost because the server did not read everything.
pub(crate) const CLOSED: u16 = 0;

/// The next request is answered, and the store with it.
pub(crate) async fn assert_alive(server: &Server, after: &str) {
    for path in ["/livez", "/readyz"] {
        let answer = server.send(server.bare(Method::GET, path)).await;
        assert_eq!(answer.status, StatusCode::OK, "{path} after {after}");
    }
    assert_eq!(
        server.get("/jobs").await.status,
        StatusCode::OK,
        "after {after}"
    );
}

/// Jobs are still accepted and triggered.
pub(crate) async fn assert_fires(server: &Server) {
    let job = json!({ "name": "fires", "schedule": {"manual": true}, "handler": {"native": "x"} });
    let applied = server
        .post("/jobs/apply", &json!({ "jobs": [job] }))
        .await
        .good();
    assert_eq!(applied["applied"][0]["name"], "fires");
    let fired = server.post("/jobs/fires/trigger", &json!({})).await;
    assert_eq!(fired.status, StatusCode::ACCEPTED, "{fired:?}");
}

/// Sends each case on a connection of its own. One of its statuses must follow, then the server must be alive.
pub(crate) async fn assert_refused(cases: &[(&str, Vec<u8>, &[u16])]) {
    let server = Server::start().await;
    for (name, bytes, expected) in cases {
        assert_reply(&server, name, bytes, expected).await;
    }
    assert_fires(&server).await;
}

/// Sends each case on a connection of its own. Exactly its status must follow, then the server must be alive.
pub(crate) async fn assert_answered(cases: &[(&str, Vec<u8>, u16)]) {
    let server = Server::start().await;
    for (name, bytes, expected) in cases {
        assert_reply(&server, name, bytes, &[*expected]).await;
    }
    assert_fires(&server).await;
}

async fn assert_reply(server: &Server, name: &str, bytes: &[u8], expected: &[u16]) {
    let mut raw = Raw::connect(server).await;
    raw.send(bytes).await;
    let reply = raw.reply().await;
    let status = reply.as_ref().map_or(CLOSED, |reply| reply.status);
    assert!(expected.contains(&status), "{name}: {status}, {reply:?}");
    if let Some(reply) = reply {
        let control = reply.body.iter().find(|b| **b < 0x20 && **b != b'\n');
        assert_eq!(control, None, "{name}: {reply:?}");
    }
    assert_alive(server, name).await;
}

/// Sends `bytes` on one connection. Exactly these statuses must follow, and then the end of the connection.
pub(crate) async fn assert_replies(server: &Server, name: &str, bytes: &[u8], expected: &[u16]) {
    let mut raw = Raw::connect(server).await;
    raw.send(bytes).await;
    let mut statuses = Vec::new();
    while let Some(reply) = raw.reply().await {
        statuses.push(reply.status);
    }
    assert_eq!(statuses, expected, "{name}");
    assert_alive(server, name).await;
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    request(&format!("GET {path} HTTP/1.1"), &[], b"")
}

pub(crate) fn plain(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn headers(count: usize) -> Vec<u8> {
    let lines: Vec<String> = (0..count).map(|i| format!("X-{i}: 1")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    request("GET /livez HTTP/1.1", &lines, b"")
}

pub(crate) fn posted(headers: &[&str], body: &[u8]) -> Vec<u8> {
    let headers = [&["Content-Type: application/json"][..], headers].concat();
    request("POST /api/v1/jobs/none/pause HTTP/1.1", &headers, body)
}

#[tokio::test]
async fn heads_that_are_too_large() {
    let long = "x".repeat(2 * cueline_http::MAX_HEAD_BYTES);
    let value = format!("X-Long: {long}");
    assert_refused(&[
        ("too many headers", headers(150), &[431]),
        (
            "a hundred thousand headers",
            headers(100_000),
            &[431, CLOSED],
        ),
        (
            "a large header",
            request("GET /livez HTTP/1.1", &[&value], b""),
            &[431, CLOSED],
        ),
        (
            "a large query",
            get(&format!("/livez?{long}")),
            &[431, 414, CLOSED],
        ),
        (
            "a large method",
            plain(&format!("{long} / HTTP/1.1\r\n\r\n")),
            &[400, 431, CLOSED],
        ),
        (
            "a query of 20,000 bytes",
            get(&format!("/api/v1/jobs?after={}", &long[..20_000])),
            &[400],
        ),
        (
            "10,000 parameters",
            get(&format!("/api/v1/jobs?{}", "&a".repeat(10_000))),
            &[400],
        ),
    ])
    .await;
}

#[tokio::test]
async fn what_is_no_http_1_1() {
    assert_answered(&[
        ("HTTP/0.9", plain("GET /livez\r\n\r\n"), 400),
        ("HTTP/3.0", plain("GET /livez HTTP/3.0\r\n\r\n"), 400),
        (
            "the preface of HTTP/2",
            plain("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            CLOSED,
        ),
        (
            "the start of TLS",
            vec![
                0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03,
            ],
            400,
        ),
        ("bytes without a meaning", (0..=255).collect(), 400),
        ("an empty line and a space", plain("\r\n \r\n\r\n"), 400),
        (
            "only line ends",
            plain(&format!("{}x\r\n\r\n", "\r\n".repeat(1_000))),
            400,
        ),
    ])
    .await;
}
