//! A client that sends any bytes.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::server::{DEADLINE, Server, TOKEN};

/// The body of the request that [`Raw::begin`] begins.
const UNFINISHED: &[u8] = br#"{"schedule": {"every": "1h"}, "n": 1}"#;

/// One connection.
pub(crate) struct Raw {
    stream: TcpStream,
    /// Received, and not yet part of a reply.
    received: Vec<u8>,
}

/// One final response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Raw {
    pub(crate) async fn connect(server: &Server) -> Self {
        Self::to(server.address).await
    }

    pub(crate) async fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("connects");
        Self {
            stream,
            received: Vec::new(),
        }
    }

    /// Sends as much as the server takes. It may close the connection meanwhile.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let sent = tokio::time::timeout(DEADLINE, self.stream.write_all(bytes));
        let _ = sent.await.expect("the server neither reads nor closes");
    }

    /// The next final response. `None` if the connection was closed before one.
    pub(crate) async fn reply(&mut self) -> Option<Reply> {
        let reply = tokio::time::timeout(DEADLINE, self.next_reply());
        reply.await.expect("neither an answer nor an end")
    }

    /// Ends the sending side. The server can still answer.
    pub(crate) async fn end_sending(&mut self) {
        // It fails if the server has closed the connection already.
        let _ = self.stream.shutdown().await;
    }

    /// Ends the connection with a reset, whatever was not sent or read yet.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().expect("a socket");
    }

    /// Sends `bytes` again and again, and reads nothing, until the server closes the connection.
    pub(crate) async fn flood(&mut self, bytes: &[u8]) {
        let sent = async { while self.stream.write_all(bytes).await.is_ok() {} };
        let ended = tokio::time::timeout(DEADLINE, sent).await;
        ended.expect("the server does not close the connection");
    }

    /// Begins a request, and returns when it is in progress. [`finish`](Self::finish) ends it.
    pub(crate) async fn begin(&mut self) {
        let length = format!("Content-Length: {}", UNFINISHED.len());
        let headers = [
            "Content-Type: application/json",
            "Expect: 100-continue",
            length.as_str(),
        ];
        let head = request("POST /api/v1/preview HTTP/1.1", &headers, b"");
        self.begin_with(&head).await;
    }

    /// Sends a head with `Expect: 100-continue`, and returns when the server waits for the body.
    pub(crate) async fn begin_with(&mut self, head: &[u8]) {
        self.send(head).await;
        let interim = tokio::time::timeout(DEADLINE, self.take_head()).await;
        let interim = interim.expect("no answer").expect("closed");
        assert!(interim.starts_with("HTTP/1.1 100 "), "{interim}");
    }

    /// Ends the request that was begun. It is answered.
    pub(crate) async fn finish(&mut self) {
        self.send(UNFINISHED).await;
        let reply = self.reply().await.expect("a reply");
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    async fn next_reply(&mut self) -> Option<Reply> {
        loop {
            let head = self.take_head().await?;
            let status: u16 = head.split(' ').nth(1)?.parse().ok()?;
            // An interim response, such as 100 Continue.
            if (100..200).contains(&status) {
                continue;
            }
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let wanted = name.eq_ignore_ascii_case("content-length");
                wanted.then(|| value.trim().parse::<usize>().ok())?
            });
            let length = length.unwrap_or(0);
            while self.received.len() < length {
                self.receive().await?;
            }
            let body = self.received.drain(..length).collect();
            return Some(Reply { status, body });
        }
    }

    async fn take_head(&mut self) -> Option<String> {
        loop {
            let end = self.received.windows(4).position(|at| at == b"\r\n\r\n");
            if let Some(end) = end {
                let head: Vec<u8> = self.received.drain(..end + 4).collect();
                return Some(String::from_utf8_lossy(&head).into_owned());
            }
            self.receive().await?;
        }
    }

    /// Receives some bytes. `None` at the end of the connection.
    async fn receive(&mut self) -> Option<()> {
        let mut buffer = [0; 4_096];
        match self.stream.read(&mut buffer).await {
            Ok(0) => None,
            Ok(n) => {
                self.received.extend_from_slice(&buffer[..n]);
                Some(())
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("failed to read: {error}"),
        }
    }

    /// Whether the server has closed the connection. It does not wait.
    pub(crate) fn is_closed(&self) -> bool {
        let mut buffer = [0; 1];
        match self.stream.try_read(&mut buffer) {
            Ok(n) => n == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// A request with the token and these further header lines.
pub(crate) fn request(line: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{line}\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A POST with this JSON text.
pub(crate) fn post(path: &str, json: &[u8]) -> Vec<u8> {
    let length = format!("Content-Length: {}", json.len());
    let headers = ["Content-Type: application/json", length.as_str()];
    request(&format!("POST {path} HTTP/1.1"), &headers, json)
}
