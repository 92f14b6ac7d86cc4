//! The server stalls, blocks, dies and comes back; the driver is never opened again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{
    Announcement, Broker, BrokerOptions, Channel, Driver, ErrorKind, QueueId, Refusal, Settlement,
};
use cueline_broker_rabbitmq::{RabbitDriver, RabbitOptions};
use cueline_test_servers::proxy::{Link, Proxy};
use cueline_test_servers::rabbitmq::Rabbit;
use tokio::time::{Instant, timeout};

use crate::world::{
    DEADLINE, World, executor, message, messages, missing, numbers, publish, settle, take, until,
};

fn quick(world: &World) -> RabbitOptions {
    RabbitOptions {
        request_timeout: Duration::from_secs(3),
        heartbeat: Duration::from_secs(2),
        reconnect_wait: Duration::from_millis(500),
        ..world.options()
    }
}

async fn restart(world: &World) {
    world
        .server(|server| {
            server.write_declarations()?;
            server.kill()?;
            server.start_again()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_holds_up_publishing_and_nothing_else() {
    let world = World::new().await;
    let driver = world.open_with(quick(&world)).await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..100)).await;
    world.ctl(&["set_vm_memory_high_watermark", "0"]).await;
    // The first publish finds out: it is not read, so never confirmed.
    for _ in 0..2 {
        let start = Instant::now();
        let told = driver.publish(&[message(&queue, 100)]).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
        assert!(start.elapsed() < DEADLINE);
    }
    let came = take(&*driver, &queue, 100).await;
    settle(&*driver, &queue, &came, &Settlement::Ack).await;
    world.ctl(&["set_vm_memory_high_watermark", "0.6"]).await;
    until(async || driver.publish(&[message(&queue, 200)]).await).await;
    let mut came = numbers(&take(&*driver, &queue, 1).await);
    // What was on its way when the alarm came may have been taken after it.
    while came.last() != Some(&200) {
        assert_eq!(came, [100]);
        came = numbers(&take(&*driver, &queue, 1).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_established_queue_survives_a_kill_while_nothing_happens() {
    let world = World::new().await;
    let driver = world.open_with(quick(&world)).await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    let mut heard = driver.listen(&Channel::Heartbeats).await.unwrap();
    publish(&*driver, &messages(&queue, 0..200)).await;
    let before = take(&*driver, &queue, 50).await;
    restart(&world).await;
    let mut came = take(&*driver, &queue, 200).await;
    // From before the restart: ignored.
    settle(&*driver, &queue, &before, &Settlement::Ack).await;
    came.sort_by_key(|d| numbers(std::slice::from_ref(d))[0]);
    assert_eq!(numbers(&came), (0..200).collect::<Vec<_>>());
    settle(&*driver, &queue, &came, &Settlement::Ack).await;
    until(async || driver.publish(&[message(&queue, 7)]).await).await;
    assert_eq!(numbers(&take(&*driver, &queue, 1).await), [7]);
    // Who listened before still listens.
    let announcement = Announcement {
        payload: Bytes::from_static(b"beat"),
        reply_to: None,
    };
    let give_up = Instant::now() + DEADLINE;
    loop {
        let announced = driver.announce(&Channel::Heartbeats, announcement.clone());
        let _ = announced.await;
        if let Ok(heard) = timeout(Duration::from_millis(200), heard.recv()).await {
            assert_eq!(&heard.unwrap().payload[..], b"beat");
            break;
        }
        assert!(Instant::now() < give_up, "nothing is heard");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_under_load_loses_nothing_that_was_confirmed() {
    const COUNT: usize = 20_000;
    let world = World::new().await;
    let driver = world.open_with(quick(&world)).await;
    driver.declare(&QueueId::Results).await.unwrap();
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
            // The kill may come between the confirms of a batch; whoever publishes tries the rest again.
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
        assert!(Instant::now() < give_up, "some did not come");
        let wait = Duration::from_millis(500);
        let Ok(came) = driver.fetch(&QueueId::Results, 500, wait).await else {
            continue;
        };
        for number in numbers(&came) {
            seen[number] = true;
        }
        let acks: Vec<_> = came.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
        // An ack that is lost brings its message again.
        let _ = driver.settle(&QueueId::Results, &acks).await;
        if !killed && seen[COUNT / 10] {
            killed = true;
            restart(&world).await;
        }
    }
    publisher.await.unwrap();
    assert!(killed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_told_in_time_and_used_again() {
    let world = World::new().await;
    let driver = world.open_with(quick(&world)).await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..3)).await;
    world.server(Rabbit::pause).await;
    let start = Instant::now();
    let published = driver.publish(&[message(&queue, 3)]).await;
    let declared = driver.declare(&executor("two")).await;
    let looked = driver.stats(&[]).await.map(drop);
    let deleted = driver.delete(&executor("three"), false).await.map(drop);
    let took = start.elapsed();
    world.server(Rabbit::resume).await;
    for told in [published.map(drop), declared, looked, deleted] {
        assert_eq!(told.unwrap_err().kind(), ErrorKind::Transient);
    }
    assert!(took < DEADLINE, "it took {took:?}");
    until(async || driver.publish(&[message(&queue, 4)]).await).await;
    // The third may have been taken after the resume, and some may have come twice.
    let mut seen = std::collections::BTreeSet::new();
    while !(seen.contains(&0) && seen.contains(&1) && seen.contains(&2) && seen.contains(&4)) {
        let came = take(&*driver, &queue, 1).await;
        seen.extend(numbers(&came));
        let acks: Vec<_> = came.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
        let _ = driver.settle(&queue, &acks).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_calls_fail_in_time_and_opening_does_not() {
    let world = World::new().await;
    world.server(Rabbit::kill).await;
    let start = Instant::now();
    let driver = world.open_with(quick(&world)).await;
    let queue = executor("one");
    let declared = driver.declare(&queue).await.unwrap_err();
    let fetched = driver.fetch(&queue, 1, DEADLINE).await.unwrap_err();
    let published = driver.publish(&[message(&queue, 1)]).await.unwrap_err();
    let listened = driver.listen(&Channel::Heartbeats).await.unwrap_err();
    let took = start.elapsed();
    world.server(Rabbit::start_again).await;
    for told in [declared, fetched, published, listened] {
        assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
    }
    assert!(took < DEADLINE, "it took {took:?}");
    until(async || driver.declare(&queue).await).await;
    until(async || driver.publish(&[message(&queue, 1)]).await).await;
    assert_eq!(numbers(&take(&*driver, &queue, 1).await), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_declared_just_before_a_kill_may_be_lost_and_can_be_made_again() {
    let world = World::new().await;
    let driver = world.open_with(quick(&world)).await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..10)).await;
    world
        .server(|server| {
            server.kill()?;
            server.start_again()
        })
        .await;
    // Gone, or there and without a life, or well: which of them is a matter of what had been written. None of them may stay.
    let give_up = Instant::now() + DEADLINE * 2;
    loop {
        match driver.publish(&[message(&queue, 10)]).await {
            Ok(answers) if answers == [Ok(())] => break,
            Ok(answers) => {
                assert_eq!(answers, [missing(&queue)]);
                until(async || driver.declare(&queue).await).await;
            }
            Err(told) if driver.stats(&[]).await.is_ok() => {
                // The server answers, and the queue does not.
                assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
                let deleted = driver.delete(&queue, false).await;
                eprintln!("{told}; deleted: {deleted:?}");
            }
            Err(told) => assert_eq!(told.kind(), ErrorKind::Transient, "{told}"),
        }
        assert!(Instant::now() < give_up, "the queue does not come back");
    }
    let mut came = Vec::new();
    while !came.contains(&10) {
        came.extend(numbers(&take(&*driver, &queue, 1).await));
    }
}

/// A driver whose way to the server leads through a proxy.
async fn behind(world: &World) -> (Proxy, Arc<RabbitDriver>) {
    let port = world.server.port();
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).unwrap();
    let url = format!("amqp://guest:guest@{}/%2f", proxy.addr());
    let driver = RabbitDriver::open(&url, quick(world)).await.unwrap();
    (proxy, Arc::new(driver))
}

/// Its receipts are not known any more when it is tried again, and the acks are no less in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn a_settle_without_an_answer_is_not_done_when_it_is_tried_again() {
    let world = World::new().await;
    let port = world.server.port();
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).unwrap();
    let url = format!("amqp://guest:guest@{}/%2f", proxy.addr());
    let options = RabbitOptions {
        request_timeout: Duration::from_secs(2),
        // The connection is to outlast the fault.
        heartbeat: DEADLINE * 5,
        ..world.options()
    };
    let driver = RabbitDriver::open(&url, options).await.unwrap();
    let queue = executor("one");
    until(async || driver.declare(&queue).await).await;
    publish(&driver, &messages(&queue, 0..3)).await;
    let came = take(&driver, &queue, 3).await;
    let acks: Vec<_> = came.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
    proxy.set(Link::HalfOpen);
    for _ in 0..2 {
        let told = driver.settle(&queue, &acks).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
    }
    proxy.heal();
    until(async || driver.settle(&queue, &acks).await).await;
    assert!(driver.delete(&queue, true).await.unwrap(), "all are acked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_on_which_nothing_arrives_any_more_is_replaced() {
    let world = World::new().await;
    let (proxy, driver) = behind(&world).await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..20)).await;
    let held = take(&*driver, &queue, 5).await;
    for link in [
        Link::HalfOpen,
        Link::DeafServer,
        Link::DeafClient,
        Link::Cut,
    ] {
        proxy.set(link);
        let start = Instant::now();
        let told = driver.publish(&[message(&queue, 50)]).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Transient, "{link:?}: {told}");
        let told = driver.declare(&executor("two")).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Transient, "{link:?}: {told}");
        assert!(start.elapsed() < DEADLINE, "{link:?}");
        proxy.heal();
        until(async || driver.publish(&[message(&queue, 100)]).await).await;
    }
    // Those that were held come again, as nothing has settled them.
    let mut seen = std::collections::BTreeSet::new();
    while !(0..20).all(|n| seen.contains(&n)) {
        let came = take(&*driver, &queue, 1).await;
        seen.extend(numbers(&came));
        let acks: Vec<_> = came.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
        let _ = driver.settle(&queue, &acks).await;
    }
    settle(&*driver, &queue, &held, &Settlement::Ack).await;
}
