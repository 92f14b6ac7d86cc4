//! What is particular to NATS: what its streams and consumers are made to do, and how this driver gets along with what they
//! do by themselves. Each on both versions, where they could differ.

use std::time::Duration;

use crate::ground::{
    DEADLINE, SOON, ack, executor, left, message, messages, numbers, open, options, publish,
    publish_one, settle, take, until, with,
};
use async_nats::Client;
use bytes::Bytes;
use cueline_broker::{DeadLetter, Driver, ErrorKind, QueueId, Refusal, Settlement};
use cueline_broker_nats::{NatsDriver, NatsOptions, StreamLimits};
use cueline_test_servers::nats::{Nats, Version};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Asks the server itself.
async fn ask(client: &Client, subject: &str, body: &Value) -> Value {
    let answer = client
        .request(subject.to_owned(), body.to_string().into())
        .await
        .unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

async fn raw(server: &Nats) -> Client {
    async_nats::connect(server.url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_of_acked_messages_are_forgotten_by_a_restart_and_nothing_rests_on_them() {
    for version in Version::ALL {
        let mut server = Nats::start(version).unwrap();
        let queue = executor("one");
        let driver = with(&server.url(), std::slice::from_ref(&queue)).await;
        for _ in 0..2 {
            publish(&driver, &messages(&queue, 0..3)).await;
        }
        let all = take(&driver, &queue, 3).await;
        ack(&driver, &queue, &all).await;
        assert_eq!(left(&driver).await, 0, "each was kept once");
        server.kill().unwrap();
        server.start_again().unwrap();
        let answers = until("it publishes", || async {
            driver.publish(&messages(&queue, 0..3)).await.ok()
        })
        .await;
        assert_eq!(answers, vec![Ok(()); 3]);
        assert_eq!(numbers(&take(&driver, &queue, 3).await), [0, 1, 2]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_can_be_used_again_after_the_window_and_in_a_queue_made_anew() {
    let server = Nats::start(Version::V2_10).unwrap();
    let queue = executor("one");
    let driver = with(&server.url(), std::slice::from_ref(&queue)).await;
    publish(&driver, &messages(&queue, 0..1)).await;
    driver.delete(&queue, false).await.unwrap();
    driver.declare(&queue).await.unwrap();
    publish(&driver, &messages(&queue, 0..1)).await;
    let again = take(&driver, &queue, 1).await;
    ack(&driver, &queue, &again).await;

    let short = NatsOptions {
        prefix: "short".into(),
        duplicate_window: Duration::from_millis(300),
        ..options()
    };
    let driver = NatsDriver::connect(&server.url(), short).await.unwrap();
    driver.declare(&queue).await.unwrap();
    publish(&driver, &messages(&queue, 0..1)).await;
    until("a second one is kept", || async {
        publish(&driver, &messages(&queue, 0..1)).await;
        (left(&driver).await == 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_window_every_message_is_kept() {
    let server = Nats::start(Version::V2_12).unwrap();
    let queue = executor("one");
    let plain = NatsOptions {
        duplicate_window: Duration::ZERO,
        ..options()
    };
    let driver = NatsDriver::connect(&server.url(), plain).await.unwrap();
    assert!(!driver.capabilities().deduplicates);
    driver.declare(&queue).await.unwrap();
    for _ in 0..2 {
        publish(&driver, &messages(&queue, 0..3)).await;
    }
    assert_eq!(numbers(&take(&driver, &queue, 6).await), [0, 1, 2, 0, 1, 2]);
}

/// A consumer with a last delivery leaves the message in a work queue for ever, for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_delivered_as_often_as_it_is_given_back() {
    for version in Version::ALL {
        let server = Nats::start(version).unwrap();
        let queue = executor("one");
        let driver = with(&server.url(), std::slice::from_ref(&queue)).await;
        publish(&driver, &messages(&queue, 0..1)).await;
        for deliveries in 1..20 {
            let came = take(&driver, &queue, 1).await;
            assert_eq!(came[0].deliveries, deliveries);
            settle(&driver, &queue, &came, Settlement::Retry(Duration::ZERO)).await;
        }
        let last = take(&driver, &queue, 1).await;
        ack(&driver, &queue, &last).await;
        assert_eq!(left(&driver).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_not_as_it_has_to_be_is_set_right() {
    for version in Version::ALL {
        let server = Nats::start(version).unwrap();
        let (one, client) = (executor("one"), raw(&server).await);
        let driver = with(&server.url(), &[executor("other")]).await;
        let filter = "cueline.trigger.billing.one.>";
        let config = json!({
            "name": "billing~one", "durable_name": "billing~one", "filter_subject": filter,
            "ack_policy": "explicit", "max_deliver": 2, "max_ack_pending": 7,
        });
        let create = format!("$JS.API.CONSUMER.CREATE.CUELINE_TRIGGERS.billing~one.{filter}");
        let body = json!({ "stream_name": "CUELINE_TRIGGERS", "config": config });
        let made = ask(&client, &create, &body).await;
        assert_eq!(made["config"]["max_deliver"], 2, "{made}");
        driver.declare(&one).await.unwrap();
        let info = "$JS.API.CONSUMER.INFO.CUELINE_TRIGGERS.billing~one";
        let now = ask(&client, info, &json!({})).await;
        assert_eq!(now["config"]["max_deliver"], -1, "{now}");
        assert_eq!(now["config"]["filter_subject"], filter);
        assert_eq!(now["config"]["max_ack_pending"], -1);
        assert_eq!(now["config"]["ack_wait"], 30_000_000_000_u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_another_kind_is_refused_by_name_of_the_setting() {
    for (field, value) in [
        ("retention", json!("limits")),
        ("discard", json!("old")),
        ("subjects", json!(["cueline.result.some.>"])),
    ] {
        let server = Nats::start(Version::V2_12).unwrap();
        let mut config = json!({
            "name": "CUELINE_RESULTS", "subjects": ["cueline.result.>"], "retention": "workqueue",
            "storage": "file", "discard": "new", "num_replicas": 1,
        });
        config[field] = value;
        let made = ask(
            &raw(&server).await,
            "$JS.API.STREAM.CREATE.CUELINE_RESULTS",
            &config,
        )
        .await;
        assert!(made["error"].is_null(), "{made}");
        let told = open(&server.url())
            .await
            .declare(&QueueId::Results)
            .await
            .unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Permanent);
        assert!(told.to_string().contains(field), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_has_set_stays_unless_it_is_configured_here() {
    let server = Nats::start(Version::V2_12).unwrap();
    let (client, queue) = (raw(&server).await, executor("one"));
    let driver = with(&server.url(), std::slice::from_ref(&queue)).await;
    let info = "$JS.API.STREAM.INFO.CUELINE_TRIGGERS";
    let mut config = ask(&client, info, &json!({})).await["config"].clone();
    config["max_bytes"] = json!(5_000_000);
    config["max_age"] = json!(3_600_000_000_000_u64);
    config["description"] = json!("of the night shift");
    let changed = ask(&client, "$JS.API.STREAM.UPDATE.CUELINE_TRIGGERS", &config).await;
    assert!(changed["error"].is_null(), "{changed}");
    driver.declare(&queue).await.unwrap();
    let limited = NatsOptions {
        limits: StreamLimits {
            queue_limit: Some(77),
            ..StreamLimits::default()
        },
        ..options()
    };
    let second = NatsDriver::connect(&server.url(), limited).await.unwrap();
    second.declare(&queue).await.unwrap();
    let now = ask(&client, info, &json!({})).await["config"].clone();
    assert_eq!(now["max_bytes"], 5_000_000);
    assert_eq!(now["max_age"], 3_600_000_000_000_u64);
    assert_eq!(now["description"], "of the night shift");
    assert_eq!(now["max_msgs_per_subject"], 77);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_room_refuses_and_keeps_what_it_has() {
    for version in Version::ALL {
        let server = Nats::start(version).unwrap();
        let queue = executor("one");
        let small = NatsOptions {
            limits: StreamLimits {
                max_bytes: Some(20_000),
                ..StreamLimits::default()
            },
            ..options()
        };
        let driver = NatsDriver::connect(&server.url(), small).await.unwrap();
        driver.declare(&queue).await.unwrap();
        let mut batch = messages(&queue, 0..1_000);
        for message in &mut batch {
            message.payload = Bytes::from(format!("{:0100}", message.id.parse::<u32>().unwrap()));
        }
        let answers = driver.publish(&batch).await.unwrap();
        let taken = answers.iter().filter(|answer| answer.is_ok()).count();
        assert!((20..200).contains(&taken), "{taken}");
        assert_eq!(answers[..taken], vec![Ok(()); taken]);
        let full = Err(Refusal::Full {
            queue: queue.to_string(),
            limit: taken as u64,
        });
        assert_eq!(answers[taken..], vec![full.clone(); 1_000 - taken]);
        let all = take(&driver, &queue, taken).await;
        assert_eq!(numbers(&all), (0..taken).collect::<Vec<_>>());
        ack(&driver, &queue, &all).await;
        until("there is room", || async {
            publish_one(&driver, &batch[999]).await.ok()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_another_process_deletes_is_gone_for_all() {
    for version in Version::ALL {
        let server = Nats::start(version).unwrap();
        let queue = executor("one");
        let a = with(&server.url(), std::slice::from_ref(&queue)).await;
        let b = open(&server.url()).await;
        publish(&a, &messages(&queue, 0..1)).await;
        let first = take(&a, &queue, 1).await;
        ack(&a, &queue, &first).await;
        let start = Instant::now();
        let (waiting, deleted) =
            tokio::join!(a.fetch(&queue, 10, DEADLINE), b.delete(&queue, false));
        assert!(deleted.unwrap());
        let mut told = waiting.unwrap_err();
        if told.kind() == ErrorKind::Transient {
            // A request that reaches the server while it deletes the consumer may get no answer at all; whoever asks again is told.
            told = a.fetch(&queue, 10, SOON).await.unwrap_err();
        }
        assert_eq!(told.kind(), ErrorKind::Permanent, "{told}");
        assert!(start.elapsed() < DEADLINE, "told late");
        // Heard of, not found out: what is known about a queue is believed for longer.
        let no_queue = Err(Refusal::NoQueue(queue.to_string()));
        until("the publisher has heard of it", || async {
            (publish_one(&a, &message(&queue, 5)).await == no_queue).then_some(())
        })
        .await;
        assert!(start.elapsed() < DEADLINE, "heard late");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dropped_fetch_was_about_to_get_comes_with_the_next() {
    for version in Version::ALL {
        let server = Nats::start(version).unwrap();
        let queue = executor("one");
        let driver = with(&server.url(), std::slice::from_ref(&queue)).await;
        let start = Instant::now();
        let mut came = Vec::new();
        for n in 0..200 {
            let one = messages(&queue, n..n + 1);
            // Whichever is first: the fetch is dropped at some point of its work.
            tokio::select! {
                fetched = driver.fetch(&queue, 3, DEADLINE) => came.extend(fetched.unwrap()),
                () = publish(&driver, &one) => {}
            }
        }
        while left(&driver).await > came.len() as u64 {
            came.extend(driver.fetch(&queue, 10, SOON).await.unwrap());
        }
        assert!(
            start.elapsed() < options().ack_wait,
            "{:?}",
            start.elapsed()
        );
        assert!(came.len() > 50, "{}", came.len());
        assert!(came.iter().all(|d| !d.redelivered));
        assert!(numbers(&came).is_sorted());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_payload_fits_among_the_dead_letters_whatever_is_in_it() {
    for version in Version::ALL {
        let server = Nats::start(version).unwrap();
        let queue = executor("one");
        let driver = with(&server.url(), &[queue.clone(), QueueId::Dead]).await;
        let largest = driver.capabilities().max_payload_bytes;
        assert_eq!(largest, (1 << 20) - (4 << 10));
        // JSON would make each of these six times as long.
        for (n, byte) in [0x01, b'"', 0xff].into_iter().enumerate() {
            let mut outgoing = message(&queue, n);
            outgoing.payload = Bytes::from(vec![byte; largest]);
            publish(&driver, &[outgoing.clone()]).await;
            let came = take(&driver, &queue, 1).await;
            settle(
                &driver,
                &queue,
                &came,
                Settlement::Dead("line 1\nline 2".repeat(1_000)),
            )
            .await;
            let dead = take(&driver, &QueueId::Dead, 1).await;
            let letter = DeadLetter::decode(&dead[0].payload).unwrap();
            assert!(letter.payload == outgoing.payload, "it came back changed");
            assert!(letter.reason.starts_with("line 1\nline 2line 1\n"));
            assert_eq!(
                (&*letter.queue, &*letter.topic),
                ("x.billing.one", "invoices")
            );
            ack(&driver, &QueueId::Dead, &dead).await;
        }
        assert_eq!(left(&driver).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_no_subject_has_room_for_once_it_is_escaped_does_not_cut_the_connection() {
    let server = Nats::start(Version::V2_12).unwrap();
    let driver = with(&server.url(), &[QueueId::Requests, QueueId::Dead]).await;
    let client = raw(&server).await;
    // Some client's own: three times as long as we would write it, and a line may have 4,096 bytes.
    let topic = "~".repeat(2_000);
    let subject = format!("cueline.request._._.{topic}");
    client.publish(subject, "{".into()).await.unwrap();
    let came = take(&driver, &QueueId::Requests, 1).await;
    assert_eq!(came[0].topic, topic);
    let why = Settlement::Dead("why".into());
    settle(&driver, &QueueId::Requests, &came, why).await;
    let dead = take(&driver, &QueueId::Dead, 1).await;
    let letter = DeadLetter::decode(&dead[0].payload).unwrap();
    assert_eq!((&*letter.reason, &letter.payload[..]), ("why", &b"{"[..]));
    assert!(topic.starts_with(&letter.topic) && letter.topic.len() > 256);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_for_which_there_is_no_room_stays_where_it_was() {
    let server = Nats::start(Version::V2_12).unwrap();
    let queue = executor("one");
    let limited = NatsOptions {
        limits: StreamLimits {
            queue_limit: Some(2),
            ..StreamLimits::default()
        },
        ..options()
    };
    let driver = NatsDriver::connect(&server.url(), limited).await.unwrap();
    for queue in [&queue, &QueueId::Dead] {
        driver.declare(queue).await.unwrap();
    }
    let mut settled = Vec::new();
    for n in 0..4 {
        publish(&driver, &[message(&queue, n)]).await;
        let came = take(&driver, &queue, 1).await;
        let how = [(came[0].receipt, Settlement::Dead("why".into()))];
        settled.push((driver.settle(&queue, &how).await.map_err(|e| e.kind()), how));
        if settled.len() == 3 {
            break;
        }
    }
    let kinds: Vec<_> = settled.iter().map(|(ended, _)| *ended).collect();
    assert_eq!(kinds, [Ok(()), Ok(()), Err(ErrorKind::Transient)]);
    assert_eq!(left(&driver).await, 3);
    let dead = take(&driver, &QueueId::Dead, 2).await;
    ack(&driver, &QueueId::Dead, &dead).await;
    // The receipt is still good.
    driver.settle(&queue, &settled[2].1).await.unwrap();
    let third = take(&driver, &QueueId::Dead, 1).await;
    assert_eq!(DeadLetter::decode(&third[0].payload).unwrap().payload, "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_window_and_a_long_id_are_no_limits_for_a_batch() {
    let server = Nats::start(Version::V2_10).unwrap();
    let queue = executor("one");
    let narrow = NatsOptions {
        max_in_flight: 3,
        ..options()
    };
    let driver = NatsDriver::connect(&server.url(), narrow).await.unwrap();
    driver.declare(&queue).await.unwrap();
    let mut batch = messages(&queue, 0..500);
    batch[7].id = "i".repeat(10_000);
    publish(&driver, &batch).await;
    let all = take(&driver, &queue, 500).await;
    assert_eq!(numbers(&all), (0..500).collect::<Vec<_>>());
    ack(&driver, &queue, &all).await;
    assert_eq!(left(&driver).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_jetstream_is_told_of() {
    let server = Nats::start(Version::V2_12).unwrap();
    // A user of an account that has none.
    let accounts = "accounts { A { users: [{ user: a, password: a }] } }";
    server.configure(accounts).unwrap();
    let mut server = server;
    server.kill().unwrap();
    server.start_again().unwrap();
    let driver = open(&format!("nats://a:a@{}", server.addr())).await;
    let told = driver.declare(&executor("one")).await.unwrap_err();
    assert!(told.to_string().contains("JetStream"), "{told}");
}
