//! Headers that are many or large, that pretend another sender, or that ask for what the server does not do.

use cueline_http::MAX_HEAD_BYTES;
use reqwest::header::HeaderValue;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::hostile::{assert_alive, assert_answered};
use crate::raw::request;
use crate::server::{Server, TOKEN};

/// A request without a token, with these header lines.
fn without_token(line: &str, headers: &[&str]) -> Vec<u8> {
    let mut text = format!("{line}\r\nHost: localhost\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// A request with this many bytes up to the end of its headers.
fn of_head(bytes: usize) -> Vec<u8> {
    let line = "GET /livez HTTP/1.1";
    let short = request(line, &["X-A: "], b"").len();
    let value = "x".repeat(bytes - short);
    request(line, &[&format!("X-A: {value}")], b"")
}

#[tokio::test]
async fn many_and_large_headers() {
    let cookies = |count: usize| {
        let lines: Vec<&str> = std::iter::repeat_n("Cookie: a=b", count).collect();
        request("GET /livez HTTP/1.1", &lines, b"")
    };
    // The request has two further headers.
    let most = cueline_http::MAX_HEADERS - 2;
    let unfinished = of_head(2 * MAX_HEAD_BYTES);
    assert_answered(&[
        ("as many cookies as headers are allowed", cookies(most), 200),
        ("one more cookie", cookies(most + 1), 431),
        ("as many bytes as are allowed", of_head(MAX_HEAD_BYTES), 200),
        (
            "as many bytes, and no end",
            unfinished[..MAX_HEAD_BYTES].to_vec(),
            431,
        ),
    ])
    .await;
}

#[tokio::test]
async fn headers_that_pretend_another_sender_do_not_replace_the_token() {
    let line = "GET /api/v1/jobs HTTP/1.1";
    let right = format!("Bearer {TOKEN}");
    let claims = |headers: &[&str]| without_token(line, headers);
    assert_answered(&[
        (
            "X-Forwarded-For",
            claims(&["X-Forwarded-For: 127.0.0.1"]),
            401,
        ),
        ("X-Real-IP", claims(&["X-Real-IP: 127.0.0.1"]), 401),
        (
            "Forwarded",
            claims(&["Forwarded: for=127.0.0.1;host=localhost"]),
            401,
        ),
        (
            "X-Forwarded-User",
            claims(&["X-Forwarded-User: admin"]),
            401,
        ),
        ("X-Original-URL", claims(&["X-Original-URL: /livez"]), 401),
        ("X-Rewrite-URL", claims(&["X-Rewrite-URL: /livez"]), 401),
        (
            "the token in Proxy-Authorization",
            claims(&[&format!("Proxy-Authorization: {right}")]),
            401,
        ),
        (
            "the token in a cookie",
            claims(&[&format!("Cookie: token={TOKEN}")]),
            401,
        ),
        (
            "the token in the query",
            without_token(
                &format!("GET /api/v1/jobs?access_token={TOKEN} HTTP/1.1"),
                &[],
            ),
            401,
        ),
        (
            "the token after a wrong one",
            claims(&[
                "Authorization: Bearer wrong",
                &format!("Authorization: {right}"),
            ]),
            401,
        ),
        ("a scheme alone", claims(&["Authorization: Bearer"]), 401),
        (
            "a token of 30,000 bytes",
            claims(&[&format!("Authorization: Bearer {}", "0".repeat(30_000))]),
            401,
        ),
        (
            "the token in a trailer",
            [
                without_token(
                    "POST /api/v1/jobs/none/pause HTTP/1.1",
                    &["Transfer-Encoding: chunked"],
                ),
                format!("0\r\nAuthorization: {right}\r\n\r\n").into_bytes(),
            ]
            .concat(),
            401,
        ),
    ])
    .await;
}

#[tokio::test]
async fn headers_that_ask_for_something_else_change_nothing() {
    let ready = |headers: &[&str]| request("GET /livez HTTP/1.1", headers, b"");
    let delete = |header: &str| request("DELETE /api/v1/jobs/none HTTP/1.1", &[header], b"");
    assert_answered(&[
        (
            "the name of another host",
            without_token("GET /livez HTTP/1.1", &["X-Forwarded-Host: evil.example"]),
            200,
        ),
        (
            "HTTP/2",
            ready(&[
                "Connection: Upgrade, HTTP2-Settings",
                "Upgrade: h2c",
                "HTTP2-Settings: AAMAAABkAAQAAP__",
            ]),
            200,
        ),
        (
            "a web socket",
            ready(&["Connection: Upgrade", "Upgrade: websocket"]),
            200,
        ),
        (
            "a part of the answer",
            ready(&["Range: bytes=0-18446744073709551615"]),
            200,
        ),
        ("an unchanged answer", ready(&["If-None-Match: *"]), 200),
        (
            "that the token is dropped",
            request(
                "GET /api/v1/jobs HTTP/1.1",
                &["Connection: Authorization"],
                b"",
            ),
            200,
        ),
        ("any version", delete("If-Match: *"), 404),
        (
            "a version that cannot be",
            delete("If-Match: \"\x7e,,W/"),
            400,
        ),
        (
            "another expectation",
            ready(&["Expect: the-unexpected"]),
            200,
        ),
    ])
    .await;
}

#[tokio::test]
async fn the_name_of_another_host_is_not_repeated() {
    let server = Server::start().await;
    for path in ["/livez", "/nothing", "/api/v1"] {
        let request = server.bare(Method::GET, path).bearer_auth(TOKEN);
        let answer = request.header("Host", "evil.example").send().await;
        let answer = answer.expect("an answer");
        let headers = format!("{:?}", answer.headers());
        let text = answer.text().await.expect("a body");
        assert!(!headers.contains("evil.example"), "{path}: {headers}");
        assert!(!text.contains("evil.example"), "{path}: {text}");
    }
    assert_alive(&server, "another host").await;
}

#[tokio::test]
async fn no_page_of_another_site_may_read_an_answer() {
    let server = Server::start().await;
    for (method, path, status) in [
        (Method::GET, "/livez", StatusCode::OK),
        (Method::OPTIONS, "/livez", StatusCode::METHOD_NOT_ALLOWED),
        (Method::GET, "/api/v1/jobs", StatusCode::UNAUTHORIZED),
        (Method::OPTIONS, "/api/v1/jobs", StatusCode::UNAUTHORIZED),
        (
            Method::OPTIONS,
            "/api/v1/jobs/apply",
            StatusCode::UNAUTHORIZED,
        ),
    ] {
        let request = server
            .bare(method.clone(), path)
            .header("Origin", "https://evil.example")
            .header("Access-Control-Request-Method", "POST")
            .header("Access-Control-Request-Headers", "authorization");
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), status, "{method} {path}");
        let names = answer.headers().keys();
        let allowing = names.filter(|name| name.as_str().starts_with("access-control-"));
        assert_eq!(allowing.count(), 0, "{method} {path}");
    }
}

#[tokio::test]
async fn a_page_that_does_not_exist_is_no_markup() {
    let server = Server::start().await;
    let path = "/%3Cscript%3Ealert(1)%3C/script%3E";
    let answer = server.send(server.bare(Method::GET, path)).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "{answer:?}");
    assert_eq!(answer.content_type, "application/problem+json");
    assert!(!answer.text.contains("<script>"), "{answer:?}");
}

#[tokio::test]
async fn an_answer_with_a_secret_is_kept_by_no_cache() {
    let server = Server::start().await;
    let request = server.bare(Method::POST, "/api/v1/enrolment-tokens");
    let request = request.bearer_auth(TOKEN).json(&json!({}));
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::CREATED);
    let kept = answer.headers().get("Cache-Control");
    assert_eq!(kept.map(HeaderValue::as_bytes), Some(&b"no-store"[..]));
}

#[tokio::test]
async fn a_head_request_is_as_protected_as_a_get() {
    let server = Server::start().await;
    let without = server.send(server.bare(Method::HEAD, "/api/v1/jobs")).await;
    assert_eq!(without.status, StatusCode::UNAUTHORIZED);
    let with = server.bare(Method::HEAD, "/api/v1/jobs").bearer_auth(TOKEN);
    let with = server.send(with).await;
    assert_eq!((with.status, with.text.as_str()), (StatusCode::OK, ""));
    let action = server.bare(Method::HEAD, "/api/v1/jobs/none/pause");
    let action = server.send(action.bearer_auth(TOKEN)).await;
    assert_eq!(action.status, StatusCode::METHOD_NOT_ALLOWED);
}
