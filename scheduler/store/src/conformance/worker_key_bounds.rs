//! How many keys of workers there are at most, and how many tokens that enrol them.

use super::fixture::{Fixture, actor, refused};
use super::worker_keys::{
    create, enrol, enrol_all, key, keys_of, refusal, rotated, token, uses_left,
};
use crate::{
    EnrolOutcome, EnrolRefusal, ErrorKind, MAX_ENROLMENT_TOKENS, MAX_REVOKED_KEYS, MAX_WORKER_KEYS,
    WorkerKeyState,
};

/// At the limit, spent tokens make room.
pub async fn tokens_are_bounded(fixture: &Fixture) {
    let most = u64::try_from(MAX_ENROLMENT_TOKENS).expect("a number");
    let mut short = token(1, 1);
    short.valid_ms = Some(1_000);
    create(fixture, &short).await;
    let used = token(2, 1);
    create(fixture, &used).await;
    for number in 3..=most {
        create(fixture, &token(number, 1)).await;
    }
    let one_more = token(most + 1, 1);
    let full = fixture.store.create_enrolment_token(&one_more).await;
    refused(full, ErrorKind::Conflict, "delete");
    let first = key("e1", 1, &used);
    assert_eq!(enrol(fixture, &first).await, EnrolOutcome::Enrolled);
    fixture.clock.advance(1_000);
    create(fixture, &one_more).await;
    let tokens = fixture.store.enrolment_tokens().await.expect("lists");
    assert_eq!(tokens.len(), MAX_ENROLMENT_TOKENS - 1);
    assert!(tokens.iter().all(|t| t.id != used.id && t.id != short.id));
}

/// The keys that were revoked first are deleted.
pub async fn revoked_keys_are_bounded(fixture: &Fixture) {
    let shared = token(1, 9);
    create(fixture, &shared).await;
    assert_eq!(
        enrol(fixture, &key("e1", 1, &shared)).await,
        EnrolOutcome::Enrolled
    );
    let last = u8::try_from(MAX_REVOKED_KEYS).expect("a small number") + 3;
    for number in 2..=last {
        let rotation = rotated("e1", number, number - 1);
        assert_eq!(enrol(fixture, &rotation).await, EnrolOutcome::Enrolled);
    }
    let (allowed, revoked) = keys_of(fixture, "e1").await;
    assert_eq!(allowed, [format!("key-{last}")]);
    let kept: Vec<String> = (3..last).map(|number| format!("key-{number}")).collect();
    assert_eq!(revoked, kept);
    assert_eq!(revoked.len(), MAX_REVOKED_KEYS);
}

/// A new key takes the place of the one that was revoked first.
pub async fn keys_are_bounded(fixture: &Fixture) {
    let sql = async |statement| fixture.harness.sql(statement).await;
    let five = token(1, 5);
    create(fixture, &five).await;
    let first = key("e1", 1, &five);
    assert_eq!(enrol(fixture, &first).await, EnrolOutcome::Enrolled);
    sql("
        WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 99998)
        INSERT INTO worker_key (group_name, executor, key_id, key, allowed, enrolled_at, enrolled_by, changed_at, changed_by, change)
        SELECT group_name, 'other-' || CAST(i AS TEXT), key_id, key, allowed, enrolled_at, enrolled_by, changed_at, changed_by, change + i
        FROM worker_key, n")
    .await;
    sql("UPDATE worker_key_version SET number = (SELECT max(change) FROM worker_key)").await;
    let (last, refused) = (key("e2", 2, &five), key("e3", 3, &five));
    let outcomes = enrol_all(fixture, &[last, refused.clone()]).await;
    let full = refusal(EnrolRefusal::TooManyKeys);
    assert_eq!(outcomes, [EnrolOutcome::Enrolled, full]);
    assert_eq!(uses_left(fixture, &five).await, 3);
    let revoked = fixture
        .store
        .set_worker_key(
            &first.executor,
            "key-1",
            WorkerKeyState::Revoked,
            &actor("ann"),
        )
        .await;
    assert!(revoked.expect("revokes"));
    let outcomes = enrol_all(fixture, &[refused, key("e4", 4, &five)]).await;
    assert_eq!(outcomes, [EnrolOutcome::Enrolled, full]);
    let count = "SELECT CAST(count(*) AS TEXT) FROM worker_key";
    assert_eq!(sql(count).await, MAX_WORKER_KEYS.to_string());
    let revoked = sql("SELECT CAST(count(*) AS TEXT) FROM worker_key WHERE executor = 'e1'").await;
    assert_eq!(revoked, "0", "it was deleted");
    // An executor with as many revoked keys as are kept. The first of them gives way to its next key.
    sql("
        UPDATE worker_key SET executor = 'e5', key_id = executor, allowed = false
        WHERE executor IN ('other-1', 'other-2', 'other-3', 'other-4', 'other-5', 'other-6', 'other-7', 'other-8', 'other-9', 'other-10')")
    .await;
    sql("UPDATE worker_key SET executor = 'e5', key_id = 'key-5' WHERE executor = 'other-11'")
        .await;
    let outcomes = enrol_all(fixture, &[rotated("e5", 6, 5), key("e6", 7, &five)]).await;
    assert_eq!(outcomes, [EnrolOutcome::Enrolled; 2]);
    assert_eq!(sql(count).await, MAX_WORKER_KEYS.to_string());
}
