//! Answers about the keys of workers and the tokens that enrol them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cueline_model::{ExecutorId, ExecutorName, GroupName, Namespace, Timestamp};
use cueline_store::{StoredEnrolmentToken, StoredWorkerKey, WorkerKeyState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

/// A new enrolment token. This is the only answer that has its secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// Its id: 16 hexadecimal digits.
    pub id: String,
    /// The text that a worker's `--enrol-token-file` has.
    pub token: String,
}

/// Without the secret.
impl std::fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedToken")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// An enrolment token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Its id: 16 hexadecimal digits.
    pub id: String,
    /// The namespace whose workers it enrols; `None` for all namespaces.
    #[serde(default)]
    #[schema(value_type = Option<openapi::GivenNamespace>, required)]
    pub namespace: Option<Namespace>,
    /// The group whose workers it enrols; `None` for all groups.
    #[schema(value_type = Option<openapi::GivenName>, required)]
    pub group: Option<GroupName>,
    /// The one executor that it enrols; `None` for all executors.
    #[schema(value_type = Option<openapi::GivenName>, required)]
    pub executor: Option<ExecutorName>,
    /// The number of enrolments that are left.
    pub uses_left: u32,
    /// When it expires; `None` for never.
    #[schema(value_type = Option<openapi::Instant>, required)]
    pub expires_at: Option<Timestamp>,
    /// When it was created.
    #[schema(value_type = openapi::Instant)]
    pub created_at: Timestamp,
    /// Who created it.
    pub by: String,
}

impl From<StoredEnrolmentToken> for TokenView {
    fn from(token: StoredEnrolmentToken) -> Self {
        Self {
            id: token.id,
            namespace: token.namespace,
            group: token.group,
            executor: token.executor,
            uses_left: token.uses_left,
            expires_at: token.expires_at,
            created_at: token.created_at,
            by: token.by,
        }
    }
}

/// A page of enrolment tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    /// The tokens.
    pub tokens: Vec<TokenView>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// The enrolment token that a request was about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenRef {
    /// Its id.
    pub id: String,
}

/// Whether messages that a key has sealed are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// They are.
    Allowed,
    /// They are not.
    Revoked,
}

impl From<WorkerKeyState> for KeyState {
    fn from(state: WorkerKeyState) -> Self {
        match state {
            WorkerKeyState::Allowed => Self::Allowed,
            WorkerKeyState::Revoked => Self::Revoked,
        }
    }
}

/// A key of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerKeyView {
    /// The group of the executor whose messages it seals.
    #[schema(value_type = openapi::GivenName)]
    pub group: GroupName,
    /// The executor's name.
    #[schema(value_type = openapi::GivenName)]
    pub executor: ExecutorName,
    /// Its id: 16 hexadecimal digits.
    pub id: String,
    /// The public key (Ed25519) in base64.
    pub key: String,
    /// Whether it counts.
    pub state: KeyState,
    /// When it was enrolled.
    #[schema(value_type = openapi::Instant)]
    pub enrolled_at: Timestamp,
    /// What enrolled it: `token <id>`, or `rotation of <key id>`.
    pub enrolled_by: String,
    /// When its state last changed.
    #[schema(value_type = openapi::Instant)]
    pub changed_at: Timestamp,
    /// What changed its state.
    pub changed_by: String,
}

impl From<StoredWorkerKey> for WorkerKeyView {
    fn from(key: StoredWorkerKey) -> Self {
        let ExecutorId { group, name } = key.executor;
        Self {
            group,
            executor: name,
            id: key.key_id,
            key: STANDARD.encode(key.key),
            state: key.state.into(),
            enrolled_at: key.enrolled_at,
            enrolled_by: key.enrolled_by,
            changed_at: key.changed_at,
            changed_by: key.changed_by,
        }
    }
}

/// A page of keys, in the order of their last changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerKeyPage {
    /// The keys.
    pub keys: Vec<WorkerKeyView>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// The key that a request was about, and its state afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerKeyRef {
    /// The group of the executor.
    #[schema(value_type = openapi::GivenName)]
    pub group: GroupName,
    /// The executor's name.
    #[schema(value_type = openapi::GivenName)]
    pub executor: ExecutorName,
    /// The key's id.
    pub id: String,
    /// Its state.
    pub state: KeyState,
}
