//! Where a request ends. A server and a proxy that see different ends pass requests of one user off as those of another.

use crate::hostile::{assert_alive, assert_answered, assert_replies, get, plain, posted};
use crate::raw::{Raw, request};
use crate::server::Server;

const CHUNKED: &str = "Transfer-Encoding: chunked";

/// A request that would be answered with 200 if it were taken for one. It ends its connection.
fn next() -> Vec<u8> {
    request("GET /livez HTTP/1.1", &["Connection: close"], b"")
}

/// Chunks that end before the next request.
fn chunks(body: &[u8]) -> Vec<u8> {
    posted(&[CHUNKED], body)
}

#[tokio::test]
async fn lengths_that_a_proxy_may_read_differently() {
    let length = |value: &str, body: &[u8]| posted(&[&format!("Content-Length: {value}")], body);
    assert_answered(&[
        (
            "two lengths",
            posted(&["Content-Length: 2", "Content-Length: 3"], b"{} "),
            400,
        ),
        (
            "the same length twice",
            posted(&["Content-Length: 2", "Content-Length: 2"], b"{}"),
            404,
        ),
        ("a negative length", length("-1", b""), 400),
        ("a length with a sign", length("+2", b"{}"), 400),
        ("a length in hexadecimal", length("0x2", b"{}"), 400),
        ("a length with a point", length("2.0", b"{}"), 400),
        ("no length after the colon", length("", b"{}"), 400),
        ("lengths in a list", length("2, 3", b"{}"), 400),
        ("the same length in a list", length("2, 2", b"{}"), 400),
        (
            "a length beyond 64 bits",
            length("18446744073709551616", b"{}"),
            400,
        ),
        (
            "the largest number of 64 bits",
            length("18446744073709551615", b"{}"),
            431,
        ),
        (
            "a length in a header with an underscore",
            posted(&["Content_Length: 40", "Content-Length: 2"], b"{}"),
            404,
        ),
    ])
    .await;
}

#[tokio::test]
async fn encodings_that_a_proxy_may_read_differently() {
    let encoding = |value: &str| posted(&[&format!("Transfer-Encoding: {value}")], b"0\r\n\r\n");
    assert_answered(&[
        ("another encoding", encoding("identity"), 400),
        ("a longer word", encoding("xchunked"), 400),
        ("a word in quotes", encoding("\"chunked\""), 400),
        (
            "a vertical tab before the word",
            encoding("\x0bchunked"),
            400,
        ),
        ("a tab before the word", encoding("\tchunked"), 404),
        ("an encoding after chunked", encoding("chunked, gzip"), 400),
        (
            "an encoding after chunked, in a second header",
            posted(&[CHUNKED, "Transfer-Encoding: identity"], b"0\r\n\r\n"),
            400,
        ),
        (
            "chunks in HTTP/1.0",
            request("POST /api/v1/preview HTTP/1.0", &[CHUNKED], b"0\r\n\r\n"),
            400,
        ),
    ])
    .await;
}

#[tokio::test]
async fn lines_that_a_proxy_may_divide_differently() {
    assert_answered(&[
        (
            "a blank before the colon",
            posted(&["Content-Length : 2"], b"{}"),
            400,
        ),
        (
            "a folded header",
            posted(&["X-A: 1\r\n 2", "Content-Length: 0"], b""),
            400,
        ),
        (
            "a blank before the first header",
            plain("GET /livez HTTP/1.1\r\n X-A: 1\r\n\r\n"),
            400,
        ),
        (
            "a CR alone in a header",
            posted(&["X-A: 1\rTransfer-Encoding: chunked"], b""),
            400,
        ),
        (
            "a CR alone in the request line",
            plain("GET /livez\rX HTTP/1.1\r\n\r\n"),
            400,
        ),
        (
            "a NUL in the name of a header",
            posted(&["X-A\0: 1"], b""),
            400,
        ),
        ("a NUL in a header", posted(&["X-A: \0"], b""), 400),
        ("a header without a name", posted(&[": 1"], b""), 400),
        ("a header without a colon", posted(&["X-A"], b""), 400),
        (
            "two blanks in the request line",
            plain("GET  /livez HTTP/1.1\r\n\r\n"),
            400,
        ),
        (
            "a tab in the request line",
            plain("GET\t/livez HTTP/1.1\r\n\r\n"),
            400,
        ),
        ("no target", plain("GET HTTP/1.1\r\n\r\n"), 400),
        (
            "a version in lower case",
            plain("GET /livez http/1.1\r\n\r\n"),
            400,
        ),
        (
            "line feeds alone",
            plain("GET /livez HTTP/1.1\nHost: localhost\n\n"),
            200,
        ),
    ])
    .await;
}

#[tokio::test]
async fn chunks_that_a_proxy_may_read_differently() {
    // One more than the most extensions, and one more than the most trailers. Nothing follows that could stay unread.
    let extension = [&b"1;"[..], "x".repeat(16 * 1024).as_bytes()].concat();
    let trailers = format!("0\r\n{}", "A: 1\r\n".repeat(cueline_http::MAX_HEADERS + 1));
    assert_answered(&[
        ("no size", chunks(b"zz\r\n{}\r\n0\r\n\r\n"), 400),
        ("a size with a sign", chunks(b"+2\r\n{}\r\n0\r\n\r\n"), 400),
        ("a negative size", chunks(b"-2\r\n{}\r\n0\r\n\r\n"), 400),
        (
            "a size after a blank",
            chunks(b" 2\r\n{}\r\n0\r\n\r\n"),
            400,
        ),
        ("a size with 0x", chunks(b"0x2\r\n{}\r\n0\r\n\r\n"), 400),
        (
            "a size beyond 64 bits",
            chunks(b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
            400,
        ),
        (
            "a line feed alone after the size",
            chunks(b"2\n{}\r\n0\r\n\r\n"),
            400,
        ),
        (
            "a line feed in an extension",
            chunks(b"2;a\nb\r\n{}\r\n0\r\n\r\n"),
            400,
        ),
        ("extensions of 16 KiB", chunks(&extension), 400),
        (
            "more bytes than the size",
            chunks(b"1\r\n{}\r\n0\r\n\r\n"),
            400,
        ),
        (
            "no line end after the bytes",
            chunks(b"2\r\n{}0\r\n\r\n"),
            400,
        ),
        ("101 trailers", chunks(trailers.as_bytes()), 400),
        (
            "a length in a trailer",
            chunks(b"2\r\n{}\r\n0\r\nContent-Length: 99\r\n\r\n"),
            404,
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_request_hidden_in_a_body_is_not_answered() {
    let server = Server::start().await;
    let hidden = [&b"0\r\n\r\n"[..], &next()].concat();
    let length = format!("Content-Length: {}", hidden.len());
    let after_line_feed = format!("X-A: 1\n{CHUNKED}");
    for headers in [
        [length.as_str(), CHUNKED],
        [CHUNKED, length.as_str()],
        [length.as_str(), after_line_feed.as_str()],
    ] {
        let name = format!("{headers:?}");
        assert_replies(&server, &name, &posted(&headers, &hidden), &[404]).await;
    }
}

#[tokio::test]
async fn a_body_that_is_not_read_is_not_taken_for_a_request() {
    let server = Server::start().await;
    let hidden = get("/api/v1/jobs/hidden");
    let length = format!("Content-Length: {}", hidden.len());
    let chunk = format!("{:x}\r\n", hidden.len());
    let chunked = [chunk.as_bytes(), &hidden, b"\r\n0\r\n\r\n"].concat();
    let line = "GET /livez HTTP/1.1";
    let announced = format!(
        "POST /api/v1/jobs/apply HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{length}\r\n\r\n"
    );
    for (name, first, status) in [
        ("of a GET", request(line, &[&length], &hidden), 200),
        (
            "of a request without a token",
            [announced.as_bytes(), &hidden].concat(),
            401,
        ),
    ] {
        let bytes = [first, next()].concat();
        assert_replies(&server, name, &bytes, &[status, 200]).await;
    }
    // The server may close the connection instead of reading further chunks.
    let mut raw = Raw::connect(&server).await;
    raw.send(&[request(line, &[CHUNKED], &chunked), next()].concat())
        .await;
    let mut statuses = Vec::new();
    while let Some(reply) = raw.reply().await {
        statuses.push(reply.status);
    }
    assert!(statuses == [200] || statuses == [200, 200], "{statuses:?}");
    assert_alive(&server, "chunks that are not read").await;
}

#[tokio::test]
async fn nothing_is_answered_after_an_error_of_framing() {
    let server = Server::start().await;
    for (name, first, status) in [
        ("a wrong version", plain("GET /livez HTTP/9.9\r\n\r\n"), 400),
        (
            "two lengths",
            posted(&["Content-Length: 2", "Content-Length: 3"], b"{} "),
            400,
        ),
        ("a wrong chunk", chunks(b"zz\r\n"), 400),
        ("a folded header", posted(&["X-A: 1\r\n 2"], b""), 400),
    ] {
        let bytes = [first, next()].concat();
        assert_replies(&server, name, &bytes, &[status]).await;
    }
}
