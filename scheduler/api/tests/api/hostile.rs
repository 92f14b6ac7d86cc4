//! Requests that no honest client sends. Each is refused or its connection closed, and the server continues.

use reqwest::{Method, StatusCode};

use crate::raw::{Raw, request};
use crate::server::Server;

/// The connection is closed without a response, or its response is lost because the server did not read everything.
const CLOSED: u16 = 0;

pub(crate) async fn assert_alive(server: &Server, after: &str) {
    let answer = server.send(server.bare(Method::GET, "/livez")).await;
    assert_eq!(answer.status, StatusCode::OK, "after {after}");
    assert_eq!(
        server.get("/jobs").await.status,
        StatusCode::OK,
        "after {after}"
    );
}

/// Sends each case on a connection of its own. One of its statuses must follow, then the server must be alive.
pub(crate) async fn assert_refused(cases: &[(&str, Vec<u8>, &[u16])]) {
    let server = Server::start().await;
    for (name, bytes, expected) in cases {
        let mut raw = Raw::connect(&server).await;
        raw.send(bytes).await;
        let reply = raw.reply().await;
        let status = reply.as_ref().map_or(CLOSED, |reply| reply.status);
        assert!(expected.contains(&status), "{name}: {status}, {reply:?}");
        if let Some(reply) = reply {
            let control = reply.body.iter().find(|b| **b < 0x20 && **b != b'\n');
            assert_eq!(control, None, "{name}: {reply:?}");
        }
        assert_alive(&server, name).await;
    }
}

fn get(path: &str) -> Vec<u8> {
    request(&format!("GET {path} HTTP/1.1"), &[], b"")
}

fn plain(text: &str) -> Vec<u8> {
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
    let long = "x".repeat(2 * cueline_api::MAX_HEAD_BYTES);
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
    assert_refused(&[
        ("HTTP/0.9", plain("GET /livez\r\n\r\n"), &[400, CLOSED]),
        (
            "HTTP/3.0",
            plain("GET /livez HTTP/3.0\r\n\r\n"),
            &[400, 505, CLOSED],
        ),
        (
            "the preface of HTTP/2",
            plain("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            &[400, 505, CLOSED],
        ),
        (
            "the start of TLS",
            vec![
                0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03,
            ],
            &[400, CLOSED],
        ),
        (
            "bytes without a meaning",
            (0..=255).collect(),
            &[400, CLOSED],
        ),
        (
            "an empty line and a space",
            plain("\r\n \r\n\r\n"),
            &[400, CLOSED],
        ),
        (
            "only line ends",
            plain(&format!("{}x\r\n\r\n", "\r\n".repeat(1_000))),
            &[400, CLOSED],
        ),
    ])
    .await;
}

#[tokio::test]
async fn lengths_and_encodings_that_proxies_may_read_differently() {
    let chunked = "Transfer-Encoding: chunked";
    assert_refused(&[
        (
            "two lengths",
            posted(&["Content-Length: 2", "Content-Length: 3"], b"{} "),
            &[400],
        ),
        (
            "a negative length",
            posted(&["Content-Length: -1"], b""),
            &[400],
        ),
        (
            "a length with a sign",
            posted(&["Content-Length: +2"], b"{}"),
            &[400],
        ),
        (
            "lengths in a list",
            posted(&["Content-Length: 2, 3"], b"{}"),
            &[400],
        ),
        (
            "a length beyond 64 bits",
            posted(&["Content-Length: 18446744073709551616"], b"{}"),
            &[400],
        ),
        (
            "the largest length",
            posted(&["Content-Length: 18446744073709551615"], b"{}"),
            &[400, 413, 431],
        ),
        (
            "another encoding",
            posted(&["Transfer-Encoding: identity"], b""),
            &[400],
        ),
        (
            "an encoding after chunked",
            posted(&["Transfer-Encoding: chunked, gzip"], b""),
            &[400],
        ),
        (
            "chunks in HTTP/1.0",
            request("POST /api/v1/preview HTTP/1.0", &[chunked], b"0\r\n\r\n"),
            &[400],
        ),
        (
            "a space before the colon",
            posted(&["Content-Length : 2"], b"{}"),
            &[400],
        ),
        (
            "a folded header",
            posted(&["X-A: 1\r\n 2", "Content-Length: 0"], b""),
            &[400],
        ),
        (
            "a chunk without a size",
            posted(&[chunked], b"zz\r\n{}\r\n0\r\n\r\n"),
            &[400, CLOSED],
        ),
        (
            "a chunk beyond 64 bits",
            posted(&[chunked], b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
            &[400, CLOSED],
        ),
        (
            "line feeds alone",
            plain("GET /livez HTTP/1.1\nHost: localhost\n\n"),
            &[200, 400],
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_request_hidden_in_a_body_is_not_answered() {
    let server = Server::start().await;
    let hidden = b"0\r\n\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for headers in [
        ["Content-Length: 44", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 44"],
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(&posted(&headers, hidden)).await;
        let first = raw.reply().await.map(|reply| reply.status);
        assert!(matches!(first, Some(400 | 404)), "{first:?}");
        let second = raw.reply().await;
        assert!(second.is_none(), "{headers:?}: {second:?}");
        assert_alive(&server, "a hidden request").await;
    }
}

#[tokio::test]
async fn targets_and_methods_that_mean_something_elsewhere() {
    assert_refused(&[
        (
            "another host",
            get("http://evil.example/livez"),
            &[200, 400, 421],
        ),
        (
            "a tunnel",
            request("CONNECT evil.example:443 HTTP/1.1", &[], b""),
            &[400, 404, 405, CLOSED],
        ),
        (
            "the server as a whole",
            request("OPTIONS * HTTP/1.1", &[], b""),
            &[400, 404, 405],
        ),
        (
            "a method of its own",
            request("BREW /livez HTTP/1.1", &[], b""),
            &[405],
        ),
        (
            "another method in a header",
            request(
                "POST /api/v1/jobs/none HTTP/1.1",
                &["X-HTTP-Method-Override: DELETE", "Content-Length: 0"],
                b"",
            ),
            &[405],
        ),
        ("a separator in a name", get("/api/v1/jobs/a%2Fb"), &[400]),
        (
            "a way up in a name",
            get("/api/v1/jobs/..%2F..%2Flivez"),
            &[400],
        ),
        ("a way up", get("/api/v1/jobs/../../livez"), &[404]),
        ("a NUL in a name", get("/api/v1/jobs/a%00"), &[400]),
        ("an escape in a name", get("/api/v1/jobs/%1b%5b31m"), &[400]),
        ("no UTF-8 in a name", get("/api/v1/jobs/%ff%fe"), &[400]),
        ("half an encoding", get("/api/v1/jobs/a%2"), &[400]),
        ("a NUL in a query", get("/api/v1/jobs?after=%00"), &[400]),
        (
            "an escape as a parameter",
            get("/api/v1/jobs?%1b%5b2J=1"),
            &[400],
        ),
        ("a bare NUL in the target", get("/api/v1/jobs/a\0"), &[400]),
        (
            "a bare escape in the target",
            get("/api/v1/\x1b[2J"),
            &[400],
        ),
        (
            "a NUL in a header",
            request("GET /livez HTTP/1.1", &["X-A: \0"], b""),
            &[400],
        ),
        (
            "an announced body that has no bytes",
            posted(&["Expect: 100-continue", "Content-Length: 0"], b""),
            &[404],
        ),
    ])
    .await;
}
