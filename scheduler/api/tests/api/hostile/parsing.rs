//! Bodies that parsers read differently: numbers, encodings, keys that are given twice, nesting, types and codings.

use crate::hostile::{assert_answered, posted};
use crate::raw::{post, request};

#[tokio::test]
async fn numbers_that_parsers_read_differently() {
    let number = |text: &str| {
        let body = format!(r#"{{"schedule": {{"every": "1h"}}, "n": {text}}}"#);
        post("/api/v1/preview", body.as_bytes())
    };
    let digits = "9".repeat(400);
    assert_answered(&[
        ("a number", number("2"), 200),
        ("beyond every range", number("1e999"), 400),
        ("negative beyond every range", number("-1e999"), 400),
        ("400 digits", number(&digits), 400),
        ("negative zero", number("-0"), 400),
        ("2^63", number("9223372036854775808"), 400),
        ("2^64", number("18446744073709551616"), 400),
        ("a whole number with a point", number("1.0"), 200),
        ("a whole number with an exponent", number("1e0"), 200),
        ("a fraction", number("1.5"), 400),
        ("a small fraction", number("1e-400"), 400),
        ("2^53 with a point", number("9007199254740992.0"), 400),
        ("a digit in a text", number("\"1\""), 400),
        ("true", number("true"), 400),
        ("a list", number("[1]"), 400),
        ("not a number", number("NaN"), 400),
        ("infinity", number("Infinity"), 400),
        ("a zero before", number("01"), 400),
        ("hexadecimal", number("0x1"), 400),
        ("a plus", number("+1"), 400),
        ("a point at the end", number("1."), 400),
        ("a separator", number("1_0"), 400),
        ("other digits", number("\u{661}"), 400),
    ])
    .await;
}

#[tokio::test]
async fn texts_that_are_no_json() {
    let body = |bytes: &[u8]| {
        let length = format!("Content-Length: {}", bytes.len());
        posted(&[&length], bytes)
    };
    let wide: Vec<u8> = "{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_answered(&[
        ("a mark of the byte order", body(b"\xef\xbb\xbf{}"), 400),
        ("UTF-16", body(&wide), 400),
        ("no UTF-8", body(b"{\"a\": \"\xff\"}"), 400),
        ("overlong UTF-8", body(b"{\"\xc0\xae\": 1}"), 400),
        ("a surrogate in bytes", body(b"{\"\xed\xa0\x80\": 1}"), 400),
        ("half a pair, the first", body(br#"{"a": "\ud800"}"#), 400),
        ("half a pair, the second", body(br#"{"a": "\udc00"}"#), 400),
        ("half a pair as a key", body(br#"{"\udfff": 1}"#), 400),
        (
            "a pair in the wrong order",
            body(br#"{"a": "\udc00\ud800"}"#),
            400,
        ),
        (
            "a control character in a text",
            body(b"{\"a\": \"\x01\"}"),
            400,
        ),
        ("a NUL after the value", body(b"{}\0"), 400),
        ("two values", body(b"{}{}"), 400),
        ("a comment", body(b"{/* a */}"), 400),
        ("a comma at the end", body(b"{\"a\": 1,}"), 400),
        ("quotes of another language", body(b"{'a': 1}"), 400),
        ("an empty object and blanks", body(b" \t\r\n{ } "), 404),
    ])
    .await;
}

#[tokio::test]
async fn keys_that_are_given_twice() {
    let apply = |job: &str| {
        let body = format!(r#"{{"jobs": [{{"name": "a", {job}}}]}}"#);
        post("/api/v1/jobs/apply", body.as_bytes())
    };
    let handler = r#""handler": {"shell": {"script": "x", "env": {"A": "1", "A": "2"}}}"#;
    assert_answered(&[
        (
            "in the request",
            post("/api/v1/jobs/apply", br#"{"jobs": [], "jobs": []}"#),
            400,
        ),
        (
            "in a job",
            apply(r#""enabled": true, "enabled": false"#),
            400,
        ),
        (
            "in a schedule",
            apply(r#""schedule": {"every": "1h", "every": "2h"}"#),
            400,
        ),
        (
            "in a handler",
            apply(r#""handler": {"shell": "x", "shell": "y"}"#),
            400,
        ),
        ("in an environment", apply(handler), 400),
        ("in labels", apply(r#""labels": {"a": "1", "a": "2"}"#), 400),
        ("in params", apply(r#""params": {"a": 1, "a": 2}"#), 400),
        (
            "in a list in params",
            apply(r#""params": [[{"a": 1, "a": 2}]]"#),
            400,
        ),
        (
            "once with an escape",
            apply(r#""enabled": true, "\u0065nabled": false"#),
            400,
        ),
        (
            "of a prototype",
            apply(r#""__proto__": {"enabled": false}"#),
            422,
        ),
    ])
    .await;
}

#[tokio::test]
async fn values_that_are_nested_deeply() {
    let params = |open: &str, close: &str, levels: usize| {
        let body = format!(
            r#"{{"params": {}1{}}}"#,
            open.repeat(levels),
            close.repeat(levels)
        );
        post("/api/v1/jobs/none/trigger", body.as_bytes())
    };
    let text = format!(r#"{{"params": "{}"}}"#, "[".repeat(60_000));
    assert_answered(&[
        // The body is a level of its own.
        ("126 lists", params("[", "]", 126), 404),
        ("127 lists", params("[", "]", 127), 400),
        ("126 objects", params("{\"a\":", "}", 126), 404),
        ("127 objects", params("{\"a\":", "}", 127), 400),
        ("100,000 lists", params("[", "]", 100_000), 400),
        ("10,000 objects", params("{\"a\":", "}", 10_000), 400),
        (
            "60,000 lists in a text",
            post("/api/v1/jobs/none/trigger", text.as_bytes()),
            404,
        ),
    ])
    .await;
}

/// `{}` and 64 KiB of blanks, compressed by gzip.
const GZIP: &[u8] = b"\
    \x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xed\xc1\x01\x0d\x00\x00\x0c\x02\xa0\x2a\
    \xef\xe9\xde\x5d\x83\x00\xf9\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
    \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
    \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
    \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x29\x4a\x43\xbe\x29\x02\x00\x01\x00";

#[tokio::test]
async fn bodies_of_another_type_or_coding() {
    let typed = |headers: &[&str], body: &[u8]| {
        let length = format!("Content-Length: {}", body.len());
        let headers = [headers, &[length.as_str()]].concat();
        request("POST /api/v1/jobs/none/pause HTTP/1.1", &headers, body)
    };
    let json = "Content-Type: application/json";
    assert_answered(&[
        (
            "gzip that is declared",
            typed(&[json, "Content-Encoding: gzip"], GZIP),
            415,
        ),
        ("gzip that is not declared", typed(&[json], GZIP), 400),
        (
            "plain text that is declared as gzip",
            typed(&[json, "Content-Encoding: gzip"], b"{}"),
            415,
        ),
        (
            "a coding in a second header",
            typed(
                &[json, "Content-Encoding: identity", "Content-Encoding: br"],
                b"{}",
            ),
            415,
        ),
        (
            "the coding that changes nothing",
            typed(&[json, "Content-Encoding: Identity"], b"{}"),
            404,
        ),
        ("no type", typed(&[], b"{}"), 415),
        (
            "plain text",
            typed(&["Content-Type: text/plain"], b"{}"),
            415,
        ),
        (
            "a form",
            typed(&["Content-Type: application/x-www-form-urlencoded"], b"{}"),
            415,
        ),
        (
            "a form in parts",
            typed(&["Content-Type: multipart/form-data; boundary=a"], b"{}"),
            415,
        ),
        (
            "two types",
            typed(&["Content-Type: application/json, text/html"], b"{}"),
            415,
        ),
        (
            "a type in a parameter",
            typed(&["Content-Type: text/plain; a=application/json"], b"{}"),
            415,
        ),
        (
            "bytes as a type",
            typed(&["Content-Type: \u{ff}application/json"], b"{}"),
            415,
        ),
    ])
    .await;
}
