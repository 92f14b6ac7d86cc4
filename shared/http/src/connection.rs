//! Serves one connection until it ends, gives way to another, or the server stops.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use cueline_runtime::Stop;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt as _;

use super::body::{BusyBody, TimedBody};
use super::handshake::Handshake;
use super::peer::Peer;
use super::table::{Busy, Slot};
use super::write_limit::WriteLimit;
use super::{MAX_HEAD_BYTES, MAX_HEADERS, ServerLimits};

/// Makes the handshake of a connection, then answers its requests with `router`. After a stop, the request in progress is
/// the last one.
pub(super) async fn run<S, H>(
    stream: S,
    peer: Peer,
    handshake: H,
    slot: Slot,
    router: Router,
    limits: ServerLimits,
    stop: Stop,
) where
    H: Handshake<WriteLimit<S>>,
{
    let stream = WriteLimit::new(stream, limits.write_timeout);
    let within = tokio::time::timeout(limits.handshake_timeout, handshake.perform(stream));
    let begun = tokio::select! {
        biased;
        () = slot.evicted().cancelled() => {
            tracing::debug!("connection was closed in its handshake; another one needed its place");
            return;
        }
        begun = within => begun,
        // No request is in progress.
        () = stop.soft() => return,
    };
    match begun {
        Ok(Ok(stream)) => answer_all(stream, peer, slot, router, limits, stop).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("connection was closed; its TLS handshake took too long"),
    }
}

async fn answer_all<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: Peer,
    slot: Slot,
    router: Router,
    limits: ServerLimits,
    stop: Stop,
) {
    let evicted = slot.evicted().clone();
    let slot = Arc::new(slot);
    let io = TokioIo::new(stream);
    let body_timeout = limits.body_timeout;
    let service = service_fn(move |request: Request<Incoming>| {
        answer(router.clone(), peer, slot.clone(), body_timeout, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(2 * MAX_HEAD_BYTES)
        .serve_connection(io, service);
    tokio::pin!(connection);
    let mut stopping = false;
    loop {
        tokio::select! {
            biased;
            () = evicted.cancelled() => {
                tracing::debug!("idle connection was closed; another one needed its place");
                return;
            }
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended with an error");
                }
                return;
            }
            () = stop.soft(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn answer(
    router: Router,
    peer: Peer,
    slot: Arc<Slot>,
    body_timeout: Duration,
    request: Request<Incoming>,
) -> io::Result<Response<BusyBody>> {
    let busy = Busy::begin(slot)
        .ok_or_else(|| io::Error::other("the connection gives way to another one"))?;
    let mut request = request.map(|body| {
        if body.is_end_stream() {
            Body::empty()
        } else {
            Body::new(TimedBody::new(Body::new(body), body_timeout))
        }
    });
    request.extensions_mut().insert(peer);
    let response = match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    Ok(response.map(|body| BusyBody::new(body, busy)))
}
