//! G10: a worker whose lease would end too late gets no triggers.

use cueline_protocol::LeaseTimes;
use serde_json::json;

use crate::fixture::{Fixture, tick};

#[tokio::test]
async fn a_worker_that_would_stop_after_the_failover_gets_no_triggers() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.silent_executor("e1").await;
    fixture.apply("job", json!({})).await;
    let heartbeat = async |fence_after_ms: u64, failover_after_ms: u64| {
        let times = LeaseTimes {
            fence_after_ms,
            failover_after_ms,
        };
        e1.heartbeat_message(|message| message.lease = Some(times))
            .await;
    };
    let refusal = async || {
        let known = fixture.real().executors().await.expect("reads");
        known[0].heartbeat.refusal.clone()
    };
    heartbeat(40_000, 60_000).await;
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
    let reason = refusal().await.expect("it is refused");
    assert!(reason.contains("40000 ms"), "{reason}");
    assert!(reason.contains("30000 ms"), "{reason}");
    heartbeat(6_000, 10_000).await;
    assert_eq!(tick(&mut engine).await, 1, "it stops early enough");
    assert_eq!(refusal().await, None);
}
