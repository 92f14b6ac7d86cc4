//! A server fires jobs while clients send what no honest client sends, and its log controls no terminal.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::free_port;
use cueline_tests::Standalone;
use cueline_tests::standalone::process;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::silent_clients::succeed;

const WITHIN: Duration = Duration::from_mins(2);

/// How often each request is sent.
const ROUNDS: usize = 20;

/// Requests with the beginnings of their answers. An empty one means that the connection ends without an answer.
const REQUESTS: [(&[u8], &str); 9] = [
    (b"GET /livez HTTP/9.9\r\n\r\n", "HTTP/1.1 400 "),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "HTTP/1.1 400 "),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
    (
        b"GET /\x1b]0;title\x07 HTTP/1.1\r\nHost: a\r\n\r\n",
        "HTTP/1.1 400 ",
    ),
    (
        b"GET /livez HTTP/1.1\r\nHost: a\r\nX-\x1b[2J: 1\r\n\r\n",
        "HTTP/1.1 400 ",
    ),
    (
        b"GET /%1b%5b2J HTTP/1.1\r\nHost: \xc2\x9b2J\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 404 ",
    ),
    (
        b"POST /api/v1/jobs/apply HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
        "HTTP/1.1 400 ",
    ),
    (
        b"POST /api/v1/jobs/apply HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 401 ",
    ),
    (
        b"GET /api/v1/jobs/%1b%5b2J HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xe2\x80\xae\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 401 ",
    ),
];

/// What the server answers on a connection of its own.
async fn answer(port: u16, request: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(request).await?;
    let mut received = Vec::new();
    let read = tokio::time::timeout(WITHIN, stream.read_to_end(&mut received));
    read.await.context("neither an answer nor an end")??;
    Ok(String::from_utf8_lossy(&received).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_requests_neither_stop_jobs_nor_reach_a_terminal() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let port = free_port()?;
    // Errors of connections are logged at this level only.
    let process = process(&data, port, &[])?.env("CUELINE_LOG", "info,cueline_http=debug");
    let server = Standalone::launch(process, &data, port).await?;
    let job = json!({ "name": "tick", "schedule": { "every": "500ms" }, "handler": { "command": ["true"] } });
    server.apply(&json!([job])).await?;
    let before = succeed(&server, 1).await?;
    for _ in 0..ROUNDS {
        for (request, expected) in REQUESTS {
            let got = answer(port, request).await?;
            let shown = String::from_utf8_lossy(request);
            let fits = got.starts_with(expected) && got.is_empty() == expected.is_empty();
            ensure!(fits, "{shown:?} was answered by {got:?}");
        }
    }
    succeed(&server, before + 5).await?;
    let log = server.log();
    ensure!(log.contains("connection ended with an error"), "{log}");
    let harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
    ensure!(!log.contains(harmful), "{log:?}");
    server.terminate().await
}
