//! Queues and exchanges on the server.

use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{
    Broker, BrokerOptions, Channel, DeadLetter, DeadLetterSeal, Driver, ErrorKind, QueueId,
    Settlement, StartLog,
};
use cueline_broker_rabbitmq::RabbitOptions;

use crate::fixture::{
    Fixture, eventually, executor, message, messages, missing, numbers, publish, settle, take,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_executors_queue_has_one_binding_and_does_not_expire() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let queue = executor("one.a");
    for _ in 0..3 {
        driver.declare(&queue).await.unwrap();
    }
    publish(&*driver, &messages(&queue, 0..3)).await;
    let name = format!("{}.x.billing.one%2Ea", fixture.prefix);
    let bindings = fixture
        .ctl(&[
            "list_bindings",
            "source_name",
            "destination_name",
            "routing_key",
        ])
        .await;
    let own: Vec<&str> = bindings
        .lines()
        .filter(|line| line.contains(&name) && line.contains(".triggers"))
        .collect();
    assert_eq!(
        own,
        [format!(
            "{}.triggers\t{name}\tbilling.one%2Ea.*",
            fixture.prefix
        )]
    );
    let queues = fixture
        .ctl(&["list_queues", "name", "type", "durable", "arguments"])
        .await;
    let own = queues.lines().find(|line| line.starts_with(&name)).unwrap();
    for part in [
        "quorum",
        "x-delivery-limit",
        "10000",
        "reject-publish",
        "at-least-once",
        "x-max-length",
    ] {
        assert!(own.contains(part), "{part} is missing: {own}");
    }
    assert!(!own.contains("x-expires"), "{own}");
}

/// Requests and results are requeued while the database is down. Dead letters wait for an operator.
#[tokio::test(flavor = "multi_thread")]
async fn only_triggers_have_a_delivery_limit_and_every_queue_has_a_maximum_length() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let all = [
        executor("one"),
        QueueId::Results,
        QueueId::Requests,
        QueueId::Dead,
    ];
    for queue in &all {
        driver.declare(queue).await.unwrap();
    }
    let listed = fixture.ctl(&["list_queues", "name", "arguments"]).await;
    for queue in &all {
        let start = format!("{}.{queue}\t", fixture.prefix);
        let own = listed
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap();
        let unlimited = own.contains(&i32::MAX.to_string());
        assert_eq!(unlimited, *queue != all[0], "{own}");
        for part in ["x-max-length", "1000000", "reject-publish"] {
            assert!(own.contains(part), "{part} is missing: {own}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_existing_queue_keeps_its_limits() {
    let fixture = Fixture::shared().await;
    let queue = executor("one");
    fixture.open().await.declare(&queue).await.unwrap();
    let other = RabbitOptions {
        queue_limit: 7,
        delivery_limit: 3,
        ..fixture.options()
    };
    let driver = fixture.open_with(other).await;
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..50)).await;
    assert_eq!(take(&*driver, &queue, 50).await.len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_dead_letters_a_trigger_past_its_delivery_limit() {
    let fixture = Fixture::shared().await;
    let options = RabbitOptions {
        delivery_limit: 2,
        ..fixture.options()
    };
    let driver = fixture.open_with(options).await;
    let queue = executor("one");
    for queue in [&queue, &QueueId::Dead] {
        driver.declare(queue).await.unwrap();
    }
    publish(&*driver, &[message(&queue, 5)]).await;
    for deliveries in 1..=3 {
        let received = take(&*driver, &queue, 1).await;
        assert_eq!(received[0].deliveries, deliveries);
        settle(
            &*driver,
            &queue,
            &received,
            &Settlement::Retry(Duration::ZERO),
        )
        .await;
    }
    let dead = take(&*driver, &QueueId::Dead, 1).await;
    let letter = DeadLetter::decode(&dead[0].payload).unwrap();
    assert_eq!(letter.queue, queue.to_string());
    assert_eq!(letter.topic, "invoices");
    assert_eq!(&letter.payload[..], b"5");
    assert!(dead[0].moved_by_broker, "no receiver refused it");
    assert!(
        letter.reason.contains("delivery_limit"),
        "{}",
        letter.reason
    );
    assert!(letter.at_ms > 1_600_000_000_000, "{}", letter.at_ms);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_fails_when_its_queue_is_deleted_and_the_queue_can_be_declared_again() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..10)).await;
    take(&*driver, &queue, 5).await;
    let name = format!("{}.x.billing.one", fixture.prefix);
    let delete = ["delete_queue", &name];
    let fetches = async {
        let mut before = 0;
        loop {
            match driver.fetch(&queue, 10, crate::fixture::DEADLINE).await {
                Ok(received) if received.is_empty() => panic!("the fetch did not fail"),
                Ok(received) => before += received.len(),
                Err(_) => return before,
            }
        }
    };
    let (before, _) = tokio::join!(fetches, fixture.ctl(&delete));
    // The fetches may have returned the other five before the deletion.
    assert!(before <= 5, "{before}");
    let answers = driver.publish(&messages(&queue, 0..1)).await.unwrap();
    assert_eq!(answers, [missing(&queue)]);
    // Each error closed a channel. The driver opens new ones by itself.
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 20..22)).await;
    assert_eq!(take(&*driver, &queue, 2).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_too_long_for_a_routing_key_arrives_whole() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    let mut outgoing = message(&queue, 0);
    outgoing.topic = "报表.".repeat(200);
    publish(&*driver, std::slice::from_ref(&outgoing)).await;
    assert_eq!(take(&*driver, &queue, 1).await[0].topic, outgoing.topic);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_dead_letter_queue_is_declared() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..1)).await;
    let received = take(&*driver, &queue, 1).await;
    let dead = [(received[0].receipt, Settlement::Dead("why".into()))];
    let error = driver.settle(&queue, &dead).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    driver.settle(&queue, &dead).await.unwrap();
    let letters = take(&*driver, &QueueId::Dead, 1).await;
    assert!(!letters[0].moved_by_broker);
    let letter = DeadLetter::decode(&letters[0].payload).unwrap();
    assert_eq!(letter.reason, "why");
    assert!(driver.delete(&queue, true).await.unwrap(), "it is acked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seal_arrives_as_the_last_line_of_its_dead_letter() {
    let fixture = Fixture::shared().await;
    let sealing = RabbitOptions {
        seal_dead_letters: Some(DeadLetterSeal::new(|letter| {
            [&letter[..], b"\n", &letter[..]].concat()
        })),
        ..fixture.options()
    };
    let driver = fixture.open_with(sealing).await;
    let queue = executor("one");
    for queue in [&queue, &QueueId::Dead] {
        driver.declare(queue).await.unwrap();
    }
    publish(&*driver, &messages(&queue, 0..1)).await;
    let received = take(&*driver, &queue, 1).await;
    settle(&*driver, &queue, &received, &Settlement::Dead("why".into())).await;
    let letters = take(&*driver, &QueueId::Dead, 1).await;
    let payload = &letters[0].payload;
    let end = payload.len() / 2;
    assert_eq!(payload[end + 1..], payload[..end]);
    let letter = DeadLetter::decode(&payload[..end]).unwrap();
    assert_eq!(letter.reason, "why");
}

/// Only the delivery whose dead letter failed stays unsettled.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_dead_letter_delays_no_acks() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..5)).await;
    let received = take(&*driver, &queue, 5).await;
    let mut settlements: Vec<_> = received
        .iter()
        .map(|d| (d.receipt, Settlement::Ack))
        .collect();
    // The dead-letter queue does not exist yet.
    settlements[2].1 = Settlement::Dead("why".into());
    let error = driver.settle(&queue, &settlements).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    drop(driver);
    let driver = fixture.open().await;
    let again = take(&*driver, &queue, 1).await;
    assert_eq!(numbers(&again), [2], "the others are acked");
    // A busy server may leave a question for the counts unanswered.
    eventually(async || {
        let stats = driver.stats(std::slice::from_ref(&queue)).await;
        match stats.map_err(|e| e.to_string())?.of(&queue) {
            Some(counts) if counts.ready == 0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Each question listens on a channel of its own for the answer.
#[tokio::test]
async fn questions_leave_no_bindings() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let broker = Broker::from_arc(driver, BrokerOptions::default());
    let absent = Channel::Control {
        group: "billing".into(),
        executor: "absent".into(),
    };
    for _ in 0..50 {
        let wait = Duration::from_millis(1);
        let answer = broker.ask(&absent, Bytes::new(), wait).await;
        assert_eq!(answer.unwrap(), None);
    }
    let live = format!("{}.live\t", fixture.prefix);
    eventually(async || {
        let bindings = fixture
            .ctl(&["list_bindings", "source_name", "routing_key"])
            .await;
        let left = bindings
            .lines()
            .filter(|line| line.starts_with(&live) && line.contains("reply."))
            .count();
        (left == 0)
            .then_some(())
            .ok_or_else(|| format!("{left} bindings of answers are left"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_log_is_a_stream_and_a_read_leaves_no_consumer() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let log = StartLog {
        group: "billing".into(),
        executor: "one.a".into(),
    };
    for _ in 0..2 {
        driver.declare_log(&log).await.unwrap();
    }
    // More records than the server sends without an ack.
    for n in 0..1_100 {
        driver.append(&log, n.to_string().into()).await.unwrap();
    }
    let all: Vec<String> = (0..1_100).map(|n| n.to_string()).collect();
    for _ in 0..2 {
        assert_eq!(driver.read_log(&log).await.unwrap(), all);
    }
    let name = format!("{}.starts.billing.one%2Ea", fixture.prefix);
    let queues = fixture
        .ctl(&["list_queues", "name", "durable", "arguments"])
        .await;
    let own = queues.lines().find(|line| line.starts_with(&name)).unwrap();
    for part in [
        "stream",
        "true",
        "x-max-length-bytes",
        "32000000",
        "x-stream-max-segment-size-bytes",
        "4000000",
    ] {
        assert!(own.contains(part), "{part}: {own}");
    }
    eventually(async || {
        let consumers = fixture.ctl(&["list_consumers", "queue_name"]).await;
        let left = consumers.lines().filter(|line| *line == name).count();
        (left == 0)
            .then_some(())
            .ok_or_else(|| format!("{left} consumers of readers are left"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_of_proofs_is_a_quorum_queue_with_one_message() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    for _ in 0..2 {
        driver.declare_proofs().await.unwrap();
    }
    for n in 0..5 {
        let payload = Bytes::from(n.to_string());
        let stored = driver.announce_stored(&Channel::Heartbeats, payload);
        stored.await.unwrap();
    }
    let name = format!("{}.proofs", fixture.prefix);
    let queues = fixture
        .ctl(&["list_queues", "name", "type", "arguments"])
        .await;
    let own = queues.lines().find(|line| line.starts_with(&name)).unwrap();
    for part in ["quorum", "x-max-length", "drop-head"] {
        assert!(own.contains(part), "{part} is missing: {own}");
    }
    eventually(async || {
        let queues = fixture.ctl(&["list_queues", "name", "messages"]).await;
        let one = format!("{name}\t1");
        let found = queues.lines().any(|line| line == one);
        found.then_some(()).ok_or(queues)
    })
    .await;
}

/// A confirm says nothing about a queue that does not exist.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_stored_while_the_queue_of_proofs_is_missing() {
    let fixture = Fixture::shared().await;
    let driver = fixture.open().await;
    let mut heartbeats = driver.listen(&Channel::Heartbeats).await.unwrap();
    driver.declare_proofs().await.unwrap();
    let name = format!("{}.proofs", fixture.prefix);
    fixture.ctl(&["delete_queue", &name]).await;
    let stored = driver.announce_stored(&Channel::Heartbeats, "lost".into());
    let error = stored.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert_eq!(&heartbeats.recv().await.unwrap().payload[..], b"lost");
    driver.declare_proofs().await.unwrap();
    let stored = driver.announce_stored(&Channel::Heartbeats, "kept".into());
    stored.await.unwrap();
}
