//! Dead letters.

use super::fixture::{Fixture, actor};
use crate::{DeadLetter, NewDeadLetter};

fn letter(key: &str, payload: &[u8]) -> NewDeadLetter {
    NewDeadLetter {
        key: key.to_owned(),
        queue: "x.default.e1".to_owned(),
        topic: format!("job-{key}"),
        reason: "failed to accept the trigger: no trusted key has signed it".to_owned(),
        at: super::fixture::START,
        payload: payload.to_vec(),
        origin: None,
        namespace: None,
    }
}

async fn all(fixture: &Fixture) -> Vec<DeadLetter> {
    fixture
        .store
        .dead_letters(None, None, 100)
        .await
        .expect("reads")
}

/// The payload is kept byte by byte.
pub async fn dead_letters_are_kept(fixture: &Fixture) {
    let odd = NewDeadLetter {
        origin: Some("executor default/e1".to_owned()),
        ..letter("b", &[0, 255, b'x', 0])
    };
    let two = [letter("a", b"{}"), odd.clone()];
    assert_eq!(
        fixture
            .store
            .insert_dead_letters(&two)
            .await
            .expect("keeps"),
        2
    );
    let kept = all(fixture).await;
    assert_eq!(kept.len(), 2);
    assert_eq!(kept[1].payload, b"{}");
    let last = &kept[0];
    assert_eq!(last.payload, odd.payload);
    assert_eq!((&last.origin, &kept[1].origin), (&odd.origin, &None));
    assert_eq!(
        (&last.queue, &last.topic, &last.reason, last.at),
        (&odd.queue, &odd.topic, &odd.reason, odd.at)
    );
    assert_eq!(
        fixture
            .harness
            .open()
            .await
            .dead_letters(None, None, 9)
            .await
            .expect("reads"),
        kept
    );
}

/// The broker may deliver a dead letter again after it was stored.
pub async fn a_dead_letter_is_kept_once(fixture: &Fixture) {
    let a = letter("a", b"1");
    assert_eq!(
        fixture
            .store
            .insert_dead_letters(&[a.clone(), a.clone()])
            .await
            .expect("keeps"),
        1
    );
    assert_eq!(
        fixture
            .store
            .insert_dead_letters(&[a.clone(), letter("b", b"1")])
            .await
            .expect("keeps"),
        1
    );
    assert_eq!(
        fixture
            .store
            .insert_dead_letters(&[])
            .await
            .expect("keeps nothing"),
        0
    );
    assert_eq!(all(fixture).await.len(), 2);
}

/// Pages are ordered by number, newest first.
pub async fn dead_letters_are_paged(fixture: &Fixture) {
    let many: Vec<_> = (0..25).map(|n| letter(&n.to_string(), b"x")).collect();
    assert_eq!(
        fixture
            .store
            .insert_dead_letters(&many)
            .await
            .expect("keeps"),
        25
    );
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = fixture
            .store
            .dead_letters(None, before, 10)
            .await
            .expect("reads");
        let Some(last) = page.last() else { break };
        before = Some(last.id);
        seen.extend(page.iter().map(|l| l.topic.clone()));
    }
    let expected: Vec<_> = (0..25).rev().map(|n| format!("job-{n}")).collect();
    assert_eq!(seen, expected);
}

/// Numbers of deleted letters are not used again, because an operator may still refer to one.
pub async fn dead_letters_are_found_and_deleted_by_number(fixture: &Fixture) {
    let three = ["a", "b", "c"].map(|key| letter(key, key.as_bytes()));
    assert_eq!(
        fixture
            .store
            .insert_dead_letters(&three)
            .await
            .expect("keeps"),
        3
    );
    let ids: Vec<i64> = all(fixture).await.iter().rev().map(|l| l.id).collect();
    let found = fixture
        .store
        .dead_letters_by_id(&[ids[2], 999_999, ids[0]])
        .await;
    let found = found.expect("reads");
    assert_eq!(
        found.iter().map(|l| l.id).collect::<Vec<_>>(),
        [ids[2], ids[0]]
    );
    let gone = fixture
        .store
        .delete_dead_letters(None, &[ids[2], ids[1], 999_999], &actor("a test"))
        .await;
    assert_eq!(gone.expect("deletes"), 2);
    assert_eq!(
        all(fixture).await.iter().map(|l| l.id).collect::<Vec<_>>(),
        [ids[0]]
    );
    assert_eq!(
        fixture
            .store
            .insert_dead_letters(&three[1..])
            .await
            .expect("keeps"),
        2
    );
    assert!(all(fixture).await.iter().take(2).all(|l| l.id > ids[2]));
}
