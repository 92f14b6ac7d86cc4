//! Ends the thread of an `SQLite` connection, as a bug in it would.
//!
//! sqlx runs each connection in a thread of its own, and enters the caller's span there for each command. A subscriber
//! that panics in that thread ends it. Tests must use a runtime of one thread, the current one.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::span::{EnteredSpan, Id};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::Registry;

/// Lets threads of connections end while it exists. Create it first in a test.
#[derive(Debug)]
#[must_use = "dropping it ends its effect"]
pub struct SqliteThreads {
    next: Arc<Mutex<Option<&'static str>>>,
    // Left before its subscriber is gone.
    _span: EnteredSpan,
    _subscriber: DefaultGuard,
}

/// Panics once in a thread whose name begins with the text.
struct EndThread(Arc<Mutex<Option<&'static str>>>);

impl SqliteThreads {
    /// Watches the commands that this thread sends from now on.
    pub fn watch() -> Self {
        let next = Arc::new(Mutex::new(None));
        let subscriber = Registry::default().with(EndThread(Arc::clone(&next)));
        let guard = tracing::subscriber::set_default(subscriber);
        Self {
            next,
            _span: tracing::error_span!("test").entered(),
            _subscriber: guard,
        }
    }

    /// Ends the first thread that gets a command and whose name begins with `name`. The command is not carried out.
    pub fn end_next(&self, name: &'static str) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(name);
    }
}

impl<S: tracing::Subscriber> Layer<S> for EndThread {
    fn on_enter(&self, _id: &Id, _context: Context<'_, S>) {
        let thread = std::thread::current();
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_next = next.is_some_and(|name| thread.name().is_some_and(|n| n.starts_with(name)));
        if is_next {
            *next = None;
            drop(next);
            panic!("planned by the test: the thread of an SQLite connection ends");
        }
    }
}
