//! A worker without a free descriptor. This binary has one test, because the limit holds for its whole process.
#![cfg(target_os = "linux")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use cueline_handlers::{HttpHandler, ShellHandler};
use cueline_worker::model::HandlerSpec;
use cueline_worker::model::handler::HttpSpec;
use cueline_worker::{Handler as _, StopReason, testing};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::{MARKER, info, message, sh, shell};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Long enough for several tries.
const LOOK: Duration = Duration::from_millis(300);

/// Standard input, output and error have these. No file or connection can be opened.
const NONE_FREE: u64 = 3;

fn limit_descriptors(soft: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("set");
}

#[tokio::test]
async fn an_attempt_waits_for_descriptors_until_it_runs_or_is_stopped() {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
    // The first process opens what the runtime needs for all.
    let (first, _) = shell(sh("true")).await;
    first.expect("a process");
    a_process_starts_later(soft).await;
    a_process_that_is_stopped_never_starts(soft).await;
    a_request_is_sent_later(soft).await;
    certificates_are_read_later(soft).await;
}

async fn a_process_starts_later(soft: u64) {
    let handler = ShellHandler::new(MARKER);
    let (cx, _recorded) = testing::context(info(HandlerSpec::from(sh("echo ran"))));
    let mut running = handler.run(cx);
    limit_descriptors(NONE_FREE);
    let early = timeout(LOOK, &mut running).await;
    limit_descriptors(soft);
    assert!(early.is_err(), "it did not wait: {early:?}");
    let output = running.await.expect("it runs");
    assert_eq!(output.text.as_deref(), Some("ran"));
}

async fn a_process_that_is_stopped_never_starts(soft: u64) {
    let handler = ShellHandler::new(MARKER);
    let (cx, _recorded) = testing::context(info(HandlerSpec::from(sh("echo ran"))));
    let mut running = handler.run(cx.clone());
    limit_descriptors(NONE_FREE);
    let early = timeout(LOOK, &mut running).await;
    testing::stop(&cx, StopReason::Cancelled);
    let stopped = running.await;
    limit_descriptors(soft);
    assert!(early.is_err(), "it did not wait: {early:?}");
    assert_eq!(message(stopped), "not started (cancelled)");
}

fn get(url: String) -> HttpSpec {
    HttpSpec {
        url,
        method: "GET".to_owned(),
        headers: BTreeMap::new(),
        body: None,
        redirects: 0,
        expect: Vec::new(),
    }
}

async fn a_request_is_sent_later(soft: u64) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let handler = HttpHandler::new();
    let (cx, _recorded) =
        testing::context(info(HandlerSpec::from(get(format!("http://{address}")))));
    let mut running = handler.run(cx);
    limit_descriptors(NONE_FREE);
    let early = timeout(LOOK, &mut running).await;
    limit_descriptors(soft);
    assert!(early.is_err(), "it did not wait: {early:?}");
    let answer = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut request = [0; 4_096];
        let read = stream.read(&mut request).await.expect("a request");
        assert!(read > 0, "it ended");
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
        stream.write_all(response).await.expect("sent");
    };
    let (output, ()) = tokio::join!(running, answer);
    assert_eq!(output.expect("an answer").text.as_deref(), Some("ok"));
}

/// Of the authorities that an `https` request trusts.
async fn certificates_are_read_later(soft: u64) {
    if rustls_native_certs::load_native_certs().certs.is_empty() {
        println!("skipped: this machine has no certificates of authorities to be read");
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let handler = HttpHandler::new();
    let (cx, _recorded) =
        testing::context(info(HandlerSpec::from(get(format!("https://{address}")))));
    let mut running = handler.run(cx);
    limit_descriptors(NONE_FREE);
    let early = timeout(LOOK, &mut running).await;
    limit_descriptors(soft);
    assert!(early.is_err(), "it did not wait: {early:?}");
    // A later connection is refused.
    drop(listener);
    let failure = message(running.await);
    assert!(failure.contains("connection refused"), "{failure}");
}
