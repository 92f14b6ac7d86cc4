//! Rows of a newer program, which this one cannot read in full, keep no other row from being read or removed.

use cueline_model::ActorKind;
use serde_json::{Value, json};

use super::account_steps::{
    LONG_MS, admin, by, change, create, create_token, hash, log_in, revoke, set_enabled, token,
    user, viewer,
};
use super::fixture::{Fixture, refused};
use crate::{AuditFilter, ErrorKind, UserChange};

const NEWER_GRANTS: &str = r#"[{"role":"owner"}]"#;

/// Gives the users and tokens but `root` grants of a newer program.
async fn make_newer(fixture: &Fixture) {
    for statement in [
        r#"UPDATE account_user SET grants = '[{"role":"owner"}]' WHERE name <> 'root'"#,
        r#"UPDATE api_token SET grants = '[{"role":"owner"}]'"#,
    ] {
        fixture.harness.sql(statement).await;
    }
}

/// The grants in the value before, of the last entry of this action.
async fn grants_before(fixture: &Fixture, action: &str) -> Value {
    let filter = AuditFilter {
        actions: vec![action.to_owned()],
        limit: 1,
        ..AuditFilter::default()
    };
    let entries = fixture.store.audit_entries(&filter).await.expect("lists");
    let before = entries[0].entry.before.as_deref().expect("has a value");
    let before: Value = serde_json::from_str(before).expect("is JSON");
    before["grants"].clone()
}

/// They are in the lists, and count for nothing.
pub async fn unreadable_grants_are_listed_as_such(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    create(&*accounts, &admin("root")).await;
    let ann = create(&*accounts, &user("ann")).await;
    create_token(&*accounts, &token(1, None)).await;
    log_in(&*accounts, ann, 2).await;
    make_newer(fixture).await;
    let users = accounts.users(None, 10).await.expect("lists");
    let seen: Vec<(&str, usize, Option<&str>)> = users
        .iter()
        .map(|user| {
            let text = user.unreadable_grants.as_deref();
            (user.name.as_str(), user.grants.len(), text)
        })
        .collect();
    assert_eq!(seen, [("ann", 0, Some(NEWER_GRANTS)), ("root", 1, None)]);
    let tokens = accounts.api_tokens(None, None, 10).await.expect("lists");
    let text = tokens[0].unreadable_grants.as_deref();
    assert_eq!((tokens[0].grants.len(), text), (0, Some(NEWER_GRANTS)));
    let session = accounts.session(hash(2), LONG_MS).await;
    refused(session, ErrorKind::Broken, "grants");
    refused(
        accounts.api_token(hash(1), LONG_MS).await,
        ErrorKind::Broken,
        "grants",
    );
}

/// A change that gives no grants leaves them as they are.
pub async fn users_and_tokens_with_unreadable_grants_are_changed_and_removed(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    create(&*accounts, &admin("root")).await;
    create(&*accounts, &user("ann")).await;
    create_token(&*accounts, &token(1, None)).await;
    make_newer(fixture).await;
    set_enabled(&*accounts, "ann", false).await;
    let stored = "SELECT grants FROM account_user WHERE name = 'ann'";
    assert_eq!(fixture.harness.sql(stored).await, NEWER_GRANTS);
    let given = UserChange {
        grants: Some(vec![viewer()]),
        ..UserChange::default()
    };
    change(&*accounts, "ann", &given).await;
    let newer = json!([{ "role": "owner" }]);
    assert_eq!(grants_before(fixture, "user.change").await, newer);
    let ann = accounts.user("ann").await.expect("exists");
    assert_eq!((ann.grants, ann.unreadable_grants), (vec![viewer()], None));
    make_newer(fixture).await;
    accounts.delete_user("ann", &by()).await.expect("deletes");
    assert_eq!(grants_before(fixture, "user.delete").await, newer);
    assert!(revoke(&*accounts, 1, None).await);
    assert_eq!(grants_before(fixture, "token.revoke").await, newer);
    assert_eq!(
        accounts.api_token(hash(1), LONG_MS).await.expect("answers"),
        None
    );
}

/// Unreadable grants may be all rights.
pub async fn the_last_administrator_stays_also_with_unreadable_grants(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    create(&*accounts, &admin("ann")).await;
    make_newer(fixture).await;
    let deleted = accounts.delete_user("ann", &by()).await;
    refused(deleted, ErrorKind::Conflict, "\"ann\"");
    create(&*accounts, &admin("root")).await;
    accounts.delete_user("ann", &by()).await.expect("deletes");
}

/// The actor is displayed as it was stored.
pub async fn an_entry_of_an_unknown_kind_of_actor_is_listed(fixture: &Fixture) {
    fixture
        .harness
        .sql(
            "INSERT INTO audit (at, actor, action, action_object, object, result, detail)
            VALUES (1, 'robot r2 d2', 'job.pause', 'job', 'a', 'done', '')",
        )
        .await;
    let filter = AuditFilter {
        limit: 10,
        ..AuditFilter::default()
    };
    let entries = fixture.store.audit_entries(&filter).await.expect("lists");
    let actor = &entries[0].entry.actor;
    assert_eq!(actor.kind, ActorKind::Other);
    assert_eq!(actor.to_string(), "robot r2 d2");
}
