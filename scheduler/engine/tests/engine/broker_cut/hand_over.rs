//! What becomes of the claims that a node hands over.

use cueline_broker::ErrorKind;
use cueline_broker::conformance::{Fault as BrokerFault, Operation};
use cueline_model::{AttemptId, RunState};
use cueline_store::{NewBackfill, Precondition};
use serde_json::json;

use super::cluster::{CUT_AT, Cluster, HEALED_AT, LATEST_MS, LOST, STEP_MS};
use crate::fixture::{Fault, Fixture, actor, name};

/// A lane with one place. Its runs wait for each other in the memory of both nodes.
fn one_place() -> serde_json::Value {
    json!({ "schedule": { "every": "1s" }, "block": { "parallel": 1 } })
}

/// The fire times of the starts of a job, in their order.
fn started(cluster: &Cluster, job: &str) -> Vec<i64> {
    let of_job = cluster.started.iter().filter(|(name, _)| name == job);
    of_job.map(|(_, at)| at.since_ms(Fixture::at(0))).collect()
}

/// The place of a run of a backfill is its due time.
#[tokio::test]
async fn a_backfill_that_is_handed_over_keeps_its_place_in_the_lane() {
    let mut cluster = Box::pin(Cluster::new(&[("job", one_place())])).await;
    cluster.run_until(CUT_AT).await;
    cluster.keeps_at_work = true;
    cluster.cut_one(LOST).await;
    let backfill_at = CUT_AT + 1_000;
    cluster.run_until(backfill_at).await;
    let new = NewBackfill {
        job: name("job"),
        condition: Precondition::None,
        from: Fixture::at(2_000),
        to: Fixture::at(5_000),
        parallel: 3,
        include_excluded: false,
        total: 3,
        by: actor("a test"),
    };
    let started_backfill = cluster.fixture.real().start_backfill(&new).await;
    started_backfill.expect("starts");
    cluster.one.advance_backfills().await.expect("creates runs");
    cluster.one.claim().await.expect("claims them");
    let handed_over = cluster.fixture.store.calls("rejoin_node");
    cluster.run_until(CUT_AT + LATEST_MS).await;
    assert!(cluster.fixture.store.calls("rejoin_node") > handed_over);
    cluster.end_all().await;
    cluster.run_until(HEALED_AT).await;
    let later: Vec<i64> = started(&cluster, "job")
        .into_iter()
        .skip_while(|at| *at < backfill_at)
        .collect();
    assert_eq!(later[..4], [backfill_at, 2_000, 3_000, 4_000]);
    assert!(later[4..].is_sorted(), "{later:?}");
}

/// What is left then is claimed by others as the runs of a lost node are.
#[tokio::test]
async fn a_slow_hand_over_ends_when_no_other_node_is_known_to_reach_the_broker() {
    let route = json!({ "sharded": vec![""; 1_000] });
    let rest = json!({ "handler": { "native": "other" }, "route": route });
    let mut cluster = Box::pin(Cluster::new(&[("job", rest)])).await;
    cluster.cut_one(LOST).await;
    for _ in 0..3 {
        cluster.fixture.trigger("job").await;
    }
    cluster.one.claim().await.expect("claims them");
    let store = cluster.fixture.store.clone();
    store.fail_next("release_claims", Fault::Takes(8_000));
    let (rejoins, releases) = (store.calls("rejoin_node"), store.calls("release_claims"));
    while store.calls("rejoin_node") == rejoins {
        assert!(cluster.now_ms < HEALED_AT, "it hands its claims over");
        cluster.run_until(cluster.now_ms + STEP_MS).await;
    }
    assert_eq!(store.calls("release_claims"), releases + 1);
    cluster.keeps_at_work = true;
    cluster.also_runs = Some("native:other");
    cluster.run_until(HEALED_AT).await;
    assert_eq!((cluster.started.len(), cluster.repeated), (3_000, 0));
}

/// A node has marked a run, has perhaps published it, and has died. The node that takes the run over loses the broker.
#[tokio::test]
async fn a_run_that_two_nodes_have_perhaps_published_stays_at_its_executor() {
    let answer_lost = BrokerFault::After(ErrorKind::Transient);
    for of_dead in [LOST, answer_lost] {
        for of_one in [LOST, answer_lost, BrokerFault::Unanswered] {
            Box::pin(perhaps_published_twice(of_dead, of_one)).await;
        }
    }
}

async fn perhaps_published_twice(of_dead: BrokerFault, of_one: BrokerFault) {
    let every = json!({ "schedule": { "every": "1s" }, "route": "round" });
    let mut cluster = Box::pin(Cluster::new(&[("job", every)])).await;
    cluster.run_until(CUT_AT).await;
    cluster.keeps_at_work = true;
    let (mut dead, faults) = cluster.fixture.engine_apart("dead").await;
    for executor in &cluster.executors {
        executor.heartbeat().await;
    }
    let run = cluster.fixture.trigger("job").await;
    faults.always(Operation::Publish, of_dead);
    dead.receive_loopback_heartbeat();
    dead.tick().await.expect_err("publishes without an answer");
    drop(dead);
    assert_eq!(cluster.fixture.state(run).await, RunState::Dispatching);
    // Its lease ends.
    let taken_over_at = CUT_AT + 15_000;
    cluster.run_until(taken_over_at - STEP_MS).await;
    let waiting = started(&cluster, "job").len();
    cluster.fixture.set(taken_over_at);
    cluster.one.claim().await.expect("takes over");
    cluster.faults_of_one.always(Operation::Publish, of_one);
    cluster.reaches[0] = false;
    cluster.run_until(taken_over_at + LATEST_MS).await;
    let case = format!("{of_dead:?} {of_one:?}");
    let attempt = AttemptId { run, attempt: 1 };
    let (executor, _) = *cluster.starts.get(&attempt).expect(&case);
    assert!(started(&cluster, "job").len() > waiting, "{case}");
    for run in cluster.fixture.runs("job").await {
        let attempt = AttemptId {
            run: run.id,
            attempt: 1,
        };
        if let Some((at, _)) = cluster
            .starts
            .get(&attempt)
            .filter(|_| run.fire_at > Fixture::at(CUT_AT))
        {
            assert_eq!(*at, executor, "{case}: {run:#?}");
        }
    }
    if (of_dead, of_one) == (LOST, LOST) {
        assert_eq!(cluster.repeated, 0);
    }
    cluster.end_all().await;
    cluster.heal();
    cluster.run_until(HEALED_AT + 10_000).await;
    assert!(started(&cluster, "job").is_sorted(), "{case}");
    for run in cluster.fixture.runs("job").await {
        if run.fire_at < Fixture::at(HEALED_AT) {
            assert_eq!(
                (run.state, run.attempt),
                (RunState::Succeeded, 1),
                "{case}: {run:#?}"
            );
        }
    }
}

/// The last node to return is cut off for a moment, and hands its claims over unless it returns within two seconds. All
/// that has waited starts before it returns.
#[tokio::test]
async fn after_an_outage_of_the_whole_broker_the_last_node_to_return_delays_nothing() {
    for behind_ms in [2_500, 4_000, 8_000] {
        let mut cluster = Box::pin(Cluster::with_jobs()).await;
        cluster.cut_one(LOST).await;
        cluster.faults_of_two.always(Operation::Publish, LOST);
        cluster.reaches[1] = false;
        cluster.run_until(HEALED_AT).await;
        let rejoins = cluster.fixture.store.calls("rejoin_node");
        cluster.faults_of_two.clear();
        cluster.reaches[1] = true;
        cluster.run_until(HEALED_AT + behind_ms).await;
        for job in ["serial", "apart", "skip"] {
            for run in cluster.fixture.runs(job).await {
                let attempt = AttemptId {
                    run: run.id,
                    attempt: 1,
                };
                let is_started = cluster.starts.contains_key(&attempt);
                assert!(
                    is_started || run.fire_at > Fixture::at(HEALED_AT),
                    "{behind_ms} {job}: {run:#?}"
                );
            }
        }
        cluster.heal();
        cluster.run_until(HEALED_AT + 20_000).await;
        assert_eq!(cluster.fixture.store.calls("rejoin_node"), rejoins + 1);
        assert_eq!(cluster.repeated, 0);
        for job in ["serial", "apart", "skip"] {
            let late = cluster.latest_start(job, HEALED_AT + 3_000, HEALED_AT + 18_000);
            assert!(late.await <= STEP_MS, "{behind_ms} {job}");
        }
    }
}
