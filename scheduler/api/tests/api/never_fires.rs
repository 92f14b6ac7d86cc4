//! Definitions whose cron expression never fires again.

use cueline_model::{Actor, ActorKind, JobSpec, decode};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::server::Server;

fn over() -> Value {
    json!({ "name": "over", "schedule": { "cron": "0 0 12 1 1 ? 2020" }, "handler": { "native": "x" } })
}

#[tokio::test]
async fn a_job_that_never_fires_again_is_refused() {
    let server = Server::start().await;
    let ended = json!({ "name": "ended", "schedule": { "cron": "* * * * *" }, "end_at": "2020-01-01T00:00:00Z", "handler": { "native": "x" } });
    for (job, field) in [(over(), "schedule.cron"), (ended, "end_at")] {
        for dry_run in [true, false] {
            let body = json!({ "jobs": [job], "dry_run": dry_run });
            let refused = server.post("/jobs/apply", &body).await;
            assert_eq!(
                refused.status,
                StatusCode::UNPROCESSABLE_ENTITY,
                "{refused:?}"
            );
            let problem = &refused.json()["errors"][0];
            assert_eq!(problem["field"], field, "{problem}");
            let message = problem["message"].as_str().expect("a message");
            assert!(
                message.starts_with("the job never fires again"),
                "{message}"
            );
        }
    }
}

#[tokio::test]
async fn a_stored_job_that_is_over_can_be_applied_again() {
    let server = Server::start().await;
    let spec: JobSpec = decode::job(&over().into()).expect("a definition");
    let by = Actor::new(ActorKind::User, "earlier");
    let stored = server.store.apply_jobs(&[spec], false, &by).await;
    stored.expect("the store knows no such rule");
    let again = server
        .post("/jobs/apply", &json!({ "jobs": [over()] }))
        .await;
    assert_eq!(again.good()["applied"][0]["change"], "unchanged");
    let mut changed = over();
    changed["priority"] = 7.into();
    let refused = server
        .post("/jobs/apply", &json!({ "jobs": [changed] }))
        .await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{refused:?}"
    );
}
