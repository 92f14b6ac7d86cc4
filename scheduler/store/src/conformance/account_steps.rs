//! The usual steps with accounts.

use std::time::Duration;

use cueline_model::{Actor, ActorKind, Grant, Role, Timestamp};

use super::fixture::Fixture;
use crate::{
    Accounts, Login, MAX_USERS, NewApiToken, NewUser, PasswordHash, Principal, SecretHash,
    UserChange, UserId,
};

/// A time in which no session becomes idle.
pub(super) const LONG_MS: u64 = 365 * 24 * 3_600_000;

/// Longer than the time in which a use is noted once.
pub(super) const MINUTE_MS: u64 = 60_000;

/// The last noted uses, as texts; empty if there is none.
pub(super) const SESSION_USED_AT: &str =
    "SELECT coalesce(CAST(max(last_used_at) AS text), '') FROM session";
pub(super) const TOKEN_USED_AT: &str =
    "SELECT coalesce(CAST(max(last_used_at) AS text), '') FROM api_token";

/// How long a use may take until it is noted. It is long because everything is slow on a busy machine.
const NOTED_WITHIN: Duration = Duration::from_mins(1);

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(2);

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
    changed.expect("changes").version
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
    let login = login_of(accounts, user).await;
    let started = accounts
        .create_session(user, &login, hash(number), LONG_MS, &by())
        .await;
    started.expect("starts");
}

/// How the user logs in now. A user who does not exist does not log in.
pub(super) async fn login_of(accounts: &dyn Accounts, user: UserId) -> Login {
    let users = accounts.users(None, MAX_USERS).await.expect("lists");
    let found = users.into_iter().find(|one| one.id == user);
    found.map_or(Login::None, |one| one.login)
}

/// Who has the session of this number, if it is not idle for long.
pub(super) async fn session(accounts: &dyn Accounts, number: u64) -> Option<Principal> {
    let found = accounts.session(hash(number), LONG_MS).await;
    found.expect("answers")
}

/// Waits until the statement selects this text. Uses are noted in the background.
pub(super) async fn wait_for(fixture: &Fixture, statement: &'static str, expected: &str) {
    let selected = async {
        while fixture.harness.sql(statement).await != expected {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let waited = tokio::time::timeout(NOTED_WITHIN, selected).await;
    assert!(waited.is_ok(), "{statement} never selected {expected}");
}

/// Waits until the last noted use is at this time.
pub(super) async fn wait_for_use(fixture: &Fixture, statement: &'static str, at: Timestamp) {
    wait_for(fixture, statement, &at.as_millis().to_string()).await;
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
        session: None,
        idempotency_key: None,
    }
}

pub(super) async fn create_token(accounts: &dyn Accounts, token: &NewApiToken) {
    let created = accounts.create_api_token(token, &by()).await;
    created.expect("creates");
}

/// Who has the token of this number.
pub(super) async fn found(accounts: &dyn Accounts, number: u64) -> Option<Principal> {
    let found = accounts.api_token(hash(number), LONG_MS).await;
    found.expect("answers")
}

pub(super) async fn revoke(accounts: &dyn Accounts, number: u64, owner: Option<UserId>) -> bool {
    let id = token(number, None).id;
    let revoked = accounts.revoke_api_token(&id, owner, &by()).await;
    revoked.expect("answers")
}
