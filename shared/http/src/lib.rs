//! What each process serves over HTTP: a router on a listener, with or without TLS, and the format of [`metrics`].
//!
//! A client that sends slowly, sends nothing, or opens many connections must not take descriptors or memory from the rest
//! of the process. Each limit below has a stated effect. This crate knows connections and requests, and no path.

mod accept;
mod body;
mod connection;
mod handshake;
pub mod metrics;
mod peer;
mod table;
mod tls;
mod write_limit;

use std::time::Duration;

pub use accept::{Serving, serve, serve_on_socket, serve_tls};
pub use body::BodyTimeout;
pub use peer::{Peer, PeerAddress};
pub use tls::{Tls, TlsError, TlsFile, TlsFiles, TlsReload};

/// The longest request line and headers together, in bytes. Longer ones are answered with 431, or 414 for a URI of 64 KiB
/// and more, and the connection is closed.
pub const MAX_HEAD_BYTES: usize = 32 * 1024;

/// The most headers of a request. More are answered with 431, and the connection is closed.
pub const MAX_HEADERS: usize = 100;

/// The limits of a server that depend on the machine, or that a test shortens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// The most open connections. At the limit a new connection closes the one that has waited longest for a request. If
    /// every connection has a request in progress, the new one waits.
    pub max_connections: usize,
    /// A connection is closed for a new one only after it has waited for a request for this time. 500 ms by default.
    pub min_idle: Duration,
    /// The time in which a TLS handshake must end, counted from the start of the connection. Afterwards the connection is
    /// closed. Until then it counts as one that waits for a request. 10 s by default.
    pub handshake_timeout: Duration,
    /// The time in which a request's line and headers must arrive, counted from the start of the connection, the end of its
    /// TLS handshake, or the end of the previous response. Afterwards the connection is closed. 30 s by default.
    pub head_timeout: Duration,
    /// The time in which a request's body must arrive, counted from its headers. Afterwards the answer is 408. 30 s by
    /// default.
    pub body_timeout: Duration,
    /// The time for which a client may accept no byte of a response. Afterwards the connection is closed. 30 s by default.
    pub write_timeout: Duration,
}

impl ServerLimits {
    /// The default times, and this number of connections.
    pub const fn of_connections(max_connections: usize) -> Self {
        Self {
            max_connections,
            min_idle: Duration::from_millis(500),
            handshake_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
        }
    }
}
