//! Dead letters.

use super::fixture::{Fixture, actor, name};
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

/// A call for one namespace neither shows nor deletes the letters of others, nor those of none.
pub async fn dead_letters_belong_to_one_namespace(fixture: &Fixture) {
    let store = &fixture.store;
    let of = |key: &str, namespace: Option<&str>| NewDeadLetter {
        namespace: namespace.map(name),
        ..letter(key, b"x")
    };
    let letters = [
        of("a", Some("team-a")),
        of("b", Some("team-b")),
        of("default", Some("default")),
        of("none", None),
        of("a2", Some("team-a")),
    ];
    store.insert_dead_letters(&letters).await.expect("keeps");
    let listed = all(fixture).await;
    let ids: Vec<i64> = listed.iter().rev().map(|letter| letter.id).collect();
    assert_eq!(listed[1].namespace, None);
    assert_eq!(listed[0].namespace, Some(name("team-a")));
    let of_namespace = async |namespace: &str, before, limit| -> Vec<i64> {
        let found = store
            .dead_letters(Some(&name(namespace)), before, limit)
            .await;
        found.expect("reads").iter().map(|l| l.id).collect()
    };
    assert_eq!(of_namespace("team-a", None, 9).await, [ids[4], ids[0]]);
    assert_eq!(of_namespace("team-a", None, 1).await, [ids[4]]);
    assert_eq!(of_namespace("team-a", Some(ids[4]), 9).await, [ids[0]]);
    assert_eq!(of_namespace("default", None, 9).await, [ids[2]]);
    assert!(of_namespace("team", None, 9).await.is_empty());
    let team = name("team-a");
    let gone = store
        .delete_dead_letters(Some(&team), &ids, &actor("ann"))
        .await;
    assert_eq!(gone.expect("deletes"), 2);
    let left: Vec<i64> = all(fixture).await.iter().map(|l| l.id).collect();
    assert_eq!(left, [ids[3], ids[2], ids[1]]);
}
