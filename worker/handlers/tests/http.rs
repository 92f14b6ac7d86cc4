//! HTTP requests to a real, very small server.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use cueline_handlers::HttpHandler;
use cueline_worker::model::handler::HttpSpec;
use cueline_worker::model::{AttemptId, HandlerSpec, RunId, StoreId};
use cueline_worker::testing::{self, Recorded};
use cueline_worker::{AttemptInfo, Failure, Handler, LogStream, Output, StopReason};
use support::server::{answer, get, header, server};
use support::{info, message, out, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn run(spec: HttpSpec) -> (Result<Output, Failure>, Recorded) {
    let handler = HttpHandler::new();
    testing::run(&handler, info(HandlerSpec::from(spec))).await
}

#[tokio::test]
async fn a_request_names_its_run_and_its_response_is_kept() {
    let (url, mut requests) = server(|_| answer("200 OK", "one\ntwo\n")).await;
    let spec = HttpSpec {
        headers: BTreeMap::from([("X-Secret".into(), "hush".into())]),
        ..get(&format!("{url}/path?token=hush"))
    };
    let (result, recorded) = run(spec).await;
    assert_eq!(
        result.expect("success"),
        Output {
            text: Some("one\ntwo\n".into()),
            exit_status: Some(200)
        }
    );
    assert_eq!(out(&recorded), ["one", "two"]);
    let all = format!("{:?}", recorded.lines());
    assert!(!all.contains("hush"), "{all}");
    let request = requests.recv().await.expect("it came").to_lowercase();
    assert!(
        request.starts_with("get /path?token=hush http/1.1"),
        "{request}"
    );
    for header in [
        "x-secret: hush",
        "x-cueline-run: 41",
        "x-cueline-attempt: 2",
        "x-cueline-job: nightly",
        "x-cueline-fire-time: 2027-01-15t08:00:00.123z",
        "idempotency-key: 0123456789abcdef0123456789abcdef-41",
    ] {
        assert!(request.contains(&format!("\r\n{header}\r\n")), "{request}");
    }
}

/// A receiver recognises the repetition of a run by the key.
#[tokio::test]
async fn the_idempotency_key_is_the_same_in_all_attempts_of_a_run_only() {
    let (url, mut requests) = server(|_| answer("200 OK", "")).await;
    let handler = HttpHandler::new();
    let first = info(HandlerSpec::from(get(&url)));
    let mut keys = Vec::new();
    let retry = AttemptInfo {
        id: AttemptId {
            attempt: 3,
            ..first.id
        },
        ..first.clone()
    };
    let other_run = AttemptInfo {
        id: AttemptId {
            run: RunId(42),
            ..first.id
        },
        ..first.clone()
    };
    let other_store = AttemptInfo {
        store: StoreId(2),
        ..first.clone()
    };
    let of_the_job = HttpSpec {
        headers: BTreeMap::from([("idempotency-key".into(), "mine".into())]),
        ..get(&url)
    };
    let of_the_job = info(HandlerSpec::from(of_the_job));
    for info in [first, retry, other_run, other_store, of_the_job] {
        testing::run(&handler, info).await.0.expect("success");
        keys.push(header(
            &requests.recv().await.expect("it came"),
            "idempotency-key",
        ));
    }
    assert!(keys.iter().all(Option::is_some), "{keys:?}");
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], keys[2]);
    assert_ne!(keys[0], keys[3]);
    assert_eq!(keys[4].as_deref(), Some("mine"));
}

#[tokio::test]
async fn the_parameter_is_the_body_when_there_is_no_other() {
    let (url, mut requests) = server(|_| answer("204 No Content", "")).await;
    for (method, body, wanted) in [
        ("POST", None, "p 1"),
        ("PUT", Some("given"), "given"),
        ("GET", None, ""),
        ("DELETE", Some("given"), "given"),
    ] {
        let spec = HttpSpec {
            method: method.into(),
            body: body.map(|text| text.to_owned().into()),
            ..get(&url)
        };
        let (result, _) = run(spec).await;
        assert_eq!(result.expect("success").text, None);
        let request = requests.recv().await.expect("it came");
        assert!(request.starts_with(method), "{request}");
        assert_eq!(request.split_once("\r\n\r\n").expect("a body").1, wanted);
    }
}

#[tokio::test]
async fn the_http_status_decides() {
    let (url, _requests) = server(|_| answer("503 Service Unavailable", "busy")).await;
    let (result, recorded) = run(get(&url)).await;
    let failure = result.expect_err("a failure");
    assert_eq!(failure.message, "HTTP status 503 Service Unavailable");
    assert_eq!(failure.exit_status, Some(503));
    assert_eq!(out(&recorded), ["busy"]);
    let expected = HttpSpec {
        expect: vec![404, 503],
        ..get(&url)
    };
    assert_eq!(
        run(expected).await.0.expect("success").exit_status,
        Some(503)
    );
    let unexpected = HttpSpec {
        expect: vec![200],
        ..get(&url)
    };
    assert!(run(unexpected).await.0.is_err());
}

#[tokio::test]
async fn only_the_start_of_a_long_response_is_read() {
    let body = format!("a{}", "\u{e9}".repeat(100_000));
    let (url, _requests) = server(move |_| answer("200 OK", &body)).await;
    let (result, recorded) = run(get(&url)).await;
    let text = result.expect("success").text.expect("a text");
    assert_eq!(text.len(), 64 * 1024 - 1);
    assert!(!text.contains('\u{fffd}'));
    let log = stream(&recorded, LogStream::Log);
    assert!(
        log.iter().any(|line| line.contains("first 64 KiB")),
        "{log:?}"
    );
}

#[tokio::test]
async fn a_failed_request_names_its_cause() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let free = listener.local_addr().expect("bound");
    drop(listener);
    let text = message(run(get(&format!("http://{free}/?token=hush"))).await.0);
    assert_eq!(text, format!("connection refused by {free}"));
    let text = message(run(get("http://no-such-host.invalid/?token=hush")).await.0);
    assert!(
        text.starts_with("host not found: no-such-host.invalid:80"),
        "{text}"
    );
    let (url, _requests) = server(|_| answer("200 OK", "")).await;
    let plain = url.replace("http://", "");
    // The server speaks no TLS, so it never sees a complete request; it answers when the client's greeting has come.
    let (tls, _tls_requests) = tls_refuser().await;
    let text = message(run(get(&tls)).await.0);
    assert!(text.starts_with("TLS with 127.0.0.1"), "{text}");
    let (broken, _requests) =
        server(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".to_vec()).await;
    let text = message(run(get(&broken)).await.0);
    assert!(
        text.contains("the request to 127.0.0.1") && !text.contains("http://"),
        "{text}"
    );
    let (garbage, _requests) = server(|_| b"no http at all\r\n\r\n".to_vec()).await;
    let text = message(run(get(&format!("{garbage}/?token=hush"))).await.0);
    assert!(
        text.contains("the request to 127.0.0.1") && !text.contains("hush"),
        "{text}"
    );
    for (spec, wanted) in [
        (get("not a url"), "url: "),
        (get("ftp://x/"), "url: \"ftp\" is not supported"),
        (
            HttpSpec {
                method: "G T".into(),
                ..get(&url)
            },
            "method: \"G T\"",
        ),
        (
            HttpSpec {
                headers: BTreeMap::from([("a b".into(), "hush".into())]),
                ..get(&url)
            },
            "headers: \"a b\"",
        ),
        (
            HttpSpec {
                headers: BTreeMap::from([("a".into(), "hush\n".into())]),
                ..get(&url)
            },
            "headers: the value of \"a\"",
        ),
    ] {
        let text = message(run(spec).await.0);
        assert!(
            text.starts_with(wanted) && !text.contains("hush"),
            "{text} {plain}"
        );
    }
}

/// Answers a TLS greeting with plain text.
async fn tls_refuser() -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("bound"));
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    (url, task)
}

/// Its job has no time limit.
#[tokio::test]
async fn a_request_without_a_time_limit_has_a_default_one() {
    let (url, _requests) = server(|_| Vec::new()).await;
    let handler = HttpHandler::builder().default_timeout(Duration::from_millis(200));
    let handler = handler.build();
    let (result, _) = testing::run(&handler, info(HandlerSpec::from(get(&url)))).await;
    let text = message(result);
    assert!(text.contains("no whole response within 200ms"), "{text}");
    assert!(text.contains("set timeout"), "{text}");
}

#[tokio::test]
async fn stopping_drops_the_request() {
    let (url, mut requests) = server(|_| Vec::new()).await;
    let handler = HttpHandler::new();
    let (cx, _) = testing::context(info(HandlerSpec::from(get(&url))));
    let attempt = cx.clone();
    let task = tokio::spawn(async move { handler.run(attempt).await });
    requests.recv().await.expect("it came");
    testing::stop(&cx, StopReason::TimedOut);
    let text = message(task.await.expect("no panic"));
    assert!(text.starts_with("stopped"), "{text}");
    assert_eq!(requests.recv().await.as_deref(), Some("closed Ok(0)"));
}

#[tokio::test]
async fn a_request_that_is_stopped_before_its_start_is_not_sent() {
    let (url, mut requests) = server(|_| answer("200 OK", "")).await;
    let handler = HttpHandler::new();
    let (cx, _) = testing::context(info(HandlerSpec::from(get(&url))));
    testing::stop(&cx, StopReason::Fenced);
    let text = message(handler.run(cx).await);
    assert!(text.starts_with("not sent"), "{text}");
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn work_for_another_handler_is_refused() {
    let handler = HttpHandler::new();
    let (result, _) = testing::run(&handler, info(HandlerSpec::Native("x".into()))).await;
    assert!(message(result).contains("http handler was given a job of kind native:x"));
}
