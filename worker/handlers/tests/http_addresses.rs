//! The addresses and hosts to which HTTP requests may go.

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cueline_handlers::HttpHandler;
use cueline_handlers::http::{AddressPolicy, parse_network};
use cueline_worker::model::HandlerSpec;
use cueline_worker::model::handler::HttpSpec;
use cueline_worker::testing::{self, Recorded};
use cueline_worker::{Failure, Output};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use support::server::{answer, get, header, redirect, server};
use support::{info, message};

/// A name server whose answer is another one each time; the last one stays.
struct Names {
    answers: Vec<Vec<&'static str>>,
    asked: AtomicUsize,
}

impl Names {
    fn answering(answers: &[&[&'static str]]) -> Arc<Self> {
        Arc::new(Self {
            answers: answers.iter().map(|answer| answer.to_vec()).collect(),
            asked: AtomicUsize::new(0),
        })
    }
}

impl Resolve for Names {
    fn resolve(&self, _: Name) -> Resolving {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = &self.answers[asked.min(self.answers.len() - 1)];
        let addresses: Vec<SocketAddr> = answer
            .iter()
            .map(|text| SocketAddr::new(text.parse().expect("an address"), 0))
            .collect();
        let addresses: Addrs = Box::new(addresses.into_iter());
        Box::pin(std::future::ready(Ok(addresses)))
    }
}

fn policy(allow: &[&str], deny: &[&str]) -> AddressPolicy {
    let net = |text: &&str| parse_network(text).expect("a network");
    AddressPolicy::new(allow.iter().map(net), deny.iter().map(net))
}

fn port(url: &str) -> &str {
    url.rsplit_once(':').expect("a port").1
}

async fn run(
    spec: HttpSpec,
    policy: AddressPolicy,
    names: Option<Arc<Names>>,
) -> (Result<Output, Failure>, Recorded) {
    let mut builder = HttpHandler::builder().policy(policy);
    if let Some(names) = names {
        builder = builder.resolver(names);
    }
    let handler = builder.build();
    testing::run(&handler, info(HandlerSpec::from(spec))).await
}

#[tokio::test]
async fn an_address_is_refused_in_every_notation() {
    let (url, mut requests) = server(|_| answer("200 OK", "")).await;
    let port = port(&url);
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "2130706433",
        "0x7f000001",
        "127.0.0.1.",
        "%31%32%37.0.0.1",
        "\u{ff11}27.0.0.1",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "user@127.0.0.1",
    ] {
        let spec = get(&format!("http://{host}:{port}/?token=hush"));
        let (result, _) = run(spec, policy(&[], &["127.0.0.0/8"]), None).await;
        assert_eq!(
            message(result),
            "address 127.0.0.1 is refused: http_deny of this process has 127.0.0.0/8",
            "{host}"
        );
    }
    for (host, words) in [
        ("[::]", "address :: is refused: it is unspecified"),
        ("0.0.0.0", "address 0.0.0.0 is refused: it is unspecified"),
        ("0", "address 0.0.0.0 is refused: it is unspecified"),
        ("169.254.169.254", "http_allow of this process must name"),
        ("[::ffff:a9fe:a9fe]", "http_allow of this process must name"),
        ("[fe80::1]", "http_allow of this process must name"),
    ] {
        let spec = get(&format!("http://{host}:{port}/"));
        let text = message(run(spec, AddressPolicy::default(), None).await.0);
        assert!(text.contains(words), "{host}: {text}");
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn the_addresses_of_a_name_are_checked() {
    let (url, mut requests) = server(|_| answer("200 OK", "")).await;
    let spec = || get(&format!("http://inside.example:{}/", port(&url)));
    let names = Names::answering(&[&["169.254.169.254", "127.0.0.1"]]);
    let closed = policy(&[], &["127.0.0.0/8"]);
    let text = message(run(spec(), closed, Some(names.clone())).await.0);
    assert!(
        text.starts_with("address 169.254.169.254 of inside.example is refused"),
        "{text}"
    );
    assert!(requests.try_recv().is_err());
    // Only the permitted one is connected to.
    let (result, _) = run(spec(), AddressPolicy::default(), Some(names)).await;
    assert_eq!(result.expect("success").exit_status, Some(200));
    let request = requests.recv().await.expect("it came");
    let port = port(&url);
    assert_eq!(
        header(&request, "host"),
        Some(format!("inside.example:{port}"))
    );
}

/// DNS rebinding: a second answer could differ from the checked one.
#[tokio::test]
async fn the_client_connects_to_the_address_that_was_checked() {
    let (url, mut requests) = server(|_| answer("200 OK", "")).await;
    let names = Names::answering(&[&["127.0.0.1"], &["169.254.169.254"]]);
    let spec = get(&format!("http://inside.example:{}/", port(&url)));
    let (result, _) = run(spec, AddressPolicy::default(), Some(names.clone())).await;
    assert_eq!(result.expect("success").exit_status, Some(200));
    requests.recv().await.expect("it came");
    assert_eq!(names.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn each_address_of_a_redirect_is_checked() {
    let (inside, mut requests) = server(|_| answer("200 OK", "secret")).await;
    let inside_port = port(&inside).to_owned();
    for (host, address) in [
        ("127.0.0.2", "address 127.0.0.2"),
        ("[::ffff:127.0.0.2]", "address 127.0.0.2"),
        ("inside.example", "address 127.0.0.2 of inside.example"),
    ] {
        let location = format!("http://{host}:{inside_port}/");
        let (url, _requests) = server(move |_| redirect("302 Found", &location)).await;
        let spec = HttpSpec {
            redirects: 3,
            ..get(&url)
        };
        let names = Names::answering(&[&["127.0.0.2"]]);
        let (result, _) = run(spec, policy(&[], &["127.0.0.2"]), Some(names)).await;
        assert_eq!(
            message(result),
            format!("{address} is refused: http_deny of this process has 127.0.0.2/32")
        );
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn redirects_are_followed_only_as_often_as_the_job_asks() {
    let step = |request: &str| request[5..6].parse::<u32>().unwrap_or(0);
    let (url, _requests) = server(move |request| match step(request) {
        3 => answer("200 OK", "there"),
        n => redirect("302 Found", &format!("/{}", n + 1)),
    })
    .await;
    let with = |redirects, expect| HttpSpec {
        redirects,
        expect,
        ..get(&url)
    };
    let run = async |spec| run(spec, AddressPolicy::default(), None).await.0;
    let output = run(with(3, vec![])).await.expect("success");
    assert_eq!(output.text.as_deref(), Some("there"));
    let text = message(run(with(2, vec![])).await);
    assert!(
        text.starts_with("more than 2 redirects, the first by 127.0.0.1"),
        "{text}"
    );
    let failure = run(with(0, vec![])).await.expect_err("a failure");
    assert_eq!(
        failure.message,
        "HTTP status 302 Found; the job follows no redirects (redirects = 0)"
    );
    assert_eq!(failure.exit_status, Some(302));
    // An expected status is the end.
    let output = run(with(3, vec![302])).await.expect("success");
    assert_eq!(output.exit_status, Some(302));
}

#[tokio::test]
async fn headers_of_the_job_stay_with_its_host() {
    let (other, mut others) = server(|_| answer("200 OK", "")).await;
    let (url, mut own) = server(move |request| {
        if request.starts_with("GET /there") {
            redirect("302 Found", &format!("{other}/"))
        } else {
            redirect("302 Found", "/there")
        }
    })
    .await;
    let spec = HttpSpec {
        redirects: 2,
        headers: BTreeMap::from([
            ("Authorization".into(), "hush".into()),
            ("X-Api-Key".into(), "hush".into()),
            ("Cookie".into(), "hush".into()),
        ]),
        ..get(&url)
    };
    let (result, _) = run(spec, AddressPolicy::default(), None).await;
    result.expect("success");
    for _ in 0..2 {
        let request = own.recv().await.expect("it came");
        assert_eq!(header(&request, "x-api-key").as_deref(), Some("hush"));
    }
    let request = others.recv().await.expect("it came");
    assert!(!request.contains("hush"), "{request}");
    assert_eq!(header(&request, "x-cueline-run").as_deref(), Some("41"));
    // The address of the first host is in no header either.
    assert_eq!(header(&request, "referer"), None);
}

#[tokio::test]
async fn the_body_stays_with_its_host() {
    let (other, mut others) = server(|_| answer("200 OK", "")).await;
    let (url, _own) = server(move |_| redirect("307 Temporary Redirect", &other)).await;
    let spec = HttpSpec {
        method: "POST".into(),
        body: Some("hush".into()),
        redirects: 1,
        ..get(&url)
    };
    let text = message(run(spec, AddressPolicy::default(), None).await.0);
    assert!(
        text.contains("the body must not go to another host"),
        "{text}"
    );
    assert!(others.try_recv().is_err());
}

#[tokio::test]
async fn a_request_goes_straight_to_its_host() {
    let (url, mut requests) = server(|_| answer("200 OK", "")).await;
    let (result, _) = run(get(&url), AddressPolicy::default(), None).await;
    result.expect("success");
    let request = requests.recv().await.expect("it came");
    assert!(request.starts_with("GET / HTTP/1.1"), "{request}");
}

/// A proxy would resolve names itself, and could reach what the policy refuses.
#[tokio::test]
async fn a_proxy_in_the_environment_is_not_used() {
    let (proxy, mut requests) = server(|_| answer("502 Bad Gateway", "")).await;
    // The test above, in a process of its own with this environment.
    let mut other = tokio::process::Command::new(std::env::current_exe().expect("its path"));
    other.args(["--exact", "a_request_goes_straight_to_its_host"]);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        other.env(name, &proxy).env(name.to_lowercase(), &proxy);
    }
    for name in ["NO_PROXY", "no_proxy", "REQUEST_METHOD"] {
        other.env_remove(name);
    }
    let ended = other.output().await.expect("it ran");
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && text.contains("1 passed"),
        "{text}"
    );
    assert!(requests.try_recv().is_err());
}
