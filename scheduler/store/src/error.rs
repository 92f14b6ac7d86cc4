//! Errors of the port.

/// Who can resolve an error, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller, by retrying later: the database is busy, unreachable or full.
    Transient,
    /// An operator: the database is damaged, or belongs to another program.
    Broken,
    /// The user: the named job or run does not exist.
    NotFound,
    /// The user: the request contradicts the stored state.
    Conflict,
    /// The user: the request itself makes no sense.
    Invalid,
}

/// A failed call to a store. Its message reads "failed to …".
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    kind: ErrorKind,
    message: String,
    outcome_unknown: bool,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            outcome_unknown: false,
            source: None,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Marks a call that may have been carried out, because its commit was not answered.
    #[must_use]
    pub fn with_unknown_outcome(mut self) -> Self {
        self.outcome_unknown = true;
        self
    }

    /// An error of kind [`ErrorKind::Invalid`].
    pub fn invalid(message: String) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// There is no job of that name.
    pub fn no_job(name: &str) -> Self {
        Self::new(ErrorKind::NotFound, format!("there is no job {name:?}"))
    }

    /// There is no such run.
    pub fn no_run(run: cueline_model::RunId) -> Self {
        Self::new(ErrorKind::NotFound, format!("there is no run {run}"))
    }

    /// The node is not registered, so its claims could not be found by other nodes.
    pub fn unregistered_node(node: crate::NodeId) -> Self {
        Self::new(
            ErrorKind::Conflict,
            format!("failed to claim for node {}: it is not registered", node.0),
        )
    }

    /// Whether the call may have been carried out although it failed. If not, nothing was changed.
    pub const fn is_outcome_unknown(&self) -> bool {
        self.outcome_unknown
    }

    /// Who can resolve the error, and how.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}
