//! Executors, and what they should hold.

use cueline_model::{
    AttemptEvent, AttemptId, DurationMs, OutcomeKind, Route, RunId, RunKind, RunState,
};

use super::world::{World, attempt, beat, each_second, executor, mark, name, report};

/// The newest sign of life counts; the time is the database's.
pub async fn beats_are_kept(w: &World) {
    let mut other = beat("a");
    other.executor.group = name("z");
    let mut first = beat("b");
    first.capabilities = vec!["shell".to_owned(), "http".to_owned()];
    first.held = 7;
    first.running = 3;
    w.store
        .record_heartbeats(&[other, first.clone(), beat("a")])
        .await
        .expect("beats");
    let seen = w.store.executors().await.expect("lists");
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
    assert_eq!(seen[1].last_heartbeat_at, w.now());
    w.clock.advance(1_000);
    first.incarnation = String::from("2");
    first.gone = true;
    w.store.record_heartbeats(&[first]).await.expect("beats");
    let seen = w.store.executors().await.expect("lists");
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[1].heartbeat.incarnation, "2");
    assert!(seen[1].heartbeat.gone);
    assert_eq!(seen[1].last_heartbeat_at, w.now());
    assert_eq!(seen[0].last_heartbeat_at, w.now().minus_ms(1_000));
    w.store.record_heartbeats(&[]).await.expect("nothing to do");
}

/// 15 s without a sign of life.
pub async fn silent_executors_are_no_candidates(w: &World) {
    let node = w.node().await;
    let mut spec = each_second("a");
    spec.route = Route::Broadcast;
    w.apply(&[spec]).await;
    w.heartbeats(&["e1", "e2"]).await;
    w.clock.advance(14_000);
    w.heartbeats(&["e2"]).await;
    let runs = w.fire(node).await.runs;
    assert_eq!(runs.len(), 2);
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].executor, Some(name("e2")));
    w.clock.advance(60_000);
    let runs = w.fire(node).await.runs;
    assert_eq!(runs.len(), 1, "waits for somebody");
    assert_eq!(runs[0].executor, None);
}

/// What was confirmed long enough ago and has not ended, by id.
pub async fn outstanding_pages_by_id(w: &World) {
    let node = w.node().await;
    w.apply(&["a", "b", "c", "d"].map(each_second)).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    for run in &runs[..3] {
        w.publish(node, run).await;
    }
    let started = AttemptEvent::Started { at: w.now() };
    w.ingest(&[report(attempt(&runs[0]), started)]).await;
    let list = |after: Option<RunId>, limit| async move {
        let found = w.store.outstanding_attempts(5_000, after, limit).await;
        found.expect("lists")
    };
    assert!(list(None, 10).await.is_empty(), "not long enough ago");
    w.clock.advance(5_001);
    let found = list(None, 2).await;
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].attempt, attempt(&runs[0]));
    assert_eq!(found[0].state, RunState::Running);
    assert_eq!(found[1].state, RunState::Queued);
    assert_eq!(found[1].queued_at, w.now().minus_ms(5_001));
    assert_eq!(found[1].executor, executor("default", "e1"));
    let rest = list(Some(found[1].attempt.run), 2).await;
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].attempt.run, runs[2].id);
    w.end(attempt(&runs[2]), OutcomeKind::Succeeded).await;
    assert!(list(Some(found[1].attempt.run), 2).await.is_empty());
}

/// An edit may move the job to another group while a run is out.
pub async fn outstanding_keeps_the_group_it_went_to(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    w.publish(node, &run).await;
    let mut moved = each_second("a");
    moved.group = name("other");
    w.apply(&[moved]).await;
    w.clock.advance(1);
    let found = w
        .store
        .outstanding_attempts(0, None, 10)
        .await
        .expect("lists");
    assert_eq!(found[0].executor.group, name("default"));
    w.store.cancel_run(run.id, "me").await.expect("asks");
    let pending = w.store.pending_cancellations(10).await.expect("lists");
    assert_eq!(pending[0].executor.group, name("default"));
}

/// Whoever is to publish it once more sends it where it may lie already.
pub async fn what_was_sent_goes_to_the_same_group_again(w: &World) {
    let (node, dies) = (w.node().await, w.node_for(10_000).await);
    w.apply(&[each_second("a")]).await;
    let queued = w.fire_one(node).await;
    w.publish(node, &queued).await;
    let unconfirmed = w.fire_one(dies).await;
    w.begin(dies, &unconfirmed).await;
    let mut moved = each_second("a");
    moved.group = name("other");
    w.apply(&[moved]).await;
    let back = w
        .store
        .reclaim_attempts(node, &[attempt(&queued)], "lost")
        .await;
    assert_eq!(back.expect("takes back")[0].job.spec.group, name("default"));
    w.clock.advance(10_000);
    let claimed = w.claim(node).await;
    let again = claimed.iter().find(|run| run.id == unconfirmed.id);
    let again = again.expect("it is taken over");
    assert_eq!(again.job.spec.group, name("default"));
    let sent = w.end(attempt(again), OutcomeKind::Returned).await;
    assert_eq!(sent.rescheduled, 1);
    let claimed = w.claim(node).await;
    let anew = claimed.iter().find(|run| run.id == unconfirmed.id);
    let anew = anew.expect("it has another attempt");
    assert_eq!(anew.job.spec.group, name("other"), "it is routed anew");
}

/// A trigger that got lost on its way: the same attempt, to the same executor, once more.
pub async fn take_back_publishes_again(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), each_second("b")]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    for run in &runs {
        w.publish(node, run).await;
    }
    let ids = [attempt(&runs[1]), attempt(&runs[0])];
    let back = w.store.reclaim_attempts(node, &ids, "not held").await;
    let back = back.expect("takes back");
    assert_eq!(back.iter().map(attempt).collect::<Vec<_>>(), ids);
    for run in &back {
        assert!(run.maybe_published);
        assert_eq!(run.executor, Some(name("e1")));
        w.expect(run.id, RunState::Dispatching).await;
        assert_eq!(w.timeline(run.id).await, ["republished"]);
    }
    assert!(w.claim(node).await.is_empty(), "the node works on them");
    w.publish(node, &back[0]).await;
    w.expect(back[0].id, RunState::Queued).await;
}

/// Another attempt, or an end that came meanwhile.
pub async fn take_back_refuses_what_ended(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), each_second("b")]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    w.succeed(node, &runs[0]).await;
    w.publish(node, &runs[1]).await;
    let ids = [
        attempt(&runs[0]),
        AttemptId {
            run: runs[1].id,
            attempt: 2,
        },
    ];
    let back = w.store.reclaim_attempts(node, &ids, "not held").await;
    assert!(back.expect("answers").is_empty());
    w.expect(runs[1].id, RunState::Queued).await;
}

/// Nobody publishes what was stopped: it ends. What was triggered by hand does not mind a pause.
pub async fn take_back_ends_what_was_stopped(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("paused"), each_second("deleted")])
        .await;
    w.clock.advance(1_000);
    let mut runs = w.fire(node).await.runs;
    w.trigger("paused").await;
    runs.extend(w.claim(node).await);
    assert_eq!(runs.len(), 3);
    for run in &runs {
        w.publish(node, run).await;
    }
    let paused = w.store.set_job_enabled(&name("paused"), false, "me").await;
    paused.expect("pauses");
    let deleted = w.store.delete_job(&name("deleted"), "me").await;
    deleted.expect("deletes");
    let ids: Vec<_> = runs.iter().map(attempt).collect();
    let back = w.store.reclaim_attempts(node, &ids, "not held").await;
    let back = back.expect("takes back");
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].kind, RunKind::Manual);
    for run in runs.iter().filter(|run| run.id != back[0].id) {
        w.expect(run.id, RunState::Cancelled).await;
        assert_eq!(w.timeline(run.id).await, ["cancel"]);
    }
}

/// Longer than timeout, grace and slack together.
pub async fn overdue_is_found(w: &World) {
    let node = w.node().await;
    let mut limited = each_second("limited");
    limited.timeout = Some(DurationMs::secs(60));
    limited.kill_grace = DurationMs::secs(5);
    w.apply(&[limited, each_second("unlimited")]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    for run in &runs {
        w.publish(node, run).await;
        let started = AttemptEvent::Started { at: w.now() };
        w.ingest(&[report(attempt(run), started)]).await;
    }
    w.clock.advance(75_000);
    let overdue = w.store.overdue_attempts(10_000, 10).await.expect("lists");
    assert!(overdue.is_empty());
    w.clock.advance(1);
    let overdue = w.store.overdue_attempts(10_000, 10).await.expect("lists");
    assert_eq!(overdue, [attempt(&runs[0])]);
    let taken = w.store.begin_dispatch(node, &[mark(&runs[0], "e1")]).await;
    assert_eq!(taken.expect("answers"), []);
}

/// An edit while it runs is no reason to give it up; and it has started no sooner than it was sent, whatever its worker's clock shows.
pub async fn overdue_goes_by_the_limit_that_a_run_went_out_with(w: &World) {
    let node = w.node().await;
    let limited = |secs| {
        let mut job = each_second("limited");
        job.timeout = Some(DurationMs::secs(secs));
        job.kill_grace = DurationMs::secs(5);
        job
    };
    w.apply(&[limited(600)]).await;
    let run = w.fire_one(node).await;
    w.publish(node, &run).await;
    let started = AttemptEvent::Started {
        at: w.now().minus_ms(3_600_000),
    };
    w.ingest(&[report(attempt(&run), started)]).await;
    let overdue = w.store.overdue_attempts(10_000, 10).await.expect("lists");
    assert!(overdue.is_empty(), "its worker's clock is behind");
    w.clock.advance(120_000);
    w.apply(&[limited(60)]).await;
    let overdue = w.store.overdue_attempts(10_000, 10).await.expect("lists");
    assert!(overdue.is_empty());
    w.clock.advance(495_001);
    let overdue = w.store.overdue_attempts(10_000, 10).await.expect("lists");
    assert_eq!(overdue, [attempt(&run)]);
}
