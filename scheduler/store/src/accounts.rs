//! Users, sessions and API tokens: the port, and what is stored.
//!
//! No secret is stored. A password is an Argon2id hash; a session and an API token are the SHA-256 of 32 random bytes.

use std::fmt;

use async_trait::async_trait;
use cueline_model::{Actor, Grant, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::precondition::{Precondition, Revision};

/// The most users. A further one is refused.
pub const MAX_USERS: usize = 10_000;

/// The most grants of a user or a token.
pub const MAX_GRANTS: usize = 100;

/// The most API tokens of a user that are not revoked or expired. A further one is refused. As many that are revoked or
/// expired are kept; those that ended first are deleted.
pub const MAX_API_TOKENS: usize = 100;

/// As [`MAX_API_TOKENS`], for all tokens without an owner together.
pub const MAX_PROGRAM_TOKENS: usize = 1_000;

/// The most sessions of a user. A further one ends the one that was used least recently.
pub const MAX_SESSIONS: usize = 20;

/// The longest login name, in bytes.
pub const MAX_LOGIN_NAME_BYTES: usize = 128;

/// The longest name that people see, in bytes.
pub const MAX_DISPLAY_NAME_BYTES: usize = 256;

/// The longest name of an API token, in bytes.
pub const MAX_TOKEN_NAME_BYTES: usize = 256;

/// The longest password hash, in bytes.
pub const MAX_PASSWORD_HASH_BYTES: usize = 512;

/// The longest name of an OpenID Connect issuer, in bytes.
pub const MAX_ISSUER_BYTES: usize = 512;

/// The longest `sub` of an OpenID Connect user, in bytes. OpenID Connect Core 1.0 (section 2) allows no longer one.
pub const MAX_SUBJECT_BYTES: usize = 255;

/// The longest idempotency key of a user or a token, in bytes.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;

/// The number of a user. It is never given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UserId(pub i64);

/// The SHA-256 of a session's or an API token's secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash(pub [u8; 32]);

/// Not printed: with the database's help it tells sessions apart.
impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(…)")
    }
}

/// An Argon2id hash of a password, in PHC format.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(pub String);

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(…)")
    }
}

/// How a user proves who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Login {
    /// By a password.
    Password(PasswordHash),
    /// By an OpenID Connect provider.
    OpenId {
        /// The issuer.
        issuer: String,
        /// The issuer's unchanging id of the user (`sub`).
        subject: String,
    },
    /// Not at all: the user only owns tokens.
    None,
}

/// A user that is about to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewUser {
    /// The login name: 1 to [`MAX_LOGIN_NAME_BYTES`] of letters and digits of any language, `-`, `_`, `.`, `@` and `+`.
    /// It starts with a letter, a digit or `_`. It is unique without regard to upper and lower case.
    pub name: String,
    /// The name that people see, at most [`MAX_DISPLAY_NAME_BYTES`] without control characters; may be empty.
    pub display_name: String,
    /// How the user logs in.
    pub login: Login,
    /// What the user may do, at most [`MAX_GRANTS`].
    pub grants: Vec<Grant>,
    /// A second request of the same creator with the same key creates no user, as long as the first one exists. At most
    /// [`MAX_IDEMPOTENCY_KEY_BYTES`].
    pub idempotency_key: Option<String>,
}

/// A change of a user. `None` leaves a field as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserChange {
    /// The name that people see.
    pub display_name: Option<String>,
    /// How the user logs in. A change ends all sessions.
    pub login: Option<Login>,
    /// All grants.
    pub grants: Option<Vec<Grant>>,
    /// Whether the user may log in, and the user's tokens count. `false` ends all sessions.
    pub enabled: Option<bool>,
    /// Revokes all API tokens of the user that are valid.
    pub revoke_tokens: bool,
    /// The version that the user must have; `None` for any.
    pub if_version: Option<u64>,
    /// What else must hold for the user.
    pub condition: Precondition,
}

/// What a change of a user has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedUser {
    /// The version afterwards. It is the old one if nothing changes.
    pub version: u64,
    /// How many API tokens were revoked.
    pub tokens_revoked: u64,
}

/// A stored user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredUser {
    /// The number.
    pub id: UserId,
    /// The login name, as it was written.
    pub name: String,
    /// The name that people see; may be empty.
    pub display_name: String,
    /// How the user logs in.
    pub login: Login,
    /// What the user may do.
    pub grants: Vec<Grant>,
    /// The stored text of the grants, if this program cannot read it: `grants` is empty then, and the user has no
    /// session.
    pub unreadable_grants: Option<String>,
    /// Whether the user may log in, and the user's tokens count.
    pub enabled: bool,
    /// Counts changes, from 1.
    pub version: u64,
    /// When the user was created, by the database's clock.
    pub created_at: Timestamp,
    /// Who created the user.
    pub created_by: String,
    /// The last successful login.
    pub last_login_at: Option<Timestamp>,
}

impl From<&StoredUser> for Revision {
    fn from(user: &StoredUser) -> Self {
        Self {
            id: user.id.0,
            version: i64::try_from(user.version).unwrap_or(i64::MAX),
        }
    }
}

/// An API token that is about to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewApiToken {
    /// 16 lower-case hexadecimal digits, random.
    pub id: String,
    /// The hash of its secret.
    pub hash: SecretHash,
    /// What it is for: 1 to [`MAX_TOKEN_NAME_BYTES`] without control characters.
    pub name: String,
    /// The user that owns it; `None` for a token of a program. It outlives its creator.
    pub owner: Option<UserId>,
    /// What it may do, at most [`MAX_GRANTS`]. A token with an owner never may more than its owner.
    pub grants: Vec<Grant>,
    /// How long it is valid, in milliseconds; `None` for ever.
    pub valid_ms: Option<u64>,
    /// The session by which its owner asks for it; `None` if another proof was given. The session may have ended since, such
    /// as by a new password.
    pub session: Option<SecretHash>,
    /// A second request of the same creator with the same key creates no token, as long as the first one is stored. At
    /// most [`MAX_IDEMPOTENCY_KEY_BYTES`].
    pub idempotency_key: Option<String>,
}

/// A stored API token, without its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredApiToken {
    /// 16 lower-case hexadecimal digits.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// The login name of its owner, if it has one.
    pub owner: Option<String>,
    /// What it may do.
    pub grants: Vec<Grant>,
    /// The stored text of the grants, if this program cannot read it: `grants` is empty then, and the token counts for
    /// nothing.
    pub unreadable_grants: Option<String>,
    /// When it was created, by the database's clock.
    pub created_at: Timestamp,
    /// Who created it.
    pub created_by: String,
    /// When it expires; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used. The last use is up to a minute later, because uses are noted once a minute.
    pub last_used_at: Option<Timestamp>,
}

/// Who sends a request, found by a session or a token that is valid now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The user who is logged in, or who owns the token.
    pub user: Option<(UserId, String)>,
    /// The token's id and name; `None` for a session.
    pub token: Option<(String, String)>,
    /// The grants of the session's user, or of the token.
    pub grants: Vec<Grant>,
    /// The grants of the token's owner.
    pub owner_grants: Option<Vec<Grant>>,
}

type Result<T> = std::result::Result<T, StoreError>;

/// Users, sessions and API tokens. Each method is one atomic transaction, and times are those of the database's clock.
/// Each change is in the audit log, in the same transaction, without secrets.
///
/// A use of a session or a token is noted once a minute, after the request was answered. If that fails, or if too many uses
/// wait, a later use is noted: a full disk must not lock out those who could make room.
///
/// # Errors
///
/// As those of [`Store`](crate::Store). [`Invalid`](crate::ErrorKind::Invalid) for a field out of its bounds, and for a
/// grant whose group belongs to another namespace.
#[async_trait]
pub trait Accounts: Send + Sync + 'static {
    /// Whether there is a user. Without one, the first one may be set up.
    async fn has_users(&self) -> Result<bool>;

    /// Stores a user.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) if the name or the OpenID subject is taken, or if there are
    /// [`MAX_USERS`]. [`AlreadyCreated`](crate::ErrorKind::AlreadyCreated) if an earlier request with the idempotency key
    /// created this user, [`KeyReused`](crate::ErrorKind::KeyReused) if it created another one.
    async fn create_user(&self, user: &NewUser, by: &Actor) -> Result<UserId>;

    /// Stores the first user; at most one of several calls at once succeeds.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) if there is a user. [`Invalid`](crate::ErrorKind::Invalid) for a user who
    /// cannot log in or has not all rights, because then no further user could be created.
    async fn create_first_user(&self, user: &NewUser, by: &Actor) -> Result<UserId>;

    /// Changes a user.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such user. [`Conflict`](crate::ErrorKind::Conflict) if the
    /// user has another version, if the OpenID subject is taken, or if the user is the last one who is enabled, can log
    /// in and has all rights, and would not stay so. [`Precondition`](crate::ErrorKind::Precondition) if the condition is
    /// not met, whatever the change.
    async fn change_user(&self, name: &str, change: &UserChange, by: &Actor)
    -> Result<ChangedUser>;

    /// Deletes a user with all sessions and tokens.
    ///
    /// # Errors
    ///
    /// As [`delete_user_if`](Self::delete_user_if).
    async fn delete_user(&self, name: &str, by: &Actor) -> Result<()> {
        self.delete_user_if(name, &Precondition::None, by).await
    }

    /// Like [`delete_user`](Self::delete_user), if the condition is met.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such user. [`Conflict`](crate::ErrorKind::Conflict) if the
    /// user is the last one who is enabled, can log in and has all rights.
    /// [`Precondition`](crate::ErrorKind::Precondition) if the condition is not met.
    async fn delete_user_if(&self, name: &str, condition: &Precondition, by: &Actor) -> Result<()>;

    /// One user.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such user.
    async fn user(&self, name: &str) -> Result<StoredUser>;

    /// The user whom an OpenID Connect provider knows by `subject`.
    async fn user_by_subject(&self, issuer: &str, subject: &str) -> Result<Option<StoredUser>>;

    /// At most `limit` users after `after`, sorted by name in lower case.
    async fn users(&self, after: Option<&str>, limit: usize) -> Result<Vec<StoredUser>>;

    /// Starts a session of an enabled user, and notes the login. `login` is what the user has proven: a session whose login
    /// was verified before it was changed does not begin.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such user, if the user is disabled, or if the user logs in
    /// in another way now. [`Conflict`](crate::ErrorKind::Conflict) if there is a session with this hash.
    async fn create_session(
        &self,
        user: UserId,
        login: &Login,
        hash: SecretHash,
        valid_ms: u64,
        by: &Actor,
    ) -> Result<()>;

    /// Who has this session. `None` if it is unknown, has ended, or was not used for `idle_ms`. Uses are noted once a
    /// minute, so an idle session ends up to a minute early. `idle_ms` is therefore several minutes at least.
    async fn session(&self, hash: SecretHash, idle_ms: u64) -> Result<Option<Principal>>;

    /// Ends a session. Does nothing for an unknown one.
    async fn end_session(&self, hash: SecretHash, by: &Actor) -> Result<()>;

    /// Stores an API token.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such owner, or if the session has ended.
    /// [`Conflict`](crate::ErrorKind::Conflict) if the id or the hash exists, or if there are [`MAX_API_TOKENS`] of this
    /// owner, or [`MAX_PROGRAM_TOKENS`] without an owner. [`AlreadyCreated`](crate::ErrorKind::AlreadyCreated) if an
    /// earlier request with the idempotency key created a token.
    async fn create_api_token(&self, token: &NewApiToken, by: &Actor) -> Result<()>;

    /// Who has this API token. `None` if it is unknown, expired or revoked, or if its owner is disabled. The tokens of a user
    /// of an OpenID Connect provider count only for `openid_valid_ms` after the user's last login: only a login says that the
    /// provider still knows the user. Uses are noted once a minute.
    async fn api_token(&self, hash: SecretHash, openid_valid_ms: u64) -> Result<Option<Principal>>;

    /// At most `limit` API tokens with an id after `after`, sorted by id; with `owner` only those of this user.
    async fn api_tokens(
        &self,
        owner: Option<UserId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredApiToken>>;

    /// Revokes an API token at once. Returns whether it exists. With `owner`, only a token of this user.
    async fn revoke_api_token(&self, id: &str, owner: Option<UserId>, by: &Actor) -> Result<bool>;
}
