//! Answers about users, sessions and API tokens.

use std::fmt;

use cueline_model::{Grant, Timestamp};
use cueline_store::{Login, StoredApiToken, StoredUser};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

/// How a user logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoginKind {
    /// By a password.
    Password,
    /// By an OpenID Connect provider.
    OpenId,
    /// Not at all: the user only owns tokens.
    None,
}

/// A user, without the password's hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserView {
    /// The login name.
    pub name: String,
    /// The name that people see; may be empty.
    pub display_name: String,
    /// How the user logs in.
    pub login: LoginKind,
    /// What the user may do.
    #[schema(value_type = Vec<openapi::Grant>)]
    pub grants: Vec<Grant>,
    /// The server cannot read the grants, because a newer one has written them. `grants` is empty, and the user cannot
    /// send requests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grants_unreadable: bool,
    /// Whether the user may log in, and the user's tokens count.
    pub enabled: bool,
    /// Counts changes, from 1.
    pub version: u64,
    /// When the user was created.
    #[schema(value_type = openapi::Instant)]
    pub created_at: Timestamp,
    /// Who created the user.
    pub created_by: String,
    /// The last successful login.
    #[schema(value_type = Option<openapi::Instant>, required)]
    pub last_login_at: Option<Timestamp>,
}

impl From<StoredUser> for UserView {
    fn from(user: StoredUser) -> Self {
        Self {
            name: user.name,
            display_name: user.display_name,
            login: match user.login {
                Login::Password(_) => LoginKind::Password,
                Login::OpenId { .. } => LoginKind::OpenId,
                Login::None => LoginKind::None,
            },
            grants: user.grants,
            grants_unreadable: user.unreadable_grants.is_some(),
            enabled: user.enabled,
            version: user.version,
            created_at: user.created_at,
            created_by: user.created_by,
            last_login_at: user.last_login_at,
        }
    }
}

/// A page of users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserPage {
    /// The users.
    pub users: Vec<UserView>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// The user that a request was about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserRef {
    /// The login name.
    pub name: String,
}

/// A new password of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PasswordSet {
    /// The login name.
    pub name: String,
    /// How many API tokens of the user were revoked.
    pub tokens_revoked: u64,
}

/// A new session. Its secret is in the cookie only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginAnswer {
    /// Who is logged in.
    pub user: UserView,
    /// The value of the header `X-CSRF-Token` for requests of this session.
    pub csrf: String,
}

/// Without the value of the header.
impl fmt::Debug for LoginAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginAnswer")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// How the sender of a request has proven who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallerKind {
    /// By the admin token of the server.
    AdminToken,
    /// By an API token.
    Token,
    /// By a session.
    User,
}

/// Who sends the request.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// How the sender has proven it.
    pub kind: CallerKind,
    /// The user's login name, or the token's name.
    pub name: String,
    /// The id of an API token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub token: Option<String>,
    /// The login name of an API token's owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub owner: Option<String>,
    /// What the user or the token may do.
    #[schema(value_type = Vec<openapi::Grant>)]
    pub grants: Vec<Grant>,
    /// What the owner of an API token may do. The token may do only what both allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<openapi::Grant>)]
    pub owner_grants: Option<Vec<Grant>>,
    /// The value of the header `X-CSRF-Token` for requests of this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub csrf: Option<String>,
}

/// Without the value of the header.
impl fmt::Debug for SessionView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionView")
            .field("kind", &self.kind)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// An API token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiTokenView {
    /// Its id: 16 hexadecimal digits.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// The login name of its owner; `None` for a token of a program.
    #[schema(required)]
    pub owner: Option<String>,
    /// What it may do. With an owner, only what the owner may do too.
    #[schema(value_type = Vec<openapi::Grant>)]
    pub grants: Vec<Grant>,
    /// The server cannot read the grants, because a newer one has written them. `grants` is empty, and the token is
    /// refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grants_unreadable: bool,
    /// When it was created.
    #[schema(value_type = openapi::Instant)]
    pub created_at: Timestamp,
    /// Who created it.
    pub created_by: String,
    /// When it expires; `None` for never.
    #[schema(value_type = Option<openapi::Instant>, required)]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[schema(value_type = Option<openapi::Instant>, required)]
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    #[schema(value_type = Option<openapi::Instant>, required)]
    pub last_used_at: Option<Timestamp>,
}

impl From<StoredApiToken> for ApiTokenView {
    fn from(token: StoredApiToken) -> Self {
        Self {
            id: token.id,
            name: token.name,
            owner: token.owner,
            grants: token.grants,
            grants_unreadable: token.unreadable_grants.is_some(),
            created_at: token.created_at,
            created_by: token.created_by,
            expires_at: token.expires_at,
            revoked_at: token.revoked_at,
            last_used_at: token.last_used_at,
        }
    }
}

/// A page of API tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiTokenPage {
    /// The tokens, revoked and expired ones included.
    pub tokens: Vec<ApiTokenView>,
    /// `after` for the next page; absent on the last one. A page may be short, and still have a next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = openapi::PageCursor)]
    pub next: Option<String>,
    /// The store's clock.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// A new API token. This is the only answer that has its secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedApiToken {
    /// Its id: 16 hexadecimal digits.
    pub id: String,
    /// The text that requests have after `Authorization: Bearer`.
    pub token: String,
}

/// Without the secret.
impl fmt::Debug for CreatedApiToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreatedApiToken")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The API token that a request was about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiTokenRef {
    /// Its id.
    pub id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed() {
        let token = CreatedApiToken {
            id: "0123456789abcdef".to_owned(),
            token: "the secret".to_owned(),
        };
        let session = SessionView {
            kind: CallerKind::User,
            name: "alice".to_owned(),
            token: None,
            owner: None,
            grants: Vec::new(),
            owner_grants: None,
            csrf: Some("the secret".to_owned()),
        };
        for text in [format!("{token:?}"), format!("{session:?}")] {
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
