//! The handlers of a worker.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cueline_model::HandlerSpec;
use cueline_model::handler::Interpreter;

use crate::error::{Error, Result};
use crate::handler::Handler;

/// The kinds of handlers that are built in rather than registered by name.
const KINDS: [&str; 3] = ["shell", "command", "http"];

/// The handlers of a worker.
#[derive(Default, Clone)]
pub(crate) struct Registry {
    native: BTreeMap<String, Arc<dyn Handler>>,
    kinds: BTreeMap<String, Arc<dyn Handler>>,
    /// The interpreters that the handler of scripts has found.
    interpreters: Arc<Mutex<Vec<Interpreter>>>,
}

impl Registry {
    pub(crate) fn add_native(&mut self, name: &str, handler: Arc<dyn Handler>) -> Result<()> {
        if name.is_empty() {
            return Err(Error::setting("handler", "", "a name must not be empty"));
        }
        add(&mut self.native, "handler", name, handler)
    }

    pub(crate) fn add_kind(&mut self, kind: &str, handler: Arc<dyn Handler>) -> Result<()> {
        if !KINDS.contains(&kind) {
            return Err(Error::setting("kind", kind, "one of shell, command, http"));
        }
        add(&mut self.kinds, "kind", kind, handler)
    }

    /// The capabilities that the worker announces; see [`HandlerSpec::capability`].
    pub(crate) fn capabilities(&self) -> Vec<String> {
        let found = self.interpreters.lock();
        let found = found.unwrap_or_else(PoisonError::into_inner);
        let runtimes = found.iter().map(|one| one.capability().to_owned());
        self.names().chain(runtimes).collect()
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let native = self.native.keys().map(|name| format!("native:{name}"));
        native.chain(self.kinds.keys().cloned())
    }

    /// Whether it runs scripts.
    pub(crate) fn has_scripts(&self) -> bool {
        self.kinds.contains_key("shell")
    }

    /// Asks the handler of scripts for its interpreters. It may look at the file system, so it may block.
    pub(crate) fn look_for_interpreters(&self) {
        let Some(handler) = self.kinds.get("shell") else {
            return;
        };
        let found = handler.interpreters();
        let known = self.interpreters.lock();
        *known.unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// The handler for `spec`, or why there is none.
    pub(crate) fn resolve(&self, spec: &HandlerSpec) -> Result<Arc<dyn Handler>, String> {
        let found = match spec {
            HandlerSpec::Native(name) => self.native.get(name),
            other => self.kinds.get(other.kind()),
        };
        found.cloned().ok_or_else(|| {
            let offered: Vec<String> = self.names().collect();
            let offered = if offered.is_empty() {
                "nothing".to_owned()
            } else {
                offered.join(", ")
            };
            format!(
                "{} is unknown or not allowed on this worker, which runs {offered}",
                match spec {
                    HandlerSpec::Native(_) => spec.capability(),
                    other => other.kind().into(),
                }
            )
        })
    }
}

fn add(
    handlers: &mut BTreeMap<String, Arc<dyn Handler>>,
    field: &'static str,
    name: &str,
    handler: Arc<dyn Handler>,
) -> Result<()> {
    match handlers.insert(name.to_owned(), handler) {
        None => Ok(()),
        Some(_) => Err(Error::setting(field, name, "registered twice")),
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.capabilities()).finish()
    }
}
