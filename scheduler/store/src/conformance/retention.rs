//! Rules for what is kept, and prunes by hand.

use cueline_model::{
    AccessScope, AttemptEvent, DurationMs, JobSpec, Outcome, OutcomeKind, Retention, RunId,
};

use super::fixture::{
    Fixture, START, actor, ask, attempt, by_hand, each_second, log_line, name, refused, report,
};
use crate::{
    AuditFilter, AuditResult, ErrorKind, ExpireRequest, Expired, GroupRetention,
    MAX_PRUNED_AT_ONCE, NewDeadLetter, NodeId, PruneRequest,
};

fn kept(job: &str, rule: Retention) -> JobSpec {
    JobSpec {
        retention: rule,
        ..by_hand(job)
    }
}

/// A run of the job that succeeds now, with an output and a line of log.
async fn succeeded(fixture: &Fixture, node: NodeId, job: &str) -> RunId {
    fixture.trigger(job).await;
    let run = fixture.claim(node).await.remove(0);
    fixture.publish(node, &run).await;
    let lines = vec![log_line(0, fixture.now(), "text")];
    let mut outcome = Outcome::new(OutcomeKind::Succeeded, fixture.now());
    outcome.output = Some("out".to_owned());
    let id = attempt(&run);
    let reports = [
        report(id, AttemptEvent::Log { lines }),
        report(id, AttemptEvent::Ended { outcome }),
    ];
    fixture.ingest(&reports).await;
    run.id
}

/// All parts of a sweep, with a default age in seconds.
async fn sweep(fixture: &Fixture, age_secs: u64, limit: usize) -> Expired {
    let mut sum = Expired::default();
    for _ in 0..100 {
        let request = ExpireRequest {
            age_ms: age_secs * 1_000,
            limit,
            after: sum.next,
        };
        let part = fixture.store.expire_runs(request).await.expect("sweeps");
        assert!(part.runs.max(part.logs).max(part.outputs) <= limit as u64);
        sum.runs += part.runs;
        sum.logs += part.logs;
        sum.outputs += part.outputs;
        sum.next = part.next;
        if part.next.is_none() {
            return sum;
        }
    }
    panic!("the sweep does not end");
}

async fn exists(fixture: &Fixture, run: RunId) -> bool {
    fixture.store.run(run).await.is_ok()
}

async fn set_rule(fixture: &Fixture, group: &str, rule: Retention) -> bool {
    let (group, by) = (name(group), actor("ann"));
    let set = fixture.store.set_retention(&group, &rule, &by).await;
    set.expect("sets")
}

/// A shorter and a longer age than that of other jobs.
pub async fn a_job_has_an_age_of_its_own(fixture: &Fixture) {
    let node = fixture.node().await;
    let age = |n| Retention {
        age: Some(DurationMs::secs(n)),
        ..Retention::default()
    };
    let jobs = [
        by_hand("usual"),
        kept("short", age(5)),
        kept("long", age(100)),
    ];
    fixture.apply(&jobs).await;
    let mut runs = Vec::new();
    for job in ["usual", "short", "long"] {
        runs.push(succeeded(fixture, node, job).await);
    }
    fixture.clock.advance(6_000);
    assert_eq!(sweep(fixture, 20, 10).await.runs, 1);
    assert!(!exists(fixture, runs[1]).await);
    fixture.clock.advance(15_000);
    assert_eq!(sweep(fixture, 20, 10).await.runs, 1);
    assert!(!exists(fixture, runs[0]).await);
    assert!(exists(fixture, runs[2]).await);
    // An edit counts for the runs that exist, and the rule of a deleted job stays.
    fixture.apply(&[kept("long", age(50))]).await;
    let (long, by) = (name("long"), actor("ann"));
    let deleted = fixture.store.delete_job(&long, &by).await;
    deleted.expect("deletes");
    fixture.clock.advance(25_000);
    assert_eq!(sweep(fixture, 20, 10).await.runs, 0);
    fixture.clock.advance(5_000);
    assert_eq!(sweep(fixture, 20, 10).await.runs, 1);
}

/// Each field comes from the job, or else from its group.
pub async fn a_group_says_what_its_jobs_leave_open(fixture: &Fixture) {
    let node = fixture.node().await;
    let own = Retention {
        age: Some(DurationMs::secs(30)),
        ..Retention::default()
    };
    fixture.apply(&[by_hand("a"), kept("own", own)]).await;
    let rule = Retention {
        age: Some(DurationMs::secs(10)),
        logs: Some(DurationMs::secs(5)),
        ..Retention::default()
    };
    assert!(set_rule(fixture, "default", rule).await);
    let (of_group, of_job) = (
        succeeded(fixture, node, "a").await,
        succeeded(fixture, node, "own").await,
    );
    fixture.clock.advance(6_000);
    let expired = sweep(fixture, 1_000, 10).await;
    assert_eq!((expired.runs, expired.logs), (0, 2));
    fixture.clock.advance(5_000);
    assert_eq!(sweep(fixture, 1_000, 10).await.runs, 1);
    assert!(!exists(fixture, of_group).await);
    assert!(exists(fixture, of_job).await);
    assert!(set_rule(fixture, "default", Retention::default()).await);
    let again = succeeded(fixture, node, "a").await;
    fixture.clock.advance(15_000);
    assert_eq!(sweep(fixture, 1_000, 10).await.runs, 0);
    assert!(exists(fixture, again).await);
}

/// The newest runs stay, and so does each run that has not ended.
pub async fn a_number_of_runs_is_kept(fixture: &Fixture) {
    let node = fixture.node().await;
    let two = Retention {
        runs: Some(2),
        ..Retention::default()
    };
    fixture.apply(&[kept("a", two), by_hand("other")]).await;
    fixture.trigger("a").await;
    let live = fixture.claim(node).await.remove(0);
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(succeeded(fixture, node, "a").await);
        succeeded(fixture, node, "other").await;
    }
    fixture.clock.advance(1);
    assert_eq!(sweep(fixture, 1_000, 1).await.runs, 2);
    assert_eq!(sweep(fixture, 1_000, 1).await.runs, 0);
    let mut left = Vec::new();
    for run in &runs {
        left.push(exists(fixture, *run).await);
    }
    assert_eq!(left, [false, false, true, true]);
    fixture.succeed(node, &live).await;
    assert_eq!(sweep(fixture, 1_000, 10).await.runs, 1);
    assert!(!exists(fixture, live.id).await);
}

/// The run stays, with all its other values.
pub async fn logs_and_outputs_expire_before_their_run(fixture: &Fixture) {
    let node = fixture.node().await;
    let rule = Retention {
        logs: Some(DurationMs::secs(5)),
        outputs: Some(DurationMs::secs(10)),
        ..Retention::default()
    };
    fixture.apply(&[kept("a", rule), by_hand("other")]).await;
    let run = succeeded(fixture, node, "a").await;
    let other = succeeded(fixture, node, "other").await;
    let before = fixture.run(run).await;
    fixture.clock.advance(6_000);
    let expired = sweep(fixture, 1_000, 10).await;
    assert_eq!((expired.runs, expired.logs, expired.outputs), (0, 1, 0));
    let lines = |run| fixture.store.log_lines(run, 0, 10);
    assert_eq!(lines(run).await.expect("reads"), []);
    assert_eq!(lines(other).await.expect("reads").len(), 1);
    assert_eq!(fixture.run(run).await, before);
    fixture.clock.advance(5_000);
    let expired = sweep(fixture, 1_000, 10).await;
    assert_eq!((expired.runs, expired.logs, expired.outputs), (0, 0, 1));
    let mut without_output = before.clone();
    assert_eq!(without_output.output.take().as_deref(), Some("out"));
    assert_eq!(fixture.run(run).await, without_output);
    assert_eq!(fixture.run(other).await.output.as_deref(), Some("out"));
    assert_eq!(sweep(fixture, 1_000, 10).await, Expired::default());
}

/// A sweep in small parts deletes what one part deletes.
pub async fn a_sweep_goes_on_where_it_stopped(fixture: &Fixture) {
    let node = fixture.node().await;
    let rule = Retention {
        logs: Some(DurationMs::secs(5)),
        ..Retention::default()
    };
    fixture.apply(&[kept("a", rule), by_hand("other")]).await;
    let mut kept = Vec::new();
    for _ in 0..3 {
        succeeded(fixture, node, "other").await;
        kept.push(succeeded(fixture, node, "a").await);
        fixture.clock.advance(2_000);
    }
    // The first two are old enough.
    let expired = sweep(fixture, 3, 1).await;
    assert_eq!((expired.runs, expired.logs), (4, 0));
    assert!(!exists(fixture, kept[1]).await);
    fixture.clock.advance(4_000);
    let expired = sweep(fixture, 1_000, 1).await;
    assert_eq!((expired.runs, expired.logs), (0, 1));
    assert!(exists(fixture, kept[2]).await);
}

/// A request that is repeated makes no second run while the key is kept, whatever became of the first one.
pub async fn a_key_outlives_runs_that_are_deleted_early(fixture: &Fixture) {
    let node = fixture.node().await;
    let rule = Retention {
        age: Some(DurationMs::secs(1)),
        ..Retention::default()
    };
    fixture.apply(&[kept("a", rule), by_hand("b")]).await;
    let mut made = Vec::new();
    for job in ["a", "b"] {
        let mut request = ask(job);
        request.idempotency_key = Some("k".to_owned());
        let triggered = fixture.store.trigger(&request).await.expect("triggers");
        let run = fixture.claim(node).await.remove(0);
        fixture.succeed(node, &run).await;
        made.push((request, triggered.runs));
    }
    fixture.clock.advance(2_000);
    assert_eq!(sweep(fixture, 20, 10).await.runs, 1);
    let request = PruneRequest {
        runs: made[1].1.clone(),
        ..PruneRequest::default()
    };
    let pruned = fixture.store.prune_runs(&request, &actor("ann")).await;
    assert_eq!(pruned.expect("prunes").count(), 1);
    for (request, runs) in &made {
        assert!(!exists(fixture, runs[0]).await);
        let again = fixture.store.trigger(request).await.expect("answers");
        assert!(again.duplicate);
        assert_eq!(&again.runs, runs);
    }
}

/// A fire time whose run was deleted is not lost.
pub async fn the_ledger_names_deleted_runs(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut job = each_second("a");
    job.retention.runs = Some(1);
    fixture.apply(&[job]).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        let run = fixture.fire_one(node).await;
        fixture.succeed(node, &run).await;
        runs.push(run.id);
    }
    let ledger = async |until_ms| {
        let (from, to) = (START, START.plus_ms(until_ms));
        let entries = fixture.store.ledger(&name("a"), from, to, 100).await;
        let entries = entries.expect("reads").into_iter();
        entries
            .map(|entry| (entry.run, entry.pruned))
            .collect::<Vec<_>>()
    };
    let all = runs.iter().map(|run| (Some(*run), false));
    assert_eq!(ledger(3_001).await, all.collect::<Vec<_>>());
    sweep(fixture, 1_000, 10).await;
    // The next fire time has no run yet.
    fixture.clock.advance(1_000);
    let expected = [
        (None, true),
        (None, true),
        (Some(runs[2]), false),
        (None, false),
    ];
    assert_eq!(ledger(4_001).await, expected);
}

/// Only what has ended, within what was asked for.
pub async fn ended_runs_are_pruned(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut team = by_hand("team/a");
    team.group = name("team/default");
    fixture.apply(&[by_hand("a"), by_hand("b"), team]).await;
    let (a1, a2) = (
        succeeded(fixture, node, "a").await,
        succeeded(fixture, node, "a").await,
    );
    let b = succeeded(fixture, node, "b").await;
    fixture.trigger("team/a").await;
    let elsewhere = fixture.claim(node).await.remove(0).id;
    let live = fixture.trigger("a").await.remove(0);
    let unknown = RunId(live.0 + 1_000);
    let prune = async |request: PruneRequest| {
        let pruned = fixture.store.prune_runs(&request, &actor("ann")).await;
        pruned.expect("prunes")
    };
    let all = PruneRequest {
        runs: vec![unknown, live, b, a2, a1, elsewhere],
        namespace: Some(name("default")),
        within: None,
    };
    let nothing = prune(PruneRequest {
        within: Some(vec![AccessScope::Group(name("other"))]),
        ..all.clone()
    });
    assert_eq!(nothing.await, crate::Pruned::default());
    let pruned = prune(all.clone()).await;
    let counts: Vec<_> = pruned
        .deleted
        .iter()
        .map(|of| (of.job.as_str(), of.runs))
        .collect();
    assert_eq!(counts, [("a", 2), ("b", 1)]);
    assert_eq!(pruned.live, [live]);
    for run in [a1, a2, b] {
        assert!(!exists(fixture, run).await);
        assert!(fixture.store.log_lines(run, 0, 1).await.is_err());
    }
    assert!(exists(fixture, live).await && exists(fixture, elsewhere).await);
    let repeated = prune(all).await;
    assert_eq!((repeated.count(), repeated.live), (0, vec![live]));

    let filter = AuditFilter {
        actions: vec!["run.prune".to_owned()],
        limit: 10,
        ..AuditFilter::default()
    };
    let entries = fixture.store.audit_entries(&filter).await.expect("reads");
    let mut seen: Vec<_> = entries
        .iter()
        .map(|e| (&*e.entry.object, &*e.entry.detail))
        .collect();
    seen.sort_unstable();
    let of_a = format!("2 runs, from run {a1} to run {a2}");
    let of_b = format!("run {b}");
    assert_eq!(seen, [("a", &*of_a), ("b", &*of_b)]);
    assert!(entries.iter().all(|e| e.entry.result == AuditResult::Done));

    let too_many = PruneRequest {
        runs: vec![live; MAX_PRUNED_AT_ONCE + 1],
        ..PruneRequest::default()
    };
    let refusal = fixture.store.prune_runs(&too_many, &actor("ann")).await;
    refused(refusal, ErrorKind::Invalid, "at most 500");
}

/// A rule is replaced as a whole. Each change has its entry in the audit log.
pub async fn rules_of_groups_are_kept(fixture: &Fixture) {
    let store = &fixture.store;
    let rule = Retention {
        age: Some(DurationMs::secs(3_600)),
        runs: Some(7),
        logs: Some(DurationMs::secs(60)),
        outputs: None,
    };
    assert!(set_rule(fixture, "g", rule).await);
    assert!(!set_rule(fixture, "g", rule).await, "it is the same");
    let other = Retention {
        outputs: Some(DurationMs::secs(90)),
        ..Retention::default()
    };
    assert!(set_rule(fixture, "a", other).await);
    let of = |group: &str, rule| GroupRetention {
        group: name(group),
        rule,
    };
    let all = store.retention_rules(None).await.expect("reads");
    assert_eq!(all, [of("a", other), of("g", rule)]);
    let one = store.retention_rules(Some(&name("g"))).await;
    assert_eq!(one.expect("reads"), [of("g", rule)]);
    assert!(set_rule(fixture, "g", other).await);
    assert!(set_rule(fixture, "g", Retention::default()).await);
    assert!(!set_rule(fixture, "g", Retention::default()).await);
    let left = store.retention_rules(None).await.expect("reads");
    assert_eq!(left, [of("a", other)]);
    let filter = AuditFilter {
        objects: vec!["g".to_owned()],
        limit: 10,
        ..AuditFilter::default()
    };
    let entries = store.audit_entries(&filter).await.expect("reads");
    let mut actions: Vec<_> = entries.iter().map(|e| e.entry.action.as_str()).collect();
    actions.sort_unstable();
    assert_eq!(
        actions,
        ["retention.delete", "retention.set", "retention.set"]
    );
    let deleted = entries
        .iter()
        .find(|e| e.entry.action == "retention.delete");
    let before = deleted.and_then(|e| e.entry.before.as_deref());
    assert_eq!(before, Some(r#"{"outputs":"1m30s"}"#));
}

/// Old letters are deleted, the oldest first.
pub async fn old_dead_letters_are_deleted(fixture: &Fixture) {
    let letter = |key: &str, at_ms| NewDeadLetter {
        key: key.to_owned(),
        queue: "q".to_owned(),
        topic: "t".to_owned(),
        reason: "r".to_owned(),
        at: START.plus_ms(at_ms),
        payload: Vec::new(),
        origin: None,
        namespace: None,
    };
    let letters = [letter("a", 0), letter("b", 1_000), letter("c", 5_000)];
    let stored = fixture.store.insert_dead_letters(&letters).await;
    assert_eq!(stored.expect("stores"), 3);
    fixture.clock.advance(8_000);
    let prune = |limit| fixture.store.prune_dead_letters(5_000, limit);
    assert_eq!(prune(1).await.expect("prunes"), 1);
    assert_eq!(prune(10).await.expect("prunes"), 1);
    assert_eq!(prune(10).await.expect("prunes"), 0);
    let left = fixture
        .store
        .dead_letters(None, None, 10)
        .await
        .expect("reads");
    let times: Vec<_> = left.iter().map(|l| l.at.since_ms(START)).collect();
    assert_eq!(times, [5_000]);
}
