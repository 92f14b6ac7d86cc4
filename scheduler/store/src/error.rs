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
    /// The user: the stored object does not fulfil the [precondition](crate::Precondition) of the request.
    Precondition,
    /// The caller, by going on: an earlier request with the same idempotency key has created the object, which
    /// [`StoreError::refused_objects`] names.
    AlreadyCreated,
    /// The user: an earlier request with the same idempotency key asked for something else.
    KeyReused,
}

/// An object for which a call was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedObject {
    /// The name of a job or a user, or the id of a token.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A failed call to a store. Its message reads "failed to …".
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    kind: ErrorKind,
    message: String,
    outcome_unknown: bool,
    refused: Vec<RefusedObject>,
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
            refused: Vec::new(),
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

    /// An error of kind [`ErrorKind::Precondition`] for these objects, at least one. `what` completes "failed to …".
    pub fn precondition(what: &str, refused: Vec<RefusedObject>) -> Self {
        let why = match &refused[..] {
            [one] => format!("{}: {}", one.name, one.reason),
            many => format!("the preconditions of {} objects are not met", many.len()),
        };
        Self {
            refused,
            ..Self::new(ErrorKind::Precondition, format!("failed to {what}: {why}"))
        }
    }

    /// An error of kind [`ErrorKind::AlreadyCreated`] for the object with this name or id. `what` is its kind.
    pub fn already_created(what: &str, name: &str) -> Self {
        let message = format!(
            "failed to create {what}: an earlier request with the same idempotency key has created {name:?}"
        );
        let refused = RefusedObject {
            name: name.to_owned(),
            reason: "it is created already".to_owned(),
        };
        Self {
            refused: vec![refused],
            ..Self::new(ErrorKind::AlreadyCreated, message)
        }
    }

    /// An error of kind [`ErrorKind::KeyReused`]. `what` completes "failed to …", and `difference` names what differs.
    pub fn key_reused(what: &str, difference: &str) -> Self {
        let message = format!(
            "failed to {what}: an earlier request with the same idempotency key had {difference}; use a new key for another request"
        );
        Self::new(ErrorKind::KeyReused, message)
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

    /// The objects for which the call was refused: those with an unfulfilled precondition, at most one for each given
    /// object, or the one that exists already. Empty for other kinds.
    pub fn refused_objects(&self) -> &[RefusedObject] {
        &self.refused
    }

    /// Who can resolve the error, and how.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}
