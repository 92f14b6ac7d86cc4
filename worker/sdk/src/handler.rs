//! Handlers: the code that attempts run.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::handler::Interpreter;

use crate::context::Context;
use crate::returned::{Failure, Output};

/// Code that jobs can run.
///
/// An async function is a handler by [`Builder::handler`](crate::Builder::handler). Implement the trait for handlers
/// with state:
///
/// ```
/// use cueline_worker::{Context, Failure, Handler, Output};
///
/// struct Mailer {
///     sender: String,
/// }
///
/// #[async_trait::async_trait]
/// impl Handler for Mailer {
///     async fn run(&self, cx: Context) -> Result<Output, Failure> {
///         let recipient: String = cx.params()?;
///         cx.log(format!("{} writes to {recipient}", self.sender));
///         Ok("sent".into())
///     }
/// }
/// ```
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Makes one attempt.
    ///
    /// When the attempt must stop, [`Context::stopped`] returns and [`Context::cancelled`] fails. The handler then
    /// has the job's kill grace to return. After that its future is dropped.
    ///
    /// # Errors
    ///
    /// A [`Failure`] fails the attempt; the job's retry policy decides whether another one follows. After a stop its
    /// message is kept, and the outcome is that of the [reason](crate::StopReason).
    async fn run(&self, cx: Context) -> Result<Output, Failure>;

    /// The interpreters for which it can run scripts. A worker asks its handler of the kind `shell` when it is built and
    /// every few minutes, and announces the answer. Schedulers send it scripts for these only.
    fn interpreters(&self) -> Vec<Interpreter> {
        Interpreter::ALL.map(|(_, interpreter)| interpreter).into()
    }
}

#[async_trait]
impl<H: Handler + ?Sized> Handler for Arc<H> {
    async fn run(&self, cx: Context) -> Result<Output, Failure> {
        (**self).run(cx).await
    }

    fn interpreters(&self) -> Vec<Interpreter> {
        (**self).interpreters()
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

/// Makes a handler of an async function.
pub fn from_fn<F, Fut, T, E>(function: F) -> impl Handler
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Into<Output>,
    E: Into<Failure>,
{
    FromFn(function)
}
