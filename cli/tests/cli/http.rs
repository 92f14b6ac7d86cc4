//! A server that records what commands send to it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request: its first line, its headers and its body.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) headers: Vec<String>,
    pub(crate) body: String,
}

impl Request {
    /// The value of a header; its name is in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut pairs = self.headers.iter().filter_map(|line| line.split_once(": "));
        pairs.find_map(|(own, value)| own.eq_ignore_ascii_case(name).then_some(value))
    }
}

/// A server on a port of its own. Its thread ends with the process of the test.
pub(crate) struct Recorder {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Recorder {
    /// Answers each request with the status line, headers and body that `answer` returns for the first line of it. With an
    /// empty status line, the connection ends without an answer.
    pub(crate) fn start(answer: impl Fn(&str) -> (String, String) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let Some(request) = read(&stream) else {
                    continue;
                };
                let (head, body) = answer(&request.line);
                recorded.lock().expect("not poisoned").push(request);
                if head.is_empty() {
                    continue;
                }
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 {head}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
                );
            }
        });
        Self { url, requests }
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("not poisoned").clone()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        lines.push(line.to_owned());
    }
    let mut request = Request {
        line: lines.remove(0),
        headers: lines,
        body: String::new(),
    };
    let length = request.header("content-length").unwrap_or("0");
    let length: u64 = length.parse().ok()?;
    reader.take(length).read_to_string(&mut request.body).ok()?;
    Some(request)
}
