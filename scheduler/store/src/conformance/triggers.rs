//! Running a job by hand.

use cueline_model::{Route, RunKind, RunState};

use super::world::{World, ask, by_hand, each_second, mark, name, refused};
use crate::{ErrorKind, NodeId, RunFilter};

/// Whether its schedule is enabled or not.
pub async fn trigger_runs_a_paused_job(w: &World) {
    let node = w.node().await;
    let mut spec = each_second("a");
    spec.enabled = Some(false);
    w.apply(&[spec]).await;
    let mut request = ask("a");
    request.params = Some("by hand".to_owned());
    let triggered = w.store.trigger(&request).await.expect("triggers");
    assert!(!triggered.duplicate);
    let run = w.claim(node).await.remove(0);
    assert_eq!([run.id], triggered.runs[..]);
    assert_eq!(run.kind, RunKind::Manual);
    assert_eq!(run.params.as_deref(), Some("by hand"));
    assert_eq!((run.fire_at, run.due_at), (w.now(), w.now()));
    let taken = w.store.begin_dispatch(node, &[mark(&run, "e1")]).await;
    assert_eq!(taken.expect("begins").len(), 1);
}

/// The second request with the same key for the same job gets the runs of the first.
pub async fn key_is_used_once(w: &World) {
    w.apply(&[by_hand("a"), by_hand("b")]).await;
    let mut request = ask("a");
    request.idempotency_key = Some("k".to_owned());
    let first = w.store.trigger(&request).await.expect("triggers");
    w.clock.advance(60_000);
    let second = w.store.trigger(&request).await.expect("answers");
    assert!(second.duplicate);
    assert_eq!(second.runs, first.runs);
    request.job = name("b");
    let other = w.store.trigger(&request).await.expect("triggers");
    assert!(!other.duplicate, "another job");
    request.job = name("a");
    request.idempotency_key = Some("l".to_owned());
    let other = w.store.trigger(&request).await.expect("triggers");
    assert!(!other.duplicate, "another key");
    let all = RunFilter {
        limit: 10,
        ..RunFilter::default()
    };
    assert_eq!(w.store.runs(&all).await.expect("lists").len(), 3);
}

/// A node that triggers goes on with the run at once; others find it when that one dies, and at once if it could not claim.
pub async fn trigger_may_claim(w: &World) {
    let (node, other) = (w.node().await, w.node().await);
    w.apply(&[by_hand("a")]).await;
    let mut request = ask("a");
    request.params = Some("by hand".to_owned());
    let asked = w.store.trigger_claimed(Some(node), &request).await;
    let (triggered, mut claimed) = asked.expect("triggers");
    assert_eq!(triggered.runs.len(), 1);
    let run = claimed.remove(0);
    assert_eq!([run.id], triggered.runs[..]);
    assert_eq!((run.attempt, run.kind), (1, RunKind::Manual));
    assert_eq!(run.params.as_deref(), Some("by hand"));
    assert_eq!((run.fire_at, run.due_at), (w.now(), w.now()));
    assert!(w.claim(other).await.is_empty(), "it is claimed");
    let taken = w.store.begin_dispatch(node, &[mark(&run, "e1")]).await;
    assert_eq!(taken.expect("begins").len(), 1);

    // Later is for whoever is there then, and so is what a node claims that nobody knows.
    request.run_at = Some(w.now().plus_ms(1));
    let asked = w.store.trigger_claimed(Some(node), &request).await;
    assert!(asked.expect("triggers").1.is_empty());
    request.run_at = None;
    let nobody = Some(NodeId(node.0 + 1_000));
    let asked = w.store.trigger_claimed(nobody, &request).await;
    assert!(asked.expect("triggers").1.is_empty());
    w.clock.advance(1);
    assert_eq!(w.claim(other).await.len(), 2);

    let asked = w.store.trigger_claimed(Some(node), &request).await;
    let run = asked.expect("triggers").1.remove(0);
    w.store.release_lease(node).await.expect("releases");
    let found = w.claim(other).await;
    assert!(found.iter().any(|f| f.id == run.id), "its node is gone");

    // One whose claims others have taken over may claim all the same, and is looked through again.
    let asked = w.store.trigger_claimed(Some(node), &request).await;
    let run = asked.expect("triggers").1.remove(0);
    let found = w.claim(other).await;
    assert!(found.iter().any(|f| f.id == run.id), "its node is gone");
}

/// At the time that was asked for.
pub async fn trigger_later(w: &World) {
    let node = w.node().await;
    w.apply(&[by_hand("a")]).await;
    let mut request = ask("a");
    request.run_at = Some(w.now().plus_ms(5_000));
    w.store.trigger(&request).await.expect("triggers");
    assert!(w.claim(node).await.is_empty());
    w.clock.advance(5_000);
    let run = w.claim(node).await.remove(0);
    assert_eq!(run.due_at, w.now());
}

/// One run for each shard.
pub async fn sharded_trigger_makes_all_shards(w: &World) {
    let node = w.node().await;
    let mut spec = by_hand("a");
    spec.route = Route::Sharded(vec!["x".to_owned(), "y".to_owned()]);
    w.apply(&[spec]).await;
    let ids = w.trigger("a").await;
    let again = w.trigger("a").await;
    assert_eq!((ids.len(), again.len()), (2, 2));
    let runs = w.claim(node).await;
    let items: Vec<_> = runs.iter().map(|r| r.shard.item.as_deref()).collect();
    assert_eq!(items, [Some("x"), Some("y"), Some("x"), Some("y")]);
    w.expect(ids[0], RunState::Scheduled).await;

    let mut request = ask("a");
    request.idempotency_key = Some("k".to_owned());
    // What no text in a database may have is left out of it.
    request.by = "some\0body".into();
    let first = w.store.trigger(&request).await.expect("triggers").runs;
    let second = w.store.trigger(&request).await.expect("answers");
    assert_eq!((first.len(), second.duplicate), (2, true));
    assert_eq!(second.runs, first);
}

/// There is none of that name.
pub async fn missing_job_cannot_be_triggered(w: &World) {
    refused(
        w.store.trigger(&ask("x")).await,
        ErrorKind::NotFound,
        "\"x\"",
    );
}
