//! Claims: runs without a live owner.

use cueline_model::RunState;

use super::fixture::{Fixture, LONG_LEASE_MS, ask, attempt, by_hand, each_second, mark, name};
use crate::adapter::claimed::UNREADABLE_WAIT_MS;

/// The node that fires a run has its claim; no other node gets it.
pub async fn fired_runs_are_claimed(fixture: &Fixture) {
    let (one, two) = (fixture.node().await, fixture.node().await);
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(one).await;
    assert!(fixture.claim(two).await.is_empty());
    assert!(fixture.claim(one).await.is_empty());
    let taken = fixture.store.begin_dispatch(two, &[mark(&run, "e1")]).await;
    assert_eq!(taken.expect("answers"), []);
}

/// A claimed run is not claimed again while the lease lasts.
pub async fn waiting_runs_are_claimed_once(fixture: &Fixture) {
    let (one, two) = (fixture.node().await, fixture.node().await);
    fixture.apply(&[by_hand("a")]).await;
    let ids = fixture.trigger("a").await;
    let claimed = fixture.claim(one).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].id, ids[0]);
    assert_eq!(claimed[0].job.spec.name.as_str(), "a");
    assert!(fixture.claim(two).await.is_empty());
    assert!(fixture.claim(one).await.is_empty());
}

/// Other nodes take over when a lease has expired or was released.
pub async fn runs_of_dead_nodes_are_taken_over(fixture: &Fixture) {
    let dies = fixture.node_for(10_000).await;
    let stops = fixture.node().await;
    let lives = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let lost = fixture.fire_one(dies).await;
    let left = fixture.fire_one(stops).await;
    assert!(fixture.claim(lives).await.is_empty());
    fixture.store.release_lease(stops).await.expect("releases");
    let claimed = fixture.claim(lives).await;
    assert_eq!(claimed.iter().map(|r| r.id).collect::<Vec<_>>(), [left.id]);
    fixture.clock.advance(10_000);
    let claimed = fixture.claim(lives).await;
    assert_eq!(claimed.iter().map(|r| r.id).collect::<Vec<_>>(), [lost.id]);
    assert!(!claimed[0].maybe_published, "it had not begun to publish");
    let taken = fixture
        .store
        .begin_dispatch(dies, &[mark(&lost, "e1")])
        .await;
    assert_eq!(taken.expect("answers"), [], "the dead node is too late");
    fixture.begin(lives, &claimed[0]).await;
}

/// A node that cannot read the definition does not keep the run, and no other node has to die for it.
pub async fn unreadable_runs_are_left_to_other_nodes(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let ids = fixture.trigger("a").await;
    // The fixture's store has cached the definition, so it stands for the newer program.
    fixture
        .harness
        .sql(r#"UPDATE job SET definition = replace(definition, '"native"', '"later"')"#)
        .await;
    let older = fixture.harness.open().await;
    let registered = older.register_node("older", LONG_LEASE_MS).await;
    let old_node = registered.expect("registers").node;
    let claimed = older.claim_waiting(old_node, 0, 1_000).await;
    assert!(claimed.expect("claims").is_empty());
    let newer = fixture.node().await;
    assert!(fixture.claim(newer).await.is_empty(), "it waits a while");
    fixture.clock.advance(UNREADABLE_WAIT_MS);
    let claimed = fixture.claim(newer).await;
    assert_eq!(claimed.iter().map(|r| r.id).collect::<Vec<_>>(), ids);
    assert!(!claimed[0].maybe_published, "nothing was published");
    fixture.publish(newer, &claimed[0]).await;
}

/// An attempt that is published again stays with its executor, whichever node does it.
pub async fn unreadable_reclaimed_attempts_are_left_to_other_nodes(fixture: &Fixture) {
    let newer = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    fixture.trigger("a").await;
    let run = fixture.claim(newer).await.remove(0);
    fixture.publish(newer, &run).await;
    fixture
        .harness
        .sql(r#"UPDATE job SET definition = replace(definition, '"native"', '"later"')"#)
        .await;
    let older = fixture.harness.open().await;
    let registered = older.register_node("older", LONG_LEASE_MS).await;
    let old_node = registered.expect("registers").node;
    let reclaimed = older
        .reclaim_attempts(old_node, &[attempt(&run)], "lost")
        .await;
    assert!(reclaimed.expect("reclaims").is_empty());
    fixture.expect(run.id, RunState::Dispatching).await;
    fixture.clock.advance(UNREADABLE_WAIT_MS);
    let claimed = fixture.claim(newer).await;
    assert_eq!(claimed.len(), 1);
    assert!(claimed[0].maybe_published);
    assert_eq!(claimed[0].executor, Some(name("e1")));
}

/// The trigger may have arrived: the same attempt goes to the same executor.
pub async fn dispatching_runs_of_dead_nodes_go_to_the_same_executor(fixture: &Fixture) {
    let dies = fixture.node_for(10_000).await;
    let lives = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(dies).await;
    fixture.begin(dies, &run).await;
    fixture.clock.advance(10_000);
    let claimed = fixture.claim(lives).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(attempt(&claimed[0]), attempt(&run));
    assert!(claimed[0].maybe_published);
    assert_eq!(claimed[0].executor, Some(name("e1")));
    fixture.expect(run.id, RunState::Dispatching).await;
    let elsewhere = fixture
        .store
        .begin_dispatch(lives, &[mark(&claimed[0], "e2")])
        .await;
    assert_eq!(elsewhere.expect("answers"), [], "not to another executor");
    fixture.publish(lives, &claimed[0]).await;
    fixture.expect(run.id, RunState::Queued).await;
}

/// The limit selects the runs with the oldest due times.
pub async fn oldest_due_first(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    let mut later = ask("a");
    later.run_at = Some(fixture.now().plus_ms(500));
    let later = fixture.store.trigger(&later).await.expect("triggers").runs[0];
    let sooner = fixture.trigger("a").await[0];
    fixture.clock.advance(1_000);
    let first = fixture
        .store
        .claim_waiting(node, 0, 1)
        .await
        .expect("claims");
    assert_eq!(first[0].id, sooner);
    let second = fixture
        .store
        .claim_waiting(node, 0, 5)
        .await
        .expect("claims");
    assert_eq!(second.len(), 1);
    assert_eq!(second[0].id, later);
}

/// Runs are claimed when they are due within the horizon.
pub async fn claims_respect_the_horizon(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a")]).await;
    let mut later = ask("a");
    later.run_at = Some(fixture.now().plus_ms(1_000));
    fixture.store.trigger(&later).await.expect("triggers");
    assert!(
        fixture
            .store
            .claim_waiting(node, 999, 9)
            .await
            .expect("claims")
            .is_empty()
    );
    let claimed = fixture.store.claim_waiting(node, 1_000, 9).await;
    assert_eq!(claimed.expect("claims").len(), 1);
}

/// It covers jobs, waiting runs, and runs of dead nodes.
pub async fn next_due_covers_jobs_and_runs(fixture: &Fixture) {
    let next = || async { fixture.store.next_due_at().await.expect("answers") };
    assert_eq!(next().await, None);
    fixture.apply(&[by_hand("a")]).await;
    let mut later = ask("a");
    let at = fixture.now().plus_ms(90_000);
    later.run_at = Some(at);
    fixture.store.trigger(&later).await.expect("triggers");
    assert_eq!(next().await, Some(at));
    let mut rare = each_second("b");
    rare.schedule = cueline_model::Schedule::Once {
        at: fixture.now().plus_ms(60_000),
    };
    fixture.apply(&[rare]).await;
    assert_eq!(next().await, Some(fixture.now().plus_ms(60_000)));
    let dies = fixture.node_for(70_000).await;
    fixture.clock.advance(60_000);
    let run = fixture.fire(dies).await.runs.remove(0);
    assert_eq!(next().await, Some(at), "the run has an owner");
    fixture.clock.advance(10_000);
    assert_eq!(next().await, Some(run.due_at), "and not any more");
}
