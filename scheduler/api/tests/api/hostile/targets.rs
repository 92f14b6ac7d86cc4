//! Targets and methods that mean something elsewhere.

use crate::hostile::{assert_answered, get, posted};
use crate::raw::request;

#[tokio::test]
async fn targets_of_proxies() {
    let line = |line: &str| request(line, &[], b"");
    assert_answered(&[
        // A server has to accept the absolute form. The name in it changes nothing.
        ("another host", get("http://evil.example/livez"), 200),
        (
            "another host with a user",
            get("http://user:secret@evil.example/livez"),
            200,
        ),
        ("a file", get("file:///etc/passwd"), 400),
        ("an authority alone", get("localhost:80"), 404),
        ("a tunnel", line("CONNECT evil.example:443 HTTP/1.1"), 404),
        ("the server as a whole", line("OPTIONS * HTTP/1.1"), 404),
    ])
    .await;
}

#[tokio::test]
async fn methods_that_no_path_has() {
    let line = |line: &str| request(line, &[], b"");
    let overriding = |header: &str| {
        let headers = [header, "Content-Length: 0"];
        request("POST /api/v1/jobs/none HTTP/1.1", &headers, b"")
    };
    assert_answered(&[
        ("a method of its own", line("BREW /livez HTTP/1.1"), 405),
        ("a method in lower case", line("get /livez HTTP/1.1"), 405),
        ("an echo", line("TRACE /livez HTTP/1.1"), 405),
        ("WebDAV", line("PROPFIND /api/v1/jobs HTTP/1.1"), 405),
        (
            "another method in X-HTTP-Method-Override",
            overriding("X-HTTP-Method-Override: DELETE"),
            405,
        ),
        (
            "another method in X-Method-Override",
            overriding("X-Method-Override: DELETE"),
            405,
        ),
        (
            "an announced body that has no bytes",
            posted(&["Expect: 100-continue", "Content-Length: 0"], b""),
            404,
        ),
    ])
    .await;
}

#[tokio::test]
async fn paths_that_mean_another_file_elsewhere() {
    let raw = |name: &[u8]| [&b"GET /api/v1/jobs/"[..], name, b" HTTP/1.1\r\n\r\n"].concat();
    assert_answered(&[
        ("a way up", get("/api/v1/jobs/../../livez"), 404),
        ("a way up, encoded", get("/api/v1/%2e%2e/%2e%2e/livez"), 404),
        ("only a way up", get("/api/v1/jobs/.."), 400),
        ("only a way up, encoded", get("/api/v1/jobs/%2e%2e"), 400),
        ("encoded twice", get("/api/v1/jobs/%252e%252e"), 400),
        ("in another encoding", get("/api/v1/jobs/%u002e"), 400),
        ("with backslashes", get("/api/v1/jobs/..\\livez"), 400),
        (
            "overlong UTF-8",
            get("/api/v1/jobs/%c0%ae%c0%ae%c0%af"),
            400,
        ),
        ("overlong UTF-8 in bytes", raw(b"\xc0\xae\xc0\xae"), 400),
        ("no UTF-8 in bytes", raw(b"\xff\xfe"), 400),
        ("a separator in a name", get("/api/v1/jobs/a%2Fb"), 400),
        (
            "a way up in a name",
            get("/api/v1/jobs/..%2F..%2Flivez"),
            400,
        ),
        ("two slashes", get("//livez"), 404),
        ("a slash at the end", get("/livez/"), 404),
        ("capital letters", get("/LIVEZ"), 404),
        ("an encoded letter", get("/%6civez"), 404),
        ("a NUL at the end", get("/livez%00"), 404),
        ("a parameter of the path", get("/livez;a=b"), 404),
        ("an empty name", get("/api/v1/jobs/"), 404),
    ])
    .await;
}

#[tokio::test]
async fn names_in_paths_that_mean_something_elsewhere() {
    assert_answered(&[
        ("a NUL", get("/api/v1/jobs/a%00"), 400),
        ("an escape", get("/api/v1/jobs/%1b%5b31m"), 400),
        ("no UTF-8", get("/api/v1/jobs/%ff%fe"), 400),
        ("half an encoding", get("/api/v1/jobs/a%2"), 400),
        ("a bare NUL", get("/api/v1/jobs/a\0"), 400),
        ("a bare escape", get("/api/v1/\x1b[2J"), 400),
        (
            "a line end and a header",
            get("/api/v1/jobs/a%0d%0aX-A:%201"),
            400,
        ),
        ("another direction", get("/api/v1/jobs/%E2%80%AEa"), 400),
        ("a pattern", get("/api/v1/jobs/*"), 400),
        ("a condition", get("/api/v1/jobs/a'%20OR%20'1'='1"), 400),
        (
            "an id beyond 64 bits",
            get("/api/v1/runs/9223372036854775808"),
            400,
        ),
        ("an id with an exponent", get("/api/v1/runs/1e3"), 400),
        ("an id in hexadecimal", get("/api/v1/runs/0x1"), 400),
        ("an id in other digits", get("/api/v1/runs/%D9%A1"), 400),
        ("an id with a NUL", get("/api/v1/runs/1%00"), 400),
        (
            "a letter's number beyond 64 bits",
            get("/api/v1/dead/-9223372036854775809"),
            400,
        ),
        ("a negative number of a letter", get("/api/v1/dead/-1"), 404),
        (
            "an id of a token with a quote",
            get("/api/v1/enrolment-tokens/a'--"),
            405,
        ),
    ])
    .await;
}

#[tokio::test]
async fn parameters_that_are_polluted() {
    let jobs = |query: &str| get(&format!("/api/v1/jobs?{query}"));
    assert_answered(&[
        ("given twice", jobs("limit=1&limit=2"), 400),
        ("given twice with a semicolon", jobs("limit=1;limit=2"), 400),
        ("as a list", jobs("limit[]=1"), 400),
        ("in capital letters", jobs("LIMIT=1"), 400),
        ("with an encoded name", jobs("%6cimit=1"), 200),
        ("without a value", jobs("limit="), 400),
        ("in hexadecimal", jobs("limit=0x10"), 400),
        ("with an exponent", jobs("limit=1e1"), 400),
        ("with a blank", jobs("limit=+1"), 400),
        ("with a NUL", jobs("limit=1%00"), 400),
        ("negative", jobs("limit=-1"), 400),
        ("beyond 64 bits", jobs("limit=9223372036854775808"), 400),
        ("a NUL in a name", jobs("after=%00"), 400),
        ("an escape as a parameter", jobs("%1b%5b2J=1"), 400),
        (
            "a condition in a name",
            get("/api/v1/runs?job=a'%20OR%20'1'='1"),
            400,
        ),
        (
            "a condition in a state",
            get("/api/v1/runs?state=failed'--"),
            400,
        ),
    ])
    .await;
}

#[tokio::test]
async fn cursors_that_no_page_has_given() {
    assert_answered(&[
        ("a number", get("/api/v1/runs?after=7"), 422),
        ("another alphabet", get("/api/v1/runs?after=a%2Bb"), 400),
        ("no text", get("/api/v1/dead?after="), 400),
        (
            "a cursor of another list",
            // [1,"runs","-id",7]
            get("/api/v1/dead?after=WzEsInJ1bnMiLCItaWQiLDdd"),
            422,
        ),
        (
            "a negative run",
            // [1,"runs","-id",-1]
            get("/api/v1/runs?after=WzEsInJ1bnMiLCItaWQiLC0xXQ"),
            200,
        ),
        (
            "a run beyond 64 bits",
            // [1,"runs","-id",9223372036854775808]
            get("/api/v1/runs?after=WzEsInJ1bnMiLCItaWQiLDkyMjMzNzIwMzY4NTQ3NzU4MDhd"),
            422,
        ),
        (
            "a job that never existed",
            // [1,"jobs","name",[null,77]]
            get("/api/v1/jobs?after=WzEsImpvYnMiLCJuYW1lIixbbnVsbCw3N11d"),
            422,
        ),
    ])
    .await;
}
