//! The permissions of `docs/nats.md` suffice and allow nothing else.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event};
use bytes::Bytes;
use cueline_broker::{
    Announcement, Broker, BrokerOptions, Channel, DeadLetter, Driver, ErrorKind, QueueId,
    Settlement, StartLog,
};
use cueline_broker_nats::{Identity, NatsDriver, NatsOptions};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::{SOON, eventually};
use tokio::time::timeout;

use crate::fixture::{
    FETCH_WAIT, ack, connect_to, executor, fetch_all, message, message_count, messages, numbers,
    on_each_version, patient, publish, settle,
};

/// The server configuration in `docs/nats.md`.
fn documented() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nats.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, from) = page
        .split_once("```nats\n")
        .expect("a block of the server's configuration");
    from.split_once("```").unwrap().0.to_owned()
}

fn start(version: Version) -> Nats {
    Nats::start_with(version, |_| Ok(documented())).unwrap()
}

async fn scheduler(server: &Nats) -> Arc<NatsDriver> {
    let address = format!("nats://scheduler:scheduler@{}", server.addr());
    Arc::new(connect_to(&address, patient()).await)
}

async fn worker(server: &Nats) -> Arc<NatsDriver> {
    let own = NatsOptions {
        identity: Some(Identity {
            group: "billing".into(),
            executor: "one".into(),
        }),
        ..patient()
    };
    let address = format!("nats://billing-one:worker@{}", server.addr());
    Arc::new(connect_to(&address, own).await)
}

fn all_queues() -> [QueueId; 5] {
    [
        executor("one"),
        executor("two"),
        QueueId::Results,
        QueueId::Requests,
        QueueId::Dead,
    ]
}

async fn declare_all(scheduler: &NatsDriver) {
    for queue in all_queues() {
        scheduler.declare(&queue).await.unwrap();
    }
    scheduler.declare_log(&start_log("one")).await.unwrap();
    scheduler.declare_proofs().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_and_a_worker_can_make_all_their_calls() {
    on_each_version(async |version| {
        let server = start(version);
        let (scheduler, worker) = (scheduler(&server).await, worker(&server).await);
        declare_all(&scheduler).await;
        let own = &executor("one");
        for queue in [own, &QueueId::Results, &QueueId::Dead] {
            worker.declare(queue).await.unwrap();
        }
        publish(&scheduler, &messages(own, 0..4)).await;
        let fetched = fetch_all(&worker, own, 4).await;
        assert_eq!(numbers(&fetched), [0, 1, 2, 3]);
        ack(&worker, own, &fetched[..2]).await;
        let retry = Settlement::Retry(Duration::ZERO);
        settle(&worker, own, &fetched[2..3], retry).await;
        let dead = Settlement::Dead("why".into());
        settle(&worker, own, &fetched[3..], dead).await;
        let again = fetch_all(&worker, own, 1).await;
        ack(&worker, own, &again).await;
        let letters = fetch_all(&scheduler, &QueueId::Dead, 1).await;
        let letter = DeadLetter::decode(&letters[0].payload).unwrap();
        assert_eq!(letter.reason, "why");
        ack(&scheduler, &QueueId::Dead, &letters).await;
        publish(&worker, &messages(&QueueId::Results, 0..10)).await;
        let reports = fetch_all(&scheduler, &QueueId::Results, 10).await;
        ack(&scheduler, &QueueId::Results, &reports).await;
        assert_eq!(message_count(&scheduler).await, 0);
        assert_channels_work(&scheduler, &worker).await;
        for queue in all_queues() {
            assert!(scheduler.delete(&queue, true).await.unwrap(), "{queue}");
        }
    })
    .await;
}

fn start_log(executor: &str) -> StartLog {
    StartLog {
        group: "billing".into(),
        executor: executor.into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_appends_to_its_own_start_log_and_only_a_scheduler_reads_it() {
    on_each_version(async |version| {
        let server = start(version);
        let (scheduler, worker) = (scheduler(&server).await, worker(&server).await);
        let (own, other) = (start_log("one"), start_log("two"));
        // The worker may not look the stream up, so it cannot tell that the log is missing.
        let early = worker.append(&own, "early".into()).await.unwrap_err();
        assert_eq!(early.kind(), ErrorKind::Transient, "{early}");
        declare_all(&scheduler).await;
        worker.append(&own, "start".into()).await.unwrap();
        for (call, ended) in [
            ("append", worker.append(&other, "forged".into()).await),
            ("read", worker.read_log(&own).await.map(drop)),
            ("delete", worker.delete_log(&own).await),
        ] {
            let error = ended.expect_err(call);
            assert_eq!(error.kind(), ErrorKind::Permanent, "{call}: {error}");
            let message = error.to_string();
            assert!(message.contains("does not permit"), "{call}: {message}");
        }
        assert_eq!(scheduler.read_log(&own).await.unwrap(), ["start"]);
        assert!(scheduler.read_log(&other).await.unwrap().is_empty());
        scheduler.delete_log(&own).await.unwrap();
        assert!(scheduler.read_log(&own).await.unwrap().is_empty());
    })
    .await;
}

fn announcement(payload: impl Into<Bytes>) -> Announcement {
    Announcement {
        payload: payload.into(),
        reply_to: None,
    }
}

async fn assert_channels_work(scheduler: &Arc<NatsDriver>, worker: &Arc<NatsDriver>) {
    let mut heartbeats = scheduler.listen(&Channel::Heartbeats).await.unwrap();
    let heartbeat = announcement("heartbeat");
    worker
        .announce(&Channel::Heartbeats, heartbeat)
        .await
        .unwrap();
    let stored = worker.announce_stored(&Channel::Heartbeats, "stored".into());
    stored.await.unwrap();
    for expected in ["heartbeat", "stored"] {
        let received = timeout(SOON, heartbeats.recv()).await.unwrap().unwrap();
        assert_eq!(received.payload, expected);
    }
    // A scheduler sends to itself to check its connection.
    let own = Channel::Replies("self".into());
    let mut loopbacks = scheduler.listen(&own).await.unwrap();
    let stored = scheduler.announce_stored(&own, "loopback".into());
    stored.await.unwrap();
    let received = timeout(SOON, loopbacks.recv()).await.unwrap().unwrap();
    assert_eq!(received.payload, "loopback");

    let control = Channel::Control {
        group: "billing".into(),
        executor: "one".into(),
    };
    let mut commands = worker.listen(&control).await.unwrap();
    // A worker sends to its own channel to check its connection.
    worker
        .announce(&control, announcement("loopback"))
        .await
        .unwrap();
    let received = timeout(SOON, commands.recv()).await.unwrap().unwrap();
    assert_eq!(received.payload, "loopback");
    let answering = tokio::spawn({
        let worker = Arc::clone(worker);
        async move {
            for _ in 0..3 {
                let command = commands.recv().await.unwrap();
                let (reply_to, answer) = (command.reply_to.unwrap(), announcement(command.payload));
                worker.announce(&reply_to, answer).await.unwrap();
            }
        }
    });
    let asking = Broker::from_arc(scheduler.clone(), BrokerOptions::default());
    for command in ["cancel", "drain", "ping"] {
        let answer = asking.ask(&control, Bytes::from(command), SOON).await;
        assert_eq!(answer.unwrap(), Some(Bytes::from(command)));
    }
    answering.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_not_permitted_fails_at_once() {
    on_each_version(async |version| {
        let server = start(version);
        let (scheduler, worker) = (scheduler(&server).await, worker(&server).await);
        declare_all(&scheduler).await;
        let (one, two) = (executor("one"), executor("two"));
        publish(&scheduler, &messages(&two, 0..5)).await;
        let to = |queue| [message(queue, 9)];
        for (call, ended) in [
            ("fetch", worker.fetch(&two, 1, FETCH_WAIT).await.map(drop)),
            ("publish", worker.publish(&to(&two)).await.map(drop)),
            (
                "publish to itself",
                worker.publish(&to(&one)).await.map(drop),
            ),
            (
                "request",
                worker.publish(&to(&QueueId::Requests)).await.map(drop),
            ),
            (
                "fetch results",
                worker
                    .fetch(&QueueId::Results, 1, FETCH_WAIT)
                    .await
                    .map(drop),
            ),
            ("delete", worker.delete(&two, false).await.map(drop)),
            (
                "delete results",
                worker.delete(&QueueId::Results, true).await.map(drop),
            ),
            ("stats", worker.stats(&[]).await.map(drop)),
        ] {
            let error = ended.expect_err(call);
            assert_eq!(error.kind(), ErrorKind::Permanent, "{call}: {error}");
            let message = error.to_string();
            assert!(message.contains("does not permit"), "{call}: {message}");
        }
        assert_eq!(message_count(&scheduler).await, 5);
    })
    .await;
}

/// A client of the worker's user, and the errors that the server reports to it.
async fn raw_worker_client(server: &Nats) -> (Client, Arc<Mutex<Vec<String>>>) {
    let errors = Arc::<Mutex<Vec<String>>>::default();
    let reported = Arc::clone(&errors);
    let options = ConnectOptions::with_user_and_password("billing-one".into(), "worker".into())
        .custom_inbox_prefix("cueline.inbox.billing.one")
        .event_callback(move |event| {
            if let Event::ServerError(error) = event {
                reported.lock().unwrap().push(error.to_string());
            }
            std::future::ready(())
        });
    let connected = eventually("a client connects", SOON, async || {
        options.clone().connect(server.url()).await
    });
    (connected.await.unwrap(), errors)
}

/// Without the right to publish dead letters, a bad trigger comes again. The good ones that came with it must not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_may_not_be_stored_keeps_no_ack_back() {
    let right = "\"cueline.dead.billing.one.>\", ";
    let documented = documented();
    assert!(documented.contains(right), "{documented}");
    let config = documented.replace(right, "");
    let server = Nats::start_with(Version::V2_12, |_| Ok(config)).unwrap();
    let (scheduler, worker) = (scheduler(&server).await, worker(&server).await);
    declare_all(&scheduler).await;
    let own = &executor("one");
    publish(&scheduler, &messages(own, 0..3)).await;
    let fetched = fetch_all(&worker, own, 3).await;
    let dead = Settlement::Dead("why".into());
    let how = [Settlement::Ack, dead, Settlement::Ack];
    let settlements: Vec<_> = fetched.iter().map(|d| d.receipt).zip(how).collect();
    let error = worker.settle(own, &settlements).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permanent, "{error}");
    assert_eq!(
        message_count(&scheduler).await,
        1,
        "only the bad one is left"
    );
}

/// Subjects that a worker's user must not publish to.
const FORBIDDEN_TO_PUBLISH: [&str; 26] = [
    "$JS.API.STREAM.PURGE.CUELINE_TRIGGERS",
    "$JS.API.STREAM.DELETE.CUELINE_TRIGGERS",
    "$JS.API.STREAM.UPDATE.CUELINE_TRIGGERS",
    "$JS.API.STREAM.CREATE.OTHER",
    "$JS.API.STREAM.MSG.GET.CUELINE_TRIGGERS",
    "$JS.API.STREAM.MSG.DELETE.CUELINE_TRIGGERS",
    "$JS.API.DIRECT.GET.CUELINE_TRIGGERS",
    "$JS.API.CONSUMER.CREATE.CUELINE_TRIGGERS.billing~one.cueline.trigger.billing.>",
    "$JS.API.CONSUMER.DELETE.CUELINE_TRIGGERS.billing~two",
    "$JS.API.CONSUMER.MSG.NEXT.CUELINE_TRIGGERS.billing~two",
    "$JS.ACK.CUELINE_TRIGGERS.billing~two.1.1.1.1.0",
    "cueline.trigger.billing.one.job",
    "cueline.trigger.billing.two.job",
    "cueline.result.billing.two.job",
    "cueline.heartbeat.billing.two",
    "cueline.control.billing.two",
    "cueline.reply.another",
    "cueline.start.billing.two",
    "cueline.start.billing.one.more",
    "cueline.proof.billing.two",
    "$JS.API.STREAM.CREATE.CUELINE_PROOFS",
    "$JS.API.STREAM.DELETE.CUELINE_PROOFS",
    "$JS.API.STREAM.INFO.CUELINE_STARTS",
    "$JS.API.STREAM.PURGE.CUELINE_STARTS",
    "$JS.API.STREAM.MSG.GET.CUELINE_STARTS",
    "$JS.API.CONSUMER.CREATE.CUELINE_STARTS.reader~x.cueline.start.billing.one",
];

/// Subjects that a worker's user must not subscribe to.
const FORBIDDEN_TO_SUBSCRIBE: [&str; 7] = [
    ">",
    "cueline.start.>",
    "cueline.trigger.>",
    "cueline.inbox.>",
    "cueline.control.billing.two",
    "cueline.reply.>",
    "$JS.EVENT.ADVISORY.>",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_workers_user_is_denied_all_other_subjects() {
    on_each_version(async |version| {
        let server = start(version);
        let scheduler = scheduler(&server).await;
        declare_all(&scheduler).await;
        publish(&scheduler, &messages(&executor("two"), 0..5)).await;
        let (client, errors) = raw_worker_client(&server).await;
        for subject in FORBIDDEN_TO_PUBLISH {
            client.publish(subject, Bytes::new()).await.unwrap();
        }
        let mut subscriptions = Vec::new();
        for subject in FORBIDDEN_TO_SUBSCRIBE {
            subscriptions.push(client.subscribe(subject).await.unwrap());
        }
        for subject in FORBIDDEN_TO_PUBLISH.iter().chain(&FORBIDDEN_TO_SUBSCRIBE) {
            let quoted = format!("\"{subject}\"");
            eventually(format!("{subject} is denied"), SOON, async || {
                let errors = errors.lock().unwrap();
                let is_denied = errors.iter().any(|e| e.contains(&quoted));
                is_denied.then_some(()).ok_or("no such error")
            })
            .await
            .unwrap();
        }
        assert_eq!(message_count(&scheduler).await, 5);
        let all = fetch_all(&scheduler, &executor("two"), 5).await;
        assert_eq!(numbers(&all), (0..5).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_starts_first_fetches_triggers_once_a_scheduler_has_declared_its_queue() {
    let server = start(Version::V2_12);
    let worker = worker(&server).await;
    // The worker may not create the queue, but it starts anyway.
    worker.declare(&executor("one")).await.unwrap();
    assert!(worker.fetch(&executor("one"), 1, FETCH_WAIT).await.is_err());
    let publishing = Broker::from_arc(scheduler(&server).await, BrokerOptions::default());
    let outcomes = publishing.publish(&messages(&executor("one"), 0..3)).await;
    assert_eq!(outcomes.unwrap(), vec![Ok(()); 3]);
    let fetched = fetch_all(&worker, &executor("one"), 3).await;
    assert_eq!(numbers(&fetched), [0, 1, 2]);
}
