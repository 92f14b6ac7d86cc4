//! Bodies with a time limit, and bodies that keep their connection busy.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::Sleep;

use super::table::Busy;

/// A request's body did not arrive in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed to read the body within {} s", .0.as_secs())]
pub struct BodyTimeout(pub Duration);

/// A request's body that has to arrive before a deadline.
pub(super) struct TimedBody {
    body: Body,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl TimedBody {
    pub(super) fn new(body: Body, limit: Duration) -> Self {
        Self {
            body,
            limit,
            deadline: Box::pin(tokio::time::sleep(limit)),
        }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        // What has arrived counts, even if this process was held up meanwhile.
        let arrived = Pin::new(&mut this.body).poll_frame(cx);
        if arrived.is_pending() && this.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(BodyTimeout(this.limit).into())));
        }
        arrived.map_err(BoxError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body. Its connection does not give way to others until the server has taken all of it.
pub(super) struct BusyBody {
    body: Body,
    _busy: Busy,
}

impl BusyBody {
    pub(super) const fn new(body: Body, busy: Busy) -> Self {
        Self { body, _busy: busy }
    }
}

impl HttpBody for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
