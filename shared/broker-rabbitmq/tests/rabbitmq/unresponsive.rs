//! Queues that do not answer while the server does: without a leader, at the limit of a policy, or with a suspended
//! process.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{
    Broker, BrokerError, BrokerOptions, Coverage, Driver, ErrorKind, QueueId, Refusal,
};
use cueline_broker_rabbitmq::{RabbitDriver, RabbitOptions};
use tokio::time::Instant;

use crate::fixture::{
    DEADLINE, Fixture, eventually, executor, message, messages, numbers, publish, take,
};

/// Longer than the disk of a busy machine stands still, because the other queues must answer in this time.
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(8);

async fn open(fixture: &Fixture) -> Arc<RabbitDriver> {
    fixture
        .open_with(RabbitOptions {
            unresponsive_after: UNRESPONSIVE_AFTER,
            ..fixture.options()
        })
        .await
}

/// Calls `stop_server` or `restart_server` for the queue's Ra member. A stopped member leaves the queue without a
/// leader, like a kill of the node right after the declaration.
async fn ra(fixture: &Fixture, call: &str, queue: &str) {
    let name = format!("%2F_{}.{queue}", fixture.prefix);
    let expression = format!("ra:{call}(quorum_queues, {{'{name}', node()}}).");
    let printed = fixture.ctl(&["eval", &expression]).await;
    assert_eq!(printed.trim(), "ok", "{expression}");
}

/// Whether the only message was confirmed.
fn confirmed(answers: Result<Vec<Result<(), Refusal>>, BrokerError>) -> Result<(), BrokerError> {
    let refused = |e: Refusal| BrokerError::new(ErrorKind::Transient, e.to_string());
    answers?.remove(0).map_err(refused)
}

fn unknown(queue: &QueueId, answer: &Result<(), Refusal>) -> bool {
    matches!(answer, Err(Refusal::Unknown { queue: q, .. }) if *q == queue.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_a_leader_delays_no_other() {
    let fixture = Fixture::shared().await;
    let driver = open(&fixture).await;
    let (leaderless, other) = (executor("leaderless"), executor("other"));
    driver.declare(&leaderless).await.unwrap();
    driver.declare(&other).await.unwrap();
    publish(&*driver, &[message(&leaderless, 0), message(&other, 0)]).await;
    ra(&fixture, "stop_server", "x.billing.leaderless").await;

    let mixed = |n: usize| {
        [
            message(&leaderless, n),
            message(&other, n),
            message(&leaderless, n),
        ]
    };
    let start = Instant::now();
    let answers = driver.publish(&mixed(1)).await.unwrap();
    assert!(unknown(&leaderless, &answers[0]), "{answers:?}");
    assert_eq!(answers[1], Ok(()));
    assert!(unknown(&leaderless, &answers[2]), "{answers:?}");
    assert!(
        start.elapsed() >= UNRESPONSIVE_AFTER,
        "the driver waited for the unresponsive queue"
    );
    // Later calls do not wait for it at all.
    let start = Instant::now();
    for n in 2..12 {
        let answers = driver.publish(&mixed(n)).await.unwrap();
        assert!(unknown(&leaderless, &answers[0]), "{answers:?}");
        assert_eq!(answers[1], Ok(()));
    }
    assert!(
        start.elapsed() < UNRESPONSIVE_AFTER * 5,
        "{:?}",
        start.elapsed()
    );
    assert_eq!(
        numbers(&take(&*driver, &other, 12).await),
        (0..12).collect::<Vec<_>>()
    );

    // The broker does not retry for this queue either.
    let broker = Broker::from_arc(driver.clone(), BrokerOptions::default());
    let start = Instant::now();
    let answers = broker.publish(&mixed(12)).await.unwrap();
    assert_eq!(answers[1], Ok(()));
    assert!(
        start.elapsed() < UNRESPONSIVE_AFTER * 5,
        "{:?}",
        start.elapsed()
    );

    ra(&fixture, "restart_server", "x.billing.leaderless").await;
    eventually(async || confirmed(driver.publish(&[message(&leaderless, 100)]).await)).await;
    let mut received = Vec::new();
    let give_up = Instant::now() + DEADLINE;
    while !received.contains(&100) {
        assert!(Instant::now() < give_up, "{received:?}");
        received.extend(numbers(&take(&*driver, &leaderless, 1).await));
    }
    assert!(
        received.iter().all(|n| [0, 1, 100].contains(n)),
        "only messages sent before it was held back: {received:?}"
    );
}

/// Without other messages in the batch, the driver checks the server with a call of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_a_leader_alone_in_its_batch_is_told_from_a_stalled_server() {
    let fixture = Fixture::shared().await;
    let driver = fixture
        .open_with(RabbitOptions {
            unresponsive_after: UNRESPONSIVE_AFTER,
            // The test waits for a probe.
            probe_every: UNRESPONSIVE_AFTER * 2,
            ..fixture.options()
        })
        .await;
    let leaderless = executor("alone");
    driver.declare(&leaderless).await.unwrap();
    publish(&*driver, &messages(&leaderless, 0..2)).await;
    ra(&fixture, "stop_server", "x.billing.alone").await;
    let answers = driver.publish(&messages(&leaderless, 2..4)).await.unwrap();
    assert!(
        answers.iter().all(|a| unknown(&leaderless, a)),
        "{answers:?}"
    );
    // After a delete, the next probe finds no queue, and the broker declares it.
    assert!(driver.delete(&leaderless, false).await.unwrap());
    let broker = Broker::from_arc(driver.clone(), BrokerOptions::default());
    eventually(async || confirmed(broker.publish(&messages(&leaderless, 10..11)).await)).await;
    assert_eq!(numbers(&take(&*driver, &leaderless, 1).await), [10]);
}

/// AMQP does not report the limit of a policy, so the driver reports the number of waiting messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_a_lower_limit_by_policy_is_full_at_that_limit() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let queue = executor("limited");
    driver.declare(&queue).await.unwrap();
    let pattern = format!("^{}\\.", fixture.prefix);
    let limits = ["set_policy", "low", &pattern, r#"{"max-length": 5}"#];
    fixture
        .ctl(&[&limits[..], &["--apply-to", "queues"]].concat())
        .await;
    let mut taken = 0_usize;
    let give_up = Instant::now() + DEADLINE;
    let limit = loop {
        assert!(
            Instant::now() < give_up,
            "the queue accepted {taken} messages"
        );
        let answers = driver.publish(&[message(&queue, taken)]).await;
        match answers.unwrap().remove(0) {
            Ok(()) => taken += 1,
            Err(Refusal::Full { limit, .. }) => break limit,
            Err(other) => panic!("{other}"),
        }
    };
    fixture.ctl(&["clear_policy", "low"]).await;
    assert_eq!(limit, taken as u64, "not the million of the options");
}

/// If the leader of a queue does not answer at once, the server reports no messages and no consumers.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_answer_is_not_counted_as_empty() {
    let fixture = Fixture::shared().await;
    let (driver, stranger) = (open(&fixture).await, open(&fixture).await);
    let (queue, healthy) = (executor("asleep"), executor("awake"));
    for queue in [&queue, &healthy] {
        driver.declare(queue).await.unwrap();
        publish(&*driver, &messages(queue, 0..5)).await;
        take(&*driver, queue, 1).await;
    }
    let asked = &[queue.clone(), healthy.clone()];
    let process = format!("{{'%2F_{}.x.billing.asleep', node()}}", fixture.prefix);
    let suspend = format!("sys:suspend({process}).");
    assert_eq!(fixture.ctl(&["eval", &suspend]).await.trim(), "ok");
    // A busy server may leave the question for the other queue unanswered, too.
    let (counted, by_stranger) = eventually(async || {
        let counted = driver.stats(asked).await.map_err(|e| e.to_string())?;
        let by_stranger = stranger.stats(asked).await.map_err(|e| e.to_string())?;
        let is_counted = [&counted, &by_stranger].iter().all(|stats| {
            let healthy = stats.of(&healthy);
            healthy.is_some_and(|s| s.coverage != Coverage::Unsure)
        });
        if is_counted {
            Ok((counted, by_stranger))
        } else {
            Err(format!("{counted:?}, {by_stranger:?}"))
        }
    })
    .await;
    let resume = format!("sys:resume({process}).");
    assert_eq!(fixture.ctl(&["eval", &resume]).await.trim(), "ok");
    assert_eq!(counted.unanswered, std::slice::from_ref(&queue));
    let other = counted.of(&healthy).unwrap();
    assert_eq!(other.ready + other.unsettled, 5, "it answers");
    let coverage = |queue: &QueueId| by_stranger.of(queue).map(|s| s.coverage);
    assert_eq!(coverage(&queue), Some(Coverage::Unsure));
    assert_eq!(coverage(&healthy), Some(Coverage::OwnDeliveries));
    let counts = eventually(async || {
        let stats = driver.stats(asked).await.map_err(|e| e.to_string())?;
        stats.of(&queue).cloned().ok_or("no answer".to_owned())
    })
    .await;
    assert_eq!(counts.ready + counts.unsettled, 5);
}
