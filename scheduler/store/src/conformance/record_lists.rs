//! Lists of dead letters, audit entries and versions: each filter in each order and with several sizes of pages.

use cueline_model::GroupName;

use super::fixture::{Fixture, START, actor, by_hand, name};
use super::lists::{ORDERS, SIZES};
use crate::{
    AuditFilter, AuditResult, DeadLetter, DeadLetterFilter, NewAuditEntry, NewDeadLetter, Order,
};

fn letter(n: usize, origin: Option<&str>) -> NewDeadLetter {
    NewDeadLetter {
        key: format!("key-{n}"),
        queue: if n.is_multiple_of(2) {
            "results"
        } else {
            "dead"
        }
        .to_owned(),
        topic: format!("job-{}", n % 3),
        reason: "a test".to_owned(),
        at: START.plus_ms(n as u64 * 1_000),
        payload: vec![1],
        origin: origin.map(str::to_owned),
        namespace: group_of(origin).map(|group| name::<GroupName>(group).namespace()),
    }
}

/// The group of the executor in an origin.
fn group_of(origin: Option<&str>) -> Option<&str> {
    let (group, _) = origin?.strip_prefix("executor ")?.rsplit_once('/')?;
    Some(group)
}

fn letter_fits(filter: &DeadLetterFilter, letter: &DeadLetter) -> bool {
    let origin = letter.origin.as_deref();
    let group = group_of(origin);
    let of_group = |wanted: &GroupName| group == Some(wanted.as_str());
    (filter.namespace.is_none() || filter.namespace == letter.namespace)
        && (filter.queues.is_empty() || filter.queues.contains(&letter.queue))
        && (filter.topics.is_empty() || filter.topics.contains(&letter.topic))
        && (filter.origins.is_empty() || filter.origins.iter().any(|o| origin == Some(o.as_str())))
        && (filter.groups.is_empty() || filter.groups.iter().any(of_group))
        && filter.since.is_none_or(|since| letter.at >= since)
        && filter.until.is_none_or(|until| letter.at < until)
}

/// Namespaces, queues, topics, origins, groups and times.
pub async fn dead_letters_are_listed_by_every_filter(fixture: &Fixture) {
    let origins = [
        None,
        Some("scheduler"),
        Some("executor g/e1"),
        Some("executor team/g/e1"),
        Some("executor g_/e1"),
    ];
    let letters: Vec<NewDeadLetter> = (0..10)
        .map(|n| letter(n, origins[n % origins.len()]))
        .collect();
    fixture
        .store
        .insert_dead_letters(&letters)
        .await
        .expect("stores");
    let all = fixture.store.dead_letters(None, None, 100).await;
    let all = all.expect("lists");
    let changes: [fn(&mut DeadLetterFilter); 12] = [
        |_| {},
        |f| f.namespace = Some(name("team")),
        |f| f.namespace = Some(name("default")),
        |f| f.namespace = Some(name("none")),
        |f| {
            f.namespace = Some(name("default"));
            f.groups = vec![name("g"), name("team/g")];
        },
        |f| f.queues = vec!["results".to_owned()],
        |f| f.topics = vec!["job-1".to_owned(), "job-2".to_owned()],
        |f| f.origins = vec!["scheduler".to_owned()],
        |f| f.groups = vec![name("g")],
        |f| f.groups = vec![name("team/g"), name("g_")],
        |f| f.groups = vec![name("team")],
        |f| {
            f.since = Some(START.plus_ms(2_000));
            f.until = Some(START.plus_ms(7_000));
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        for order in ORDERS {
            for limit in SIZES {
                let mut filter = DeadLetterFilter {
                    order,
                    limit,
                    ..DeadLetterFilter::default()
                };
                change(&mut filter);
                let fitting = all.iter().filter(|letter| letter_fits(&filter, letter));
                let mut expected: Vec<i64> = fitting.map(|letter| letter.id).collect();
                if order == Order::Ascending {
                    expected.reverse();
                }
                let mut found = Vec::new();
                loop {
                    let page = fixture
                        .store
                        .list_dead_letters(&filter)
                        .await
                        .expect("lists");
                    let Some(last) = page.last() else { break };
                    filter.after = Some(last.id);
                    found.extend(page.iter().map(|letter| letter.id));
                }
                assert_eq!(found, expected, "filter {index}, {order:?}, by {limit}");
            }
        }
    }
}

/// Entries of several actors, actions and groups.
pub async fn entries_are_listed_in_both_directions(fixture: &Fixture) {
    let actors = ["ann", "bob", "cat"];
    let entries: Vec<NewAuditEntry> = (0..12)
        .map(|n| NewAuditEntry {
            actor: actor(actors[n % 3]),
            action: if n.is_multiple_of(2) {
                "job.pause"
            } else {
                "user.create"
            }
            .to_owned(),
            namespace: None,
            group: (n % 4 == 0).then(|| name("g")),
            object: n.to_string(),
            result: AuditResult::Done,
            detail: String::new(),
            before: None,
            after: None,
        })
        .collect();
    fixture.store.record(&entries).await.expect("writes");
    let changes: [fn(&mut AuditFilter); 5] = [
        |_| {},
        |f| f.actors = vec!["user ann".to_owned(), "user cat".to_owned()],
        |f| f.actions = vec!["job.pause".to_owned(), "user".to_owned()],
        |f| f.groups = vec![name("g")],
        |f| {
            f.actors = vec!["user ann".to_owned(), "user bob".to_owned()];
            f.actions = vec!["job".to_owned(), "none".to_owned()];
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        for order in ORDERS {
            for limit in SIZES {
                let mut filter = AuditFilter {
                    order,
                    limit,
                    ..AuditFilter::default()
                };
                change(&mut filter);
                let fits = |entry: &&NewAuditEntry| {
                    let kind = entry.action.split('.').next().unwrap_or_default();
                    let is_of = |action: &String| *action == entry.action || action == kind;
                    (filter.actors.is_empty() || filter.actors.contains(&entry.actor.to_string()))
                        && (filter.actions.is_empty() || filter.actions.iter().any(is_of))
                        && (filter.groups.is_empty() || entry.group.is_some())
                };
                let mut expected: Vec<String> = entries
                    .iter()
                    .filter(fits)
                    .map(|entry| entry.object.clone())
                    .collect();
                if order == Order::Descending {
                    expected.reverse();
                }
                let mut found = Vec::new();
                let mut part = filter.clone();
                loop {
                    let page = fixture.store.audit_entries(&part).await.expect("lists");
                    let Some(last) = page.last() else { break };
                    part.after = Some(last.id);
                    found.extend(page.into_iter().map(|entry| entry.entry.object));
                }
                assert_eq!(found, expected, "filter {index}, {order:?}, by {limit}");
            }
        }
    }
}

/// The versions of a job, behind one of them.
pub async fn versions_are_listed_in_both_directions(fixture: &Fixture) {
    let mut spec = by_hand("a");
    for priority in 1..=5 {
        spec.priority = priority;
        fixture.apply(std::slice::from_ref(&spec)).await;
    }
    let job = fixture.store.job(&spec.name).await.expect("exists").job;
    let last = u64::try_from(job.version).expect("a version");
    let versions = async |order, after, limit| {
        let found = fixture.store.job_versions(&spec.name, order, after, limit);
        let found = found.await.expect("lists");
        found.iter().map(|v| v.version).collect::<Vec<_>>()
    };
    let all: Vec<u64> = (last - 4..=last).collect();
    assert_eq!(versions(Order::Ascending, None, 100).await, all);
    assert_eq!(versions(Order::Ascending, Some(all[1]), 2).await, all[2..4]);
    let newest: Vec<u64> = all.iter().rev().copied().collect();
    assert_eq!(versions(Order::Descending, None, 100).await, newest);
    assert_eq!(
        versions(Order::Descending, Some(newest[1]), 2).await,
        newest[2..4]
    );
    assert!(versions(Order::Ascending, Some(last), 2).await.is_empty());
}
