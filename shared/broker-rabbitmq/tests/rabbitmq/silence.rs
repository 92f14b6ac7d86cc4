//! A queue without a leader confirms nothing while the server answers: it holds up no other, and is used again when it answers.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, BrokerError, BrokerOptions, Driver, ErrorKind, QueueId, Refusal};
use cueline_broker_rabbitmq::{RabbitDriver, RabbitOptions};
use tokio::time::Instant;

use crate::world::{DEADLINE, World, executor, message, messages, numbers, publish, take, until};

const QUIET: Duration = Duration::from_secs(1);

async fn open(world: &World) -> Arc<RabbitDriver> {
    world
        .open_with(RabbitOptions {
            silent_after: QUIET,
            ..world.options()
        })
        .await
}

/// Stops the queue's server process, as after a kill of the node soon after the declaration; or starts it again.
async fn lead(world: &World, queue: &str, lead: bool) {
    let call = if lead {
        "restart_server"
    } else {
        "stop_server"
    };
    let name = format!("%2F_{}.{queue}", world.prefix);
    let expression = format!("ra:{call}(quorum_queues, {{'{name}', node()}}).");
    let printed = world.ctl(&["eval", &expression]).await;
    assert_eq!(printed.trim(), "ok", "{expression}");
}

/// The one message was.
fn taken(answers: Result<Vec<Result<(), Refusal>>, BrokerError>) -> Result<(), BrokerError> {
    let refused = |e: Refusal| BrokerError::new(ErrorKind::Transient, e.to_string());
    answers?.remove(0).map_err(refused)
}

fn unknown(queue: &QueueId, answer: &Result<(), Refusal>) -> bool {
    matches!(answer, Err(Refusal::Unknown { queue: q, .. }) if *q == queue.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_a_leader_holds_up_no_other() {
    let world = World::new().await;
    let driver = open(&world).await;
    let (silent, other) = (executor("silent"), executor("other"));
    driver.declare(&silent).await.unwrap();
    driver.declare(&other).await.unwrap();
    publish(&*driver, &[message(&silent, 0), message(&other, 0)]).await;
    lead(&world, "x.billing.silent", false).await;

    let mixed = |n: usize| [message(&silent, n), message(&other, n), message(&silent, n)];
    let start = Instant::now();
    let answers = driver.publish(&mixed(1)).await.unwrap();
    assert!(unknown(&silent, &answers[0]), "{answers:?}");
    assert_eq!(answers[1], Ok(()));
    assert!(unknown(&silent, &answers[2]), "{answers:?}");
    assert!(start.elapsed() >= QUIET, "it was given time");
    // From now on it holds up nothing at all.
    let start = Instant::now();
    for n in 2..12 {
        let answers = driver.publish(&mixed(n)).await.unwrap();
        assert!(unknown(&silent, &answers[0]), "{answers:?}");
        assert_eq!(answers[1], Ok(()));
    }
    assert!(start.elapsed() < QUIET * 5, "{:?}", start.elapsed());
    assert_eq!(
        numbers(&take(&*driver, &other, 12).await),
        (0..12).collect::<Vec<_>>()
    );

    // What the port adds repeats nothing on its account either.
    let broker = Broker::from_arc(driver.clone(), BrokerOptions::default());
    let start = Instant::now();
    let answers = broker.publish(&mixed(12)).await.unwrap();
    assert_eq!(answers[1], Ok(()));
    assert!(start.elapsed() < QUIET * 5, "{:?}", start.elapsed());

    lead(&world, "x.billing.silent", true).await;
    until(async || taken(driver.publish(&[message(&silent, 100)]).await)).await;
    let mut came = Vec::new();
    let give_up = Instant::now() + DEADLINE;
    while !came.contains(&100) {
        assert!(Instant::now() < give_up, "{came:?}");
        came.extend(numbers(&take(&*driver, &silent, 1).await));
    }
    assert!(
        came.iter().all(|n| [0, 1, 100].contains(n)),
        "only what was sent before it was left aside: {came:?}"
    );
}

/// With nothing else to publish, the server itself says that it is there.
#[tokio::test(flavor = "multi_thread")]
async fn alone_in_its_batch_it_is_told_from_a_server_that_does_not_answer() {
    let world = World::new().await;
    let driver = open(&world).await;
    let silent = executor("alone");
    driver.declare(&silent).await.unwrap();
    publish(&*driver, &messages(&silent, 0..2)).await;
    lead(&world, "x.billing.alone", false).await;
    let answers = driver.publish(&messages(&silent, 2..4)).await.unwrap();
    assert!(answers.iter().all(|a| unknown(&silent, a)), "{answers:?}");
    // Deleted, it is made anew by the next that is published.
    assert!(driver.delete(&silent, false).await.unwrap());
    let broker = Broker::from_arc(driver.clone(), BrokerOptions::default());
    until(async || taken(broker.publish(&messages(&silent, 10..11)).await)).await;
    assert_eq!(numbers(&take(&*driver, &silent, 1).await), [10]);
}

/// The limit of a policy, which AMQP does not tell, is told as what waits there.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_a_lower_limit_by_policy_is_full_at_that() {
    let world = World::new().await;
    let driver = world.open().await;
    let queue = executor("limited");
    driver.declare(&queue).await.unwrap();
    let pattern = format!("^{}\\.", world.prefix);
    let limits = ["set_policy", "low", &pattern, r#"{"max-length": 5}"#];
    world
        .ctl(&[&limits[..], &["--apply-to", "queues"]].concat())
        .await;
    let mut taken = 0_usize;
    let give_up = Instant::now() + DEADLINE;
    let limit = loop {
        assert!(Instant::now() < give_up, "{taken} were taken");
        let answers = driver.publish(&[message(&queue, taken)]).await;
        match answers.unwrap().remove(0) {
            Ok(()) => taken += 1,
            Err(Refusal::Full { limit, .. }) => break limit,
            Err(other) => panic!("{other}"),
        }
    };
    world.ctl(&["clear_policy", "low"]).await;
    assert_eq!(
        limit, taken as u64,
        "not the million that the driver asks for"
    );
}

/// It has not one message and no consumer, says the server of a queue whose leader does not answer at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_answer_is_not_counted_as_empty() {
    let world = World::new().await;
    let driver = open(&world).await;
    let queue = executor("asleep");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..5)).await;
    take(&*driver, &queue, 1).await;
    let asked = std::slice::from_ref(&queue);
    let process = format!("{{'%2F_{}.x.billing.asleep', node()}}", world.prefix);
    let suspend = format!("sys:suspend({process}).");
    assert_eq!(world.ctl(&["eval", &suspend]).await.trim(), "ok");
    let counted = driver.stats(asked).await;
    let resume = format!("sys:resume({process}).");
    assert_eq!(world.ctl(&["eval", &resume]).await.trim(), "ok");
    let told = counted.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
    let counts = until(async || driver.stats(asked).await).await;
    assert_eq!(counts[0].ready + counts[0].unsettled, 5);
}
