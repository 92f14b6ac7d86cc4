//! Triggers whose start is being recorded. The journal gets them late, and the broker keeps them until then (G4, G5, G6).

use std::slice::from_ref;

use cueline_broker::QueueId;
use cueline_model::{Block, OutcomeKind, Timestamp};
use cueline_protocol::{StartRecord, Trigger, decode};
use cueline_test_support::{SOON, eventually};
use sqlx::Connection;

use crate::fixture::{Fixture, STORE, start_log, trigger};

fn gate(run: i64) -> Trigger {
    trigger(run, "gate", Block::Serial)
}

/// A worker that has fetched these triggers, and whose record of the first one is in the log without a confirmation.
async fn with_unconfirmed_record(triggers: &[Trigger]) -> (Fixture, crate::fixture::RunningWorker) {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.link.lose_confirmations_of_starts(true);
    fixture.publish(triggers).await;
    let recorded = async || {
        let records = fixture.broker.read_log(&start_log()).await.expect("reads");
        let is_first = |record| matches!(decode(record), Ok(StartRecord::Starts { attempts, .. }) if attempts[0].run == triggers[0].run);
        records
            .iter()
            .any(|r| is_first(r))
            .then_some(())
            .ok_or(records.len())
    };
    eventually("the record of a start", SOON, recorded)
        .await
        .expect("in time");
    (fixture, worker)
}

#[tokio::test]
async fn after_a_crash_the_broker_delivers_them_again_and_they_start_once() {
    let (fixture, worker) = with_unconfirmed_record(&[gate(1)]).await;
    worker.kill().await;
    fixture.link.lose_confirmations_of_starts(false);
    let worker = fixture.start();
    fixture.wait_started(&[1]).await;
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    fixture.wait_settled().await;
    assert_eq!(fixture.started(), [1]);
    worker.drain().await;
}

/// Otherwise the later trigger of a lane could start before the earlier one, which the broker delivers again.
#[tokio::test]
async fn a_trigger_that_waits_behind_them_is_not_journalled_alone() {
    let (fixture, worker) = with_unconfirmed_record(&[gate(1), gate(2)]).await;
    fixture
        .wait_queue("one settled trigger or two", |ready, unsettled| {
            ready == 0 && unsettled <= 1
        })
        .await;
    worker.kill().await;
    fixture.link.lose_confirmations_of_starts(false);
    fixture.gate.add_permits(2);
    let worker = fixture.start();
    fixture.wait_started(&[1, 2]).await;
    worker.drain().await;
}

/// Schedulers end or repeat an attempt that its executor does not hold.
#[tokio::test]
async fn an_answer_to_schedulers_has_them() {
    let (fixture, worker) = with_unconfirmed_record(&[gate(1)]).await;
    assert_eq!(fixture.holdings(STORE, &[(1, 1)]).await.len(), 1);
    fixture.wait_settled().await;
    worker.kill().await;
}

/// After a broken connection the second delivery is the broker's only copy.
#[tokio::test]
async fn a_repeated_delivery_is_not_acked_before_the_journal_has_the_trigger() {
    let (fixture, worker) = with_unconfirmed_record(&[gate(1)]).await;
    fixture.publish(&[gate(1)]).await;
    fixture
        .wait_queue("a settled copy", |ready, unsettled| {
            ready == 0 && unsettled <= 1
        })
        .await;
    worker.kill().await;
    assert_eq!(journalled(&fixture).await, 1);
}

/// The number of attempts in the journal.
async fn journalled(fixture: &Fixture) -> i64 {
    let path = fixture.state_dir().join("journal.db");
    let url = format!("sqlite://{}", path.display());
    let mut journal = sqlx::SqliteConnection::connect(&url).await.expect("opens");
    let count = sqlx::query_scalar("SELECT count(*) FROM entry").fetch_one(&mut journal);
    count.await.expect("counts")
}

#[tokio::test]
async fn a_trigger_of_another_run_with_the_same_id_is_refused() {
    let (fixture, worker) = with_unconfirmed_record(&[gate(1)]).await;
    let mut other = gate(1);
    other.fire_at = Timestamp::from_millis(2);
    fixture.publish(from_ref(&other)).await;
    let dead = fixture.broker.fetch(&QueueId::Dead, 10, SOON).await;
    assert_eq!(dead.expect("fetch").len(), 1);
    fixture.link.lose_confirmations_of_starts(false);
    fixture.gate.add_permits(1);
    fixture.wait_started(&[1]).await;
    worker.drain().await;
}
