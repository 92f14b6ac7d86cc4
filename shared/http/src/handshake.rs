//! What a connection does before its first request.

use std::future::Future;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;

use super::tls::Tls;

/// Turns an accepted stream into one that carries requests.
pub(super) trait Handshake<S>: Clone + Send + 'static {
    /// Whether the handshake makes the connection private.
    const IS_TLS: bool;

    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn perform(self, stream: S) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// No handshake: requests follow at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain;

impl<S> Handshake<S> for Plain
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    const IS_TLS: bool = false;

    type Stream = S;

    async fn perform(self, stream: S) -> io::Result<S> {
        Ok(stream)
    }
}

impl<S> Handshake<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    const IS_TLS: bool = true;

    type Stream = TlsStream<S>;

    async fn perform(self, stream: S) -> io::Result<TlsStream<S>> {
        self.acceptor().accept(stream).await
    }
}
