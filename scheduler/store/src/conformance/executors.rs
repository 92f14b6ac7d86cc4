//! Executors and their outstanding attempts.

use cueline_model::{
    AttemptEvent, AttemptId, DurationMs, ExecutorId, Outcome, OutcomeKind, Route, RunId, RunKind,
    RunState, Timestamp,
};

use crate::JobAttempt;

use super::fixture::{
    Fixture, actor, attempt, each_second, executor, heartbeat, mark, name, report,
};

/// The newest heartbeat counts; its time is the database's.
pub async fn heartbeats_are_kept(fixture: &Fixture) {
    let mut other = heartbeat("a");
    other.executor.group = name("z");
    let mut first = heartbeat("b");
    first.capabilities = vec!["shell".to_owned(), "http".to_owned()];
    first.labels = [("zone", "a"), ("disk", "")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    first.weight = cueline_model::Weight::clamped(7);
    first.held = 7;
    first.running = 3;
    fixture
        .store
        .record_heartbeats(&[other, first.clone(), heartbeat("a")])
        .await
        .expect("records");
    let seen = fixture.store.executors().await.expect("lists");
    let names: Vec<_> = seen
        .iter()
        .map(|e| e.heartbeat.executor.to_string())
        .collect();
    assert_eq!(names, ["default/a", "default/b", "z/a"]);
    let heartbeat = &seen[1].heartbeat;
    assert_eq!(heartbeat.capabilities, ["http", "shell"]);
    assert_eq!(
        (heartbeat.held, heartbeat.running, heartbeat.capacity),
        (7, 3, 8)
    );
    assert_eq!(heartbeat.labels, first.labels);
    assert_eq!(heartbeat.weight, first.weight);
    assert!(seen[0].heartbeat.labels.is_empty());
    assert_eq!(seen[1].last_heartbeat_at, fixture.now());
    fixture.clock.advance(1_000);
    first.labels.clear();
    first.incarnation = String::from("2");
    first.session = cueline_model::Session(2);
    first.gone = true;
    first.refusal = Some("unsafe times".to_owned());
    fixture
        .store
        .record_heartbeats(&[first])
        .await
        .expect("records");
    let seen = fixture.store.executors().await.expect("lists");
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[1].heartbeat.incarnation, "2");
    assert_eq!(seen[1].heartbeat.session, cueline_model::Session(2));
    assert!(seen[1].heartbeat.gone);
    assert!(seen[1].heartbeat.labels.is_empty());
    assert_eq!(seen[1].heartbeat.refusal.as_deref(), Some("unsafe times"));
    assert_eq!(seen[1].last_heartbeat_at, fixture.now());
    assert_eq!(seen[0].last_heartbeat_at, fixture.now().minus_ms(1_000));
    fixture
        .store
        .record_heartbeats(&[])
        .await
        .expect("nothing to do");
}

/// An executor is silent after 15 s without a heartbeat. The timeline of a broadcast fire names those that it leaves
/// out.
pub async fn silent_executors_are_no_candidates(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.route = Route::Broadcast;
    fixture.apply(&[spec]).await;
    fixture.heartbeats(&["e1", "e2"]).await;
    fixture.clock.advance(14_000);
    fixture.heartbeats(&["e2"]).await;
    let runs = fixture.fire(node).await.runs;
    assert_eq!(runs.len(), 2);
    assert!(fixture.timeline(runs[0].id).await.is_empty());
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].executor, Some(name("e2")));
    let detail = fixture.store.run(runs[0].id).await.expect("exists");
    let noted: Vec<_> = detail
        .timeline
        .iter()
        .map(|entry| (entry.event.as_str(), entry.detail.as_str()))
        .collect();
    assert_eq!(noted, [("left_out", "silent executors got no shard: e1")]);
    fixture.clock.advance(60_000);
    let runs = fixture.fire(node).await.runs;
    assert_eq!(runs.len(), 1, "waits for an executor");
    assert_eq!(runs[0].executor, None);
}

/// Attempts that were confirmed before the limit and have not ended, by run id.
pub async fn outstanding_pages_by_id(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&["a", "b", "c", "d"].map(each_second)).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    for run in &runs[..3] {
        fixture.publish(node, run).await;
    }
    let started = AttemptEvent::Started { at: fixture.now() };
    fixture.ingest(&[report(attempt(&runs[0]), started)]).await;
    let list = |after: Option<RunId>, limit| async move {
        let found = fixture
            .store
            .outstanding_attempts(5_000, None, after, limit)
            .await;
        found.expect("lists")
    };
    assert!(list(None, 10).await.is_empty(), "not long enough ago");
    fixture.clock.advance(5_001);
    let found = list(None, 2).await;
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].attempt, attempt(&runs[0]));
    assert_eq!(found[0].state, RunState::Running);
    assert_eq!(found[1].state, RunState::Queued);
    assert_eq!(found[1].queued_at, fixture.now().minus_ms(5_001));
    assert_eq!(found[1].executor, executor("default", "e1"));
    let rest = list(Some(found[1].attempt.run), 2).await;
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].attempt.run, runs[2].id);
    fixture.end(attempt(&runs[2]), OutcomeKind::Succeeded).await;
    assert!(list(Some(found[1].attempt.run), 2).await.is_empty());
}

/// The executor may start an attempt before the confirmation of its trigger is stored.
pub async fn outstanding_tells_when_the_first_publication_began(fixture: &Fixture) {
    let (node, dies) = (fixture.node().await, fixture.node_for(10_000).await);
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    fixture.clock.advance(1_000);
    let mut runs = fixture.fire(dies).await.runs;
    assert_eq!(runs.len(), 2);
    // It is marked and released before it is published, so its trigger does not exist yet.
    let released = runs.remove(0);
    fixture.begin(dies, &released).await;
    let given_back = fixture
        .store
        .release_claims(dies, &[attempt(&released)], None)
        .await;
    given_back.expect("releases");
    let run = runs.remove(0);
    let begun_at = fixture.now();
    fixture.begin(dies, &run).await;
    fixture.clock.advance(500);
    fixture.begin(dies, &run).await;
    // Another node publishes both.
    fixture.clock.advance(9_500);
    let claimed = fixture.claim(node).await;
    assert_eq!(claimed.len(), 2);
    let begun_again_at = fixture.now();
    let marks = [mark(&released, "e1")];
    let begun = fixture.store.begin_dispatch(node, &marks).await;
    assert_eq!(begun.expect("begins"), [attempt(&released)]);
    fixture.clock.advance(1_000);
    let both = [attempt(&released), attempt(&run)];
    let confirmed = fixture.store.confirm_dispatch(&both).await;
    confirmed.expect("confirms");
    // A lost trigger is published once more.
    let again = fixture
        .store
        .reclaim_attempts(node, &[attempt(&run)], "lost")
        .await;
    assert_eq!(again.expect("takes back").len(), 1);
    fixture.clock.advance(1_000);
    let confirmed = fixture.store.confirm_dispatch(&[attempt(&run)]).await;
    confirmed.expect("confirms");
    fixture.clock.advance(1);
    let found = fixture.store.outstanding_attempts(0, None, None, 10).await;
    let found = found.expect("lists");
    assert_eq!(found.len(), 2);
    for o in found {
        let expected = if o.attempt == attempt(&run) {
            (begun_at, fixture.now().minus_ms(1))
        } else {
            (begun_again_at, fixture.now().minus_ms(1_001))
        };
        assert_eq!((o.dispatched_at, o.queued_at), expected);
    }
}

/// Two executors of different groups may have the same name. A page is full even if other attempts lie in between.
pub async fn outstanding_attempts_of_one_executor(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut specs = Vec::from(["a", "b", "c", "d", "e", "f", "g"].map(each_second));
    for spec in &mut specs[4..] {
        spec.group = name("other");
    }
    fixture.apply(&specs).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    assert_eq!(runs.len(), specs.len());
    let names = ["e1", "e2"];
    let mut expected: Vec<(ExecutorId, AttemptId)> = Vec::new();
    for (run, to) in runs.iter().zip(names.into_iter().cycle()) {
        let begun = fixture.store.begin_dispatch(node, &[mark(run, to)]).await;
        assert_eq!(begun.expect("begins"), [attempt(run)]);
        let confirmed = fixture.store.confirm_dispatch(&[attempt(run)]).await;
        confirmed.expect("confirms");
        expected.push((executor(run.job.spec.group.as_str(), to), attempt(run)));
    }
    expected.sort_unstable_by_key(|(_, id)| *id);
    fixture.clock.advance(1);
    for edited in [false, true] {
        if edited {
            // The attempts stay with the group that they were published to.
            let mut moved = each_second("a");
            moved.group = name("other");
            fixture.apply(&[moved]).await;
        }
        for of in ["default", "other"].map(|group| names.map(|n| executor(group, n))) {
            for of in &of {
                let of_one = expected.iter().filter(|(executor, _)| executor == of);
                let wanted: Vec<AttemptId> = of_one.map(|(_, id)| *id).collect();
                assert!(!wanted.is_empty());
                assert_eq!(outstanding_of(fixture, of).await, wanted, "of {of}");
            }
        }
    }
    let of = executor("default", "e1");
    let recent = fixture
        .store
        .outstanding_attempts(1, Some(&of), None, 10)
        .await;
    assert_eq!(recent.expect("lists"), [], "not long enough ago");
}

/// The attempts of these jobs that an executor was given, until they end.
pub async fn attempts_of_jobs(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&["a", "b", "c"].map(each_second)).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    let of = |jobs: &[usize], limit| {
        let jobs: Vec<_> = jobs.iter().map(|n| runs[*n].job.id).collect();
        async move {
            let found = fixture.store.attempts_of_jobs(&jobs, limit).await;
            let mut found = found.expect("lists");
            found.sort_unstable_by_key(|found| found.attempt);
            found
        }
    };
    assert_eq!(of(&[0, 1, 2], 10).await, [], "not given to an executor");
    let mut expected = Vec::new();
    for (run, to) in runs.iter().zip(["e1", "e2", "e1"]) {
        let begun = fixture.store.begin_dispatch(node, &[mark(run, to)]).await;
        assert_eq!(begun.expect("begins"), [attempt(run)]);
        expected.push(JobAttempt {
            job: run.job.id,
            attempt: attempt(run),
            executor: name(to),
        });
    }
    assert_eq!(of(&[0, 1, 2], 10).await, expected, "dispatching");
    assert_eq!(of(&[1], 10).await, expected[1..2]);
    assert_eq!(of(&[0, 1, 2], 2).await.len(), 2);
    assert_eq!(of(&[], 2).await, []);
    let confirmed = fixture.store.confirm_dispatch(&[attempt(&runs[0])]).await;
    confirmed.expect("confirms");
    assert_eq!(of(&[0], 10).await, expected[..1], "queued");
    let started = AttemptEvent::Started { at: fixture.now() };
    fixture.ingest(&[report(attempt(&runs[0]), started)]).await;
    assert_eq!(of(&[0], 10).await, expected[..1], "running");
    let outcome = Outcome::new(OutcomeKind::Succeeded, fixture.now());
    let ended = AttemptEvent::Ended { outcome };
    fixture.ingest(&[report(attempt(&runs[0]), ended)]).await;
    assert_eq!(of(&[0, 1], 10).await, expected[1..2], "ended");
}

/// A broadcast fire has a shard for each live executor with the right labels. Silent ones with others are not noted.
pub async fn broadcast_follows_the_selector(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut of_zone = each_second("a");
    of_zone.route = Route::Broadcast;
    of_zone.selector = "zone=a".parse().expect("a selector");
    let mut of_all = each_second("b");
    of_all.route = Route::Broadcast;
    fixture.apply(&[of_zone, of_all]).await;
    let labelled = ["e1 a", "e2 b", "e3 a", "e4 b"].map(|executor| {
        let (executor, zone) = executor.split_once(' ').expect("two words");
        let mut heartbeat = heartbeat(executor);
        heartbeat.labels = [("zone".to_owned(), zone.to_owned())].into();
        heartbeat
    });
    let recorded = fixture.store.record_heartbeats(&labelled).await;
    recorded.expect("records");
    fixture.clock.advance(14_000);
    let recorded = fixture.store.record_heartbeats(&labelled[..3]).await;
    recorded.expect("records");
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    let given = |job: &str| -> Vec<String> {
        let of_job = runs.iter().filter(|run| run.job.spec.name.as_str() == job);
        of_job
            .map(|run| run.executor.as_ref().expect("pinned").to_string())
            .collect()
    };
    assert_eq!(given("a"), ["e1", "e3"]);
    assert_eq!(given("b"), ["e1", "e2", "e3"]);
    for run in &runs {
        let noted = fixture.timeline(run.id).await;
        let is_first_of_b = run.job.spec.name.as_str() == "b" && run.shard.index == 0;
        assert_eq!(noted.is_empty(), !is_first_of_b, "{noted:?}");
    }
}

/// All outstanding attempts of an executor, read in pages of one.
async fn outstanding_of(fixture: &Fixture, of: &ExecutorId) -> Vec<AttemptId> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = fixture
            .store
            .outstanding_attempts(0, Some(of), after, 1)
            .await
            .expect("lists");
        let Some(one) = page.first() else {
            return found;
        };
        assert_eq!(one.executor, *of);
        after = Some(one.attempt.run);
        found.push(one.attempt);
    }
}

/// An edit may move the job to another group after the publication.
pub async fn outstanding_names_the_group_of_the_publication(fixture: &Fixture) {
    let node = fixture.node().await;
    let in_groups = |groups: [&str; 3]| {
        let jobs = ["a", "b", "c"].into_iter().zip(groups);
        let spec = |(job, group)| {
            let mut spec = each_second(job);
            spec.group = name(group);
            spec
        };
        jobs.map(spec).collect::<Vec<_>>()
    };
    let before = ["two", "one", "two"];
    fixture.apply(&in_groups(before)).await;
    fixture.clock.advance(1_000);
    let mut runs = fixture.fire(node).await.runs;
    runs.sort_unstable_by_key(|run| run.job.id);
    for run in &runs {
        fixture.publish(node, run).await;
    }
    // In another order, so that the ids do not ascend.
    let mut moved = in_groups(["three"; 3]);
    moved.reverse();
    fixture.apply(&moved).await;
    fixture.clock.advance(1);
    let found = fixture
        .store
        .outstanding_attempts(0, None, None, 10)
        .await
        .expect("lists");
    for (run, group) in runs.iter().zip(before) {
        let of = found.iter().find(|found| found.attempt == attempt(run));
        assert_eq!(of.expect("it is listed").executor.group, name(group));
    }
    fixture
        .store
        .cancel_run(runs[0].id, &actor("me"))
        .await
        .expect("asks");
    let pending = fixture
        .store
        .pending_cancellations(10)
        .await
        .expect("lists");
    assert_eq!(pending[0].executor.group, name(before[0]));
}

/// The first trigger may still be in a queue of that group.
pub async fn a_republished_attempt_goes_to_the_same_group(fixture: &Fixture) {
    let (node, dies) = (fixture.node().await, fixture.node_for(10_000).await);
    fixture.apply(&[each_second("a")]).await;
    let queued = fixture.fire_one(node).await;
    fixture.publish(node, &queued).await;
    let unconfirmed = fixture.fire_one(dies).await;
    fixture.begin(dies, &unconfirmed).await;
    let mut moved = each_second("a");
    moved.group = name("other");
    fixture.apply(&[moved]).await;
    let back = fixture
        .store
        .reclaim_attempts(node, &[attempt(&queued)], "lost")
        .await;
    assert_eq!(back.expect("takes back")[0].job.spec.group, name("default"));
    fixture.clock.advance(10_000);
    let claimed = fixture.claim(node).await;
    let again = claimed.iter().find(|run| run.id == unconfirmed.id);
    let again = again.expect("it is taken over");
    assert_eq!(again.job.spec.group, name("default"));
    let sent = fixture.end(attempt(again), OutcomeKind::Returned).await;
    assert_eq!(sent.rescheduled, 1);
    let claimed = fixture.claim(node).await;
    let anew = claimed.iter().find(|run| run.id == unconfirmed.id);
    let anew = anew.expect("it has another attempt");
    assert_eq!(anew.job.spec.group, name("other"), "it is routed anew");
}

/// A lost trigger: the same attempt goes to the same executor once more.
pub async fn reclaimed_attempts_are_published_again(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    for run in &runs {
        fixture.publish(node, run).await;
    }
    let ids = [attempt(&runs[1]), attempt(&runs[0])];
    let back = fixture.store.reclaim_attempts(node, &ids, "not held").await;
    let back = back.expect("takes back");
    assert_eq!(back.iter().map(attempt).collect::<Vec<_>>(), ids);
    for run in &back {
        assert!(run.maybe_published);
        assert_eq!(run.executor, Some(name("e1")));
        fixture.expect(run.id, RunState::Dispatching).await;
        assert_eq!(fixture.timeline(run.id).await, ["republished"]);
    }
    assert!(
        fixture.claim(node).await.is_empty(),
        "the node works on them"
    );
    fixture.publish(node, &back[0]).await;
    fixture.expect(back[0].id, RunState::Queued).await;
}

/// The run has another attempt, or ended meanwhile.
pub async fn ended_attempts_are_not_reclaimed(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    fixture.succeed(node, &runs[0]).await;
    fixture.publish(node, &runs[1]).await;
    let ids = [
        attempt(&runs[0]),
        AttemptId {
            run: runs[1].id,
            attempt: 2,
        },
    ];
    let back = fixture.store.reclaim_attempts(node, &ids, "not held").await;
    assert!(back.expect("answers").is_empty());
    fixture.expect(runs[1].id, RunState::Queued).await;
}

/// Another node has published them again, and they have started. That their job is deleted does not end them.
pub async fn running_attempts_are_not_reclaimed(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    for run in &runs {
        fixture.publish(node, run).await;
        let started = AttemptEvent::Started { at: fixture.now() };
        fixture.ingest(&[report(attempt(run), started)]).await;
    }
    let deleted = fixture.store.delete_job(&name("b"), &actor("me")).await;
    deleted.expect("deletes");
    let ids: Vec<_> = runs.iter().map(attempt).collect();
    let back = fixture.store.reclaim_attempts(node, &ids, "not held").await;
    assert!(back.expect("answers").is_empty());
    for run in &runs {
        fixture.expect(run.id, RunState::Running).await;
        assert!(fixture.timeline(run.id).await.is_empty());
        let done = fixture.end(attempt(run), OutcomeKind::Succeeded).await;
        assert_eq!(done.ended, 1);
    }
}

/// A stopped job is not published again. A pause does not affect manual triggers.
pub async fn reclaimed_attempts_of_stopped_jobs_end(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[each_second("paused"), each_second("deleted")])
        .await;
    fixture.clock.advance(1_000);
    let mut runs = fixture.fire(node).await.runs;
    fixture.trigger("paused").await;
    runs.extend(fixture.claim(node).await);
    assert_eq!(runs.len(), 3);
    for run in &runs {
        fixture.publish(node, run).await;
    }
    let paused = fixture
        .store
        .set_job_enabled(&name("paused"), false, &actor("me"))
        .await;
    paused.expect("pauses");
    let deleted = fixture
        .store
        .delete_job(&name("deleted"), &actor("me"))
        .await;
    deleted.expect("deletes");
    let ids: Vec<_> = runs.iter().map(attempt).collect();
    let back = fixture.store.reclaim_attempts(node, &ids, "not held").await;
    let back = back.expect("takes back");
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].kind, RunKind::Manual);
    for run in runs.iter().filter(|run| run.id != back[0].id) {
        fixture.expect(run.id, RunState::Cancelled).await;
        assert_eq!(fixture.timeline(run.id).await, ["cancel"]);
    }
}

/// An attempt is overdue after timeout, kill grace and slack together.
pub async fn overdue_attempts_are_found(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut limited = each_second("limited");
    limited.timeout = Some(DurationMs::secs(60));
    limited.kill_grace = DurationMs::secs(5);
    fixture.apply(&[limited, each_second("unlimited")]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    for run in &runs {
        fixture.publish(node, run).await;
        let started = AttemptEvent::Started { at: fixture.now() };
        fixture.ingest(&[report(attempt(run), started)]).await;
    }
    fixture.clock.advance(75_000);
    let overdue = fixture
        .store
        .overdue_attempts(10_000, 10)
        .await
        .expect("lists");
    assert!(overdue.is_empty());
    fixture.clock.advance(1);
    let overdue = fixture
        .store
        .overdue_attempts(10_000, 10)
        .await
        .expect("lists");
    assert_eq!(overdue, [attempt(&runs[0])]);
    let taken = fixture
        .store
        .begin_dispatch(node, &[mark(&runs[0], "e1")])
        .await;
    assert_eq!(taken.expect("answers"), []);
}

/// An edit does not change the limit of a published run. A worker's clock that is behind does not shorten it.
pub async fn overdue_uses_the_timeout_of_the_publication(fixture: &Fixture) {
    let node = fixture.node().await;
    let limited = |secs| {
        let mut job = each_second("limited");
        job.timeout = Some(DurationMs::secs(secs));
        job.kill_grace = DurationMs::secs(5);
        job
    };
    fixture.apply(&[limited(600)]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    let started = AttemptEvent::Started {
        at: fixture.now().minus_ms(3_600_000),
    };
    fixture.ingest(&[report(attempt(&run), started)]).await;
    let overdue = fixture
        .store
        .overdue_attempts(10_000, 10)
        .await
        .expect("lists");
    assert!(overdue.is_empty(), "its worker's clock is behind");
    fixture.clock.advance(120_000);
    fixture.apply(&[limited(60)]).await;
    let overdue = fixture
        .store
        .overdue_attempts(10_000, 10)
        .await
        .expect("lists");
    assert!(overdue.is_empty());
    fixture.clock.advance(495_001);
    let overdue = fixture
        .store
        .overdue_attempts(10_000, 10)
        .await
        .expect("lists");
    assert_eq!(overdue, [attempt(&run)]);
}

/// The worker of a running attempt knows the timeout of the publication only.
pub async fn overdue_ignores_later_timeouts(fixture: &Fixture) {
    let node = fixture.node().await;
    let with_timeout = |job: &str, secs: Option<u64>| {
        let mut spec = each_second(job);
        spec.timeout = secs.map(DurationMs::secs);
        spec.kill_grace = DurationMs::secs(5);
        spec
    };
    let (longer, unlimited) = ("longer", "none");
    fixture
        .apply(&[
            with_timeout(longer, Some(60)),
            with_timeout(unlimited, Some(70)),
        ])
        .await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    for run in &runs {
        fixture.publish(node, run).await;
        let started = AttemptEvent::Started { at: fixture.now() };
        fixture.ingest(&[report(attempt(run), started)]).await;
    }
    fixture
        .apply(&[
            with_timeout(longer, Some(600)),
            with_timeout(unlimited, None),
        ])
        .await;
    fixture.clock.advance(75_001);
    let overdue = |limit| fixture.store.overdue_attempts(0, limit);
    let of = |job: &str| {
        let run = runs.iter().find(|run| run.job.spec.name.as_str() == job);
        attempt(run.expect("it was fired"))
    };
    let wanted = [of(longer), of(unlimited)];
    assert_eq!(overdue(10).await.expect("lists"), wanted, "longest first");
    assert_eq!(overdue(1).await.expect("lists"), wanted[..1]);
}

/// A deadline ends with the state `running`. The next start has one of its own.
pub async fn overdue_counts_from_the_last_start(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut limited = each_second("limited");
    limited.timeout = Some(DurationMs::secs(60));
    limited.kill_grace = DurationMs::secs(5);
    fixture.apply(&[limited]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    let started = AttemptEvent::Started { at: fixture.now() };
    fixture.ingest(&[report(attempt(&run), started)]).await;
    fixture.clock.advance(70_000);
    let overdue = || fixture.store.overdue_attempts(0, 10);
    assert_eq!(overdue().await.expect("lists"), [attempt(&run)]);
    fixture.end(attempt(&run), OutcomeKind::Returned).await;
    assert_eq!(overdue().await.expect("lists"), [], "waits for an executor");
    let again = fixture.claim(node).await.remove(0);
    assert_eq!(again.attempt, 2);
    fixture.begin(node, &again).await;
    assert_eq!(overdue().await.expect("lists"), [], "is dispatching");
    fixture.publish(node, &again).await;
    assert_eq!(overdue().await.expect("lists"), [], "is queued");
    let started = AttemptEvent::Started { at: fixture.now() };
    fixture.ingest(&[report(attempt(&again), started)]).await;
    fixture.clock.advance(65_000);
    assert_eq!(overdue().await.expect("lists"), [], "has started again");
    fixture.clock.advance(1);
    assert_eq!(overdue().await.expect("lists"), [attempt(&again)]);
    fixture.end(attempt(&again), OutcomeKind::Succeeded).await;
    assert_eq!(overdue().await.expect("lists"), [], "has ended");
}

/// Only executors without a newer heartbeat and without attempts are forgotten.
pub async fn silent_executors_are_forgotten(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    fixture.heartbeats(&["e1", "e2", "e3"]).await;
    let then = fixture.now();
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    fixture.heartbeats(&["e2"]).await;
    let asked = ["e1", "e2", "e3", "unknown"].map(|e| (executor("default", e), then));
    let forget = async || {
        let forgotten = fixture.store.forget_executors(&asked).await;
        forgotten.expect("forgets")
    };
    assert_eq!(
        forget().await,
        [executor("default", "e3")],
        "e1 has a trigger, e2 is back"
    );
    fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    assert_eq!(forget().await, [executor("default", "e1")]);
    let left = fixture.store.executors().await.expect("lists");
    assert_eq!(left.len(), 1);
    fixture.heartbeats(&["e1"]).await;
    assert_eq!(fixture.store.executors().await.expect("lists").len(), 2);
    let nothing = fixture.store.forget_executors(&[]).await;
    assert!(nothing.expect("nothing to do").is_empty());
}

/// The clock of a worker is wrong. One such report must not keep all others from being ingested.
pub async fn a_start_in_the_far_future_is_limited(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut limited = each_second("limited");
    limited.timeout = Some(DurationMs::secs(60));
    limited.kill_grace = DurationMs::secs(5);
    fixture.apply(&[limited]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    let started = AttemptEvent::Started {
        at: Timestamp::from_millis(i64::MAX),
    };
    let done = fixture.ingest(&[report(attempt(&run), started)]).await;
    assert_eq!(done.ignored, 0);
    fixture.expect(run.id, RunState::Running).await;
    fixture.clock.advance(24 * 3_600_000 + 65_001);
    let overdue = fixture.store.overdue_attempts(0, 10).await;
    assert_eq!(overdue.expect("lists"), [attempt(&run)]);
}
