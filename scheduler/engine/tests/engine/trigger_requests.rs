//! Trigger requests over the broker.

use std::time::Duration;

use cueline_broker::QueueId;
use cueline_broker_embedded::EmbeddedOptions;
use cueline_runtime::{Ended, Lifecycle};
use cueline_test_support::SOON;
use serde_json::json;

use crate::fixture::{Fault, Fixture, eventually, tick};

/// A repeated key makes no second run. Unreadable requests become dead letters.
#[tokio::test]
async fn a_message_triggers_a_job() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    for text in [
        r#"{"v":1,"job":"job","params":"p","by":"ann"}"#,
        r#"{"v":1,"job":"job","key":"k"}"#,
        r#"{"v":1,"job":"job","key":"k"}"#,
        r#"{"v":1,"job":"nothing"}"#,
        r#"{"v":7,"job":"job"}"#,
        "job",
    ] {
        fixture.put(&QueueId::Requests, text).await;
    }
    assert_eq!(engine.carry_out_requests().await.expect("carries out"), 6);
    assert_eq!(tick(&mut engine).await, 2);
    let params: Vec<_> = e1.take().await.into_iter().map(|t| t.params).collect();
    assert_eq!(params, [Some("p".to_owned()), None]);
    let letters = fixture.dead_letters().await;
    let reasons: Vec<&str> = letters.iter().map(|l| l.reason.as_str()).collect();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert!(
        reasons[0].contains("there is no job \"nothing\""),
        "{reasons:?}"
    );
    assert!(reasons[1].contains("version is 7"), "{reasons:?}");
}

#[tokio::test]
async fn a_request_is_carried_out_once_in_spite_of_a_store_failure() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    fixture
        .put(&QueueId::Requests, r#"{"v":1,"job":"job","key":"k"}"#)
        .await;
    fixture.store.fail_next("trigger_claimed", Fault::After);
    assert_eq!(engine.carry_out_requests().await.expect("tries"), 1);
    eventually("it comes again", async || {
        engine.carry_out_requests().await.expect("carries out") == 1
    })
    .await;
    assert_eq!(fixture.runs("job").await.len(), 1);
    // The run was claimed by this node, which did not get the answer.
    tick(&mut engine).await;
    assert_eq!(e1.take().await.len(), 1);
}

/// With a slow store, requests are returned before the broker delivers them again by itself. Those carried out are
/// settled.
#[tokio::test]
async fn requests_without_time_are_returned_to_the_queue() {
    let fixture = with_requests(30).await;
    let mut engine = fixture.engine("one").await;
    for _ in 0..2 {
        fixture
            .store
            .fail_next("trigger_claimed", Fault::Takes(6_000));
    }
    assert_eq!(engine.carry_out_requests().await.expect("carries out"), 30);
    assert_eq!(fixture.runs("job").await.len(), 2);
    assert_eq!(engine.carry_out_requests().await.expect("carries out"), 28);
    assert_eq!(fixture.runs("job").await.len(), 30);
    assert_eq!(engine.carry_out_requests().await.expect("looks"), 0);
}

/// The stop comes in the middle of a batch.
#[tokio::test]
async fn a_stop_carries_out_no_request_twice() {
    const COUNT: usize = 150;
    let fixture = with_requests(COUNT).await;
    let lifecycle = Lifecycle::new();
    let engine = fixture.start(&lifecycle).await;
    eventually("it has begun", async || {
        !fixture.runs("job").await.is_empty()
    })
    .await;
    assert_eq!(lifecycle.shut_down(SOON).await, Ended::Asked);
    engine.finish().await.expect("gives up its lease");
    let mut next = fixture.engine("one").await;
    eventually("the rest is carried out", async || {
        next.carry_out_requests().await.expect("carries out");
        fixture.runs("job").await.len() >= COUNT
    })
    .await;
    let queues = next.admin().queues().await.expect("counts");
    let requests = queues.iter().find(|q| q.queue == "requests");
    let left = requests.map(|q| (q.ready, q.unsettled));
    assert_eq!(left, Some((Some(0), Some(0))));
    assert_eq!(fixture.runs("job").await.len(), COUNT);
}

#[tokio::test]
async fn a_key_that_is_too_long_is_refused_with_the_limit() {
    let fixture = with_requests(0).await;
    let mut engine = fixture.engine("one").await;
    for bytes in [256, 257] {
        let request = json!({ "v": 1, "job": "job", "key": "k".repeat(bytes) });
        fixture.put(&QueueId::Requests, request.to_string()).await;
    }
    assert_eq!(engine.carry_out_requests().await.expect("carries out"), 2);
    assert_eq!(fixture.runs("job").await.len(), 1);
    let letters = fixture.dead_letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(
        letters[0].reason,
        "failed to trigger job: `key` takes a text of at most 256 bytes; this one has 257"
    );
}

/// A broker account that may publish for one namespace only cannot trigger the jobs of another.
#[tokio::test]
async fn a_request_for_another_namespace_than_its_address_is_refused() {
    let fixture = with_requests(0).await;
    let mut engine = fixture.engine("one").await;
    fixture.apply("job", json!({ "namespace": "team-a" })).await;
    for (topic, job) in [
        ("job", "team-a/job"),
        ("team-a/job", "job"),
        ("team-a/job", "team-a/job"),
        // What drivers make of one token with a slash.
        ("team-a%2Fjob", "team-a/job"),
    ] {
        let request = json!({ "v": 1, "job": job }).to_string();
        fixture.put_for(topic, &QueueId::Requests, request).await;
    }
    assert_eq!(engine.carry_out_requests().await.expect("carries out"), 4);
    assert_eq!(fixture.runs("team-a/job").await.len(), 1);
    assert_eq!(fixture.runs("job").await.len(), 0);
    let letters = fixture.dead_letters().await;
    let mut reasons: Vec<&str> = letters.iter().map(|l| l.reason.as_str()).collect();
    reasons.sort_unstable();
    assert_eq!(
        reasons,
        [
            "failed to trigger job: the request was published for the namespace team-a; publish it for default",
            "failed to trigger team-a/job: the request was published for the namespace default; publish it for team-a",
            "failed to trigger team-a/job: the request was published for the namespace default; publish it for team-a",
        ]
    );
}

/// `count` requests without keys, which would make two runs if carried out twice.
async fn with_requests(count: usize) -> Fixture {
    // Longer than all of them take on a busy machine: a request that is delivered again is carried out again.
    let fixture = Fixture::with(EmbeddedOptions {
        ack_wait: Duration::from_secs(10),
        ..EmbeddedOptions::default()
    })
    .await;
    fixture.apply("job", json!({})).await;
    for _ in 0..count {
        fixture
            .put(&QueueId::Requests, r#"{"v":1,"job":"job"}"#)
            .await;
    }
    fixture
}
