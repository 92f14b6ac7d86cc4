//! Runs of several stores, and triggers that are too old to be accepted.

use std::sync::atomic::Ordering;

use cueline_broker::{DeadLetter, QueueId};
use cueline_model::{AttemptEvent, Block, OutcomeKind, RunId, StoreId, Timestamp};
use cueline_protocol::{ReportMessage, Trigger};
use cueline_test_support::SOON;

use crate::fixture::{Fixture, run, trigger};

const OLD: StoreId = StoreId(0xa1);
const NEW: StoreId = StoreId(0xb2);

fn of(store: StoreId, run: i64, handler: &str) -> Trigger {
    Trigger {
        store,
        ..trigger(run, handler, Block::Serial)
    }
}

/// The reported outcomes, with the store of each report.
fn outcomes(fixture: &Fixture) -> Vec<(StoreId, i64, OutcomeKind)> {
    let outcome = |report: ReportMessage| match report.event {
        AttemptEvent::Ended { outcome } => Some((report.store, report.run.0, outcome.kind)),
        _ => None,
    };
    fixture.reports().into_iter().filter_map(outcome).collect()
}

async fn wait_outcomes(fixture: &Fixture, count: usize) -> Vec<(StoreId, i64, OutcomeKind)> {
    let enough = || Some(outcomes(fixture)).filter(|outcomes| outcomes.len() >= count);
    fixture.wait(&format!("{count} outcomes"), enough).await
}

#[tokio::test]
async fn a_run_of_another_store_is_another_run() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.publish(&[of(OLD, 1, "noop")]).await;
    wait_outcomes(&fixture, 1).await;
    // The new store gives its runs and jobs the same numbers.
    fixture.publish(&[of(OLD, 2, "gate")]).await;
    fixture.wait_started(&[2]).await;
    fixture.publish(&[of(NEW, 1, "noop")]).await;
    wait_outcomes(&fixture, 2).await;
    fixture.publish(&[of(NEW, 2, "gate")]).await;
    fixture.wait_started(&[2, 2]).await;
    fixture.gate.add_permits(2);
    let found = wait_outcomes(&fixture, 4).await;
    for (store, run) in [(OLD, 1), (NEW, 1), (OLD, 2), (NEW, 2)] {
        let expected = (store, run, OutcomeKind::Succeeded);
        assert!(
            found.contains(&expected),
            "{expected:?} is not in {found:?}"
        );
    }
    worker.drain().await;

    // After a restart each is still answered with its own outcome.
    let worker = fixture.start();
    let both = [of(NEW, 1, "noop"), of(OLD, 1, "noop")];
    fixture.publish(&both).await;
    let found = wait_outcomes(&fixture, 6).await;
    assert_eq!(found.len(), 6);
    for store in [OLD, NEW] {
        let expected = (store, 1, OutcomeKind::Succeeded);
        assert!(found[4..].contains(&expected), "{found:?}");
    }
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 2);
    worker.drain().await;
}

#[tokio::test]
async fn a_killed_worker_reports_each_run_to_its_own_store() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let both = [of(OLD, 1, "gate"), of(NEW, 1, "gate")];
    fixture.publish(&both).await;
    fixture.wait_started(&[1, 1]).await;
    worker.kill().await;
    let worker = fixture.start();
    let found = wait_outcomes(&fixture, 2).await;
    for store in [OLD, NEW] {
        assert!(found.contains(&(store, 1, OutcomeKind::Lost)), "{found:?}");
    }
    worker.drain().await;
}

#[tokio::test]
async fn orders_concern_only_runs_of_their_store() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.publish(&[of(OLD, 1, "gate")]).await;
    fixture.wait_started(&[1]).await;
    assert_eq!(fixture.holdings(NEW, &[(1, 1)]).await, []);
    assert_eq!(fixture.holdings(OLD, &[(1, 1)]).await.len(), 1);
    fixture.cancel_in(NEW, 1).await;
    // Orders are carried out in order: once the query is answered, so is the cancellation.
    assert_eq!(fixture.holdings(OLD, &[(1, 1)]).await.len(), 1);
    assert_eq!(outcomes(&fixture), []);
    fixture.cancel_in(OLD, 1).await;
    let found = wait_outcomes(&fixture, 1).await;
    assert_eq!(found, [(OLD, 1, OutcomeKind::Cancelled)]);
    worker.drain().await;
}

/// An attacker can publish a kept trigger again: the worker knows the attempt, or the trigger is too old.
#[tokio::test]
async fn a_new_trigger_past_its_deadline_is_refused() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let valid = of(OLD, 1, "noop");
    fixture.publish(std::slice::from_ref(&valid)).await;
    wait_outcomes(&fixture, 1).await;
    let known = Trigger {
        deadline: Timestamp::from_millis(1),
        ..valid
    };
    let new = Trigger {
        run: RunId(2),
        ..known.clone()
    };
    fixture.publish(&[known, new.clone()]).await;
    wait_outcomes(&fixture, 2).await;
    let dead = fixture.broker.fetch(&QueueId::Dead, 10, SOON).await;
    let dead = dead.expect("fetch");
    assert_eq!(dead.len(), 1);
    let letter = DeadLetter::decode(&dead[0].payload).expect("a dead letter");
    assert!(letter.reason.contains("it was valid until"), "{letter:?}");
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 1);
    worker.drain().await;

    // With schedulers in this process no other sender exists, and a trigger may have waited for long.
    let worker = run(fixture.builder().in_process_scheduler());
    fixture.publish(&[new]).await;
    wait_outcomes(&fixture, 3).await;
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 2);
    worker.drain().await;
}
