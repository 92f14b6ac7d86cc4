//! A real, very small HTTP server.

use std::collections::BTreeMap;

use cueline_worker::model::handler::HttpSpec;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Answers each request with `answer(request)` and hands the requests on. An empty answer keeps the client waiting.
pub(crate) async fn server(
    answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
) -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (tx, rx) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let answer = std::sync::Arc::new(answer);
        while let Ok((stream, _)) = listener.accept().await {
            let (answer, tx) = (answer.clone(), tx.clone());
            tokio::spawn(async move { serve(stream, &*answer, &tx).await });
        }
    });
    (url, rx)
}

async fn serve(
    mut stream: TcpStream,
    answer: &(dyn Fn(&str) -> Vec<u8> + Send + Sync),
    requests: &mpsc::UnboundedSender<String>,
) {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !complete(&text) {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(n) => text.push_str(&String::from_utf8_lossy(&buffer[..n])),
        }
    }
    let bytes = answer(&text);
    let _ = requests.send(text);
    if bytes.is_empty() {
        let closed = stream.read(&mut buffer).await;
        let _ = requests.send(format!("closed {closed:?}"));
        return;
    }
    let _ = stream.write_all(&bytes).await;
    let _ = stream.shutdown().await;
}

fn complete(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        })
        .unwrap_or(0);
    body.len() >= length
}

pub(crate) fn answer(status: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub(crate) fn redirect(status: &str, location: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

/// The value of a request's header. `name` is in lower case.
pub(crate) fn header(request: &str, name: &str) -> Option<String> {
    let head = request.split("\r\n\r\n").next()?;
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(": ")?;
        key.eq_ignore_ascii_case(name).then(|| value.to_owned())
    })
}

pub(crate) fn get(url: &str) -> HttpSpec {
    HttpSpec {
        url: url.to_owned(),
        method: "GET".into(),
        headers: BTreeMap::new(),
        body: None,
        expect: vec![],
        redirects: 0,
    }
}
