//! Flow runs through the API.

use cueline_model::{AttemptEvent, Outcome, OutcomeKind, RunId};
use cueline_store::AttemptReport;
use serde_json::{Value, json};

use crate::behaviour::{dispatching, triggered};
use crate::server::Server;

async fn apply_diamond(server: &Server) {
    let job = |name: &str, group: &str, after: Value| json!({ "name": name, "group": group, "after": after, "handler": { "native": "x" } });
    let jobs = json!({ "jobs": [
        { "name": "a", "schedule": { "manual": true }, "handler": { "native": "x" } },
        job("b", "default", json!("a")),
        job("c", "other", json!({ "all": ["a"] })),
        job("d", "default", json!({ "all": ["b", "c"] })),
    ] });
    server.post("/jobs/apply", &jobs).await.good();
}

/// Ends a run that waits.
async fn end(server: &Server, run: RunId, kind: OutcomeKind) {
    let attempt = dispatching(server, run).await;
    server
        .store
        .confirm_dispatch(&[attempt])
        .await
        .expect("confirmed");
    let outcome = Outcome::new(kind, server.store.now().await.expect("a time"));
    // The jobs are of two groups, so no executor has run all of them.
    let reports = [AttemptReport {
        attempt,
        executor: None,
        event: AttemptEvent::Ended { outcome },
    }];
    let ingested = server.store.ingest_reports(&reports).await;
    assert_eq!(ingested.expect("ingested").ended, 1);
}

async fn flow(server: &Server, run: RunId) -> Value {
    server.get(&format!("/flows/{run}")).await.good()
}

/// The run of a job in a flow run.
fn run_of(flow: &Value, job: &str) -> RunId {
    let mut runs = flow["runs"].as_array().expect("runs").iter();
    let run = runs.find(|run| run["job"] == job).expect("has run");
    RunId(run["id"].as_i64().expect("an id"))
}

fn states(flow: &Value) -> Vec<(&str, &str)> {
    let jobs = flow["jobs"].as_array().expect("jobs").iter();
    jobs.map(|job| {
        let text = |field: &str| job[field].as_str().expect("a text");
        (text("job"), text("state"))
    })
    .collect()
}

#[tokio::test]
async fn a_flow_run_is_watched_cancelled_and_retried() {
    let server = Server::start().await;
    apply_diamond(&server).await;
    let a = triggered(&server, "a").await;
    end(&server, a, OutcomeKind::Succeeded).await;
    let shown = flow(&server, a).await;
    assert_eq!(shown["state"], "running");
    assert_eq!(
        states(&shown),
        [
            ("a", "succeeded"),
            ("b", "running"),
            ("c", "running"),
            ("d", "waiting")
        ]
    );
    assert_eq!(
        shown["jobs"][3]["after"],
        json!({ "all": ["b", "c"], "on": "success" })
    );
    let reason = shown["jobs"][3]["reason"].as_str().expect("a reason");
    assert!(reason.contains("b is running, c is running"), "{reason}");
    assert_eq!(flow(&server, run_of(&shown, "c")).await["id"], shown["id"]);

    end(&server, run_of(&shown, "b"), OutcomeKind::Failed).await;
    let c = run_of(&shown, "c");
    let cancelled = server
        .post(&format!("/flows/{c}/cancel"), &json!({}))
        .await
        .good();
    assert_eq!(
        cancelled,
        json!({ "id": shown["id"], "ended": [c], "asked": [] })
    );
    let shown = flow(&server, a).await;
    assert_eq!(
        (&shown["state"], &shown["jobs"][3]["state"]),
        (&json!("failed"), &json!("not_started"))
    );
    assert!(shown["ended_at"].is_i64(), "{shown}");

    let retried = server
        .post(&format!("/flows/{a}/retry"), &json!({}))
        .await
        .good();
    let b = run_of(&shown, "b");
    assert_eq!(retried, json!({ "id": shown["id"], "runs": [b, c] }));
    for run in [b, c] {
        end(&server, run, OutcomeKind::Succeeded).await;
    }
    let shown = flow(&server, a).await;
    end(&server, run_of(&shown, "d"), OutcomeKind::Succeeded).await;
    assert_eq!(flow(&server, a).await["state"], "succeeded");
    let refused = server.post(&format!("/flows/{a}/retry"), &json!({})).await;
    assert_eq!(refused.status, 409);

    let list = server.get("/flows").await.good();
    assert_eq!(list["flows"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(list["flows"][0]["runs"], json!({ "succeeded": 4 }));
    let of_b = server.get("/flows?job=b").await.good();
    assert_eq!(of_b["flows"], json!([]));
    assert_eq!(server.get("/flows?job=nobody").await.status, 404);
    assert_eq!(server.get("/flows/999999").await.status, 404);
}
