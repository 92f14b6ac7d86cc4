//! A call that is under way: what it sends has been put in line for the socket, and its end is waited for later.
//!
//! lapin's calls put their frames in line when they are first polled. Polling once, then the next call, keeps the order of frames
//! without waiting for the socket in between, and can be done while a lock is held.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use lapin::Result;

/// See the module.
pub(crate) enum Started<'a, T> {
    Done(Result<T>),
    Running(Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>),
}

impl<'a, T> Started<'a, T> {
    pub(crate) fn new(call: impl Future<Output = Result<T>> + Send + 'a) -> Self {
        let mut call = Box::pin(call);
        // Whoever waits for the end polls it again, with a waker of its own.
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Self::Done(result),
            Poll::Pending => Self::Running(call),
        }
    }

    pub(crate) async fn end(self) -> Result<T> {
        match self {
            Self::Done(result) => result,
            Self::Running(call) => call.await,
        }
    }
}
