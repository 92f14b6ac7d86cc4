//! Executors and their outstanding attempts.

use cueline_model::{
    AttemptEvent, AttemptId, DurationMs, OutcomeKind, Route, RunId, RunKind, RunState,
};

use super::fixture::{Fixture, attempt, beat, each_second, executor, mark, name, report};

/// The newest heartbeat counts; its time is the database's.
pub async fn heartbeats_are_kept(fixture: &Fixture) {
    let mut other = beat("a");
    other.executor.group = name("z");
    let mut first = beat("b");
    first.capabilities = vec!["shell".to_owned(), "http".to_owned()];
    first.held = 7;
    first.running = 3;
    fixture
        .store
        .record_heartbeats(&[other, first.clone(), beat("a")])
        .await
        .expect("beats");
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
    assert_eq!(seen[1].last_heartbeat_at, fixture.now());
    fixture.clock.advance(1_000);
    first.incarnation = String::from("2");
    first.gone = true;
    fixture
        .store
        .record_heartbeats(&[first])
        .await
        .expect("beats");
    let seen = fixture.store.executors().await.expect("lists");
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[1].heartbeat.incarnation, "2");
    assert!(seen[1].heartbeat.gone);
    assert_eq!(seen[1].last_heartbeat_at, fixture.now());
    assert_eq!(seen[0].last_heartbeat_at, fixture.now().minus_ms(1_000));
    fixture
        .store
        .record_heartbeats(&[])
        .await
        .expect("nothing to do");
}

/// An executor is silent after 15 s without a heartbeat.
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
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].executor, Some(name("e2")));
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
            .outstanding_attempts(5_000, after, limit)
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

/// An edit may move the job to another group after the publication.
pub async fn outstanding_names_the_group_of_the_publication(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    let mut moved = each_second("a");
    moved.group = name("other");
    fixture.apply(&[moved]).await;
    fixture.clock.advance(1);
    let found = fixture
        .store
        .outstanding_attempts(0, None, 10)
        .await
        .expect("lists");
    assert_eq!(found[0].executor.group, name("default"));
    fixture.store.cancel_run(run.id, "me").await.expect("asks");
    let pending = fixture
        .store
        .pending_cancellations(10)
        .await
        .expect("lists");
    assert_eq!(pending[0].executor.group, name("default"));
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
        .set_job_enabled(&name("paused"), false, "me")
        .await;
    paused.expect("pauses");
    let deleted = fixture.store.delete_job(&name("deleted"), "me").await;
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
