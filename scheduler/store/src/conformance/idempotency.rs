//! Requests that are sent again with the same idempotency key.

use cueline_model::{Actor, ActorKind};

use super::account_steps::{by, create, create_token, token, user};
use super::fixture::{Fixture, actor, ask, by_hand, name, refused};
use crate::{ErrorKind, NewApiToken, NewEnrolmentToken, NewUser, Precondition, TriggerRequest};

const CALLERS: u64 = 6;

fn another() -> Actor {
    Actor::new(ActorKind::User, "another")
}

fn with_key(key: &str) -> impl Fn(NewApiToken) -> NewApiToken {
    move |token| NewApiToken {
        idempotency_key: Some(key.to_owned()),
        ..token
    }
}

fn keyed(name: &str, key: &str) -> NewUser {
    NewUser {
        idempotency_key: Some(key.to_owned()),
        ..user(name)
    }
}

fn enrolment(number: u64, key: &str, by: Actor) -> NewEnrolmentToken {
    NewEnrolmentToken {
        id: format!("{number:016x}"),
        verifier: [1; 32],
        namespace: None,
        group: None,
        executor: None,
        uses: 1,
        valid_ms: None,
        idempotency_key: Some(key.to_owned()),
        by,
    }
}

/// A repeated request creates nothing, and one with other parameters or another time is refused.
pub async fn a_repeated_trigger_is_the_same_request(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let store = &fixture.store;
    let later = fixture.now().plus_ms(60_000);
    let with = |key: &str, params: Option<&str>, run_at| TriggerRequest {
        params: params.map(str::to_owned),
        idempotency_key: Some(key.to_owned()),
        run_at,
        ..ask("a")
    };
    for request in [
        with("plain", None, None),
        with("params", Some("p"), None),
        with("later", Some(""), Some(later)),
    ] {
        let first = store.trigger(&request).await.expect("triggers");
        fixture.clock.advance(1_000);
        let again = store.trigger(&request).await.expect("answers");
        assert!(again.duplicate && !first.duplicate);
        assert_eq!(again.runs, first.runs);
        let params = TriggerRequest {
            params: Some("other".to_owned()),
            ..request.clone()
        };
        let refusal = store.trigger(&params).await;
        refused(refusal, ErrorKind::KeyReused, "other parameters");
        let time = TriggerRequest {
            run_at: Some(later.plus_ms(1)),
            ..request
        };
        let refusal = store.trigger(&time).await;
        refused(refusal, ErrorKind::KeyReused, "another time");
    }
    let without_time = with("later", Some(""), None);
    let refusal = store.trigger(&without_time).await;
    refused(refusal, ErrorKind::KeyReused, "another time");
}

/// The runs exist, whatever became of the job since.
pub async fn a_repeated_trigger_needs_no_condition(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let store = &fixture.store;
    let request = TriggerRequest {
        idempotency_key: Some("k".to_owned()),
        condition: Precondition::Version(1),
        ..ask("a")
    };
    let first = store.trigger(&request).await.expect("triggers");
    let paused = store.set_job_enabled(&name("a"), false, &actor("me")).await;
    paused.expect("pauses");
    let again = store.trigger(&request).await.expect("answers");
    assert_eq!((again.runs, again.duplicate), (first.runs, true));
    let other = TriggerRequest {
        idempotency_key: Some("l".to_owned()),
        ..request
    };
    refused(
        store.trigger(&other).await,
        ErrorKind::Precondition,
        "version 1 is asked for",
    );
}

/// The refusal names the first token. Another creator's key is another key, and so is that of a deleted token.
pub async fn an_api_token_is_created_once(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let k = with_key("k");
    create_token(&*accounts, &k(token(1, None))).await;
    let again = accounts.create_api_token(&k(token(2, None)), &by()).await;
    let error = again.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::AlreadyCreated);
    assert_eq!(error.refused_objects()[0].name, format!("{:016x}", 1));
    let others = accounts
        .create_api_token(&k(token(3, None)), &another())
        .await;
    others.expect("creates");
    create_token(&*accounts, &with_key("l")(token(4, None))).await;
    create_token(&*accounts, &token(5, None)).await;
    create_token(&*accounts, &token(6, None)).await;

    // A revoked token is stored still, and a pruned one is not.
    let id = format!("{:016x}", 1);
    let revoked = accounts.revoke_api_token(&id, None, &by()).await;
    assert!(revoked.expect("revokes"));
    let again = accounts.create_api_token(&k(token(2, None)), &by()).await;
    refused(again, ErrorKind::AlreadyCreated, &id);
    fixture.clock.advance(2);
    let pruned = fixture.store.prune_accounts(1, 100).await;
    assert_eq!(pruned.expect("prunes"), 1);
    create_token(&*accounts, &k(token(2, None))).await;
}

/// Several at once.
pub async fn requests_with_one_key_create_one_token(fixture: &Fixture) {
    let mut tasks = Vec::new();
    for number in 1..=CALLERS {
        let accounts = fixture.harness.open_accounts().await;
        tasks.push(tokio::spawn(async move {
            let new = with_key("k")(token(number, None));
            accounts.create_api_token(&new, &by()).await
        }));
    }
    let mut created = 0;
    for task in tasks {
        match task.await.expect("no panic") {
            Ok(()) => created += 1,
            repeated => refused(repeated, ErrorKind::AlreadyCreated, "an API token"),
        }
    }
    assert_eq!(created, 1);
    let accounts = fixture.harness.open_accounts().await;
    let listed = accounts.api_tokens(None, None, 10).await.expect("lists");
    assert_eq!(listed.len(), 1);
}

/// As an API token. After a deletion, the key can be used again.
pub async fn an_enrolment_token_is_created_once(fixture: &Fixture) {
    let store = &fixture.store;
    let create = async |number, key: &str, by: Actor| {
        let new = enrolment(number, key, by);
        store.create_enrolment_token(&new).await
    };
    assert!(create(1, "k", actor("ann")).await.expect("creates"));
    let again = create(2, "k", actor("ann")).await;
    let error = again.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::AlreadyCreated);
    let id = format!("{:016x}", 1);
    assert_eq!(error.refused_objects()[0].name, id);
    assert!(create(3, "k", actor("bob")).await.expect("creates"));
    assert!(create(4, "l", actor("ann")).await.expect("creates"));
    let deleted = store.delete_enrolment_token(&id, &actor("ann")).await;
    assert!(deleted.expect("deletes"));
    assert!(create(2, "k", actor("ann")).await.expect("creates"));
    assert_eq!(store.enrolment_tokens().await.expect("lists").len(), 3);
}

/// A request for another user with the same key is another request.
pub async fn a_user_is_created_once(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    create(&*accounts, &keyed("ann", "k")).await;
    let again = accounts.create_user(&keyed("ANN", "k"), &by()).await;
    refused(again, ErrorKind::AlreadyCreated, "\"ann\"");
    let other = accounts.create_user(&keyed("bob", "k"), &by()).await;
    refused(other, ErrorKind::KeyReused, "\"ann\"");
    let other = accounts.create_user(&keyed("bob", "k"), &another()).await;
    other.expect("creates");
    // Without the key, the name is taken.
    let taken = accounts.create_user(&user("ann"), &by()).await;
    refused(taken, ErrorKind::Conflict, "ann");
    accounts.delete_user("ann", &by()).await.expect("deletes");
    create(&*accounts, &keyed("ann", "k")).await;
}
