//! A node reaches the store and not the broker. Another node that reaches both publishes what is due, and nothing starts
//! twice.

mod cluster;
mod hand_over;

use cueline_broker::ErrorKind;
use cueline_broker::conformance::{Fault, Operation};
use cueline_model::RunState;
use cueline_store::TriggerRequest;
use serde_json::json;

use self::cluster::{CUT_AT, Cluster, HEALED_AT, LATEST_MS, LOST, STEP_MS};
use crate::fixture::{Fixture, actor, name};

#[tokio::test]
async fn runs_of_a_node_that_is_cut_off_start_at_others_within_seconds() {
    let answer_lost = Fault::After(ErrorKind::Transient);
    for fault in [LOST, answer_lost, Fault::Unanswered] {
        let mut cluster = Box::pin(Cluster::with_jobs()).await;
        cluster.cut_one(fault).await;
        cluster.run_until(HEALED_AT).await;
        cluster.heal();
        cluster.run_until(HEALED_AT + 10_000).await;
        for job in ["serial", "apart", "skip"] {
            let at_first = cluster.latest_start(job, 2_000, CUT_AT + LATEST_MS).await;
            assert!(at_first <= LATEST_MS, "{fault:?} {job}: {at_first}");
            let then = CUT_AT + LATEST_MS + 1_000;
            let later = cluster.latest_start(job, then, HEALED_AT + 8_000).await;
            assert!(later <= STEP_MS, "{fault:?} {job}: {later}");
        }
        if fault == LOST {
            // Nothing was left to publish when the cut ended.
            assert_eq!(cluster.repeated, 0);
        }
    }
}

/// No node can publish, so no other node is better off with the claims. All fire times are planned in time.
#[tokio::test]
async fn in_an_outage_of_the_whole_broker_both_nodes_claim_as_before() {
    let mut cluster = Box::pin(Cluster::with_jobs()).await;
    cluster.cut_one(LOST).await;
    cluster.faults_of_two.always(Operation::Publish, LOST);
    cluster.reaches[1] = false;
    let rejoins = cluster.fixture.store.calls("rejoin_node");
    cluster.run_until(HEALED_AT).await;
    for job in ["serial", "apart", "skip"] {
        let runs = cluster.fixture.runs(job).await;
        let last = runs.last().expect("a run").fire_at;
        assert!(last >= Fixture::at(HEALED_AT), "{job}: {last}");
    }
    cluster.heal();
    cluster.run_until(HEALED_AT + 30_000).await;
    for job in ["serial", "apart", "skip"] {
        cluster.latest_start(job, 2_000, HEALED_AT + 20_000).await;
    }
    assert_eq!(cluster.fixture.store.calls("rejoin_node"), rejoins);
    assert_eq!(cluster.repeated, 0);
}

/// Its lease holds for longer than what it said about the broker counts.
#[tokio::test]
async fn a_node_that_is_cut_off_claims_again_when_the_other_one_is_dead_or_cut_off_too() {
    for is_dead in [true, false] {
        let mut cluster = Box::pin(Cluster::with_jobs()).await;
        cluster.cut_one(LOST).await;
        let alone_at = CUT_AT + 10_000;
        cluster.run_until(alone_at).await;
        if is_dead {
            cluster.two = None;
        } else {
            cluster.faults_of_two.always(Operation::Publish, LOST);
            cluster.reaches[1] = false;
        }
        cluster.run_until(alone_at + 8_000).await;
        let fired = cluster.fixture.runs("serial").await.len();
        cluster.run_until(HEALED_AT).await;
        assert!(cluster.fixture.runs("serial").await.len() >= fired + 10);
        assert_eq!(cluster.one.admin().claims_paused(), None);
        cluster.heal();
        cluster.run_until(HEALED_AT + 30_000).await;
        let late = cluster.latest_start("apart", HEALED_AT + 10_000, HEALED_AT + 28_000);
        assert_eq!(late.await, 0, "{is_dead}");
    }
}

#[tokio::test]
async fn a_run_that_is_triggered_at_a_node_that_is_cut_off_starts_at_another_one() {
    let mut cluster = Box::pin(Cluster::new(&[("job", json!({}))])).await;
    cluster.cut_one(LOST).await;
    cluster.run_until(CUT_AT + LATEST_MS).await;
    let admin = cluster.one.admin();
    let why = admin.claims_paused().expect("it claims nothing");
    assert!(why.contains("does not reach the broker"), "{why}");
    let request = TriggerRequest {
        job: name("job"),
        params: None,
        idempotency_key: None,
        run_at: None,
        by: actor("a test"),
        condition: cueline_store::Precondition::None,
    };
    let triggered = admin.trigger(request).await.expect("triggers");
    cluster.run_until(CUT_AT + LATEST_MS + 2 * STEP_MS).await;
    let run = cluster.fixture.run(triggered.runs[0]).await;
    assert_eq!(run.state, RunState::Succeeded);
}
