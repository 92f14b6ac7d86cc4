//! What `docs/rabbitmq.md` gives a worker, and what it does not.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Announcement, Channel, Driver, ErrorKind, QueueId, Settlement};
use cueline_broker_rabbitmq::RabbitDriver;

use crate::world::{World, executor, message, messages, numbers, publish, settle, take};

/// The patterns of the page, for the worker `one` of the group `billing` whose user is `worker-one`.
fn patterns(prefix: &str) -> [String; 3] {
    let p = prefix;
    [
        format!(r"^{p}\.l\.worker-one\."),
        format!(r"^{p}\.(results|dead|live|l\.worker-one\..*)$"),
        format!(r"^{p}\.(x\.billing\.one|live|l\.worker-one\..*)$"),
    ]
}

async fn worker(world: &World) -> Arc<RabbitDriver> {
    let [configure, write, read] = patterns(&world.prefix);
    world
        .server(move |server| {
            // Left from another test.
            let _ = server.ctl(&["delete_user", "worker-one"]);
            server.add_user("worker-one", "secret", "/", [&configure, &write, &read])
        })
        .await;
    let live = format!("{}.live", world.prefix);
    let (write, read) = (
        r"^(heartbeat|reply\..*|control\.billing\.one)$",
        r"^control\.billing\.one$",
    );
    world
        .ctl(&[
            "set_topic_permissions",
            "-p",
            "/",
            "worker-one",
            &live,
            write,
            read,
        ])
        .await;
    let url = world.server.url_as("worker-one", "secret", "/");
    Arc::new(RabbitDriver::open(&url, world.options()).await.unwrap())
}

fn control(executor: &str) -> Channel {
    Channel::Control {
        group: "billing".into(),
        executor: executor.into(),
    }
}

fn text(text: &'static str) -> Announcement {
    Announcement {
        payload: Bytes::from_static(text.as_bytes()),
        reply_to: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_can_do_its_work_and_nothing_else() {
    let world = World::new().await;
    let scheduler = world.open().await;
    let (own, other) = (executor("one"), executor("two"));
    for queue in [&own, &other, &QueueId::Results, &QueueId::Dead] {
        scheduler.declare(queue).await.unwrap();
    }
    let mut beats = scheduler.listen(&Channel::Heartbeats).await.unwrap();
    let worker = worker(&world).await;

    // What a worker does when it starts: its queues are there, and that is enough.
    for queue in [&own, &QueueId::Results, &QueueId::Dead] {
        worker.declare(queue).await.unwrap();
    }
    let mut orders = worker.listen(&control("one")).await.unwrap();
    worker
        .announce(&Channel::Heartbeats, text("beat"))
        .await
        .unwrap();
    assert_eq!(&beats.recv().await.unwrap().payload[..], b"beat");
    // By this it knows that it is heard.
    worker
        .announce(&control("one"), text("echo"))
        .await
        .unwrap();
    assert_eq!(&orders.recv().await.unwrap().payload[..], b"echo");

    publish(&*scheduler, &messages(&own, 0..3)).await;
    let came = take(&*worker, &own, 3).await;
    assert_eq!(numbers(&came), [0, 1, 2]);
    settle(&*worker, &own, &came[..2], &Settlement::Ack).await;
    settle(&*worker, &own, &came[2..], &Settlement::Dead("bad".into())).await;
    assert_eq!(take(&*scheduler, &QueueId::Dead, 1).await.len(), 1);
    publish(&*worker, &messages(&QueueId::Results, 0..3)).await;
    assert_eq!(take(&*scheduler, &QueueId::Results, 3).await.len(), 3);

    let reply = Channel::Replies("asker".into());
    let mut replies = scheduler.listen(&reply).await.unwrap();
    let order = Announcement {
        reply_to: Some(reply.clone()),
        ..text("ping")
    };
    scheduler.announce(&control("one"), order).await.unwrap();
    let heard = orders.recv().await.unwrap();
    assert_eq!(
        (&heard.payload[..], heard.reply_to),
        (&b"ping"[..], Some(reply.clone()))
    );
    worker.announce(&reply, text("pong")).await.unwrap();
    assert_eq!(&replies.recv().await.unwrap().payload[..], b"pong");

    forbidden(&scheduler, &worker, &own, &other).await;
}

async fn forbidden(
    scheduler: &RabbitDriver,
    worker: &RabbitDriver,
    own: &QueueId,
    other: &QueueId,
) {
    publish(scheduler, &[message(other, 0)]).await;
    for queue in [other, &QueueId::Results, &QueueId::Dead] {
        let told = worker.fetch(queue, 1, Duration::ZERO).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Permanent, "{queue}: {told}");
    }
    for queue in [own, other, &QueueId::Requests] {
        assert!(
            worker.publish(&[message(queue, 9)]).await.is_err(),
            "{queue}"
        );
    }
    for queue in [own, other, &QueueId::Results] {
        assert!(worker.delete(queue, false).await.is_err(), "{queue}");
    }
    assert!(worker.listen(&control("two")).await.is_err());
    assert!(worker.listen(&Channel::Heartbeats).await.is_err());
    // Not there, and not his to make: somebody else may still make it.
    let told = worker.declare(&executor("three")).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
    assert_eq!(
        take(scheduler, other, 1).await.len(),
        1,
        "it was left alone"
    );
    // None of the refusals has broken anything.
    publish(scheduler, &[message(own, 4)]).await;
    assert_eq!(numbers(&take(worker, own, 1).await), [4]);
    publish(worker, &[message(&QueueId::Results, 5)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_or_vhost_is_permanent_and_not_repeated_in_the_error() {
    let world = World::new().await;
    for url in [
        world.server.url_as("guest", "wrong-secret", "/"),
        world.server.url("nowhere"),
        "http://guest:wrong-secret@127.0.0.1".into(),
    ] {
        let told = RabbitDriver::open(&url, world.options()).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Permanent, "{told}");
        assert!(!format!("{told:?}").contains("wrong-secret"), "{told:?}");
    }
}
