//! Manual triggers.

use cueline_model::{Route, RunKind, RunState};

use super::fixture::{Fixture, actor, ask, by_hand, each_second, mark, name, refused};
use crate::{ErrorKind, NodeId, RunFilter};

/// A manual trigger does not depend on the schedule.
pub async fn trigger_runs_a_paused_job(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.enabled = Some(false);
    fixture.apply(&[spec]).await;
    let mut request = ask("a");
    request.params = Some("by hand".to_owned());
    let triggered = fixture.store.trigger(&request).await.expect("triggers");
    assert!(!triggered.duplicate);
    let run = fixture.claim(node).await.remove(0);
    assert_eq!([run.id], triggered.runs[..]);
    assert_eq!(run.kind, RunKind::Manual);
    assert_eq!(run.params.as_deref(), Some("by hand"));
    assert_eq!((run.fire_at, run.due_at), (fixture.now(), fixture.now()));
    let taken = fixture
        .store
        .begin_dispatch(node, &[mark(&run, "e1")])
        .await;
    assert_eq!(taken.expect("begins").len(), 1);
}

/// The second request with the same key for the same job gets the runs of the first.
pub async fn an_idempotency_key_is_used_once(fixture: &Fixture) {
    fixture.apply(&[by_hand("a"), by_hand("b")]).await;
    let mut request = ask("a");
    request.idempotency_key = Some("k".to_owned());
    let first = fixture.store.trigger(&request).await.expect("triggers");
    fixture.clock.advance(60_000);
    let second = fixture.store.trigger(&request).await.expect("answers");
    assert!(second.duplicate);
    assert_eq!(second.runs, first.runs);
    request.job = name("b");
    let other = fixture.store.trigger(&request).await.expect("triggers");
    assert!(!other.duplicate, "another job");
    request.job = name("a");
    request.idempotency_key = Some("l".to_owned());
    let other = fixture.store.trigger(&request).await.expect("triggers");
    assert!(!other.duplicate, "another key");
    let all = RunFilter {
        limit: 10,
        ..RunFilter::default()
    };
    assert_eq!(fixture.store.runs(&all).await.expect("lists").len(), 3);
}

/// A node that triggers gets the claim at once. Other nodes find the run when that node dies, or at once without a
/// claim.
pub async fn a_trigger_may_claim_its_runs(fixture: &Fixture) {
    let (node, other) = (fixture.node().await, fixture.node().await);
    fixture.apply(&[by_hand("a")]).await;
    let mut request = ask("a");
    request.params = Some("by hand".to_owned());
    let asked = fixture.store.trigger_claimed(Some(node), &request).await;
    let (triggered, mut claimed) = asked.expect("triggers");
    assert_eq!(triggered.runs.len(), 1);
    let run = claimed.remove(0);
    assert_eq!([run.id], triggered.runs[..]);
    assert_eq!((run.attempt, run.kind), (1, RunKind::Manual));
    assert_eq!(run.params.as_deref(), Some("by hand"));
    assert_eq!((run.fire_at, run.due_at), (fixture.now(), fixture.now()));
    assert!(fixture.claim(other).await.is_empty(), "it is claimed");
    let taken = fixture
        .store
        .begin_dispatch(node, &[mark(&run, "e1")])
        .await;
    assert_eq!(taken.expect("begins").len(), 1);

    // A later run has no claim yet, and an unknown node gets none.
    request.run_at = Some(fixture.now().plus_ms(1));
    let asked = fixture.store.trigger_claimed(Some(node), &request).await;
    assert!(asked.expect("triggers").1.is_empty());
    request.run_at = None;
    let unknown_node = Some(NodeId(node.0 + 1_000));
    let asked = fixture.store.trigger_claimed(unknown_node, &request).await;
    assert!(asked.expect("triggers").1.is_empty());
    fixture.clock.advance(1);
    assert_eq!(fixture.claim(other).await.len(), 2);

    let asked = fixture.store.trigger_claimed(Some(node), &request).await;
    let run = asked.expect("triggers").1.remove(0);
    fixture.store.release_lease(node).await.expect("releases");
    let found = fixture.claim(other).await;
    assert!(found.iter().any(|f| f.id == run.id), "its node is gone");

    // A node whose lease has expired may still claim; the next takeover finds these runs.
    let asked = fixture.store.trigger_claimed(Some(node), &request).await;
    let run = asked.expect("triggers").1.remove(0);
    let found = fixture.claim(other).await;
    assert!(found.iter().any(|f| f.id == run.id), "its node is gone");
}

/// The run is due at the requested time.
pub async fn a_trigger_may_be_for_later(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    let mut request = ask("a");
    request.run_at = Some(fixture.now().plus_ms(5_000));
    fixture.store.trigger(&request).await.expect("triggers");
    assert!(fixture.claim(node).await.is_empty());
    fixture.clock.advance(5_000);
    let run = fixture.claim(node).await.remove(0);
    assert_eq!(run.due_at, fixture.now());
}

/// Adapters may remember a job that was triggered. Each run is of the job's present definition and of the present day.
pub async fn each_trigger_is_of_the_present_definition(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = by_hand("a");
    fixture.apply(std::slice::from_ref(&spec)).await;
    let trigger = async || {
        let asked = fixture.store.trigger_claimed(Some(node), &ask("a")).await;
        let (triggered, mut claimed) = asked.expect("triggers");
        let run = claimed.remove(0);
        assert_eq!(triggered.runs, [run.id]);
        assert_eq!((run.fire_at, run.due_at), (fixture.now(), fixture.now()));
        fixture.expect(run.id, RunState::Scheduled).await;
        run
    };
    let (first, second) = (trigger().await, trigger().await);
    assert_eq!((first.sequence, second.sequence), (0, 1));
    assert!(first.id < second.id);

    spec.params = Some("edited".to_owned());
    fixture.apply(std::slice::from_ref(&spec)).await;
    let third = trigger().await;
    assert!(third.job.version > second.job.version);
    assert_eq!(third.job.spec.params, spec.params);
    fixture.clock.advance(86_400_000);
    let fourth = trigger().await;
    assert_eq!(
        (fourth.job.version, fourth.sequence),
        (third.job.version, 3)
    );

    let deleted = fixture.store.delete_job(&name("a"), &actor("a test")).await;
    deleted.expect("deletes");
    refused(
        fixture.store.trigger_claimed(Some(node), &ask("a")).await,
        ErrorKind::NotFound,
        "\"a\"",
    );
    fixture.apply(&[spec]).await;
    let fifth = trigger().await;
    assert_eq!(fifth.sequence, 0);
    assert_ne!(fifth.job.id, fourth.job.id);
}

/// One run for each shard.
pub async fn sharded_trigger_makes_all_shards(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = by_hand("a");
    spec.route = Route::Sharded(vec!["x".to_owned(), "y".to_owned()]);
    fixture.apply(&[spec]).await;
    let ids = fixture.trigger("a").await;
    let again = fixture.trigger("a").await;
    assert_eq!((ids.len(), again.len()), (2, 2));
    let runs = fixture.claim(node).await;
    let items: Vec<_> = runs.iter().map(|r| r.shard.item.as_deref()).collect();
    assert_eq!(items, [Some("x"), Some("y"), Some("x"), Some("y")]);
    fixture.expect(ids[0], RunState::Scheduled).await;

    let mut request = ask("a");
    request.idempotency_key = Some("k".to_owned());
    // Characters that a database refuses are left out.
    request.by = actor("some\0body");
    let first = fixture
        .store
        .trigger(&request)
        .await
        .expect("triggers")
        .runs;
    let second = fixture.store.trigger(&request).await.expect("answers");
    assert_eq!((first.len(), second.duplicate), (2, true));
    assert_eq!(second.runs, first);
}

/// The error names the job.
pub async fn missing_job_cannot_be_triggered(fixture: &Fixture) {
    refused(
        fixture.store.trigger(&ask("x")).await,
        ErrorKind::NotFound,
        "\"x\"",
    );
}
