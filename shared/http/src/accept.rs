//! Accepts connections, at most as many as there may be.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use cueline_runtime::{Backoff, Stop};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::ServerLimits;
use super::connection;
use super::handshake::{Handshake, Plain};
use super::peer::{Peer, PeerAddress};
use super::table::{Admission, Connections, Slot};
use super::tls::Tls;
use super::write_limit::WriteLimit;

/// The first wait after a failed accept. It doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// A warning that connections wait is repeated after this time at the earliest.
const WARN_EVERY: Duration = Duration::from_mins(1);

/// A server until it has stopped. Boxed, so its code is made in this crate: every process has one (docs/adr/0050-code-by-use.md).
pub type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where clients connect to.
trait Listener: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next connection.
    ///
    /// # Errors
    ///
    /// When there is no descriptor for it, or when it was lost meanwhile.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Where a connection comes from.
    fn peer(stream: &Self::Stream) -> PeerAddress;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // A response should not wait until more of it follows. This fails only if the client has gone.
        let set = stream.set_nodelay(true);
        set.map_err(|_| io::Error::from(io::ErrorKind::ConnectionAborted))?;
        Ok(stream)
    }

    fn peer(stream: &TcpStream) -> PeerAddress {
        let address = stream.peer_addr();
        // It fails only if the client has gone.
        address.map_or(PeerAddress::Unknown, |address| {
            PeerAddress::of(address.ip())
        })
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(Self::accept(self).await?.0)
    }

    fn peer(_: &UnixStream) -> PeerAddress {
        PeerAddress::Socket
    }
}

/// Answers requests with `router` until `stop` is requested, and returns when the open ones are answered. The caller
/// bounds that wait.
///
/// A failed accept never ends the server. Without a free descriptor, it closes the connection that has waited longest for
/// a request and tries again.
pub fn serve(listener: TcpListener, router: Router, limits: ServerLimits, stop: Stop) -> Serving {
    Box::pin(serve_with(listener, Plain, router, limits, stop))
}

/// Like [`serve`], for processes on this machine.
pub fn serve_on_socket(
    listener: UnixListener,
    router: Router,
    limits: ServerLimits,
    stop: Stop,
) -> Serving {
    Box::pin(serve_with(listener, Plain, router, limits, stop))
}

/// Like [`serve`], and each connection begins with a TLS handshake. It takes place beside the accepting of others, so a
/// slow one delays none of them.
pub fn serve_tls(
    listener: TcpListener,
    tls: Tls,
    router: Router,
    limits: ServerLimits,
    stop: Stop,
) -> Serving {
    Box::pin(serve_with(listener, tls, router, limits, stop))
}

async fn serve_with<L, H>(
    listener: L,
    handshake: H,
    router: Router,
    limits: ServerLimits,
    stop: Stop,
) where
    L: Listener,
    H: Handshake<WriteLimit<L::Stream>>,
{
    let connections = Connections::new(limits.max_connections, limits.min_idle);
    let tasks = TaskTracker::new();
    let mut acceptor = Acceptor::new(listener, connections);
    loop {
        let (stream, slot) = tokio::select! {
            biased;
            () = stop.soft() => break,
            accepted = acceptor.next() => accepted,
        };
        let (handshake, router) = (handshake.clone(), router.clone());
        let peer = Peer {
            address: L::peer(&stream),
            has_tls: H::IS_TLS,
        };
        let serving = connection::run(stream, peer, handshake, slot, router, limits, stop.clone());
        tasks.spawn(serving);
    }
    // No further connection is accepted from here on.
    drop(acceptor);
    tasks.close();
    tasks.wait().await;
}

struct Acceptor<L> {
    listener: L,
    connections: Connections,
    backoff: Backoff,
    failing: bool,
    warned_at: Option<Instant>,
}

impl<L: Listener> Acceptor<L> {
    fn new(listener: L, connections: Connections) -> Self {
        Self {
            listener,
            connections,
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
            failing: false,
            warned_at: None,
        }
    }

    /// The next connection, with a place for it. The one that waits for a place is beyond the limit; further ones wait in
    /// the listener's backlog.
    async fn next(&mut self) -> (L::Stream, Slot) {
        let stream = self.accept().await;
        loop {
            match self.connections.try_admit() {
                Admission::Admitted(slot) => return (stream, slot),
                Admission::MakingRoom => self.connections.changed().await,
                Admission::NotBefore(at) => tokio::select! {
                    () = self.connections.changed() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                Admission::AllBusy => {
                    self.warn_that_all_are_busy();
                    self.connections.changed().await;
                }
            }
        }
    }

    async fn accept(&mut self) -> L::Stream {
        loop {
            let error = match self.listener.accept().await {
                Ok(stream) => {
                    if self.failing {
                        tracing::info!("connections were accepted again");
                    }
                    self.failing = false;
                    self.backoff.reset();
                    return stream;
                }
                Err(error) => error,
            };
            if is_of_one_connection(&error) {
                continue;
            }
            if !self.failing {
                tracing::warn!(
                    %error,
                    "failed to accept a connection; if too many files are open, raise the limit of descriptors (LimitNOFILE), or lower max_connections"
                );
            }
            self.failing = true;
            self.connections.evict_longest_idle();
            tokio::time::sleep(self.backoff.next_wait()).await;
        }
    }

    fn warn_that_all_are_busy(&mut self) {
        let now = Instant::now();
        if self.warned_at.is_some_and(|at| now - at < WARN_EVERY) {
            return;
        }
        self.warned_at = Some(now);
        tracing::warn!(
            "connections waited because all others had requests in progress; raise max_connections, or find the clients"
        );
    }
}

/// Whether only the connection failed that would have been accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}
