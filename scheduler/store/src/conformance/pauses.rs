//! Pauses of several jobs.

use std::collections::BTreeSet;

use cueline_model::{JobSpec, OutcomeKind, RunState, WindowSpec};
use serde_json::{Value, json};

use super::fire_rules::{actions, add, end, fire, ledger, skipped};
use super::fixture::{
    Fixture, START, actor, attempt, by_hand, child, each_second, job_with, mark, name, refused,
};
use crate::{ErrorKind, NodeId, REPLAN_ABANDONED_MS};

/// A pause of the jobs with a label that begins now.
pub(super) fn pause(fixture: &Fixture, for_s: Option<u64>) -> WindowSpec {
    let mut whole = json!({
        "namespace": "default", "labels": { "tier": "1" }, "paused_at": fixture.now().to_string(),
        "reason": "incident", "owner": "user ann",
    });
    if let Some(seconds) = for_s {
        whole["until"] = Value::from(fixture.now().plus_ms(seconds * 1_000).to_string());
    }
    serde_json::from_value(whole).expect("a pause")
}

pub(super) fn labelled(spec: JobSpec) -> JobSpec {
    JobSpec {
        labels: [("tier".to_owned(), "1".to_owned())].into(),
        ..spec
    }
}

async fn fired(fixture: &Fixture, node: NodeId) -> BTreeSet<String> {
    let runs = fire(&*fixture.store, node).await.runs;
    let names = runs.iter().map(|run| run.job.spec.name.to_string());
    names.collect()
}

/// G3: what waits ends, what was written ahead is withdrawn, and nothing that was due before starts later.
pub async fn a_pause_ends_waiting_runs_of_its_jobs(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[
            labelled(each_second("a")),
            each_second("b"),
            labelled(by_hand("m")),
        ])
        .await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    let of_a = runs.iter().find(|run| run.job.spec.name.as_str() == "a");
    let of_a = of_a.expect("a run").clone();
    let by_hand = fixture.trigger("m").await.remove(0);
    // A fire time that is due, and that no node has looked at.
    fixture.clock.advance(3_000);
    let (id, jobs) = add(&*fixture.store, &pause(fixture, None)).await;
    assert_eq!(jobs.len(), 2);
    fixture.expect(of_a.id, RunState::Skipped).await;
    fixture.expect(by_hand, RunState::Skipped).await;
    let message = fixture.run(of_a.id).await.message.expect("says why");
    assert_eq!(message, format!("paused by user ann: incident; pause {id}"));
    let marks = [mark(&of_a, "e1")];
    let taken = fixture.store.begin_dispatch(node, &marks).await;
    assert_eq!(taken.expect("answers"), []);
    assert!(fixture.claim(node).await.is_empty());
    for _ in 0..3 {
        assert_eq!(fired(fixture, node).await, ["b".to_owned()].into());
        fixture.clock.advance(1_000);
    }
    assert_eq!(fixture.next_fire("a").await, None, "nobody said until when");
    let reason = format!("in pause {id} of user ann: incident");
    let runs = skipped(fixture, "a").await;
    assert!(runs[1].1.starts_with(&reason), "{runs:?}");
    // A person still runs it by hand.
    let by_hand = fixture.trigger("m").await.remove(0);
    let claimed = fixture.claim(node).await;
    assert_eq!(claimed.len(), 1, "{claimed:?}");
    fixture.succeed(node, &claimed[0]).await;
    fixture.expect(by_hand, RunState::Succeeded).await;
    end(&*fixture.store, id).await;
    fixture.clock.advance(1_000);
    assert!(fired(fixture, node).await.contains("a"));
    let entries = ledger(fixture, "a", 1, 8).await;
    assert!(
        entries.iter().all(|entry| entry.run.is_some()),
        "{entries:?}"
    );
    let actions = actions(fixture).await;
    for action in ["pause.start", "pause.end"] {
        assert!(actions.iter().any(|known| known == action), "{actions:?}");
    }
}

/// What follows from a run that a pause has left alone is not started either.
pub async fn a_pause_lets_nothing_follow(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut retried = labelled(by_hand("retried"));
    retried.retry.max = 3;
    let specs = [
        retried,
        labelled(by_hand("released")),
        by_hand("parent"),
        labelled(child("child", "parent")),
        labelled(each_second("fires")),
    ];
    fixture.apply(&specs).await;
    fixture.clock.advance(1_000);
    let fires = fixture.fire(node).await.runs.remove(0);
    fixture.publish(node, &fires).await;
    for job in ["retried", "released", "parent"] {
        fixture.trigger(job).await;
    }
    let runs = fixture.claim(node).await;
    let run = |job: &str| {
        let found = runs.iter().find(|run| run.job.spec.name.as_str() == job);
        found.expect("is claimed").clone()
    };
    for job in ["retried", "parent"] {
        fixture.publish(node, &run(job)).await;
    }
    fixture.begin(node, &run("released")).await;
    add(&*fixture.store, &pause(fixture, Some(60))).await;
    // Runs by hand go on.
    fixture
        .end(attempt(&run("retried")), OutcomeKind::Failed)
        .await;
    fixture.expect(run("retried").id, RunState::Scheduled).await;
    let released = [attempt(&run("released"))];
    let store = &fixture.store;
    store
        .release_claims(node, &released, None)
        .await
        .expect("releases");
    fixture
        .expect(run("released").id, RunState::Scheduled)
        .await;
    // Others do not.
    let reclaimed = store
        .reclaim_attempts(node, &[attempt(&fires)], "lost")
        .await;
    assert!(reclaimed.expect("answers").is_empty());
    fixture.expect(fires.id, RunState::Cancelled).await;
    let summary = fixture
        .end(attempt(&run("parent")), OutcomeKind::Succeeded)
        .await;
    assert_eq!(summary.child_runs, 0);
}

/// A failed attempt of the schedule gets no further one while its job is paused, and one after the pause does.
pub async fn a_paused_job_is_not_retried(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = labelled(each_second("a"));
    spec.retry.max = 3;
    fixture.apply(&[spec]).await;
    let first = fixture.fire_one(node).await;
    fixture.publish(node, &first).await;
    add(&*fixture.store, &pause(fixture, Some(10))).await;
    fixture.end(attempt(&first), OutcomeKind::Failed).await;
    fixture.expect(first.id, RunState::Failed).await;
    fixture.clock.advance(10_500);
    let runs = fire(&*fixture.store, node).await.runs;
    let next = runs.first().expect("the pause has ended by itself");
    fixture.publish(node, next).await;
    fixture.end(attempt(next), OutcomeKind::Failed).await;
    fixture.expect(next.id, RunState::Scheduled).await;
}

/// Each fire time has a run, whatever order the jobs get their plans in, and when.
pub async fn plans_that_change_in_parts_lose_no_fire_time(fixture: &Fixture) {
    let node = fixture.node().await;
    let jobs: Vec<JobSpec> = (0..5)
        .map(|n| labelled(each_second(&format!("j{n}"))))
        .collect();
    fixture.apply(&jobs).await;
    let store = &fixture.store;
    let by = actor("ann");
    let id = store
        .add_window(&pause(fixture, None), &by)
        .await
        .expect("adds");
    for _ in 0..12 {
        // Half of the time between the parts passes without a plan.
        fixture.clock.advance(700);
        fire(&**store, node).await;
        store.replan_window(Some(id), 1).await.expect("plans");
    }
    assert!(
        store
            .replan_window(Some(id), 1)
            .await
            .expect("plans")
            .is_done
    );
    for _ in 0..20 {
        fixture.clock.advance(1_300);
        assert!(fire(&**store, node).await.runs.is_empty());
    }
    store.end_window(id, &by).await.expect("ends");
    refused(
        store.end_window(id, &by).await,
        ErrorKind::NotFound,
        "pause",
    );
    for _ in 0..12 {
        fixture.clock.advance(1_700);
        fire(&**store, node).await;
        store.replan_window(Some(id), 1).await.expect("plans");
    }
    fixture.clock.advance(2_000);
    fire(&**store, node).await;
    assert!(store.fire_rules().await.expect("reads").windows.is_empty());
    let seconds = u64::try_from(fixture.now().since_ms(START) / 1_000).expect("later");
    for n in 0..5 {
        let entries = ledger(fixture, &format!("j{n}"), 1, seconds).await;
        assert_eq!(entries.len() as u64, seconds - 1);
        let lost: Vec<_> = entries.iter().filter(|entry| entry.run.is_none()).collect();
        assert!(lost.is_empty(), "j{n}: {lost:?}");
    }
}

/// What a process has begun and not finished, another one finishes. A job that comes meanwhile is paused at once.
pub async fn another_node_finishes_a_pause(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture
        .apply(&[labelled(each_second("a")), labelled(each_second("b"))])
        .await;
    let store = &fixture.store;
    let id = store
        .add_window(&pause(fixture, None), &actor("ann"))
        .await
        .expect("adds");
    store.replan_window(Some(id), 1).await.expect("plans");
    fixture.apply(&[labelled(each_second("later"))]).await;
    let other = fixture.harness.open().await;
    let early = other.replan_window(None, 10).await.expect("answers");
    assert!(early.jobs.is_empty() && early.is_done, "{early:?}");
    fixture.clock.advance(1_500);
    assert_eq!(fired(fixture, node).await, ["b".to_owned()].into());
    fixture.clock.advance(REPLAN_ABANDONED_MS);
    let rest = other.replan_window(None, 10).await.expect("plans");
    assert_eq!((rest.jobs.len(), rest.is_done), (2, true));
    for _ in 0..3 {
        fixture.clock.advance(1_000);
        assert!(fired(fixture, node).await.is_empty());
    }
}

/// The end of a waiting run by a pause leaves a next fire time behind, which the pause excludes.
pub async fn a_paused_fixed_delay_job_goes_on(fixture: &Fixture) {
    let node = fixture.node().await;
    let schedule = serde_json::from_value(json!({ "after": "1s" })).expect("a schedule");
    fixture.apply(&[labelled(job_with("a", schedule))]).await;
    let waits = fixture.fire_one(node).await;
    add(&*fixture.store, &pause(fixture, Some(10))).await;
    fixture.expect(waits.id, RunState::Skipped).await;
    for _ in 0..4 {
        fixture.clock.advance(2_000);
        assert!(fired(fixture, node).await.is_empty());
    }
    fixture.clock.advance(4_000);
    assert_eq!(fired(fixture, node).await, ["a".to_owned()].into());
}

/// A job that is paused alone stays so when a pause of several ends.
pub async fn a_pause_does_not_resume_what_was_paused_alone(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[labelled(each_second("a"))]).await;
    let by = actor("bob");
    let job = name("a");
    fixture
        .store
        .set_job_enabled(&job, false, &by)
        .await
        .expect("pauses");
    let (id, _) = add(&*fixture.store, &pause(fixture, None)).await;
    end(&*fixture.store, id).await;
    fixture.clock.advance(2_000);
    assert!(fired(fixture, node).await.is_empty());
    let (id, _) = add(&*fixture.store, &pause(fixture, None)).await;
    fixture
        .store
        .set_job_enabled(&job, true, &by)
        .await
        .expect("resumes");
    fixture.clock.advance(2_000);
    assert!(fired(fixture, node).await.is_empty());
    end(&*fixture.store, id).await;
    fixture.clock.advance(1_000);
    assert_eq!(fired(fixture, node).await, ["a".to_owned()].into());
}
