//! What a worker runs.

use std::future::Future;

use async_trait::async_trait;

use crate::context::Context;
use crate::returned::{Failure, Output};

/// Something that jobs can run.
///
/// When the attempt is to stop (cancelled, timed out, covered, worker draining for too long) [`Context::stopped`] returns; the handler then has the
/// job's kill grace to come to its end, after which its future is dropped.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Makes one attempt.
    async fn run(&self, cx: Context) -> Result<Output, Failure>;
}

#[async_trait]
impl<H: Handler + ?Sized> Handler for std::sync::Arc<H> {
    async fn run(&self, cx: Context) -> Result<Output, Failure> {
        (**self).run(cx).await
    }
}

struct FromFn<F>(F);

#[async_trait]
impl<F, Fut, T, E> Handler for FromFn<F>
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Into<Output>,
    E: Into<Failure>,
{
    async fn run(&self, cx: Context) -> Result<Output, Failure> {
        (self.0)(cx).await.map(Into::into).map_err(Into::into)
    }
}

/// A handler made of an async function.
pub fn from_fn<F, Fut, T, E>(function: F) -> impl Handler
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Into<Output>,
    E: Into<Failure>,
{
    FromFn(function)
}
