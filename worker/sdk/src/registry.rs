//! What a worker can run.

use std::collections::BTreeMap;
use std::sync::Arc;

use cueline_model::HandlerSpec;

use crate::handler::Handler;

/// The kinds of handlers that are built into workers rather than registered by name.
pub(crate) const KINDS: [&str; 3] = ["shell", "command", "http"];

/// The handlers of a worker.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) native: BTreeMap<String, Arc<dyn Handler>>,
    pub(crate) kinds: BTreeMap<String, Arc<dyn Handler>>,
}

impl Registry {
    /// What the worker announces, see [`HandlerSpec::capability`].
    pub(crate) fn capabilities(&self) -> Vec<String> {
        let native = self.native.keys().map(|name| format!("native:{name}"));
        native.chain(self.kinds.keys().cloned()).collect()
    }

    /// The handler for `spec`, or why there is none.
    pub(crate) fn resolve(&self, spec: &HandlerSpec) -> Result<Arc<dyn Handler>, String> {
        let found = match spec {
            HandlerSpec::Native(name) => self.native.get(name),
            other => self.kinds.get(other.capability().as_ref()),
        };
        found.cloned().ok_or_else(|| {
            let can = self.capabilities();
            let can = if can.is_empty() {
                "nothing".to_owned()
            } else {
                can.join(", ")
            };
            format!(
                "{} is unknown or not allowed on this worker, which runs {can}",
                spec.capability()
            )
        })
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.capabilities()).finish()
    }
}
