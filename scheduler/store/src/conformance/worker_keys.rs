//! Keys of workers and the tokens that enrol them.

use std::sync::Arc;

use super::fixture::{Fixture, actor, executor, name, refused};
use crate::{
    EnrolOutcome, EnrolRefusal, ErrorKind, KeyOrigin, NewEnrolmentToken, NewWorkerKey,
    StoredWorkerKey, WorkerKeyState,
};

/// A token for all groups, with this number as its id.
pub(super) fn token(number: u64, uses: u32) -> NewEnrolmentToken {
    NewEnrolmentToken {
        id: format!("{number:016x}"),
        verifier: [u8::try_from(number % 256).expect("a byte"); 32],
        namespace: None,
        group: None,
        executor: None,
        uses,
        valid_ms: None,
        by: actor("ann"),
        idempotency_key: None,
    }
}

/// A key of the executor in the group `default`, which the token vouches for.
pub(super) fn key(of: &str, number: u8, token: &NewEnrolmentToken) -> NewWorkerKey {
    NewWorkerKey {
        executor: executor("default", of),
        key: [number; 32],
        key_id: format!("key-{number}"),
        by: KeyOrigin::Token(token.id.clone()),
    }
}

pub(super) fn rotated(of: &str, number: u8, old: u8) -> NewWorkerKey {
    NewWorkerKey {
        by: KeyOrigin::Rotation {
            old: format!("key-{old}"),
        },
        ..key(of, number, &token(0, 1))
    }
}

pub(super) async fn create(fixture: &Fixture, token: &NewEnrolmentToken) {
    let created = fixture.store.create_enrolment_token(token).await;
    assert!(created.expect("creates"));
}

pub(super) async fn enrol(fixture: &Fixture, key: &NewWorkerKey) -> EnrolOutcome {
    enrol_all(fixture, std::slice::from_ref(key))
        .await
        .remove(0)
}

pub(super) async fn enrol_all(fixture: &Fixture, keys: &[NewWorkerKey]) -> Vec<EnrolOutcome> {
    fixture.store.enrol_workers(keys).await.expect("answers")
}

pub(super) async fn uses_left(fixture: &Fixture, token: &NewEnrolmentToken) -> u32 {
    let tokens = fixture.store.enrolment_tokens().await.expect("lists");
    let token = tokens.iter().find(|t| t.id == token.id);
    token.expect("is listed").uses_left
}

async fn keys(fixture: &Fixture) -> Vec<StoredWorkerKey> {
    let page = fixture.store.worker_keys(0, 1_000).await.expect("lists");
    page.keys
}

/// The allowed and the revoked keys of an executor, by their last changes.
pub(super) async fn keys_of(fixture: &Fixture, of: &str) -> (Vec<String>, Vec<String>) {
    let keys = keys(fixture).await;
    let of = executor("default", of);
    let in_state = |state| {
        let keys = keys.iter().filter(|k| k.executor == of && k.state == state);
        keys.map(|k| k.key_id.clone()).collect()
    };
    (
        in_state(WorkerKeyState::Allowed),
        in_state(WorkerKeyState::Revoked),
    )
}

pub(super) fn refusal(why: EnrolRefusal) -> EnrolOutcome {
    EnrolOutcome::Refused(why)
}

/// A repeated claim takes no further use.
pub async fn a_token_enrols_as_many_workers_as_it_has_uses(fixture: &Fixture) {
    let two = token(1, 2);
    create(fixture, &two).await;
    let first = key("e1", 1, &two);
    assert_eq!(enrol(fixture, &first).await, EnrolOutcome::Enrolled);
    assert_eq!(enrol(fixture, &first).await, EnrolOutcome::AlreadyAllowed);
    assert_eq!(uses_left(fixture, &two).await, 1);
    let second = key("e2", 2, &two);
    assert_eq!(enrol(fixture, &second).await, EnrolOutcome::Enrolled);
    let third = key("e3", 3, &two);
    assert_eq!(enrol(fixture, &third).await, refusal(EnrolRefusal::UsedUp));
    assert_eq!(enrol(fixture, &first).await, EnrolOutcome::AlreadyAllowed);
    let stored = keys(fixture).await;
    assert_eq!(stored.len(), 2);
    assert_eq!(
        stored[0],
        StoredWorkerKey {
            executor: executor("default", "e1"),
            key: [1; 32],
            key_id: "key-1".to_owned(),
            state: WorkerKeyState::Allowed,
            enrolled_at: fixture.now(),
            enrolled_by: format!("enrolment token {}", two.id),
            changed_at: fixture.now(),
            changed_by: format!("enrolment token {}", two.id),
        }
    );
    let reopened = fixture.harness.open().await;
    let page = reopened.worker_keys(0, 10).await.expect("lists");
    assert_eq!(page.keys, stored);
}

/// A spent token is still known, so that the refusal says why.
pub async fn tokens_expire_and_are_deleted(fixture: &Fixture) {
    let mut short = token(1, 9);
    short.valid_ms = Some(1_000);
    create(fixture, &short).await;
    let tokens = fixture.store.enrolment_tokens().await.expect("lists");
    assert_eq!(tokens[0].expires_at, Some(fixture.now().plus_ms(1_000)));
    assert_eq!(
        (tokens[0].created_at, tokens[0].uses_left),
        (fixture.now(), 9)
    );
    fixture.clock.advance(999);
    let first = key("e1", 1, &short);
    assert_eq!(enrol(fixture, &first).await, EnrolOutcome::Enrolled);
    fixture.clock.advance(1);
    let second = key("e2", 2, &short);
    assert_eq!(
        enrol(fixture, &second).await,
        refusal(EnrolRefusal::Expired)
    );
    let verifier = fixture.store.token_verifier(&short.id).await;
    assert_eq!(verifier.expect("reads"), Some(short.verifier));
    for existed in [true, false] {
        let deleted = fixture
            .store
            .delete_enrolment_token(&short.id, &actor("a test"))
            .await;
        assert_eq!(deleted.expect("answers"), existed);
    }
    assert_eq!(
        enrol(fixture, &second).await,
        refusal(EnrolRefusal::NoSuchToken)
    );
    let verifier = fixture.store.token_verifier(&short.id).await;
    assert_eq!(verifier.expect("reads"), None);
    assert_eq!(keys(fixture).await.len(), 1, "enrolled keys stay");
    // An unverified claim may name anything.
    let odd = fixture.store.token_verifier("\0 你好").await;
    assert_eq!(odd.expect("reads"), None);
}

/// The second token with an id is ignored, because several schedulers start with the same token file.
pub async fn a_token_is_checked_and_created_once(fixture: &Fixture) {
    let mut bound = token(1, 3);
    (bound.group, bound.executor) = (Some(name("default")), Some(name("e1")));
    create(fixture, &bound).await;
    let again = fixture.store.create_enrolment_token(&token(1, 7)).await;
    assert!(!again.expect("answers"));
    let tokens = fixture.store.enrolment_tokens().await.expect("lists");
    assert_eq!(tokens.len(), 1);
    assert_eq!(
        (&tokens[0].group, &tokens[0].executor, tokens[0].uses_left),
        (&bound.group, &bound.executor, 3)
    );
    assert_eq!(tokens[0].by, "user ann");
    let mut wrong = [token(2, 0), token(2, 1), token(2, 1)];
    wrong[1].id.push('0');
    wrong[2].executor = Some(name("e1"));
    for (token, says) in wrong.iter().zip(["uses", "id", "executor"]) {
        let created = fixture.store.create_enrolment_token(token).await;
        refused(created, ErrorKind::Invalid, says);
    }
}

/// Otherwise a holder of the group's token could speak for all its executors.
pub async fn a_name_is_taken_over_only_by_its_own_token(fixture: &Fixture) {
    let shared = token(1, 9);
    let mut own = token(2, 9);
    (own.group, own.executor) = (Some(name("default")), Some(name("e1")));
    let mut other_group = token(3, 9);
    other_group.group = Some(name("other"));
    for token in [&shared, &own, &other_group] {
        create(fixture, token).await;
    }
    for (of, token, expected) in [
        ("e1", &shared, EnrolOutcome::Enrolled),
        ("e1", &shared, refusal(EnrolRefusal::NameTaken)),
        ("e2", &own, refusal(EnrolRefusal::OtherExecutor)),
        ("e2", &other_group, refusal(EnrolRefusal::OtherGroup)),
    ] {
        let number = if expected == EnrolOutcome::Enrolled {
            1
        } else {
            2
        };
        assert_eq!(enrol(fixture, &key(of, number, token)).await, expected);
    }
    assert_eq!(uses_left(fixture, &shared).await, 8);
    assert_eq!(uses_left(fixture, &own).await, 9);
    assert_eq!(
        enrol(fixture, &key("e1", 3, &own)).await,
        EnrolOutcome::Enrolled
    );
    let (allowed, revoked) = keys_of(fixture, "e1").await;
    assert_eq!(
        (allowed, revoked),
        (vec!["key-3".to_owned()], vec!["key-1".to_owned()])
    );
    assert_eq!(
        enrol(fixture, &key("e1", 1, &own)).await,
        refusal(EnrolRefusal::Revoked)
    );
}

/// A revoked key stays known.
pub async fn keys_are_revoked_and_allowed_again(fixture: &Fixture) {
    let shared = token(1, 9);
    create(fixture, &shared).await;
    let first = key("e1", 1, &shared);
    assert_eq!(enrol(fixture, &first).await, EnrolOutcome::Enrolled);
    let enrolled_at = fixture.now();
    let set = async |key_id: &'static str, state, by: &'static str| {
        let of = executor("default", "e1");
        let set = fixture
            .store
            .set_worker_key(&of, key_id, state, &actor(by))
            .await;
        set.expect("answers")
    };
    fixture.clock.advance(1_000);
    assert!(set("key-1", WorkerKeyState::Revoked, "ann").await);
    fixture.clock.advance(1_000);
    assert!(set("key-1", WorkerKeyState::Revoked, "bob").await);
    let stored = keys(fixture).await;
    assert_eq!(stored[0].state, WorkerKeyState::Revoked);
    assert_eq!(
        (stored[0].changed_by.as_str(), stored[0].enrolled_at),
        ("user ann", enrolled_at)
    );
    assert_eq!(stored[0].changed_at, enrolled_at.plus_ms(1_000));
    assert_eq!(enrol(fixture, &first).await, refusal(EnrolRefusal::Revoked));
    assert!(set("key-1", WorkerKeyState::Allowed, "ann").await);
    assert_eq!(enrol(fixture, &first).await, EnrolOutcome::AlreadyAllowed);
    assert!(!set("key-2", WorkerKeyState::Revoked, "ann").await);
    assert_eq!(uses_left(fixture, &shared).await, 8);
}

/// Schedulers still accept a replaced key for a short time, unless an operator has revoked it.
pub async fn a_replaced_key_is_revoked_by_an_operator(fixture: &Fixture) {
    let mut own = token(1, 2);
    (own.group, own.executor) = (Some(name("default")), Some(name("e1")));
    create(fixture, &own).await;
    for key in [key("e1", 1, &own), rotated("e1", 2, 1), key("e1", 3, &own)] {
        assert_eq!(enrol(fixture, &key).await, EnrolOutcome::Enrolled);
    }
    let of = executor("default", "e1");
    let revoke = async |key_id: &'static str, by: &'static str| {
        let state = WorkerKeyState::Revoked;
        let set = fixture
            .store
            .set_worker_key(&of, key_id, state, &actor(by))
            .await;
        assert!(set.expect("answers"));
    };
    for (key_id, replaced_by) in [
        ("key-1", "rotation to key-2".to_owned()),
        ("key-2", format!("enrolment token {}", own.id)),
    ] {
        let before = fixture.store.worker_keys(0, 10).await.expect("reads");
        let found = before.keys.iter().find(|key| key.key_id == key_id);
        assert_eq!(found.expect("is listed").changed_by, replaced_by);
        fixture.clock.advance(1_000);
        revoke(key_id, "ann").await;
        let revoked_at = fixture.now();
        fixture.clock.advance(1_000);
        revoke(key_id, "bob").await;
        let changed = fixture.store.worker_keys(before.version, 10).await;
        let changed = changed.expect("reads").keys;
        let seen: Vec<_> = changed
            .iter()
            .map(|key| (key.key_id.as_str(), key.state, key.changed_by.as_str()))
            .collect();
        assert_eq!(seen, [(key_id, WorkerKeyState::Revoked, "user ann")]);
        assert_eq!(changed[0].changed_at, revoked_at);
    }
}

/// The old key vouches for the new one, which replaces it.
pub async fn keys_are_rotated(fixture: &Fixture) {
    let shared = token(1, 9);
    create(fixture, &shared).await;
    assert_eq!(
        enrol(fixture, &key("e1", 1, &shared)).await,
        EnrolOutcome::Enrolled
    );
    let rotation = rotated("e1", 2, 1);
    assert_eq!(enrol(fixture, &rotation).await, EnrolOutcome::Enrolled);
    assert_eq!(
        enrol(fixture, &rotation).await,
        EnrolOutcome::AlreadyAllowed
    );
    let stored = keys(fixture).await;
    let seen: Vec<_> = stored
        .iter()
        .map(|k| (k.key_id.as_str(), k.state, k.enrolled_by.as_str()))
        .collect();
    let first_by = format!("enrolment token {}", shared.id);
    assert_eq!(
        seen,
        [
            ("key-1", WorkerKeyState::Revoked, first_by.as_str()),
            ("key-2", WorkerKeyState::Allowed, "rotation of key-1"),
        ]
    );
    assert_eq!(stored[0].changed_by, "rotation to key-2");
    for (of, old) in [("e1", 1), ("e2", 2), ("e1", 9)] {
        let forged = rotated(of, 7, old);
        assert_eq!(
            enrol(fixture, &forged).await,
            refusal(EnrolRefusal::OldKeyNotAllowed)
        );
    }
}

/// A scheduler reads only what has changed, and everything again after a restore of the store.
pub async fn keys_are_read_from_the_last_change_on(fixture: &Fixture) {
    let shared = token(1, 9);
    create(fixture, &shared).await;
    let empty = fixture.store.worker_keys(0, 10).await.expect("reads");
    assert_eq!((empty.keys.len(), empty.version), (0, 0));
    for number in 1..=5 {
        let key = key(&format!("e{number}"), number, &shared);
        assert_eq!(enrol(fixture, &key).await, EnrolOutcome::Enrolled);
    }
    let (mut version, mut seen) = (0, Vec::new());
    loop {
        let page = fixture.store.worker_keys(version, 2).await.expect("reads");
        assert!(page.version >= version);
        version = page.version;
        if page.keys.is_empty() {
            break;
        }
        seen.extend(page.keys.into_iter().map(|k| k.key_id));
    }
    assert_eq!(
        seen,
        (1..=5).map(|n| format!("key-{n}")).collect::<Vec<_>>()
    );
    let second = executor("default", "e2");
    let set = fixture
        .store
        .set_worker_key(&second, "key-2", WorkerKeyState::Revoked, &actor("ann"))
        .await;
    assert!(set.expect("revokes"));
    let page = fixture.store.worker_keys(version, 10).await.expect("reads");
    let changed: Vec<_> = page.keys.iter().map(|k| k.key_id.as_str()).collect();
    assert_eq!(changed, ["key-2"]);
    let again = fixture.store.worker_keys(page.version, 10).await;
    assert_eq!(again.expect("reads").version, page.version);
    let restored = fixture.store.worker_keys(page.version + 1, 10).await;
    let restored = restored.expect("reads");
    assert_eq!((restored.keys.len(), restored.version), (0, 0));
}

/// A token with three uses, five claims at the same time.
pub async fn enrolments_at_the_same_time_take_one_use_each(fixture: &Fixture) {
    let three = token(1, 3);
    create(fixture, &three).await;
    let tasks: Vec<_> = (1..=5)
        .map(|number| {
            let store = Arc::clone(&fixture.store);
            let key = key(&format!("e{number}"), number, &three);
            tokio::spawn(async move { store.enrol_workers(&[key]).await })
        })
        .collect();
    let mut enrolled = 0;
    for task in tasks {
        match task.await.expect("no panic").expect("answers")[..] {
            [EnrolOutcome::Enrolled] => enrolled += 1,
            ref outcomes => assert_eq!(outcomes, [refusal(EnrolRefusal::UsedUp)]),
        }
    }
    assert_eq!((enrolled, uses_left(fixture, &three).await), (3, 0));
    assert_eq!(keys(fixture).await.len(), 3);
}

/// Each key is judged after the ones before it, and a refusal stops none that follow.
pub async fn keys_of_one_call_are_enrolled_in_their_order(fixture: &Fixture) {
    let two = token(1, 2);
    create(fixture, &two).await;
    let first = key("e1", 1, &two);
    let keys_in_order = [
        first.clone(),
        first.clone(),
        key("e1", 2, &two),
        key("e2", 3, &two),
        rotated("e2", 4, 3),
        rotated("e2", 5, 3),
        key("e3", 6, &two),
        key("e4", 7, &token(9, 1)),
    ];
    let outcomes = enrol_all(fixture, &keys_in_order).await;
    let expected = [
        EnrolOutcome::Enrolled,
        EnrolOutcome::AlreadyAllowed,
        refusal(EnrolRefusal::NameTaken),
        EnrolOutcome::Enrolled,
        EnrolOutcome::Enrolled,
        refusal(EnrolRefusal::OldKeyNotAllowed),
        refusal(EnrolRefusal::UsedUp),
        refusal(EnrolRefusal::NoSuchToken),
    ];
    assert_eq!(outcomes, expected);
    assert_eq!(uses_left(fixture, &two).await, 0);
    let allowed = |id: &str| vec![id.to_owned()];
    assert_eq!(keys_of(fixture, "e1").await, (allowed("key-1"), vec![]));
    let of_second = (allowed("key-4"), allowed("key-3"));
    assert_eq!(keys_of(fixture, "e2").await, of_second);
    let again = enrol_all(fixture, &keys_in_order[..1]).await;
    assert_eq!(again, [EnrolOutcome::AlreadyAllowed]);
    assert_eq!(enrol_all(fixture, &[]).await, []);
}

/// A token of a namespace enrols workers of all its groups, and no others.
pub async fn a_token_enrols_its_namespace_only(fixture: &Fixture) {
    let shared = NewEnrolmentToken {
        namespace: Some(name("team")),
        ..token(1, 5)
    };
    create(fixture, &shared).await;
    let of_group = |group: &str, number: u8| NewWorkerKey {
        executor: executor(group, "e1"),
        ..key("e1", number, &shared)
    };
    let outside = EnrolOutcome::Refused(EnrolRefusal::OtherNamespace);
    assert_eq!(enrol(fixture, &of_group("x", 1)).await, outside);
    assert_eq!(enrol(fixture, &of_group("other/x", 2)).await, outside);
    for (group, number) in [("team/x", 3), ("team/y", 4)] {
        let enrolled = enrol(fixture, &of_group(group, number)).await;
        assert_eq!(enrolled, EnrolOutcome::Enrolled, "{group}");
    }
    assert_eq!(uses_left(fixture, &shared).await, 3);
    let stored = fixture.store.enrolment_tokens().await.expect("lists");
    assert_eq!(stored[0].namespace, Some(name("team")));
}
