//! The usual steps with accounts.

use cueline_model::{Actor, ActorKind, Grant, Role};

use crate::{
    Accounts, Login, NewApiToken, NewUser, PasswordHash, Principal, SecretHash, UserChange, UserId,
};

/// A time in which no session becomes idle.
pub(super) const LONG_MS: u64 = 365 * 24 * 3_600_000;

/// Longer than the time in which a use is noted once.
pub(super) const MINUTE_MS: u64 = 60_000;

/// Who makes the changes.
pub(super) fn by() -> Actor {
    Actor::new(ActorKind::User, "root").from_address("192.0.2.1")
}

pub(super) fn password(text: &str) -> Login {
    Login::Password(PasswordHash(format!("$argon2id${text}")))
}

pub(super) fn viewer() -> Grant {
    Grant {
        namespace: None,
        group: None,
        role: Role::Viewer,
        scripts: false,
    }
}

/// A user with a password who may only read.
pub(super) fn user(name: &str) -> NewUser {
    NewUser {
        name: name.to_owned(),
        display_name: format!("The user {name}"),
        login: password(name),
        grants: vec![viewer()],
        idempotency_key: None,
    }
}

/// A user with a password and all rights.
pub(super) fn admin(name: &str) -> NewUser {
    NewUser {
        grants: vec![Grant::everything()],
        ..user(name)
    }
}

pub(super) async fn create(accounts: &dyn Accounts, user: &NewUser) -> UserId {
    accounts.create_user(user, &by()).await.expect("creates")
}

pub(super) async fn change(accounts: &dyn Accounts, name: &str, change: &UserChange) -> u64 {
    let changed = accounts.change_user(name, change, &by()).await;
    changed.expect("changes")
}

pub(super) async fn set_enabled(accounts: &dyn Accounts, name: &str, enabled: bool) {
    let enabled = UserChange {
        enabled: Some(enabled),
        ..UserChange::default()
    };
    change(accounts, name, &enabled).await;
}

/// The hash of a secret with this number.
pub(super) fn hash(number: u64) -> SecretHash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    SecretHash(hash)
}

/// Starts a session with the secret of this number, which is valid for long.
pub(super) async fn log_in(accounts: &dyn Accounts, user: UserId, number: u64) {
    let started = accounts
        .create_session(user, hash(number), LONG_MS, &by())
        .await;
    started.expect("starts");
}

/// Who has the session of this number, if it is not idle for long.
pub(super) async fn session(accounts: &dyn Accounts, number: u64) -> Option<Principal> {
    let found = accounts.session(hash(number), LONG_MS).await;
    found.expect("answers")
}

/// A token with this number as its id and its secret, without an end.
pub(super) fn token(number: u64, owner: Option<UserId>) -> NewApiToken {
    NewApiToken {
        id: format!("{number:016x}"),
        hash: hash(number),
        name: format!("token {number}"),
        owner,
        grants: vec![Grant::everything()],
        valid_ms: None,
        idempotency_key: None,
    }
}

pub(super) async fn create_token(accounts: &dyn Accounts, token: &NewApiToken) {
    let created = accounts.create_api_token(token, &by()).await;
    created.expect("creates");
}

/// Who has the token of this number.
pub(super) async fn found(accounts: &dyn Accounts, number: u64) -> Option<Principal> {
    accounts.api_token(hash(number)).await.expect("answers")
}

pub(super) async fn revoke(accounts: &dyn Accounts, number: u64, owner: Option<UserId>) -> bool {
    let id = token(number, None).id;
    let revoked = accounts.revoke_api_token(&id, owner, &by()).await;
    revoked.expect("answers")
}
