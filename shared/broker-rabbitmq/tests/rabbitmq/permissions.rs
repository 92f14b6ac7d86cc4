//! The permissions that `docs/rabbitmq.md` gives a worker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Announcement, Channel, Driver, ErrorKind, QueueId, Settlement, StartLog};
use cueline_broker_rabbitmq::RabbitDriver;

use crate::fixture::{Fixture, executor, message, messages, numbers, publish, settle, take};

/// The patterns of that page for the worker `one` of the group `billing` with the user `worker-one`.
fn patterns(prefix: &str) -> [String; 3] {
    let p = prefix;
    [
        format!(r"^{p}\.l\.worker-one\."),
        format!(r"^{p}\.(results|dead|live|starts|l\.worker-one\..*)$"),
        format!(r"^{p}\.(x\.billing\.one|live|l\.worker-one\..*)$"),
    ]
}

async fn worker(fixture: &Fixture) -> Arc<RabbitDriver> {
    let [configure, write, read] = patterns(&fixture.prefix);
    fixture
        .server(move |server| {
            server.add_user("worker-one", "secret", "/", [&configure, &write, &read])
        })
        .await;
    for (exchange, write, read) in [
        (
            "live",
            r"^(heartbeat|proof|reply\..*|control\.billing\.one)$",
            r"^control\.billing\.one$",
        ),
        ("starts", r"^billing\.one$", "^$"),
    ] {
        let exchange = format!("{}.{exchange}", fixture.prefix);
        let call = ["set_topic_permissions", "-p", "/", "worker-one"];
        fixture
            .ctl(&[&call[..], &[exchange.as_str(), write, read]].concat())
            .await;
    }
    let url = fixture.server.url_as("worker-one", "secret", "/");
    Arc::new(RabbitDriver::open(&url, fixture.options()).await.unwrap())
}

fn control(executor: &str) -> Channel {
    Channel::Control {
        group: "billing".into(),
        executor: executor.into(),
    }
}

fn start_log(executor: &str) -> StartLog {
    StartLog {
        group: "billing".into(),
        executor: executor.into(),
    }
}

/// A worker appends to its own start log, and only a scheduler reads it.
async fn start_logs(scheduler: &RabbitDriver, worker: &RabbitDriver) {
    let (own, other) = (start_log("one"), start_log("two"));
    for log in [&own, &other] {
        scheduler.declare_log(log).await.unwrap();
    }
    worker.append(&own, "start".into()).await.unwrap();
    assert!(worker.append(&other, "forged".into()).await.is_err());
    let error = worker.read_log(&own).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permanent, "{error}");
    assert!(worker.delete_log(&own).await.is_err());
    // Another user may still declare it.
    let error = worker.declare_log(&start_log("three")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    worker.append(&own, "again".into()).await.unwrap();
    assert_eq!(scheduler.read_log(&own).await.unwrap(), ["start", "again"]);
    assert!(scheduler.read_log(&other).await.unwrap().is_empty());
}

fn text(text: &'static str) -> Announcement {
    Announcement {
        payload: Bytes::from_static(text.as_bytes()),
        reply_to: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_has_the_permissions_of_its_work_and_no_others() {
    let fixture = Fixture::shared().await;
    let scheduler = fixture.open().await;
    let (own, other) = (executor("one"), executor("two"));
    for queue in [&own, &other, &QueueId::Results, &QueueId::Dead] {
        scheduler.declare(queue).await.unwrap();
    }
    scheduler.declare_proofs().await.unwrap();
    let mut heartbeats = scheduler.listen(&Channel::Heartbeats).await.unwrap();
    let worker = worker(&fixture).await;

    // A worker declares its queues when it starts. Its user may not create them, so they must exist.
    for queue in [&own, &QueueId::Results, &QueueId::Dead] {
        worker.declare(queue).await.unwrap();
    }
    let mut orders = worker.listen(&control("one")).await.unwrap();
    worker
        .announce(&Channel::Heartbeats, text("beat"))
        .await
        .unwrap();
    assert_eq!(&heartbeats.recv().await.unwrap().payload[..], b"beat");
    let stored = worker.announce_stored(&Channel::Heartbeats, "stored".into());
    stored.await.unwrap();
    assert_eq!(&heartbeats.recv().await.unwrap().payload[..], b"stored");
    // The message with which a worker checks that its announcements arrive.
    worker
        .announce(&control("one"), text("echo"))
        .await
        .unwrap();
    assert_eq!(&orders.recv().await.unwrap().payload[..], b"echo");

    publish(&*scheduler, &messages(&own, 0..3)).await;
    let received = take(&*worker, &own, 3).await;
    assert_eq!(numbers(&received), [0, 1, 2]);
    settle(&*worker, &own, &received[..2], &Settlement::Ack).await;
    settle(
        &*worker,
        &own,
        &received[2..],
        &Settlement::Dead("bad".into()),
    )
    .await;
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
    let received = orders.recv().await.unwrap();
    assert_eq!(
        (&received.payload[..], received.reply_to),
        (&b"ping"[..], Some(reply.clone()))
    );
    worker.announce(&reply, text("pong")).await.unwrap();
    assert_eq!(&replies.recv().await.unwrap().payload[..], b"pong");

    start_logs(&scheduler, &worker).await;
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
        let error = worker.fetch(queue, 1, Duration::ZERO).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permanent, "{queue}: {error}");
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
    // Transient: another user may still declare it.
    let error = worker.declare(&executor("three")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert_eq!(
        take(scheduler, other, 1).await.len(),
        1,
        "the worker received the message"
    );
    // Both drivers work after the refusals.
    publish(scheduler, &[message(own, 4)]).await;
    assert_eq!(numbers(&take(worker, own, 1).await), [4]);
    publish(worker, &[message(&QueueId::Results, 5)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_or_vhost_is_permanent_and_not_repeated_in_the_error() {
    let fixture = Fixture::shared().await;
    for url in [
        fixture.server.url_as("guest", "wrong-secret", "/"),
        fixture.server.url("nowhere"),
        "http://guest:wrong-secret@127.0.0.1".into(),
    ] {
        let error = RabbitDriver::open(&url, fixture.options())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permanent, "{error}");
        assert!(!format!("{error:?}").contains("wrong-secret"), "{error:?}");
    }
}
