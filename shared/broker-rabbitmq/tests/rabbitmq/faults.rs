//! The server stalls, blocks, is killed and returns. The driver stays open throughout.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{
    Announcement, Broker, BrokerOptions, Channel, Driver, ErrorKind, Outgoing, QueueId, Refusal,
    Settlement,
};
use cueline_broker_rabbitmq::{RabbitDriver, RabbitOptions};
use cueline_test_servers::proxy::{Link, Proxy};
use cueline_test_servers::rabbitmq::Rabbit;
use tokio::time::{Instant, timeout};

use crate::fixture::{
    DEADLINE, Fixture, eventually, executor, message, messages, missing, numbers, publish, settle,
    take,
};

/// Options for calls that must fail. The disk of a busy machine may stand still for longer than these times, so calls that
/// must succeed are repeated.
fn quick(fixture: &Fixture) -> RabbitOptions {
    RabbitOptions {
        request_timeout: Duration::from_secs(3),
        heartbeat: Duration::from_secs(2),
        reconnect_wait: Duration::from_millis(500),
        unresponsive_after: RabbitOptions::default().unresponsive_after,
        ..fixture.options()
    }
}

/// Options for calls that must succeed at once. The driver still returns quickly to a server that was killed.
fn patient(fixture: &Fixture) -> RabbitOptions {
    RabbitOptions {
        reconnect_wait: Duration::from_millis(500),
        ..fixture.options()
    }
}

/// Publishes until all messages are confirmed. Some may then be in the queue twice.
async fn publish_until_confirmed(driver: &dyn Driver, messages: &[Outgoing]) {
    eventually(async || {
        let answers = driver.publish(messages).await.map_err(|e| e.to_string())?;
        let refused = answers.into_iter().find_map(Result::err);
        refused.map_or(Ok(()), |refusal| Err(refusal.to_string()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_alarm_blocks_publishing_and_not_acks() {
    let fixture = Fixture::own_server().await;
    let options = RabbitOptions {
        // One publish waits for all of it.
        request_timeout: Duration::from_secs(12),
        ..patient(&fixture)
    };
    let driver = fixture.open_with(options).await;
    let queue = executor("one");
    eventually(async || driver.declare(&queue).await).await;
    publish(&*driver, &messages(&queue, 0..100)).await;
    fixture.ctl(&["set_vm_memory_high_watermark", "0"]).await;
    // The first publish meets the block: the server does not read the message, so it never confirms it.
    for _ in 0..2 {
        let start = Instant::now();
        let error = driver.publish(&[message(&queue, 100)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
        assert!(start.elapsed() < DEADLINE);
    }
    let received = take(&*driver, &queue, 100).await;
    settle(&*driver, &queue, &received, &Settlement::Ack).await;
    fixture.ctl(&["set_vm_memory_high_watermark", "0.6"]).await;
    publish_until_confirmed(&*driver, &[message(&queue, 200)]).await;
    let mut received = numbers(&take(&*driver, &queue, 1).await);
    // After the alarm the server may accept messages that were in flight before it.
    while received.last() != Some(&200) {
        assert_eq!(received, [100]);
        received = numbers(&take(&*driver, &queue, 1).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_established_queue_survives_a_kill_of_an_idle_server() {
    let fixture = Fixture::own_server().await;
    let driver = fixture.open_with(patient(&fixture)).await;
    let queue = executor("one");
    eventually(async || driver.declare(&queue).await).await;
    let mut listener = driver.listen(&Channel::Heartbeats).await.unwrap();
    publish(&*driver, &messages(&queue, 0..200)).await;
    let before = take(&*driver, &queue, 50).await;
    fixture.kill_and_restart().await;
    let mut received = take(&*driver, &queue, 200).await;
    // Receipts from before the restart are ignored.
    settle(&*driver, &queue, &before, &Settlement::Ack).await;
    received.sort_by_key(|d| numbers(std::slice::from_ref(d))[0]);
    assert_eq!(numbers(&received), (0..200).collect::<Vec<_>>());
    settle(&*driver, &queue, &received, &Settlement::Ack).await;
    publish_until_confirmed(&*driver, &[message(&queue, 7)]).await;
    assert_eq!(numbers(&take(&*driver, &queue, 1).await), [7]);
    // The listener from before the restart receives again.
    let announcement = Announcement {
        payload: Bytes::from_static(b"beat"),
        reply_to: None,
    };
    let give_up = Instant::now() + DEADLINE;
    loop {
        let announced = driver.announce(&Channel::Heartbeats, announcement.clone());
        let _ = announced.await;
        if let Ok(received) = timeout(Duration::from_millis(200), listener.recv()).await {
            assert_eq!(&received.unwrap().payload[..], b"beat");
            break;
        }
        assert!(Instant::now() < give_up, "the listener receives nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_under_load_loses_nothing_that_was_confirmed() {
    const COUNT: usize = 20_000;
    let fixture = Fixture::own_server().await;
    let driver = fixture.open_with(quick(&fixture)).await;
    eventually(async || driver.declare(&QueueId::Results).await).await;
    let broker = Broker::from_arc(
        Arc::clone(&driver) as Arc<dyn Driver>,
        BrokerOptions {
            retry_for: DEADLINE * 2,
            ..BrokerOptions::default()
        },
    );
    let publisher = tokio::spawn(async move {
        for start in (0..COUNT).step_by(100) {
            let mut batch = messages(&QueueId::Results, start..start + 100);
            // The kill may come between the confirms of a batch. The publisher sends the rest again.
            while !batch.is_empty() {
                let answers = broker.publish(&batch).await.unwrap();
                let mut answers = answers.into_iter();
                batch.retain(|_| match answers.next().unwrap() {
                    Ok(()) => false,
                    Err(Refusal::Unknown { .. }) => true,
                    Err(refusal) => panic!("{refusal}"),
                });
            }
        }
    });
    let mut seen = vec![false; COUNT];
    let mut killed = false;
    let give_up = Instant::now() + DEADLINE * 2;
    while seen.contains(&false) {
        assert!(Instant::now() < give_up, "some messages did not arrive");
        let wait = Duration::from_millis(500);
        let Ok(received) = driver.fetch(&QueueId::Results, 500, wait).await else {
            continue;
        };
        for number in numbers(&received) {
            seen[number] = true;
        }
        let acks: Vec<_> = received
            .iter()
            .map(|d| (d.receipt, Settlement::Ack))
            .collect();
        // If an ack is lost, its message is delivered again.
        let _ = driver.settle(&QueueId::Results, &acks).await;
        if !killed && seen[COUNT / 10] {
            killed = true;
            fixture.kill_and_restart().await;
        }
    }
    publisher.await.unwrap();
    assert!(killed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_server_fails_calls_in_time_and_is_used_again() {
    let fixture = Fixture::own_server().await;
    let driver = fixture.open_with(quick(&fixture)).await;
    let queue = executor("one");
    eventually(async || driver.declare(&queue).await).await;
    publish_until_confirmed(&*driver, &messages(&queue, 0..3)).await;
    fixture.server(Rabbit::pause).await;
    let start = Instant::now();
    let published = driver.publish(&[message(&queue, 3)]).await;
    let declared = driver.declare(&executor("two")).await;
    let looked = driver.stats(&[]).await.map(drop);
    let deleted = driver.delete(&executor("three"), false).await.map(drop);
    let elapsed = start.elapsed();
    fixture.server(Rabbit::resume).await;
    for (call, answer) in [
        ("publish", published.map(drop)),
        ("declare", declared),
        ("stats", looked),
        ("delete", deleted),
    ] {
        assert_eq!(answer.expect_err(call).kind(), ErrorKind::Transient);
    }
    assert!(elapsed < DEADLINE, "it took {elapsed:?}");
    publish_until_confirmed(&*driver, &[message(&queue, 4)]).await;
    // The server may accept message 3 after the resume, and deliver messages twice.
    let mut seen = std::collections::BTreeSet::new();
    while !(seen.contains(&0) && seen.contains(&1) && seen.contains(&2) && seen.contains(&4)) {
        let received = take(&*driver, &queue, 1).await;
        seen.extend(numbers(&received));
        let acks: Vec<_> = received
            .iter()
            .map(|d| (d.receipt, Settlement::Ack))
            .collect();
        let _ = driver.settle(&queue, &acks).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_calls_fail_in_time_and_opening_succeeds() {
    let fixture = Fixture::own_server().await;
    fixture.server(Rabbit::kill).await;
    let start = Instant::now();
    let driver = fixture
        .open_with(RabbitOptions {
            // Six calls wait for the whole timeout.
            request_timeout: Duration::from_secs(1),
            ..quick(&fixture)
        })
        .await;
    let queue = executor("one");
    let declared = driver.declare(&queue).await.unwrap_err();
    let fetched = driver.fetch(&queue, 1, DEADLINE).await.unwrap_err();
    let published = driver.publish(&[message(&queue, 1)]).await.unwrap_err();
    let listened = driver.listen(&Channel::Heartbeats).await.unwrap_err();
    let elapsed = start.elapsed();
    fixture.server(Rabbit::start_again).await;
    for error in [declared, fetched, published, listened] {
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    }
    assert!(elapsed < DEADLINE, "it took {elapsed:?}");
    eventually(async || driver.declare(&queue).await).await;
    publish_until_confirmed(&*driver, &[message(&queue, 1)]).await;
    assert_eq!(numbers(&take(&*driver, &queue, 1).await), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_lost_by_a_kill_right_after_its_declaration_can_be_declared_again() {
    let fixture = Fixture::own_server().await;
    let driver = fixture.open_with(quick(&fixture)).await;
    let queue = executor("one");
    eventually(async || driver.declare(&queue).await).await;
    publish_until_confirmed(&*driver, &messages(&queue, 0..10)).await;
    fixture
        .server(|server| {
            server.kill()?;
            server.start_again()
        })
        .await;
    // The result depends on what was on disk: the queue is lost, unresponsive, or works. The driver recovers from each.
    let give_up = Instant::now() + DEADLINE * 2;
    loop {
        match driver.publish(&[message(&queue, 10)]).await {
            Ok(answers) if answers == [Ok(())] => break,
            Ok(answers) if answers == [missing(&queue)] => {
                eventually(async || driver.declare(&queue).await).await;
            }
            // The server answers, but the queue does not.
            Ok(answers) => {
                let unknown = matches!(answers[..], [Err(Refusal::Unknown { .. })]);
                assert!(unknown, "{answers:?}");
                let deleted = driver.delete(&queue, false).await;
                eprintln!("{answers:?}; deleted: {deleted:?}");
            }
            Err(error) if driver.stats(&[]).await.is_ok() => {
                assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
                let deleted = driver.delete(&queue, false).await;
                eprintln!("{error}; deleted: {deleted:?}");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Transient, "{error}"),
        }
        assert!(Instant::now() < give_up, "the queue does not recover");
    }
    let mut received = Vec::new();
    while !received.contains(&10) {
        received.extend(numbers(&take(&*driver, &queue, 1).await));
    }
}

/// A driver that connects through a proxy.
async fn open_behind_proxy(fixture: &Fixture) -> (Proxy, Arc<RabbitDriver>) {
    let port = fixture.server.port();
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).unwrap();
    let url = format!("amqp://guest:guest@{}/%2f", proxy.addr());
    let driver = RabbitDriver::open(&url, quick(fixture)).await.unwrap();
    (proxy, Arc::new(driver))
}

/// The second call no longer knows the receipts, while the acks are still unanswered.
#[tokio::test(flavor = "multi_thread")]
async fn a_settle_without_an_answer_fails_again_when_it_is_repeated() {
    let fixture = Fixture::shared().await;
    let port = fixture.server.port();
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).unwrap();
    let url = format!("amqp://guest:guest@{}/%2f", proxy.addr());
    let options = RabbitOptions {
        request_timeout: Duration::from_secs(2),
        // The connection must outlast the fault.
        heartbeat: DEADLINE * 5,
        ..fixture.options()
    };
    let driver = RabbitDriver::open(&url, options).await.unwrap();
    let queue = executor("one");
    eventually(async || driver.declare(&queue).await).await;
    let direct = fixture.open().await;
    publish(&*direct, &messages(&queue, 0..3)).await;
    let received = take(&driver, &queue, 3).await;
    let acks: Vec<_> = received
        .iter()
        .map(|d| (d.receipt, Settlement::Ack))
        .collect();
    proxy.set(Link::HalfOpen);
    for _ in 0..2 {
        let error = driver.settle(&queue, &acks).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    }
    proxy.heal();
    eventually(async || driver.settle(&queue, &acks).await).await;
    let mut tries = 0;
    let deleted = eventually(async || {
        tries += 1;
        driver.delete(&queue, true).await
    });
    let deleted = deleted.await;
    // A delete whose answer came too late leaves no queue for the next one.
    assert!(deleted || tries > 1, "all are acked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_replaced() {
    let fixture = Fixture::shared().await;
    let (proxy, driver) = open_behind_proxy(&fixture).await;
    let queue = executor("one");
    eventually(async || driver.declare(&queue).await).await;
    publish_until_confirmed(&*driver, &messages(&queue, 0..20)).await;
    let held = take(&*driver, &queue, 5).await;
    for link in [
        Link::HalfOpen,
        Link::DeafServer,
        Link::DeafClient,
        Link::Cut,
    ] {
        proxy.set(link);
        let start = Instant::now();
        let error = driver.publish(&[message(&queue, 50)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{link:?}: {error}");
        let error = driver.declare(&executor("two")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{link:?}: {error}");
        assert!(start.elapsed() < DEADLINE, "{link:?}");
        proxy.heal();
        publish_until_confirmed(&*driver, &[message(&queue, 100)]).await;
    }
    // Unsettled messages are delivered again.
    let mut seen = std::collections::BTreeSet::new();
    while !(0..20).all(|n| seen.contains(&n)) {
        let received = take(&*driver, &queue, 1).await;
        seen.extend(numbers(&received));
        let acks: Vec<_> = received
            .iter()
            .map(|d| (d.receipt, Settlement::Ack))
            .collect();
        let _ = driver.settle(&queue, &acks).await;
    }
    let acks: Vec<_> = held.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
    eventually(async || driver.settle(&queue, &acks).await).await;
}
