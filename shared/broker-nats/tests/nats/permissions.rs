//! The rights of `docs/nats.md` are enough, and no more than that.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use crate::ground::{
    DEADLINE, SOON, ack, executor, left, message, messages, numbers, options, publish, settle,
    take, until,
};
use async_nats::{Client, ConnectOptions, Event};
use bytes::Bytes;
use cueline_broker::{
    Announcement, Broker, BrokerOptions, Channel, DeadLetter, Driver, ErrorKind, QueueId,
    Settlement,
};
use cueline_broker_nats::{Identity, NatsDriver, NatsOptions};
use cueline_test_servers::nats::{Nats, Version};
use tokio::time::timeout;

/// The configuration that the documentation shows.
fn documented() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nats.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, from) = page
        .split_once("```nats\n")
        .expect("a block of the server's configuration");
    from.split_once("```").unwrap().0.to_owned()
}

fn server(version: Version) -> Nats {
    Nats::start_with(version, |_| Ok(documented())).unwrap()
}

async fn scheduler(server: &Nats) -> Arc<NatsDriver> {
    let address = format!("nats://scheduler:scheduler@{}", server.addr());
    Arc::new(NatsDriver::connect(&address, options()).await.unwrap())
}

async fn worker(server: &Nats) -> Arc<NatsDriver> {
    let own = NatsOptions {
        identity: Some(Identity {
            group: "billing".into(),
            executor: "one".into(),
        }),
        ..options()
    };
    let address = format!("nats://billing-one:worker@{}", server.addr());
    Arc::new(NatsDriver::connect(&address, own).await.unwrap())
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_and_a_worker_can_do_all_that_they_do() {
    for version in Version::ALL {
        let server = server(version);
        let (scheduler, worker) = (scheduler(&server).await, worker(&server).await);
        for queue in all_queues() {
            scheduler.declare(&queue).await.unwrap();
        }
        let own = &executor("one");
        for queue in [own, &QueueId::Results, &QueueId::Dead] {
            worker.declare(queue).await.unwrap();
        }
        publish(&scheduler, &messages(own, 0..4)).await;
        let came = take(&worker, own, 4).await;
        assert_eq!(numbers(&came), [0, 1, 2, 3]);
        ack(&worker, own, &came[..2]).await;
        settle(&worker, own, &came[2..3], Settlement::Retry(Duration::ZERO)).await;
        settle(&worker, own, &came[3..], Settlement::Dead("why".into())).await;
        let again = take(&worker, own, 1).await;
        ack(&worker, own, &again).await;
        let letters = take(&scheduler, &QueueId::Dead, 1).await;
        assert_eq!(
            DeadLetter::decode(&letters[0].payload).unwrap().reason,
            "why"
        );
        ack(&scheduler, &QueueId::Dead, &letters).await;
        publish(&worker, &messages(&QueueId::Results, 0..10)).await;
        ack(
            &scheduler,
            &QueueId::Results,
            &take(&scheduler, &QueueId::Results, 10).await,
        )
        .await;
        assert_eq!(left(&scheduler).await, 0);
        assert_channels_work(&scheduler, &worker).await;
        for queue in all_queues() {
            assert!(scheduler.delete(&queue, true).await.unwrap(), "{queue}");
        }
    }
}

async fn assert_channels_work(scheduler: &Arc<NatsDriver>, worker: &Arc<NatsDriver>) {
    let mut heartbeats = scheduler.listen(&Channel::Heartbeats).await.unwrap();
    let beat = Announcement {
        payload: Bytes::from("beat"),
        reply_to: None,
    };
    worker.announce(&Channel::Heartbeats, beat).await.unwrap();
    let heard = timeout(DEADLINE, heartbeats.recv()).await.unwrap().unwrap();
    assert_eq!(heard.payload, "beat");

    let control = Channel::Control {
        group: "billing".into(),
        executor: "one".into(),
    };
    let mut orders = worker.listen(&control).await.unwrap();
    // By this it knows that it is heard.
    let echo = Announcement {
        payload: Bytes::from("echo"),
        reply_to: None,
    };
    worker.announce(&control, echo).await.unwrap();
    let heard = timeout(DEADLINE, orders.recv()).await.unwrap().unwrap();
    assert_eq!(heard.payload, "echo");
    let answering = tokio::spawn({
        let worker = Arc::clone(worker);
        async move {
            for _ in 0..3 {
                let order = orders.recv().await.unwrap();
                let answer = Announcement {
                    payload: order.payload,
                    reply_to: None,
                };
                worker
                    .announce(&order.reply_to.unwrap(), answer)
                    .await
                    .unwrap();
            }
        }
    });
    let asking = Broker::from_arc(scheduler.clone(), BrokerOptions::default());
    for order in ["cancel", "drain", "ping"] {
        let answer = asking
            .ask(&control, Bytes::from(order), DEADLINE)
            .await
            .unwrap();
        assert_eq!(answer, Some(Bytes::from(order)));
    }
    answering.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_told_at_once_what_it_may_not_do() {
    for version in Version::ALL {
        let server = server(version);
        let (scheduler, worker) = (scheduler(&server).await, worker(&server).await);
        for queue in all_queues() {
            scheduler.declare(&queue).await.unwrap();
        }
        publish(&scheduler, &messages(&executor("two"), 0..5)).await;
        let two = executor("two");
        let fetched = worker.fetch(&two, 1, SOON).await.map(drop);
        let published = worker.publish(&[message(&two, 9)]).await.map(drop);
        let own = worker
            .publish(&[message(&executor("one"), 9)])
            .await
            .map(drop);
        let requested = worker
            .publish(&[message(&QueueId::Requests, 9)])
            .await
            .map(drop);
        let stolen = worker.fetch(&QueueId::Results, 1, SOON).await.map(drop);
        let deleted = worker.delete(&two, false).await.map(drop);
        let emptied = worker.delete(&QueueId::Results, true).await.map(drop);
        let counted = worker.stats(&[]).await.map(drop);
        for (what, ended) in [
            ("fetch", fetched),
            ("publish", published),
            ("publish to itself", own),
            ("request", requested),
            ("fetch results", stolen),
            ("delete", deleted),
            ("delete results", emptied),
            ("stats", counted),
        ] {
            let told = ended.expect_err(what);
            assert_eq!(told.kind(), ErrorKind::Permanent, "{what}: {told}");
            assert!(
                told.to_string().contains("does not permit"),
                "{what}: {told}"
            );
        }
        assert_eq!(left(&scheduler).await, 5);
    }
}

/// A connection of the worker's user, and what the server forbade it.
async fn intruder(server: &Nats) -> (Client, Arc<Mutex<Vec<String>>>) {
    let denied = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&denied);
    let client = ConnectOptions::with_user_and_password("billing-one".into(), "worker".into())
        .custom_inbox_prefix("cueline.inbox.billing.one")
        .event_callback(move |event| {
            if let Event::ServerError(error) = event {
                seen.lock().unwrap().push(error.to_string());
            }
            std::future::ready(())
        })
        .connect(server.url())
        .await
        .unwrap();
    (client, denied)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_s_user_can_do_no_harm_by_other_means() {
    for version in Version::ALL {
        let server = server(version);
        let scheduler = scheduler(&server).await;
        for queue in all_queues() {
            scheduler.declare(&queue).await.unwrap();
        }
        publish(&scheduler, &messages(&executor("two"), 0..5)).await;
        let (client, denied) = intruder(&server).await;
        let forbidden = [
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
            "cueline.reply.somebody",
        ];
        for subject in forbidden {
            client.publish(subject, Bytes::new()).await.unwrap();
        }
        let unheard = [
            ">",
            "cueline.trigger.>",
            "cueline.inbox.>",
            "cueline.control.billing.two",
            "cueline.reply.>",
            "$JS.EVENT.ADVISORY.>",
        ];
        let mut subscriptions = Vec::new();
        for subject in unheard {
            subscriptions.push(client.subscribe(subject).await.unwrap());
        }
        for subject in forbidden.iter().chain(&unheard) {
            let quoted = format!("\"{subject}\"");
            until(&format!("{subject} is forbidden"), || async {
                denied
                    .lock()
                    .unwrap()
                    .iter()
                    .any(|e| e.contains(&quoted))
                    .then_some(())
            })
            .await;
        }
        assert_eq!(left(&scheduler).await, 5);
        let all = take(&scheduler, &executor("two"), 5).await;
        assert_eq!(numbers(&all), (0..5).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_first_takes_triggers_when_a_scheduler_has_come() {
    let server = server(Version::V2_12);
    let worker = worker(&server).await;
    // It may not create it, and that is no reason not to start.
    worker.declare(&executor("one")).await.unwrap();
    assert!(worker.fetch(&executor("one"), 1, SOON).await.is_err());
    let publishing = Broker::from_arc(scheduler(&server).await, BrokerOptions::default());
    let answers = publishing
        .publish(&messages(&executor("one"), 0..3))
        .await
        .unwrap();
    assert_eq!(answers, vec![Ok(()); 3]);
    assert_eq!(
        numbers(&take(&worker, &executor("one"), 3).await),
        [0, 1, 2]
    );
}
