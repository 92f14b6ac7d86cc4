//! Clients that are slow, silent or many. The server ends their connections, and serves the others meanwhile.

use std::time::Duration;

use cueline_http::ServerLimits;
use tokio::task::JoinSet;

use crate::hostile::assert_alive;
use crate::raw::{Raw, request};
use crate::server::{DEADLINE, Server, TOKEN, until};

/// Short, so that the test need not wait. Nothing asserts how soon it passes.
const SHORT: Duration = Duration::from_millis(300);

/// Longer than any test.
const LONG: Duration = Duration::from_hours(1);

const PATIENT: ServerLimits = ServerLimits {
    max_connections: 100,
    min_idle: LONG,
    handshake_timeout: LONG,
    head_timeout: LONG,
    body_timeout: LONG,
    write_timeout: LONG,
};

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let server = Server::with(ServerLimits {
        head_timeout: SHORT,
        ..PATIENT
    })
    .await;
    let mut raw = Raw::connect(&server).await;
    assert!(raw.reply().await.is_none());
    assert_alive(&server, "a silent connection").await;
}

#[tokio::test]
async fn a_head_that_never_ends_is_given_up() {
    let server = Server::with(ServerLimits {
        head_timeout: SHORT,
        ..PATIENT
    })
    .await;
    let mut raw = Raw::connect(&server).await;
    raw.send(b"GET /livez HTTP/1.1\r\nX-A: ").await;
    for _ in 0..50 {
        raw.send(b"x").await;
        tokio::task::yield_now().await;
    }
    assert!(raw.reply().await.is_none());
    assert_alive(&server, "a slow head").await;
}

#[tokio::test]
async fn a_connection_that_waits_for_its_next_request_is_closed() {
    let server = Server::with(ServerLimits {
        head_timeout: SHORT,
        ..PATIENT
    })
    .await;
    let mut raw = Raw::connect(&server).await;
    raw.send(&request("GET /livez HTTP/1.1", &[], b"")).await;
    let reply = raw.reply().await.expect("a reply");
    assert_eq!((reply.status, reply.text().as_str()), (200, "ok\n"));
    assert!(raw.reply().await.is_none());
    assert_alive(&server, "an idle connection").await;
}

#[tokio::test]
async fn a_body_that_never_ends_is_answered_with_408() {
    let server = Server::with(ServerLimits {
        body_timeout: SHORT,
        ..PATIENT
    })
    .await;
    let json = "Content-Type: application/json";
    let line = "POST /api/v1/jobs/apply HTTP/1.1";
    for (name, headers, start) in [
        ("declared", &["Content-Length: 100"][..], "{\"jobs\""),
        ("in chunks", &["Transfer-Encoding: chunked"], "4\r\n{\"jo"),
        (
            "announced",
            &["Content-Length: 100", "Expect: 100-continue"],
            "",
        ),
    ] {
        let headers = [&[json][..], headers].concat();
        let mut raw = Raw::connect(&server).await;
        raw.send(&request(line, &headers, start.as_bytes())).await;
        let reply = raw.reply().await.expect("a reply");
        assert_eq!(reply.status, 408, "{name}: {}", reply.text());
        assert!(reply.text().contains("cueline:too-slow"), "{name}");
        assert!(raw.reply().await.is_none(), "{name}: it is still open");
        assert_alive(&server, name).await;
    }
}

#[tokio::test]
async fn without_a_token_no_body_is_waited_for() {
    let server = Server::with(PATIENT).await;
    let mut raw = Raw::connect(&server).await;
    raw.send(b"POST /api/v1/jobs/apply HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n{")
        .await;
    let reply = raw.reply().await.expect("a reply");
    assert_eq!(reply.status, 401, "{}", reply.text());
    assert_alive(&server, "a body without a token").await;
}

/// A new connection is served. It is newer than all others, so it does not give way to them.
async fn assert_newcomer_is_served(server: &Server) {
    let mut raw = Raw::connect(server).await;
    raw.send(&request("GET /livez HTTP/1.1", &["Connection: close"], b""))
        .await;
    assert_eq!(raw.reply().await.map(|reply| reply.status), Some(200));
}

#[tokio::test]
async fn silent_connections_give_way_to_a_client() {
    let server = Server::with(ServerLimits {
        max_connections: 8,
        min_idle: Duration::ZERO,
        ..PATIENT
    })
    .await;
    let mut silent = Vec::new();
    for i in 0..100 {
        silent.push(Raw::connect(&server).await);
        if i % 10 == 9 {
            assert_newcomer_is_served(&server).await;
        }
    }
    until("at most 8 are open", async || {
        silent.iter().filter(|raw| !raw.is_closed()).count() <= 8
    })
    .await;
    assert_alive(&server, "silent connections").await;
}

#[tokio::test]
async fn slow_heads_give_way_to_a_client() {
    let server = Server::with(ServerLimits {
        max_connections: 4,
        min_idle: SHORT,
        ..PATIENT
    })
    .await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut raw = Raw::connect(&server).await;
        raw.send(b"GET /livez HTTP/1.1\r\nX-A: ").await;
        slow.push(raw);
    }
    assert_newcomer_is_served(&server).await;
    assert_alive(&server, "slow heads").await;
}

#[tokio::test]
async fn clients_beyond_the_limit_wait_while_all_others_have_requests() {
    let server = Server::with(ServerLimits {
        max_connections: 2,
        min_idle: LONG,
        ..PATIENT
    })
    .await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut raw = Raw::connect(&server).await;
        raw.begin().await;
        busy.push(raw);
    }
    let mut waiting = JoinSet::new();
    for _ in 0..10 {
        let mut raw = Raw::connect(&server).await;
        waiting.spawn(async move {
            let close = ["Connection: close"];
            raw.send(&request("GET /livez HTTP/1.1", &close, b"")).await;
            raw.reply().await.map(|reply| reply.status)
        });
    }
    for mut raw in busy {
        raw.finish().await;
    }
    while let Some(status) = waiting.join_next().await {
        assert_eq!(status.expect("a task"), Some(200));
    }
    assert_alive(&server, "waiting clients").await;
}

#[tokio::test]
async fn requests_in_one_packet_are_answered_in_order() {
    let server = Server::with(PATIENT).await;
    let mut raw = Raw::connect(&server).await;
    let one = request("GET /livez HTTP/1.1", &[], b"");
    let other = request("GET /elsewhere HTTP/1.1", &[], b"");
    raw.send(&[one, other].concat().repeat(50)).await;
    for _ in 0..50 {
        assert_eq!(raw.reply().await.map(|reply| reply.status), Some(200));
        assert_eq!(raw.reply().await.map(|reply| reply.status), Some(404));
    }
    assert_alive(&server, "a hundred requests").await;
}

#[tokio::test]
async fn a_stop_answers_the_request_in_progress_and_closes_the_others() {
    let server = Server::with(PATIENT).await;
    let state =
        cueline_api::ApiState::new(server.ports.clone(), server.admin.clone(), TOKEN.to_owned());
    let stop = cueline_runtime::Stop::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = cueline_api::router(state);
    let serving = tokio::spawn(cueline_http::serve(listener, router, PATIENT, stop.clone()));

    let mut idle = Raw::to(address).await;
    idle.send(&request("GET /livez HTTP/1.1", &[], b"")).await;
    assert_eq!(idle.reply().await.map(|reply| reply.status), Some(200));
    let mut busy = Raw::to(address).await;
    busy.begin().await;

    stop.ask_soft();
    assert!(idle.reply().await.is_none(), "it is still open");
    busy.finish().await;
    assert!(busy.reply().await.is_none(), "it is still open");
    let ended = tokio::time::timeout(DEADLINE, serving).await;
    ended.expect("the server ends").expect("no panic");
}
