//! The settings that the driver gives to streams and consumers, and the settings of an operator that it keeps.

use async_nats::Client;
use cueline_broker::{Channel, Driver, ErrorKind, QueueId, StartLog};
use cueline_broker_nats::{NatsOptions, StreamLimits};
use cueline_test_servers::nats::Version;
use cueline_test_support::{SOON, eventually};
use serde_json::{Value, json};

use crate::fixture::{
    ack, connect, connect_to, connect_with, declare, executor, fetch_all, messages,
    on_each_version, patient, publish, raw_client, start, with_queue,
};

/// Calls the `JetStream` API without the driver.
async fn call(client: &Client, operation: &str, body: &Value) -> Value {
    let subject = format!("$JS.API.{operation}");
    let reply = eventually("the API answers", SOON, async || {
        let body = body.to_string().into();
        client.request(subject.clone(), body).await
    });
    let answer: Value = serde_json::from_slice(&reply.await.unwrap().payload).unwrap();
    assert!(answer["error"].is_null(), "{answer}");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_with_wrong_settings_is_corrected() {
    on_each_version(async |version| {
        let server = start(version);
        let (driver, client) = (connect(&server).await, raw_client(&server).await);
        driver.declare(&executor("other")).await.unwrap();
        let filter = "cueline.trigger.billing.one.>";
        let config = json!({
            "name": "billing~one", "durable_name": "billing~one", "filter_subject": filter,
            "ack_policy": "explicit", "max_deliver": 2, "max_ack_pending": 7,
        });
        let create = format!("CONSUMER.CREATE.CUELINE_TRIGGERS.billing~one.{filter}");
        let body = json!({ "stream_name": "CUELINE_TRIGGERS", "config": config });
        let created = call(&client, &create, &body).await;
        assert_eq!(created["config"]["max_deliver"], 2, "{created}");
        driver.declare(&executor("one")).await.unwrap();
        let info = "CONSUMER.INFO.CUELINE_TRIGGERS.billing~one";
        let config = call(&client, info, &json!({})).await["config"].take();
        assert_eq!(config["max_deliver"], -1, "{config}");
        assert_eq!(config["filter_subject"], filter);
        assert_eq!(config["max_ack_pending"], -1);
        assert_eq!(config["ack_wait"], 30_000_000_000_u64);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_another_kind_is_refused_and_the_error_names_the_setting() {
    for (field, value) in [
        ("retention", json!("limits")),
        ("discard", json!("old")),
        ("subjects", json!(["cueline.result.some.>"])),
    ] {
        let server = start(Version::V2_12);
        let mut config = json!({
            "name": "CUELINE_RESULTS", "subjects": ["cueline.result.>"], "retention": "workqueue",
            "storage": "file", "discard": "new", "num_replicas": 1,
        });
        config[field] = value;
        let client = raw_client(&server).await;
        call(&client, "STREAM.CREATE.CUELINE_RESULTS", &config).await;
        let driver = connect(&server).await;
        let error = driver.declare(&QueueId::Results).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permanent);
        assert!(error.to_string().contains(field), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_an_operator_stay_unless_they_are_configured() {
    let server = start(Version::V2_12);
    let client = raw_client(&server).await;
    let (driver, queue) = with_queue(&server, patient()).await;
    let info = "STREAM.INFO.CUELINE_TRIGGERS";
    let mut config = call(&client, info, &json!({})).await["config"].take();
    config["max_bytes"] = json!(5_000_000);
    config["max_age"] = json!(3_600_000_000_000_u64);
    config["description"] = json!("of the night shift");
    call(&client, "STREAM.UPDATE.CUELINE_TRIGGERS", &config).await;
    driver.declare(&queue).await.unwrap();
    let limited = NatsOptions {
        limits: StreamLimits {
            queue_limit: Some(77),
            ..StreamLimits::default()
        },
        ..patient()
    };
    let second = connect_with(&server, limited).await;
    second.declare(&queue).await.unwrap();
    let config = call(&client, info, &json!({})).await["config"].take();
    assert_eq!(config["max_bytes"], 5_000_000);
    assert_eq!(config["max_age"], 3_600_000_000_000_u64);
    assert_eq!(config["description"], "of the night shift");
    assert_eq!(config["max_msgs_per_subject"], 77);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_logs_drop_the_oldest_records_and_a_read_leaves_no_consumer() {
    on_each_version(async |version| {
        let server = start(version);
        let (driver, client) = (connect(&server).await, raw_client(&server).await);
        let log = StartLog {
            group: "billing".into(),
            executor: "one".into(),
        };
        driver.declare_log(&log).await.unwrap();
        let info = "STREAM.INFO.CUELINE_STARTS";
        let mut config = call(&client, info, &json!({})).await["config"].take();
        assert_eq!(config["subjects"], json!(["cueline.start.>"]));
        assert_eq!(config["retention"], "limits");
        assert_eq!(config["discard"], "old");
        assert_eq!(config["storage"], "file");
        assert_eq!(config["max_msgs_per_subject"], 10_000);
        assert_eq!(config["max_bytes"], 256 << 20);
        // An operator's limit stays.
        config["max_msgs_per_subject"] = json!(600);
        call(&client, "STREAM.UPDATE.CUELINE_STARTS", &config).await;
        driver.declare_log(&log).await.unwrap();
        for n in 0..1_000 {
            driver.append(&log, n.to_string().into()).await.unwrap();
        }
        // More than one pull request returns.
        let kept: Vec<String> = (400..1_000).map(|n| n.to_string()).collect();
        assert_eq!(driver.read_log(&log).await.unwrap(), kept);
        let info = call(&client, info, &json!({})).await;
        assert_eq!(info["config"]["max_msgs_per_subject"], 600);
        assert_eq!(info["state"]["consumer_count"], 0, "{info}");
    })
    .await;
}

/// The reader has chosen the last record as its end, and the record is dropped before it arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_ends_although_its_last_record_is_dropped_meanwhile() {
    on_each_version(async |version| {
        let server = start(version);
        let driver = connect(&server).await;
        let log = StartLog {
            group: "billing".into(),
            executor: "one".into(),
        };
        driver.declare_log(&log).await.unwrap();
        // The server may also drop the records before it answers which one is the last.
        for _ in 0..5 {
            for n in 0..3 {
                driver.append(&log, n.to_string().into()).await.unwrap();
            }
            let (read, deleted) = tokio::join!(driver.read_log(&log), driver.delete_log(&log));
            deleted.unwrap();
            assert!(read.unwrap().len() <= 3);
        }
        driver.append(&log, "3".into()).await.unwrap();
        assert_eq!(driver.read_log(&log).await.unwrap(), ["3"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stream_of_proofs_keeps_one_message_in_memory() {
    on_each_version(async |version| {
        let server = start(version);
        let limited = NatsOptions {
            limits: StreamLimits {
                queue_limit: Some(77),
                max_bytes: Some(1 << 30),
                ..StreamLimits::default()
            },
            ..patient()
        };
        let (driver, client) = (
            connect_with(&server, limited).await,
            raw_client(&server).await,
        );
        for _ in 0..2 {
            driver.declare_proofs().await.unwrap();
        }
        for n in 0..5 {
            let payload = n.to_string().into();
            let stored = driver.announce_stored(&Channel::Heartbeats, payload);
            stored.await.unwrap();
        }
        let info = call(&client, "STREAM.INFO.CUELINE_PROOFS", &json!({})).await;
        let config = &info["config"];
        assert_eq!(config["subjects"], json!(["cueline.proof.>"]));
        assert_eq!(config["storage"], "memory");
        assert_eq!(config["max_msgs"], 1);
        assert_eq!(config["max_bytes"], -1);
        assert_eq!(info["state"]["messages"], 1);
        assert_eq!(info["state"]["last_seq"], 5, "one for each announcement");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_without_jetstream_is_reported() {
    let mut server = start(Version::V2_12);
    let accounts = "accounts { A { users: [{ user: a, password: a }] } }";
    server.configure(accounts).unwrap();
    server.kill().unwrap();
    server.start_again().unwrap();
    let address = format!("nats://a:a@{}", server.addr());
    let driver = connect_to(&address, patient()).await;
    let error = driver.declare(&executor("one")).await.unwrap_err();
    assert!(error.to_string().contains("JetStream"), "{error}");
}

/// A scheduler waits for the results up to the newest one of an earlier look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_position_of_the_results_does_not_drop_with_their_consumer() {
    on_each_version(async |version| {
        let server = start(version);
        let (driver, client) = (connect(&server).await, raw_client(&server).await);
        let queue = QueueId::Results;
        declare(&driver, &queue).await;
        publish(&driver, &messages(&queue, 0..60)).await;
        let fetched = fetch_all(&driver, &queue, 60).await;
        let odd: Vec<_> = fetched.into_iter().skip(1).step_by(2).collect();
        ack(&driver, &queue, &odd).await;
        let settled = async || {
            let stats = driver.stats(&[QueueId::Results]).await.unwrap();
            stats.of(&QueueId::Results).unwrap().settled.unwrap()
        };
        let then = settled().await;
        assert_eq!((then.position, then.newest), (0, 60));
        call(
            &client,
            "CONSUMER.DELETE.CUELINE_RESULTS.results",
            &json!({}),
        )
        .await;
        declare(&driver, &queue).await;
        let now = settled().await;
        assert_eq!((now.newest, now.incarnation), (60, then.incarnation));
        assert!(now.position < 60, "{now:?}");

        driver.delete(&queue, false).await.unwrap();
        declare(&driver, &queue).await;
        assert_ne!(settled().await.incarnation, then.incarnation);
    })
    .await;
}
