//! What [`Broker`] adds to a driver: retries, declaration of missing queues, and batches of the right size.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::fixture::{
    DEADLINE, Fixture, assert_counts, executor, message, messages, numbers, take,
};
use super::{Fault, Faults, Faulty, Limits, Operation};
use crate::address::{Channel, QueueId};
use crate::broker::{Broker, BrokerOptions};
use crate::driver::{Driver, Refusal, Settlement};
use crate::error::ErrorKind;

super::cases![
    Nothing: transient_errors_are_tried_again,
    Nothing: transient_errors_are_returned_after_retry_for,
    Nothing: permanent_errors_are_returned_at_once,
    Nothing: a_missing_queue_is_declared_and_the_message_published,
    Nothing: a_lost_confirmation_loses_no_message,
    Nothing: a_lost_answer_to_an_ack_is_tried_again,
    Nothing: more_than_a_batch_is_published_in_order,
    ExactLimit: refusals_are_returned_in_the_order_given,
    ExactLimit: a_refusal_after_a_lost_answer_is_unknown,
    Nothing: an_error_keeps_the_answers_of_earlier_batches,
    Nothing: unknown_messages_are_returned_at_once,
];

const TRANSIENT: Fault = Fault::Before(ErrorKind::Transient);

/// A broker over the real driver, and the handles to the driver and its faults.
async fn broker(
    fixture: &Fixture,
    limits: Limits,
    retry_for: Duration,
    queues: &[QueueId],
) -> (Broker, Faults, Arc<dyn Driver>) {
    let driver = fixture.open_with(limits, queues).await;
    let failing = Faulty::new(Arc::clone(&driver));
    let faults = failing.faults();
    let options = BrokerOptions {
        retry_for,
        first_wait: Duration::from_millis(1),
    };
    (Broker::new(failing, options), faults, driver)
}

async fn patient(fixture: &Fixture, queues: &[QueueId]) -> (Broker, Faults, Arc<dyn Driver>) {
    broker(fixture, Limits::default(), DEADLINE, queues).await
}

async fn transient_errors_are_tried_again(fixture: Fixture) {
    let queue = executor("one");
    let (broker, faults, driver) = patient(&fixture, &[]).await;
    for operation in [
        Operation::Declare,
        Operation::Publish,
        Operation::Settle,
        Operation::Delete,
        Operation::Listen,
    ] {
        faults.next(operation, TRANSIENT, 4);
    }
    broker.declare(&queue).await.unwrap();
    let answers = broker.publish(&messages(&queue, 0..10)).await.unwrap();
    assert_eq!(answers, vec![Ok(()); 10]);
    let came = take(&*driver, &queue, 10).await;
    let acks: Vec<_> = came
        .iter()
        .map(|delivery| (delivery.receipt, Settlement::Ack))
        .collect();
    broker.settle(&queue, &acks).await.unwrap();
    assert_counts(&*driver, &queue, 0, 0).await;
    broker.listen(&Channel::Heartbeats).await.unwrap();
    assert!(broker.delete(&queue, true).await.unwrap());
    for operation in [
        Operation::Declare,
        Operation::Publish,
        Operation::Settle,
        Operation::Delete,
        Operation::Listen,
    ] {
        assert_eq!(faults.calls(operation), 5, "{operation:?}");
    }
}

async fn transient_errors_are_returned_after_retry_for(fixture: Fixture) {
    // Long enough for four tries on a machine that stands still for some seconds.
    const RETRY_FOR: Duration = Duration::from_secs(5);
    let queue = executor("one");
    let queues = std::slice::from_ref(&queue);
    let (broker, faults, _) = broker(&fixture, Limits::default(), RETRY_FOR, queues).await;
    faults.always(Operation::Publish, TRANSIENT);
    let start = Instant::now();
    let error = broker.publish(&messages(&queue, 0..1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient);
    // The broker stops early if the next wait would exceed `RETRY_FOR`.
    assert!(start.elapsed() >= RETRY_FOR / 4, "{:?}", start.elapsed());
    assert!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
    assert!(faults.calls(Operation::Publish) > 3);
    faults.clear();
    let answers = broker.publish(&messages(&queue, 0..1)).await.unwrap();
    assert_eq!(answers, [Ok(())]);
}

async fn permanent_errors_are_returned_at_once(fixture: Fixture) {
    let queue = executor("one");
    let (broker, faults, driver) = patient(&fixture, std::slice::from_ref(&queue)).await;
    for kind in [ErrorKind::Permanent, ErrorKind::Closed] {
        faults.next(Operation::Publish, Fault::Before(kind), 1);
        let before = faults.calls(Operation::Publish);
        let error = broker.publish(&messages(&queue, 0..1)).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_eq!(faults.calls(Operation::Publish), before + 1);
    }
    assert_counts(&*driver, &queue, 0, 0).await;
}

async fn a_missing_queue_is_declared_and_the_message_published(fixture: Fixture) {
    let (queue, missing, other) = (executor("one"), executor("two"), executor("three"));
    let (broker, faults, driver) = patient(&fixture, std::slice::from_ref(&queue)).await;
    faults.next(Operation::Declare, TRANSIENT, 1);
    let batch = [
        message(&missing, 0),
        message(&queue, 1),
        message(&other, 2),
        message(&missing, 3),
    ];
    let answers = broker.publish(&batch).await.unwrap();
    assert_eq!(answers, vec![Ok(()); 4]);
    assert_eq!(numbers(&take(&*driver, &missing, 2).await), [0, 3]);
    assert_eq!(numbers(&take(&*driver, &queue, 1).await), [1]);
    assert_eq!(numbers(&take(&*driver, &other, 1).await), [2]);
    assert_counts(&*driver, &queue, 0, 1).await;
}

async fn a_lost_confirmation_loses_no_message(fixture: Fixture) {
    let queue = executor("one");
    let (broker, faults, driver) = patient(&fixture, std::slice::from_ref(&queue)).await;
    faults.next(Operation::Publish, Fault::After(ErrorKind::Transient), 1);
    let answers = broker.publish(&messages(&queue, 0..5)).await.unwrap();
    assert_eq!(answers, vec![Ok(()); 5]);
    let expected = if broker.capabilities().deduplicates {
        (0..5).collect::<Vec<_>>()
    } else {
        (0..5).chain(0..5).collect()
    };
    let came = take(&*driver, &queue, expected.len()).await;
    assert_eq!(numbers(&came), expected);
}

async fn a_lost_answer_to_an_ack_is_tried_again(fixture: Fixture) {
    let queue = executor("one");
    let (broker, faults, driver) = patient(&fixture, std::slice::from_ref(&queue)).await;
    broker.publish(&messages(&queue, 0..2)).await.unwrap();
    let came = take(&*driver, &queue, 2).await;
    faults.next(Operation::Settle, Fault::After(ErrorKind::Transient), 2);
    let acks = [(came[0].receipt, Settlement::Ack)];
    broker.settle(&queue, &acks).await.unwrap();
    assert_eq!(faults.calls(Operation::Settle), 3);
    assert_counts(&*driver, &queue, 0, 1).await;
    broker.settle(&queue, &[]).await.unwrap();
    assert_eq!(faults.calls(Operation::Settle), 3, "nothing to settle");
}

async fn more_than_a_batch_is_published_in_order(fixture: Fixture) {
    let queue = executor("one");
    let (broker, faults, driver) = patient(&fixture, std::slice::from_ref(&queue)).await;
    let count = broker.capabilities().max_batch * 2 + 1;
    faults.next(Operation::Publish, Fault::Late(Duration::from_millis(1)), 1);
    let answers = broker.publish(&messages(&queue, 0..count)).await.unwrap();
    assert_eq!(answers, vec![Ok(()); count]);
    assert_eq!(faults.calls(Operation::Publish), 3);
    let came = take(&*driver, &queue, count).await;
    assert_eq!(numbers(&came), (0..count).collect::<Vec<_>>());
    assert_eq!(broker.publish(&[]).await.unwrap(), []);
}

async fn refusals_are_returned_in_the_order_given(fixture: Fixture) {
    let limits = Limits {
        queue_limit: Some(3),
        ..Limits::default()
    };
    let (queue, missing) = (executor("one"), executor("two"));
    let queues = std::slice::from_ref(&queue);
    let (broker, _, _) = broker(&fixture, limits, DEADLINE, queues).await;
    let batch = [
        message(&queue, 0),
        message(&missing, 1),
        message(&queue, 2),
        message(&queue, 3),
        message(&queue, 4),
        message(&missing, 5),
    ];
    let answers = broker.publish(&batch).await.unwrap();
    let full = Err(Refusal::Full {
        queue: queue.to_string(),
        limit: 3,
    });
    assert_eq!(answers, [Ok(()), Ok(()), Ok(()), Ok(()), full, Ok(())]);
}

/// The first try may have stored the message. A refusal of the second try does not prove that the message is absent.
async fn a_refusal_after_a_lost_answer_is_unknown(fixture: Fixture) {
    let limits = Limits {
        queue_limit: Some(3),
        ..Limits::default()
    };
    let queue = executor("one");
    let queues = std::slice::from_ref(&queue);
    let (broker, faults, _) = broker(&fixture, limits, DEADLINE, queues).await;
    let answers = broker.publish(&messages(&queue, 0..3)).await.unwrap();
    assert_eq!(answers, [Ok(()), Ok(()), Ok(())]);
    faults.next(Operation::Publish, TRANSIENT, 1);
    let answers = broker.publish(&messages(&queue, 3..4)).await.unwrap();
    assert!(
        matches!(&answers[..], [Err(Refusal::Unknown { queue: q, .. })] if *q == queue.to_string()),
        "{answers:?}"
    );
}

async fn an_error_keeps_the_answers_of_earlier_batches(fixture: Fixture) {
    let queue = executor("one");
    let (broker, faults, driver) = patient(&fixture, std::slice::from_ref(&queue)).await;
    let batch = broker.capabilities().max_batch;
    faults.next(Operation::Publish, Fault::Late(Duration::from_millis(1)), 1);
    faults.next(Operation::Publish, Fault::Before(ErrorKind::Permanent), 1);
    let all = messages(&queue, 0..batch * 3);
    let answers = broker.publish(&all).await.unwrap();
    assert_eq!(answers.len(), all.len());
    assert_eq!(answers[..batch], vec![Ok(()); batch]);
    for answer in &answers[batch..] {
        assert!(matches!(answer, Err(Refusal::Unknown { .. })), "{answer:?}");
    }
    assert_eq!(faults.calls(Operation::Publish), 2, "no further try");
    assert_counts(&*driver, &queue, batch as u64, 0).await;
}

/// The caller decides whether to wait for one queue, because it may have more to publish.
async fn unknown_messages_are_returned_at_once(fixture: Fixture) {
    let queue = executor("one");
    let (broker, faults, driver) = patient(&fixture, std::slice::from_ref(&queue)).await;
    faults.next(Operation::Publish, Fault::Unanswered, 1);
    let answers = broker.publish(&messages(&queue, 0..2)).await.unwrap();
    for answer in &answers {
        assert!(matches!(answer, Err(Refusal::Unknown { .. })), "{answer:?}");
    }
    assert_eq!(faults.calls(Operation::Publish), 1);
    assert_counts(&*driver, &queue, 2, 0).await;
}
