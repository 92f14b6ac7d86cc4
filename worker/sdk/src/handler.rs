//! What a worker runs.

use std::fmt;
use std::future::Future;

use async_trait::async_trait;

use crate::context::Context;

/// What a handler returns when it succeeded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Handed to jobs that come after, and shown with the run.
    pub text: Option<String>,
    /// Exit status of a process, or an HTTP status.
    pub exit_status: Option<i32>,
}

impl From<()> for Output {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<String> for Output {
    fn from(text: String) -> Self {
        Self {
            text: Some(text),
            exit_status: None,
        }
    }
}

impl From<&str> for Output {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// What a handler returns when it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Why, for a person to read.
    pub message: String,
    /// Exit status of a process, or an HTTP status.
    pub exit_status: Option<i32>,
}

impl Failure {
    /// A failure without an exit status.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            exit_status: None,
        }
    }
}

impl<E: fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

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
