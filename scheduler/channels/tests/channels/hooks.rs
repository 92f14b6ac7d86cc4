//! Webhooks, and the answers of chat services.

use cueline_channels::{ChannelOptions, webhook_signature};
use cueline_outbound::{AddressPolicy, parse_network};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::fixture::{NOW_MS, channel, channels, secrets, send};

/// A received request.
struct Received {
    head: String,
    body: String,
}

impl Received {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| {
            let (own, value) = line.split_once(": ")?;
            own.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// A server that answers one request.
async fn server(answer: &'static str) -> (String, oneshot::Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("is bound"));
    let (give, receive) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut bytes = Vec::new();
        let received = loop {
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).await.expect("reads");
            bytes.extend_from_slice(&buffer[..read]);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let received = Received {
                head: head.to_owned(),
                body: body.to_owned(),
            };
            let length: usize = received
                .header("content-length")
                .map_or(0, |length| length.parse().expect("a number"));
            if body.len() >= length {
                break received;
            }
        };
        stream.write_all(answer.as_bytes()).await.expect("writes");
        let _ = give.send(received);
    });
    (url, receive)
}

const ACCEPTED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nreceived";

/// The receiver verifies the signature over the time and the body, as docs/alarms.md says.
#[tokio::test]
async fn a_webhook_is_signed() {
    let (url, received) = server(ACCEPTED).await;
    let dir = secrets(&[("ops-hook", "a long secret\n")]);
    let options = ChannelOptions {
        secrets_dir: Some(dir.path().to_owned()),
        ..ChannelOptions::default()
    };
    let hook = json!({ "url": format!("{url}/alarms"), "secret": { "secret": "ops-hook" } });
    let hook = channel(json!({ "name": "ops", "webhook": hook }));
    let answer = send(&channels(options), &hook).await;
    assert_eq!(answer.as_deref(), Ok("200 received"));
    let received = received.await.expect("a request");
    assert!(
        received.head.starts_with("POST /alarms HTTP/1.1"),
        "{}",
        received.head
    );
    let timestamp: i64 = received
        .header("Cueline-Timestamp")
        .expect("a time")
        .parse()
        .expect("a number");
    assert_eq!(timestamp, NOW_MS / 1_000);
    let expected = webhook_signature("a long secret", timestamp, received.body.as_bytes());
    assert_eq!(
        received.header("Cueline-Signature"),
        Some(expected.as_str())
    );
    let other = webhook_signature("another secret", timestamp, received.body.as_bytes());
    assert_ne!(expected, other);
    assert_eq!(received.header("Cueline-Delivery"), Some("7"));
    let body: Value = serde_json::from_str(&received.body).expect("JSON");
    assert_eq!(body["version"], 1);
    assert_eq!(body["rule"], "backups");
    assert_eq!(body["events"][0]["job"], "nightly-backup");
    assert_eq!(body["events"][0]["run"], 42);
    assert_eq!(body["events"][0]["condition"], "failed");
    assert_eq!(body["title"], "Cueline: nightly-backup failed");
}

/// The URL of a chat service is a secret: an answer that repeats it does not show it.
#[tokio::test]
async fn a_url_may_be_a_secret_and_is_in_no_answer() {
    let answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 31\r\nConnection: close\r\n\r\nno such token 0123456789abcdef..";
    let (url, received) = server(answer).await;
    let secret = format!("{url}/services/0123456789abcdef");
    let dir = secrets(&[("slack", &secret), ("part", "0123456789abcdef")]);
    let options = ChannelOptions {
        secrets_dir: Some(dir.path().to_owned()),
        ..ChannelOptions::default()
    };
    let slack = channel(json!({ "name": "chat", "slack": { "url": { "secret": "slack" } } }));
    let refused = send(&channels(options), &slack)
        .await
        .expect_err("is refused");
    assert!(refused.is_permanent);
    assert!(!refused.answer.contains(&url), "{}", refused.answer);
    let received = received.await.expect("a request");
    let body: Value = serde_json::from_str(&received.body).expect("JSON");
    let text = body["text"].as_str().expect("a text");
    assert!(
        text.starts_with("*Cueline: nightly-backup failed*\n"),
        "{text}"
    );
}

/// Servers repeat parts of the address: the path, with escaped slashes, or the token alone.
#[tokio::test]
async fn no_part_of_a_secret_url_is_in_an_answer() {
    let token = "0123456789abcdef0123";
    let bodies = [
        format!("Cannot POST /services/T0/{token}?thread=abcdef0123456789abcdef"),
        format!("https://elsewhere.example/services/T0/{token}?thread=abcdef0123456789abcdef"),
        format!("{{\"path\":\"\\/services\\/T0\\/{token}\"}}"),
        format!("no such token {token}"),
        "thread abcdef0123456789abcdef is closed".to_owned(),
        // It breaks off within the address.
        format!("{}/services/T0/{token}", " ".repeat(1_975)),
    ];
    for body in bodies {
        let head = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length:";
        let answer = format!("{head} {}\r\n\r\n{body}", body.len());
        let (url, _received) = server(answer.leak()).await;
        let secret = format!("{url}/services/T0/{token}?thread=abcdef0123456789abcdef");
        let dir = secrets(&[("slack", &secret)]);
        let options = ChannelOptions {
            secrets_dir: Some(dir.path().to_owned()),
            ..ChannelOptions::default()
        };
        let slack = channel(json!({ "name": "chat", "slack": { "url": { "secret": "slack" } } }));
        let refused = send(&channels(options), &slack).await;
        let answer = refused.expect_err("is refused").answer;
        assert!(answer.contains("***"), "{answer}");
        for part in ["0123456", "abcdef01", "T0"] {
            assert!(!answer.contains(part), "{answer}");
        }
    }
}

#[tokio::test]
async fn dingtalk_gets_its_signature_in_the_url_and_says_what_is_wrong() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 45\r\nConnection: close\r\n\r\n{\"errcode\":310000,\"errmsg\":\"sign not match\"} ";
    let (url, received) = server(answer).await;
    let dir = secrets(&[("ding", "SECabc")]);
    let options = ChannelOptions {
        secrets_dir: Some(dir.path().to_owned()),
        ..ChannelOptions::default()
    };
    let robot = json!({ "url": format!("{url}/robot/send?access_token=1"), "secret": { "secret": "ding" } });
    let robot = channel(json!({ "name": "ding", "dingtalk": robot, "language": "zh" }));
    let refused = send(&channels(options), &robot)
        .await
        .expect_err("is refused");
    assert!(
        refused.is_permanent && refused.answer.contains("sign not match"),
        "{refused:?}"
    );
    let received = received.await.expect("a request");
    let line = received.head.lines().next().expect("a line");
    let signed = format!("/robot/send?access_token=1&timestamp={NOW_MS}&sign=");
    assert!(line.contains(&signed), "{line}");
    assert!(
        received.body.contains("任务 nightly-backup 执行失败"),
        "{}",
        received.body
    );
}

/// The address policy of HTTP jobs, for addresses and for names.
#[tokio::test]
async fn refused_addresses_are_not_reached() {
    let deny = |network: &str| ChannelOptions {
        policy: AddressPolicy::new([], [parse_network(network).expect("a network")]),
        ..ChannelOptions::default()
    };
    let hook = |url: &str| channel(json!({ "name": "ops", "webhook": { "url": url } }));
    for (options, url, why) in [
        (
            deny("127.0.0.0/8"),
            "http://127.0.0.1:9/",
            "http_deny of this process has 127.0.0.0/8",
        ),
        (
            ChannelOptions::default(),
            "http://169.254.169.254/",
            "cloud metadata addresses",
        ),
    ] {
        let refused = send(&channels(options), &hook(url))
            .await
            .expect_err("is refused");
        assert!(
            refused.is_permanent && refused.answer.contains(why),
            "{refused:?}"
        );
    }
    let both = ChannelOptions {
        policy: AddressPolicy::new(
            [],
            ["127.0.0.0/8", "::1"].map(|text| parse_network(text).expect("a network")),
        ),
        ..ChannelOptions::default()
    };
    let refused = send(&channels(both), &hook("http://localhost:9/"))
        .await
        .expect_err("is refused");
    assert!(
        refused.answer.contains("is refused: http_deny"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_reached_or_read_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let closed = format!("http://{}/", listener.local_addr().expect("is bound"));
    drop(listener);
    let hook = channel(json!({ "name": "ops", "webhook": { "url": closed } }));
    let refused = send(&channels(ChannelOptions::default()), &hook)
        .await
        .expect_err("is refused");
    assert!(!refused.is_permanent, "{refused:?}");
    let hook = json!({ "url": "http://127.0.0.1:9/", "secret": { "secret": "not-there" } });
    let hook = channel(json!({ "name": "ops", "webhook": hook }));
    let refused = send(&channels(ChannelOptions::default()), &hook)
        .await
        .expect_err("is refused");
    assert!(!refused.is_permanent, "{refused:?}");
    assert!(
        refused
            .answer
            .contains("CUELINE_SECRET_NOT_THERE is not set"),
        "{refused:?}"
    );
}
