//! Refusals that depend on stored users, sessions and tokens.

use super::rows::name_key;
use crate::accounts::{MAX_USERS, UserId};
use crate::{ErrorKind, StoreError};

fn conflict(message: String) -> StoreError {
    StoreError::new(ErrorKind::Conflict, message)
}

/// There is no user of that name.
pub fn no_user(name: &str) -> StoreError {
    StoreError::new(ErrorKind::NotFound, format!("there is no user {name:?}"))
}

/// The user of a new session is missing or disabled, or logs in in another way than the one that was proven.
pub fn no_enabled_user(user: UserId) -> StoreError {
    StoreError::new(
        ErrorKind::NotFound,
        format!(
            "failed to start a session: there is no enabled user with number {} and this login; log in again",
            user.0
        ),
    )
}

/// The owner of a new token is missing.
pub fn no_owner(owner: UserId) -> StoreError {
    StoreError::new(
        ErrorKind::NotFound,
        format!(
            "failed to create an API token: there is no user with number {}",
            owner.0
        ),
    )
}

/// The session by which a token is asked for has ended.
pub fn no_session() -> StoreError {
    StoreError::new(
        ErrorKind::NotFound,
        "failed to create an API token: the session has ended; log in again",
    )
}

/// The login name is taken.
pub fn user_exists(name: &str) -> StoreError {
    conflict(format!(
        "failed to create a user: name: there is a user {name:?}; choose another name"
    ))
}

/// An earlier request with the idempotency key of this one has created the user `existing`: this one, or another.
pub fn user_created_before(name: &str, existing: &str) -> StoreError {
    if name_key(name) == name_key(existing) {
        return StoreError::already_created("a user", existing);
    }
    StoreError::key_reused("create a user", &format!("the name {existing:?}"))
}

/// Another user has the OpenID subject.
pub fn subject_taken(issuer: &str, subject: &str) -> StoreError {
    conflict(format!(
        "failed to store a user: subject: another user has {subject:?} of the issuer {issuer:?}"
    ))
}

/// There is a user already.
pub fn not_first_user() -> StoreError {
    conflict("failed to create the first user: there is a user; log in as an admin".to_owned())
}

/// There are too many users.
pub fn too_many_users() -> StoreError {
    conflict(format!(
        "failed to create a user: there are {MAX_USERS}; delete some first"
    ))
}

/// The user is the last one who can manage users.
pub fn last_admin(name: &str) -> StoreError {
    conflict(format!(
        "failed to change the user {name:?}: no other user is enabled, can log in and has the role admin with scripts everywhere; make one first"
    ))
}

/// There is a session with this hash.
pub fn session_exists() -> StoreError {
    conflict(
        "failed to start a session: there is one with the same hash; make a new secret".to_owned(),
    )
}

/// The id or the hash of a new token is taken.
pub fn token_exists(id: &str) -> StoreError {
    conflict(format!(
        "failed to create an API token: id: there is one with the id {id:?} or with the same hash; make a new token"
    ))
}

/// There are too many tokens.
pub fn too_many_tokens(owner: Option<&str>, most: usize) -> StoreError {
    let whose = owner.map_or_else(
        || format!("there are {most} without an owner"),
        |owner| format!("the user {owner:?} has {most}"),
    );
    conflict(format!(
        "failed to create an API token: {whose} that are valid; revoke some first"
    ))
}
