//! Runs that nobody alive works on.

use cueline_model::RunState;

use super::world::{World, ask, attempt, by_hand, each_second, mark, name};

/// The node that fires a run works on it: nobody else gets it.
pub async fn fired_runs_are_claimed_already(w: &World) {
    let (one, two) = (w.node().await, w.node().await);
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(one).await;
    assert!(w.claim(two).await.is_empty());
    assert!(w.claim(one).await.is_empty());
    let taken = w.store.begin_dispatch(two, &[mark(&run, "e1")]).await;
    assert_eq!(taken.expect("answers"), []);
}

/// A claim lasts.
pub async fn waiting_runs_are_claimed_once(w: &World) {
    let (one, two) = (w.node().await, w.node().await);
    w.apply(&[by_hand("a")]).await;
    let ids = w.trigger("a").await;
    let claimed = w.claim(one).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].id, ids[0]);
    assert_eq!(claimed[0].job.spec.name.as_str(), "a");
    assert!(w.claim(two).await.is_empty());
    assert!(w.claim(one).await.is_empty());
}

/// When a lease has run out or was released, others take over.
pub async fn dead_nodes_runs_are_taken_over(w: &World) {
    let dies = w.node_for(10_000).await;
    let stops = w.node().await;
    let lives = w.node().await;
    w.apply(&[each_second("a")]).await;
    let lost = w.fire_one(dies).await;
    let left = w.fire_one(stops).await;
    assert!(w.claim(lives).await.is_empty());
    w.store.release_lease(stops).await.expect("releases");
    let claimed = w.claim(lives).await;
    assert_eq!(claimed.iter().map(|r| r.id).collect::<Vec<_>>(), [left.id]);
    w.clock.advance(10_000);
    let claimed = w.claim(lives).await;
    assert_eq!(claimed.iter().map(|r| r.id).collect::<Vec<_>>(), [lost.id]);
    assert!(!claimed[0].maybe_published, "it had not begun to publish");
    let taken = w.store.begin_dispatch(dies, &[mark(&lost, "e1")]).await;
    assert_eq!(taken.expect("answers"), [], "the dead node is too late");
    w.begin(lives, &claimed[0]).await;
}

/// What a node was publishing when it died may have arrived: same executor, same attempt.
pub async fn dispatching_runs_of_dead_nodes_go_to_the_same_executor(w: &World) {
    let dies = w.node_for(10_000).await;
    let lives = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(dies).await;
    w.begin(dies, &run).await;
    w.clock.advance(10_000);
    let claimed = w.claim(lives).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(attempt(&claimed[0]), attempt(&run));
    assert!(claimed[0].maybe_published);
    assert_eq!(claimed[0].executor, Some(name("e1")));
    w.expect(run.id, RunState::Dispatching).await;
    let elsewhere = w
        .store
        .begin_dispatch(lives, &[mark(&claimed[0], "e2")])
        .await;
    assert_eq!(elsewhere.expect("answers"), [], "not to another executor");
    w.publish(lives, &claimed[0]).await;
    w.expect(run.id, RunState::Queued).await;
}

/// The limit takes the oldest.
pub async fn oldest_due_first(w: &World) {
    let node = w.node().await;
    w.apply(&[by_hand("a")]).await;
    let mut later = ask("a");
    later.run_at = Some(w.now().plus_ms(500));
    let later = w.store.trigger(&later).await.expect("triggers").runs[0];
    let sooner = w.trigger("a").await[0];
    w.clock.advance(1_000);
    let first = w.store.claim_waiting(node, 0, 1).await.expect("claims");
    assert_eq!(first[0].id, sooner);
    let second = w.store.claim_waiting(node, 0, 5).await.expect("claims");
    assert_eq!(second.len(), 1);
    assert_eq!(second[0].id, later);
}

/// Runs are claimed when they are due within the horizon.
pub async fn horizon_of_claims(w: &World) {
    let node = w.node().await;
    w.apply(&[by_hand("a")]).await;
    let mut later = ask("a");
    later.run_at = Some(w.now().plus_ms(1_000));
    w.store.trigger(&later).await.expect("triggers");
    assert!(
        w.store
            .claim_waiting(node, 999, 9)
            .await
            .expect("claims")
            .is_empty()
    );
    let claimed = w.store.claim_waiting(node, 1_000, 9).await;
    assert_eq!(claimed.expect("claims").len(), 1);
}

/// Jobs, waiting runs, and what dead nodes left.
pub async fn next_due_sees_everything(w: &World) {
    let next = || async { w.store.next_due_at().await.expect("answers") };
    assert_eq!(next().await, None);
    w.apply(&[by_hand("a")]).await;
    let mut later = ask("a");
    let at = w.now().plus_ms(90_000);
    later.run_at = Some(at);
    w.store.trigger(&later).await.expect("triggers");
    assert_eq!(next().await, Some(at));
    let mut rare = each_second("b");
    rare.schedule = cueline_model::Schedule::Once {
        at: w.now().plus_ms(60_000),
    };
    w.apply(&[rare]).await;
    assert_eq!(next().await, Some(w.now().plus_ms(60_000)));
    let dies = w.node_for(70_000).await;
    w.clock.advance(60_000);
    let run = w.fire(dies).await.runs.remove(0);
    assert_eq!(next().await, Some(at), "the run is in somebody's hands");
    w.clock.advance(10_000);
    assert_eq!(next().await, Some(run.due_at), "and not any more");
}
