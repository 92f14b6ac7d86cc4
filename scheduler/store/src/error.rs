//! What can go wrong with a store.

/// Who can mend it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The same call may succeed later: busy, connection lost, disk full.
    Transient,
    /// The store is damaged or not one of ours; a person has to look.
    Broken,
    /// What was asked for does not exist.
    NotFound,
    /// What was asked for clashes with what is there.
    Conflict,
    /// What was asked for makes no sense to the store.
    Invalid,
}

/// A failed call to a store. Messages finish "failed to …".
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
    /// An error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            outcome_unknown: false,
            source: None,
        }
    }

    /// The same with what caused it.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same of a call that may have been carried out: its last step had no answer.
    #[must_use]
    pub fn with_unknown_outcome(mut self) -> Self {
        self.outcome_unknown = true;
        self
    }

    /// There is no job of that name.
    pub fn no_job(name: &str) -> Self {
        Self::new(ErrorKind::NotFound, format!("there is no job {name:?}"))
    }

    /// There is no such run.
    pub fn no_run(run: cueline_model::RunId) -> Self {
        Self::new(ErrorKind::NotFound, format!("there is no run {run}"))
    }

    /// Whether the call may have been carried out all the same. Where it is false, nothing has been.
    pub const fn is_outcome_unknown(&self) -> bool {
        self.outcome_unknown
    }

    /// Who can mend it.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}
