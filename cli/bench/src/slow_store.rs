//! A TCP proxy between the schedulers and PostgreSQL. It delays what the server sends.
//!
//! Each piece is forwarded the same time after it arrived, so an answer of several pieces is delayed once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use crate::BadInput;

/// Connections at once. Further ones wait.
const MAX_CONNECTIONS: usize = 256;
/// Bytes of one piece.
const PIECE_BYTES: usize = 16 * 1024;
/// Pieces of one connection that wait for their time. At the limit nothing more is read from the server.
const QUEUED_PIECES: usize = 64;
/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The proxy. Dropping it ends it with all its connections.
#[derive(Debug)]
pub(crate) struct SlowStore {
    port: u16,
    delay_ms: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// Bytes of the server, and when they arrived.
type Piece = (Instant, Vec<u8>);

impl SlowStore {
    /// Starts a proxy in front of the server of `url`, without a delay.
    ///
    /// # Errors
    ///
    /// [`BadInput`] if the URL does not name one host and port that a proxy can stand in for.
    pub(crate) async fn start(url: &str) -> Result<Self> {
        let server = server_of(url)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let delay_ms = Arc::<AtomicU64>::default();
        let task = tokio::spawn(serve(listener, server, Arc::clone(&delay_ms)));
        Ok(Self {
            port,
            delay_ms,
            task,
        })
    }

    /// The proxy's address of a database at `url` on the same server.
    pub(crate) fn url(&self, url: &str) -> Result<String> {
        let mut url = Url::parse(url)?;
        url.set_host(Some("127.0.0.1"))?;
        url.set_port(Some(self.port))
            .map_err(|()| anyhow!("--store: the URL takes no port"))?;
        Ok(url.to_string())
    }

    /// Sets the delay, also for pieces that wait already.
    pub(crate) fn set_delay(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.delay_ms.store(ms, Ordering::Relaxed);
    }
}

impl Drop for SlowStore {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Host and port of the server.
fn server_of(url: &str) -> Result<(String, u16)> {
    let url = Url::parse(url)?;
    let refused = |what: &str| {
        BadInput(format!(
            "--slow-store: a proxy cannot stand in for a server {what}; give --store with one host and port"
        ))
    };
    for (key, value) in url.query_pairs() {
        match (key.as_ref(), value.as_ref()) {
            ("host" | "hostaddr" | "port", _) => {
                return Err(refused("that the URL's parameters name").into());
            }
            ("sslmode", "verify-full") => {
                return Err(refused("whose certificate has to name the host").into());
            }
            _ => {}
        }
    }
    let host = url.host_str().unwrap_or_default();
    if host.is_empty() || host.contains('%') {
        return Err(refused("on a socket file").into());
    }
    let host = host.trim_matches(['[', ']']).to_owned();
    Ok((host, url.port().unwrap_or(5432)))
}

async fn serve(listener: TcpListener, server: (String, u16), delay_ms: Arc<AtomicU64>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accept = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! {
            accepted = accept => match accepted {
                (Ok(permit), Ok((client, _))) => {
                    let (server, delay_ms) = (server.clone(), Arc::clone(&delay_ms));
                    connections.spawn(async move {
                        // An error ends the connection. Both ends notice it.
                        let _ = forward(client, server, &delay_ms).await;
                        drop(permit);
                    });
                }
                _ => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards until one end closes. What the server sent before it closed is still delivered.
async fn forward(
    client: TcpStream,
    server: (String, u16),
    delay_ms: &AtomicU64,
) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let (arrived, waiting) = mpsc::channel(QUEUED_PIECES);
    let answers = async {
        let ((), written) = tokio::join!(
            read_pieces(from_server, arrived),
            write_pieces(waiting, to_client, delay_ms)
        );
        written
    };
    tokio::select! {
        copied = tokio::io::copy(&mut from_client, &mut to_server) => copied.map(drop),
        written = answers => written,
    }
}

async fn read_pieces(mut from: OwnedReadHalf, to: mpsc::Sender<Piece>) {
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        let Ok(length @ 1..) = from.read(&mut piece).await else {
            return;
        };
        piece.truncate(length);
        if to.send((Instant::now(), piece)).await.is_err() {
            return;
        }
    }
}

async fn write_pieces(
    mut from: mpsc::Receiver<Piece>,
    mut to: OwnedWriteHalf,
    delay_ms: &AtomicU64,
) -> std::io::Result<()> {
    while let Some((arrived_at, piece)) = from.recv().await {
        let delay = Duration::from_millis(delay_ms.load(Ordering::Relaxed));
        sleep_until(arrived_at + delay).await;
        to.write_all(&piece).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it receives, until the client closes.
    async fn echo_server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (mut from, mut to) = stream.into_split();
            tokio::io::copy(&mut from, &mut to).await.unwrap();
        });
        format!("postgres://ann:secret@127.0.0.1:{port}/postgres")
    }

    #[tokio::test]
    async fn answers_are_complete_in_order_and_late_by_the_delay() {
        let server = echo_server().await;
        let proxy = SlowStore::start(&server).await.unwrap();
        let delay = Duration::from_millis(80);
        proxy.set_delay(delay);
        let address = Url::parse(&proxy.url(&server).unwrap()).unwrap();
        assert_eq!(address.path(), "/postgres");
        let stream = TcpStream::connect(("127.0.0.1", address.port().unwrap()));
        let (mut from, mut to) = stream.await.unwrap().into_split();

        // More than all buffers hold, so that the limit of waiting pieces is reached.
        let sent: Vec<u8> = (0..=250_u8).cycle().take(3_000_000).collect();
        let begin = Instant::now();
        let sending = sent.clone();
        let writing = tokio::spawn(async move {
            to.write_all(&sending).await.unwrap();
            to
        });
        let mut received = vec![0; sent.len()];
        from.read_exact(&mut received[..1]).await.unwrap();
        assert!(begin.elapsed() >= delay);
        from.read_exact(&mut received[1..]).await.unwrap();
        assert!(received == sent);
        drop(writing.await.unwrap());
    }

    #[test]
    fn addresses_that_a_proxy_cannot_stand_in_for_are_refused() {
        let server = |url| server_of(url).map_err(|e| e.to_string());
        let found = |host: &str, port| Ok((host.to_owned(), port));
        assert_eq!(server("postgres://a:b@db:6000/x"), found("db", 6_000));
        assert_eq!(server("postgres://a:b@[::1]/x"), found("::1", 5_432));
        for refused in [
            "postgres:///x?host=/run/postgresql",
            "postgres://%2Frun%2Fpostgresql/x",
            "postgres://db/x?sslmode=verify-full",
        ] {
            let error = server(refused).unwrap_err();
            assert!(error.starts_with("--slow-store"), "{refused}: {error}");
        }
    }
}
