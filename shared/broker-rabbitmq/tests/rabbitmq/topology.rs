//! What is on the server.

use std::time::Duration;

use cueline_broker::{DeadLetter, Driver, ErrorKind, QueueId, Settlement};
use cueline_broker_rabbitmq::RabbitOptions;

use crate::world::{World, executor, message, messages, missing, numbers, publish, settle, take};

#[tokio::test(flavor = "multi_thread")]
async fn an_executors_queue_has_one_binding_and_does_not_expire() {
    let world = World::new().await;
    let driver = world.open().await;
    let queue = executor("one.a");
    for _ in 0..3 {
        driver.declare(&queue).await.unwrap();
    }
    publish(&*driver, &messages(&queue, 0..3)).await;
    let name = format!("{}.x.billing.one%2Ea", world.prefix);
    let bindings = world
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
            world.prefix
        )]
    );
    let queues = world
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

/// Requests and reports are given back for as long as the database is away; letters stay until somebody looks.
#[tokio::test(flavor = "multi_thread")]
async fn only_triggers_can_be_delivered_too_often_and_every_queue_has_a_limit() {
    let world = World::new().await;
    let driver = world.open().await;
    let all = [
        executor("one"),
        QueueId::Results,
        QueueId::Requests,
        QueueId::Dead,
    ];
    for queue in &all {
        driver.declare(queue).await.unwrap();
    }
    let listed = world.ctl(&["list_queues", "name", "arguments"]).await;
    for queue in &all {
        let start = format!("{}.{queue}\t", world.prefix);
        let own = listed
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap();
        let never = own.contains(&i32::MAX.to_string());
        assert_eq!(never, *queue != all[0], "{own}");
        for part in ["x-max-length", "1000000", "reject-publish"] {
            assert!(own.contains(part), "{part} is missing: {own}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_keeps_the_limits_that_it_was_made_with() {
    let world = World::new().await;
    let queue = executor("one");
    world.open().await.declare(&queue).await.unwrap();
    let other = RabbitOptions {
        queue_limit: 7,
        delivery_limit: 3,
        ..world.options()
    };
    let driver = world.open_with(other).await;
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..50)).await;
    assert_eq!(take(&*driver, &queue, 50).await.len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_buries_what_it_has_delivered_too_often() {
    let world = World::new().await;
    let options = RabbitOptions {
        delivery_limit: 2,
        ..world.options()
    };
    let driver = world.open_with(options).await;
    let queue = executor("one");
    for queue in [&queue, &QueueId::Dead] {
        driver.declare(queue).await.unwrap();
    }
    publish(&*driver, &[message(&queue, 5)]).await;
    for deliveries in 1..=3 {
        let came = take(&*driver, &queue, 1).await;
        assert_eq!(came[0].deliveries, deliveries);
        settle(&*driver, &queue, &came, &Settlement::Retry(Duration::ZERO)).await;
    }
    let dead = take(&*driver, &QueueId::Dead, 1).await;
    let letter = DeadLetter::decode(&dead[0].payload).unwrap();
    assert_eq!(letter.queue, queue.to_string());
    assert_eq!(letter.topic, "invoices");
    assert_eq!(&letter.payload[..], b"5");
    assert!(
        letter.reason.contains("delivery_limit"),
        "{}",
        letter.reason
    );
    assert!(letter.at_ms > 1_600_000_000_000, "{}", letter.at_ms);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_somebody_deletes_is_told_and_comes_back() {
    let world = World::new().await;
    let driver = world.open().await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..10)).await;
    take(&*driver, &queue, 5).await;
    let name = format!("{}.x.billing.one", world.prefix);
    let delete = ["delete_queue", &name];
    let told = async {
        let mut before = 0;
        loop {
            match driver.fetch(&queue, 10, crate::world::DEADLINE).await {
                Ok(came) if came.is_empty() => panic!("nobody was told"),
                Ok(came) => before += came.len(),
                Err(_) => return before,
            }
        }
    };
    let (before, _) = tokio::join!(told, world.ctl(&delete));
    // The other five may have been fetched before it went, one by one.
    assert!(before <= 5, "{before}");
    let answers = driver.publish(&messages(&queue, 0..1)).await.unwrap();
    assert_eq!(answers, [missing(&queue)]);
    // The channel was closed with an error each time; nothing has to be opened again by hand.
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 20..22)).await;
    assert_eq!(take(&*driver, &queue, 2).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_are_too_long_for_a_routing_key_come_back_whole() {
    let world = World::new().await;
    let driver = world.open().await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    let mut outgoing = message(&queue, 0);
    outgoing.topic = "报表.".repeat(200);
    publish(&*driver, std::slice::from_ref(&outgoing)).await;
    assert_eq!(take(&*driver, &queue, 1).await[0].topic, outgoing.topic);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_queue_that_is_lost_is_made_again() {
    let world = World::new().await;
    let driver = world.open().await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..1)).await;
    let came = take(&*driver, &queue, 1).await;
    let bury = [(came[0].receipt, Settlement::Dead("why".into()))];
    let told = driver.settle(&queue, &bury).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
    driver.settle(&queue, &bury).await.unwrap();
    let dead = take(&*driver, &QueueId::Dead, 1).await;
    assert_eq!(DeadLetter::decode(&dead[0].payload).unwrap().reason, "why");
    assert!(driver.delete(&queue, true).await.unwrap(), "it is acked");
}

/// What cannot be buried stays handed out, and only that.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_not_taken_holds_up_no_acks() {
    let world = World::new().await;
    let driver = world.open().await;
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&*driver, &messages(&queue, 0..5)).await;
    let came = take(&*driver, &queue, 5).await;
    let mut settlements: Vec<_> = came.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
    // There is no queue for dead letters yet.
    settlements[2].1 = Settlement::Dead("why".into());
    let told = driver.settle(&queue, &settlements).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
    drop(driver);
    let driver = world.open().await;
    let again = take(&*driver, &queue, 1).await;
    assert_eq!(numbers(&again), [2], "the others are acked");
    assert_eq!(
        driver.stats(std::slice::from_ref(&queue)).await.unwrap()[0].ready,
        0
    );
}
