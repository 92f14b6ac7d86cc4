//! The parts of the server's answers about accounts that commands print.

use cueline_model::{Grant, Timestamp};
use serde::Deserialize;

/// Who sends the requests.
#[derive(Debug, Deserialize)]
pub(crate) struct Session {
    /// `admin_token`, `token` or `user`.
    pub(crate) kind: String,
    pub(crate) name: String,
    /// The id of an API token.
    pub(crate) token: Option<String>,
    /// The login name of an API token's owner.
    pub(crate) owner: Option<String>,
    pub(crate) grants: Vec<Grant>,
}

impl Session {
    /// The user on whose behalf requests are sent.
    pub(crate) fn user(&self) -> Option<&str> {
        match self.kind.as_str() {
            "user" => Some(&self.name),
            _ => self.owner.as_deref(),
        }
    }

    /// In one line.
    pub(crate) fn describe(&self) -> String {
        match (self.kind.as_str(), &self.owner) {
            ("user", _) => format!("user {}", self.name),
            ("admin_token", _) => "the admin token".to_owned(),
            (_, Some(owner)) => format!("user {owner}, by the API token {:?}", self.name),
            (_, None) => format!("the API token {:?}", self.name),
        }
    }
}

/// The body of an answer to a login.
#[derive(Deserialize)]
pub(crate) struct Login {
    pub(crate) user: User,
    pub(crate) csrf: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) display_name: String,
    /// `password`, `open_id` or `none`.
    pub(crate) login: String,
    pub(crate) grants: Vec<Grant>,
    pub(crate) enabled: bool,
    pub(crate) created_at: Timestamp,
    pub(crate) created_by: String,
    pub(crate) last_login_at: Option<Timestamp>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Token {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) owner: Option<String>,
    pub(crate) grants: Vec<Grant>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) revoked_at: Option<Timestamp>,
    pub(crate) last_used_at: Option<Timestamp>,
}

/// A new API token.
#[derive(Deserialize)]
pub(crate) struct CreatedToken {
    pub(crate) id: String,
    pub(crate) token: String,
}
