//! Connections that end in the middle, and clients that send without end.

use std::time::Duration;

use cueline_http::ServerLimits;

use crate::hostile::{assert_alive, assert_fires, get, plain, posted};
use crate::raw::{Raw, request};
use crate::server::Server;

/// Short, so that the test need not wait. Nothing asserts how soon it passes.
const SHORT: Duration = Duration::from_millis(300);

/// Longer than any test.
const LONG: Duration = Duration::from_hours(1);

/// Nothing ends by a time limit, and no connection gives way to another one.
const PATIENT: ServerLimits = ServerLimits {
    max_connections: 16,
    min_idle: LONG,
    handshake_timeout: LONG,
    head_timeout: LONG,
    body_timeout: LONG,
    write_timeout: LONG,
};

/// Requests that are not complete.
fn unfinished() -> [(&'static str, Vec<u8>); 5] {
    [
        ("nothing", Vec::new()),
        ("a part of a head", plain("GET /livez HTTP/1.1\r\nX-A: ")),
        (
            "a part of a body",
            posted(&["Content-Length: 100"], b"{\"a\": "),
        ),
        (
            "a part of a chunk",
            posted(&["Transfer-Encoding: chunked"], b"64\r\n{\"a\": "),
        ),
        (
            "an announced body",
            posted(&["Expect: 100-continue", "Content-Length: 100"], b""),
        ),
    ]
}

#[tokio::test]
async fn connections_that_are_reset_leave_their_places() {
    let server = Server::with(PATIENT).await;
    for (name, bytes) in unfinished() {
        // More than the server has places for. A place that was kept would let the next client wait for ever.
        for _ in 0..3 * PATIENT.max_connections {
            let mut raw = Raw::connect(&server).await;
            raw.send(&bytes).await;
            raw.reset();
        }
        let mut next = Raw::connect(&server).await;
        next.send(&request("GET /livez HTTP/1.1", &["Connection: close"], b""))
            .await;
        let status = next.reply().await.map(|reply| reply.status);
        assert_eq!(status, Some(200), "after {name}");
    }
    assert_fires(&server).await;
}

#[tokio::test]
async fn a_reset_before_the_answer_is_no_harm() {
    let server = Server::with(PATIENT).await;
    for _ in 0..3 * PATIENT.max_connections {
        let mut raw = Raw::connect(&server).await;
        raw.send(&get("/api/v1/jobs").repeat(20)).await;
        raw.reset();
    }
    assert_alive(&server, "resets").await;
    assert_fires(&server).await;
}

#[tokio::test]
async fn what_a_client_stops_sending_is_not_carried_out() {
    let server = Server::with(PATIENT).await;
    let statuses = [None, None, Some(400), Some(400), Some(400)];
    for ((name, bytes), expected) in unfinished().into_iter().zip(statuses) {
        let mut raw = Raw::connect(&server).await;
        raw.send(&bytes).await;
        raw.end_sending().await;
        let status = raw.reply().await.map(|reply| reply.status);
        assert_eq!(status, expected, "{name}");
        assert!(raw.reply().await.is_none(), "{name}: it is still open");
        assert_alive(&server, name).await;
    }
}

#[tokio::test]
async fn bodies_that_promise_more_than_there_can_be_end_with_their_client() {
    let server = Server::with(PATIENT).await;
    for (name, bytes) in [
        (
            "the largest length",
            posted(&["Content-Length: 18446744073709551613"], b"{}"),
        ),
        (
            "the largest chunk",
            posted(&["Transfer-Encoding: chunked"], b"ffffffffffffffff\r\n{}"),
        ),
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(&bytes).await;
        raw.end_sending().await;
        let status = raw.reply().await.map(|reply| reply.status);
        assert_eq!(status, Some(400), "{name}");
        assert_alive(&server, name).await;
    }
}

#[tokio::test]
async fn a_client_that_sends_requests_and_reads_no_answer_is_closed() {
    let server = Server::with(ServerLimits {
        write_timeout: SHORT,
        ..PATIENT
    })
    .await;
    let mut raw = Raw::connect(&server).await;
    raw.flood(&get("/api/v1").repeat(100)).await;
    assert_alive(&server, "a flood of requests").await;
    assert_fires(&server).await;
}

#[tokio::test]
async fn a_client_that_sends_no_end_of_its_head_is_closed() {
    let server = Server::with(PATIENT).await;
    let mut raw = Raw::connect(&server).await;
    raw.send(b"GET /livez HTTP/1.1\r\n").await;
    raw.flood(b"X-A: 1\r\n").await;
    assert_alive(&server, "a head without an end").await;
}

#[tokio::test]
async fn a_client_that_sends_no_end_of_its_body_is_closed() {
    let server = Server::with(PATIENT).await;
    for (name, head, part) in [
        (
            "one chunk",
            posted(&["Transfer-Encoding: chunked"], b"ffffffffffffffff\r\n"),
            vec![b' '; 10_000],
        ),
        (
            "small chunks",
            posted(&["Transfer-Encoding: chunked"], b""),
            [&b"64\r\n"[..], &[b' '; 100], b"\r\n"].concat().repeat(100),
        ),
        (
            "a large length",
            posted(&["Content-Length: 18446744073709551613"], b""),
            vec![b' '; 10_000],
        ),
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(&head).await;
        raw.flood(&part).await;
        assert_alive(&server, name).await;
    }
}
