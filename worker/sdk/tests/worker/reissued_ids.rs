//! A store that lost commits issues the id of a lost run again (G4, G5).

use std::sync::atomic::Ordering;

use cueline_broker::{DeadLetter, QueueId};
use cueline_model::{Block, JobId, OutcomeKind, Shard, Timestamp};
use cueline_protocol::Trigger;
use cueline_test_support::SOON;

use crate::fixture::{Fixture, trigger, with_job};

fn at(mut trigger: Trigger, millis: i64) -> Trigger {
    trigger.fire_at = Timestamp::from_millis(millis);
    trigger
}

async fn wait_dead(fixture: &Fixture, count: usize) {
    let mut reasons = Vec::new();
    while reasons.len() < count {
        let dead = fixture.broker.fetch(&QueueId::Dead, 10, SOON).await;
        let dead = dead.expect("fetch");
        assert!(!dead.is_empty(), "{count} dead letters, but {reasons:?}");
        for letter in dead {
            let letter = DeadLetter::decode(&letter.payload).expect("a dead letter");
            assert!(letter.reason.contains("issued the id again"), "{letter:?}");
            reasons.push(letter.reason);
        }
    }
}

#[tokio::test]
async fn another_run_does_not_get_the_outcome_of_a_lost_one() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let lost = trigger(1, "noop", Block::Serial);
    fixture.publish(std::slice::from_ref(&lost)).await;
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    // The journal tells them apart after a restart, too.
    let worker = fixture.start();
    let other_time = at(lost.clone(), 2);
    let other_job = with_job(lost.clone(), |job| job.id = JobId(2));
    let mut other_shard = lost.clone();
    other_shard.shard = Shard {
        index: 1,
        total: 2,
        item: None,
    };
    fixture
        .publish(&[other_time.clone(), other_job, other_shard])
        .await;
    let outcomes = fixture.wait_outcomes(1, 4).await;
    for outcome in &outcomes[1..] {
        assert_eq!(outcome.kind, OutcomeKind::Failed);
        let message = outcome.message.as_deref().unwrap_or_default();
        assert!(message.contains("issued the id again"), "{message}");
    }
    wait_dead(&fixture, 3).await;
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 1);

    // A retry is a new attempt, and runs.
    let mut retry = other_time;
    retry.attempt = 2;
    fixture.publish(std::slice::from_ref(&retry)).await;
    let outcomes = fixture.wait_outcomes(1, 5).await;
    assert_eq!(outcomes[4].kind, OutcomeKind::Succeeded);
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 2);
    // From now on the id belongs to the new run.
    fixture.publish(&[retry]).await;
    let outcomes = fixture.wait_outcomes(1, 6).await;
    assert_eq!(outcomes[5], outcomes[4]);
    worker.drain().await;
}

#[tokio::test]
async fn a_trigger_of_another_run_does_not_end_the_run_that_is_held() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let held = trigger(1, "gate", Block::Serial);
    fixture.publish(std::slice::from_ref(&held)).await;
    fixture.wait_started(&[1]).await;
    fixture.publish(&[at(held, 2)]).await;
    wait_dead(&fixture, 1).await;
    fixture.gate.add_permits(1);
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
    assert_eq!(fixture.outcomes(1).len(), 1);
    assert_eq!(fixture.started(), [1]);
}
