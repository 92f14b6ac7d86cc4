//! `/metrics` of a scheduler.

use cueline_test_support::{documented_metrics, served_metrics};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::server::{Answer, Server, TOKEN};

const PAGE: &str = include_str!("../../../../docs/metrics.md");

async fn scrape(server: &Server) -> Answer {
    let request = server.bare(Method::GET, "/metrics").bearer_auth(TOKEN);
    server.send(request).await
}

/// The value of the series with this name and these labels.
#[track_caller]
fn value(text: &str, series: &str) -> u64 {
    let found = text.lines().find_map(|line| {
        let value = line.strip_prefix(series)?.strip_prefix(' ')?;
        value.parse().ok()
    });
    found.unwrap_or_else(|| panic!("no {series} in\n{text}"))
}

#[tokio::test]
async fn the_page_lists_each_metric_of_a_scheduler_and_no_other() {
    let server = Server::start().await;
    let answer = scrape(&server).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert!(
        answer
            .content_type
            .starts_with("application/openmetrics-text"),
        "{answer:?}"
    );
    assert!(answer.text.ends_with("# EOF\n"), "{}", answer.text);
    assert_eq!(
        documented_metrics(PAGE, "scheduler"),
        served_metrics(&answer.text)
    );
}

#[tokio::test]
async fn requests_count_by_route_and_without_the_names_of_jobs() {
    let server = Server::start().await;
    for name in ["one", "two"] {
        let answer = server.get(&format!("/jobs/{name}")).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
    }
    server.get("/stats").await.good();
    server.get("/nothing").await;
    let bare = server.bare(Method::GET, "/api/v1/stats");
    assert_eq!(server.send(bare).await.status, StatusCode::UNAUTHORIZED);
    let text = scrape(&server).await.text;
    let requests = |route: &str, status: u16| {
        let labels = format!("{{route=\"{route}\",status=\"{status}\"}}");
        value(&text, &format!("cueline_api_requests_total{labels}"))
    };
    assert_eq!(requests("/api/v1/jobs/{name}", 404), 2);
    assert_eq!(requests("/api/v1/stats", 200), 1);
    assert_eq!(requests("/api/v1/stats", 401), 1);
    assert_eq!(requests("other", 404), 1);
    assert_eq!(value(&text, "cueline_api_refused_logins_total"), 1);
}

#[tokio::test]
async fn requests_that_are_refused_are_counted_by_their_reason() {
    let server = Server::start().await;
    let grants = json!([{ "namespace": "team-a", "role": "viewer" }]);
    let viewer = server.token_with(&grants).await;
    let ask_stats = async |token: &str| {
        let answer = server.by(token, Method::GET, "/api/v1/stats", None).await;
        answer.status
    };
    for _ in 0..2 {
        assert_eq!(ask_stats(&viewer).await, StatusCode::FORBIDDEN);
    }
    assert_eq!(ask_stats("wrong").await, StatusCode::UNAUTHORIZED);
    let body = json!({ "name": "alice", "password": "wrong" });
    let mut refused = 0;
    // Ten attempts, and one for each 30 s that the others may take.
    for _ in 0..30 {
        let login = server.bare(Method::POST, "/api/v1/login").json(&body);
        let status = server.send(login).await.status;
        if status == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        refused += 1;
    }
    let text = scrape(&server).await.text;
    assert_eq!(value(&text, "cueline_api_forbidden_requests_total"), 2);
    assert_eq!(value(&text, "cueline_api_throttled_requests_total"), 1);
    assert_eq!(
        value(&text, "cueline_api_refused_logins_total"),
        1 + refused
    );
}

#[tokio::test]
async fn a_scrape_needs_the_token_and_takes_no_parameters() {
    let server = Server::start().await;
    let bare = server.send(server.bare(Method::GET, "/metrics")).await;
    assert_eq!(bare.status, StatusCode::UNAUTHORIZED);
    let request = server.bare(Method::GET, "/metrics?x=1").bearer_auth(TOKEN);
    let answer = server.send(request).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_public_scrape_needs_no_token() {
    let server = Server::with_public_metrics().await;
    let answer = server.send(server.bare(Method::GET, "/metrics")).await;
    assert_eq!(answer.status, StatusCode::OK);
    let api = server.bare(Method::GET, "/api/v1/stats");
    assert_eq!(server.send(api).await.status, StatusCode::UNAUTHORIZED);
}

/// A scrape each second must not count all runs each second.
#[tokio::test]
async fn scrapes_within_ten_seconds_share_one_reading_of_the_store() {
    let server = Server::start().await;
    let text = scrape(&server).await.text;
    assert_eq!(value(&text, "cueline_jobs"), 0);
    assert_eq!(value(&text, "cueline_runs{state=\"running\"}"), 0);
    // The broker of this test cannot be reached.
    assert_eq!(value(&text, "cueline_source_up{source=\"store\"}"), 1);
    assert_eq!(value(&text, "cueline_source_up{source=\"broker\"}"), 0);
    let job = json!({ "name": "a", "schedule": { "every": "1h" }, "handler": { "shell": "true" } });
    let body = json!({ "jobs": [job] });
    server.post("/jobs/apply", &body).await.good();
    let text = scrape(&server).await.text;
    assert_eq!(value(&text, "cueline_jobs"), 0);
    let labels = "{route=\"/api/v1/jobs/apply\",status=\"200\"}";
    let applied = format!("cueline_api_requests_total{labels}");
    assert_eq!(value(&text, &applied), 1, "the others are of now");
}

#[tokio::test]
async fn connections_to_the_store_are_served_by_pool() {
    let server = Server::start().await;
    let text = scrape(&server).await.text;
    for (pool, limit) in [("writer", 1), ("readers", 3), ("authentication", 2)] {
        let labels = format!("{{pool=\"{pool}\"}}");
        let most = value(&text, &format!("cueline_store_connection_limit{labels}"));
        assert_eq!(most, limit);
        value(
            &text,
            &format!("cueline_store_connection_waits_total{labels}"),
        );
        let of = |state: &str| {
            let labels = format!("{{pool=\"{pool}\",state=\"{state}\"}}");
            value(&text, &format!("cueline_store_connections{labels}"))
        };
        assert!((1..=limit).contains(&(of("idle") + of("used"))), "{text}");
    }
}
