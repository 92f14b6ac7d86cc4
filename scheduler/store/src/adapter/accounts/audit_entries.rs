//! What the audit log says about changes of users, sessions and API tokens. No secret and no hash is in it.

use cueline_model::{Actor, Grant, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::UserUpdate;
use crate::accounts::{Login, NewApiToken, NewUser, StoredApiToken, StoredUser};
use crate::audit::{AuditResult, NewAuditEntry};

/// A user was created.
pub fn user_created(user: &NewUser, by: &Actor) -> NewAuditEntry {
    let after = user_json(
        &user.name,
        &user.display_name,
        &user.login,
        &json!(user.grants),
        true,
    );
    NewAuditEntry {
        after: Some(after),
        ..entry("user.create", &user.name, by)
    }
}

/// A user was changed, which ended this many sessions and revoked this many API tokens.
pub fn user_changed(
    before: &StoredUser,
    update: &UserUpdate,
    sessions: u64,
    tokens: u64,
    by: &Actor,
) -> NewAuditEntry {
    let mut detail = Vec::new();
    if update.changes_login {
        detail.push("the login was changed".to_owned());
    }
    if sessions > 0 {
        detail.push(format!("sessions ended: {sessions}"));
    }
    if tokens > 0 {
        detail.push(format!("API tokens revoked: {tokens}"));
    }
    NewAuditEntry {
        detail: detail.join("; "),
        before: Some(stored_user_json(before)),
        after: Some(stored_user_json(&update.after)),
        ..entry("user.change", &before.name, by)
    }
}

/// A user was deleted, with this many sessions and tokens.
pub fn user_deleted(user: &StoredUser, sessions: u64, tokens: u64, by: &Actor) -> NewAuditEntry {
    NewAuditEntry {
        detail: format!("sessions ended: {sessions}; API tokens deleted: {tokens}"),
        before: Some(stored_user_json(user)),
        ..entry("user.delete", &user.name, by)
    }
}

/// A user has logged in, which ended this many older sessions.
pub fn session_started(user: &str, evicted: u64, by: &Actor) -> NewAuditEntry {
    let mut started = entry("session.login", user, by);
    if evicted > 0 {
        started.detail = format!("older sessions ended: {evicted}");
    }
    started
}

/// A user has logged out.
pub fn session_ended(user: &str, by: &Actor) -> NewAuditEntry {
    entry("session.logout", user, by)
}

/// An API token was created for the user `owner`, or for a program.
pub fn token_created(
    token: &NewApiToken,
    owner: Option<&str>,
    expires_at: Option<Timestamp>,
    by: &Actor,
) -> NewAuditEntry {
    let after = TokenJson {
        name: &token.name,
        owner,
        grants: json!(token.grants),
        expires_at: expires_at.map(Timestamp::as_millis),
        revoked: false,
    };
    NewAuditEntry {
        after: Some(after.to_text()),
        ..entry("token.create", &token.id, by)
    }
}

/// An API token was revoked.
pub fn token_revoked(token: &StoredApiToken, by: &Actor) -> NewAuditEntry {
    let with = |revoked: bool| TokenJson {
        name: &token.name,
        owner: token.owner.as_deref(),
        grants: grants_json(&token.grants, token.unreadable_grants.as_deref()),
        expires_at: token.expires_at.map(Timestamp::as_millis),
        revoked,
    };
    NewAuditEntry {
        before: Some(with(false).to_text()),
        after: Some(with(true).to_text()),
        ..entry("token.revoke", &token.id, by)
    }
}

fn entry(action: &str, object: &str, by: &Actor) -> NewAuditEntry {
    NewAuditEntry {
        actor: by.clone(),
        action: action.to_owned(),
        namespace: None,
        group: None,
        object: object.to_owned(),
        result: AuditResult::Done,
        detail: String::new(),
        before: None,
        after: None,
    }
}

/// An API token in the audit log. The time is in milliseconds since 1970-01-01T00:00:00Z.
#[derive(Serialize)]
struct TokenJson<'a> {
    name: &'a str,
    owner: Option<&'a str>,
    grants: Value,
    expires_at: Option<i64>,
    revoked: bool,
}

impl TokenJson<'_> {
    fn to_text(&self) -> String {
        json!(self).to_string()
    }
}

fn stored_user_json(user: &StoredUser) -> String {
    user_json(
        &user.name,
        &user.display_name,
        &user.login,
        &grants_json(&user.grants, user.unreadable_grants.as_deref()),
        user.enabled,
    )
}

fn user_json(
    name: &str,
    display_name: &str,
    login: &Login,
    grants: &Value,
    enabled: bool,
) -> String {
    let user = json!({
        "name": name,
        "display_name": display_name,
        "login": login_json(login),
        "grants": grants,
        "enabled": enabled,
    });
    user.to_string()
}

/// Grants as JSON, also those that this program cannot read.
fn grants_json(grants: &[Grant], unreadable: Option<&str>) -> Value {
    match unreadable {
        Some(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        None => json!(grants),
    }
}

fn login_json(login: &Login) -> Value {
    match login {
        Login::Password(_) => json!("password"),
        Login::OpenId { issuer, subject } => json!({ "issuer": issuer, "subject": subject }),
        Login::None => json!("none"),
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::ActorKind;

    use super::*;
    use crate::accounts::{PasswordHash, SecretHash, UserChange, UserId};
    use crate::adapter::accounts::plan_user_change;

    fn by() -> Actor {
        Actor::new(ActorKind::User, "root").from_address("192.0.2.1")
    }

    fn user() -> StoredUser {
        StoredUser {
            id: UserId(1),
            name: "ann".to_owned(),
            display_name: "Ann".to_owned(),
            login: Login::Password(PasswordHash("$argon2id$hidden".to_owned())),
            grants: vec![Grant::everything()],
            unreadable_grants: None,
            enabled: true,
            version: 1,
            created_at: Timestamp::from_millis(1),
            created_by: "user root".to_owned(),
            last_login_at: None,
        }
    }

    fn value(text: Option<&str>) -> Value {
        serde_json::from_str(text.expect("has a value")).expect("is JSON")
    }

    #[test]
    fn a_change_has_the_values_before_and_after_without_the_hash() {
        let change = UserChange {
            login: Some(Login::Password(PasswordHash(
                "$argon2id$hidden too".to_owned(),
            ))),
            enabled: Some(false),
            ..UserChange::default()
        };
        let update = plan_user_change(&user(), &change).expect("plans");
        let changed = user_changed(&user(), &update.expect("is a change"), 2, 3, &by());
        assert_eq!(
            (changed.action.as_str(), changed.object.as_str()),
            ("user.change", "ann")
        );
        assert_eq!(changed.actor, by());
        assert_eq!(
            changed.detail,
            "the login was changed; sessions ended: 2; API tokens revoked: 3"
        );
        let before = value(changed.before.as_deref());
        let after = value(changed.after.as_deref());
        assert_eq!(before["login"], "password");
        assert_eq!(
            (&before["enabled"], &after["enabled"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(
            before["grants"],
            json!([{ "role": "admin", "scripts": true }])
        );
        assert!(!format!("{changed:?}").contains("hidden"));
    }

    #[test]
    fn creation_and_deletion_have_one_value() {
        let new = NewUser {
            name: "ann".to_owned(),
            display_name: String::new(),
            login: Login::OpenId {
                issuer: "https://id".to_owned(),
                subject: "7".to_owned(),
            },
            grants: Vec::new(),
            idempotency_key: None,
        };
        let created = user_created(&new, &by());
        assert_eq!(created.before, None);
        let login = &value(created.after.as_deref())["login"];
        assert_eq!(*login, json!({ "issuer": "https://id", "subject": "7" }));
        let deleted = user_deleted(&user(), 1, 2, &by());
        assert_eq!(deleted.after, None);
        assert_eq!(value(deleted.before.as_deref())["name"], "ann");
        assert_eq!(deleted.detail, "sessions ended: 1; API tokens deleted: 2");
        assert!(!format!("{deleted:?}").contains("hidden"));
    }

    #[test]
    fn a_token_is_named_by_its_id() {
        let token = NewApiToken {
            id: "0123456789abcdef".to_owned(),
            hash: SecretHash([7; 32]),
            name: "backup".to_owned(),
            owner: Some(UserId(1)),
            grants: Vec::new(),
            valid_ms: Some(5),
            session: None,
            idempotency_key: None,
        };
        let at = Timestamp::from_millis(9);
        let created = token_created(&token, Some("ann"), Some(at), &by());
        assert_eq!(created.object, token.id);
        let expected = json!({
            "name": "backup", "owner": "ann", "grants": [], "expires_at": 9, "revoked": false,
        });
        assert_eq!(value(created.after.as_deref()), expected);
        let stored = StoredApiToken {
            id: token.id,
            name: token.name,
            owner: None,
            grants: Vec::new(),
            unreadable_grants: None,
            created_at: at,
            created_by: "user root".to_owned(),
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
        };
        let revoked = token_revoked(&stored, &by());
        let was_revoked = |text: Option<&str>| value(text)["revoked"] == true;
        assert!(!was_revoked(revoked.before.as_deref()));
        assert!(was_revoked(revoked.after.as_deref()));
    }

    #[test]
    fn sessions_are_named_by_their_user() {
        assert_eq!(session_started("ann", 0, &by()).detail, "");
        let started = session_started("ann", 1, &by());
        assert_eq!(started.detail, "older sessions ended: 1");
        assert_eq!(
            (started.action.as_str(), started.object.as_str()),
            ("session.login", "ann")
        );
        assert_eq!(session_ended("ann", &by()).action, "session.logout");
    }
}
