//! Keys of workers and the tokens that enrol them. Schedulers verify workers' messages with the stored keys (G16).

use std::fmt;

use cueline_model::{Actor, ExecutorId, ExecutorName, GroupName, Namespace, Timestamp};

/// The most stored enrolment tokens. At this number, a new token replaces the spent ones: expired, or without uses left.
/// Without a spent one it is refused.
pub const MAX_ENROLMENT_TOKENS: usize = 1_000;

/// The most stored worker keys. At this number, an enrolment deletes the key that was revoked first. Without a revoked
/// one it is refused.
pub const MAX_WORKER_KEYS: usize = 100_000;

/// The most revoked keys of one executor. Those that were revoked first are deleted.
pub const MAX_REVOKED_KEYS: usize = 10;

/// An enrolment token that is about to be stored.
#[derive(Clone, PartialEq, Eq)]
pub struct NewEnrolmentToken {
    /// 16 lower-case hexadecimal digits.
    pub id: String,
    /// Verifies claims of the token. It is a secret: its reader can enrol workers.
    pub verifier: [u8; 32],
    /// The namespace whose workers the token enrols; `None` for all namespaces. With `group`, it is the group's.
    pub namespace: Option<Namespace>,
    /// The group whose workers the token enrols; `None` for all groups.
    pub group: Option<GroupName>,
    /// The one executor that the token enrols; `None` for all executors. It requires `group`.
    pub executor: Option<ExecutorName>,
    /// The number of enrolments, from 1.
    pub uses: u32,
    /// How long the token is valid, in milliseconds; `None` for ever.
    pub valid_ms: Option<u64>,
    /// A second request of the same creator with the same key creates no token, as long as the first one is stored. At
    /// most [`MAX_IDEMPOTENCY_KEY_BYTES`](crate::MAX_IDEMPOTENCY_KEY_BYTES).
    pub idempotency_key: Option<String>,
    /// Who created it.
    pub by: Actor,
}

/// Without the verifier.
impl fmt::Debug for NewEnrolmentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewEnrolmentToken")
            .field("id", &self.id)
            .field("namespace", &self.namespace)
            .field("group", &self.group)
            .field("executor", &self.executor)
            .field("uses", &self.uses)
            .field("valid_ms", &self.valid_ms)
            .field("idempotency_key", &self.idempotency_key)
            .field("by", &self.by)
            .finish_non_exhaustive()
    }
}

/// A stored enrolment token, without its verifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEnrolmentToken {
    /// 16 lower-case hexadecimal digits.
    pub id: String,
    /// The namespace whose workers the token enrols; `None` for all namespaces.
    pub namespace: Option<Namespace>,
    /// The group whose workers the token enrols; `None` for all groups.
    pub group: Option<GroupName>,
    /// The one executor that the token enrols; `None` for all executors.
    pub executor: Option<ExecutorName>,
    /// The number of enrolments that are left.
    pub uses_left: u32,
    /// When it expires, by the database's clock; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// When it was created, by the database's clock.
    pub created_at: Timestamp,
    /// Who created it.
    pub by: String,
}

/// Whether messages that a key has sealed are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerKeyState {
    /// They are.
    Allowed,
    /// They are not.
    Revoked,
}

/// A stored key of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWorkerKey {
    /// The executor whose messages the key seals.
    pub executor: ExecutorId,
    /// The public key (Ed25519).
    pub key: [u8; 32],
    /// The key's id, unique for the executor.
    pub key_id: String,
    /// Whether it counts.
    pub state: WorkerKeyState,
    /// When it was enrolled, by the database's clock.
    pub enrolled_at: Timestamp,
    /// What enrolled it: `enrolment token <id>`, or `rotation of <key id>`.
    pub enrolled_by: String,
    /// When its state last changed, by the database's clock.
    pub changed_at: Timestamp,
    /// What changed its state: an actor, `enrolment token <id>`, or `rotation to <key id>`.
    pub changed_by: String,
}

/// Keys in the order of their last changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerKeysPage {
    /// The keys that changed, in the order of the changes.
    pub keys: Vec<StoredWorkerKey>,
    /// The number of the last change in this page. Pass it to read the following ones. It is lower than the number
    /// that was passed if the store was restored to an earlier state: forget all keys, and read from there.
    pub version: i64,
}

/// A key that a worker asks to enrol. The caller has verified its claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewWorkerKey {
    /// The executor whose messages the key seals.
    pub executor: ExecutorId,
    /// The public key (Ed25519).
    pub key: [u8; 32],
    /// The key's id.
    pub key_id: String,
    /// What vouches for the key.
    pub by: KeyOrigin,
}

/// What vouches for a new key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyOrigin {
    /// The enrolment token with this id.
    Token(String),
    /// An allowed key of the same executor has signed the new one, and is replaced by it.
    Rotation {
        /// The id of that key.
        old: String,
    },
}

/// The result of an enrolment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnrolOutcome {
    /// The key is now allowed.
    Enrolled,
    /// The key was allowed before. No use of the token was taken.
    AlreadyAllowed,
    /// Nothing changed.
    Refused(EnrolRefusal),
}

/// Why a key was not enrolled. Its text completes "the worker is not enrolled: …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnrolRefusal {
    /// No token has this id.
    #[error("there is no such enrolment token; it may have been deleted")]
    NoSuchToken,
    /// The token has expired.
    #[error("the enrolment token has expired")]
    Expired,
    /// All uses of the token are taken.
    #[error("all uses of the enrolment token are taken")]
    UsedUp,
    /// The token is for another namespace.
    #[error("the enrolment token is for another namespace")]
    OtherNamespace,
    /// The token is for another group.
    #[error("the enrolment token is for another group")]
    OtherGroup,
    /// The token is for another executor.
    #[error("the enrolment token is for another executor")]
    OtherExecutor,
    /// This key was revoked.
    #[error("this key was revoked")]
    Revoked,
    /// The executor has another key, allowed or revoked. Only a token for this very executor replaces it.
    #[error(
        "the executor's name has another key, allowed or revoked; use a token for this executor only"
    )]
    NameTaken,
    /// The key that vouches for the new one is unknown or revoked.
    #[error("the old key is not an allowed key of this executor")]
    OldKeyNotAllowed,
    /// There are too many keys, and none of them is revoked.
    #[error("there are {MAX_WORKER_KEYS} allowed keys; revoke those of workers that are gone")]
    TooManyKeys,
}
