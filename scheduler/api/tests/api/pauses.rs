//! Pauses of several jobs.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::Server;

const TEAM: &str = "/namespaces/team-a";

async fn apply(server: &Server, job: &str, labels: &Value) {
    let definition = json!({
        "name": job, "schedule": { "every": "1s" }, "handler": { "native": "work" }, "labels": labels,
    });
    let jobs = json!({ "jobs": [definition] });
    server.post("/jobs/apply", &jobs).await.good();
}

#[tokio::test]
async fn a_paused_job_says_by_whom_and_until_when() {
    let server = Server::start().await;
    apply(&server, "a", &json!({ "tier": "1" })).await;
    apply(&server, "b", &json!({})).await;
    let request = json!({ "labels": { "tier": "1" }, "for": "2h", "reason": "incident" });
    let started = server.post("/pauses", &request).await.good();
    assert_eq!(started["jobs"], 1, "{started}");
    let shown = server.get("/jobs/a").await.good();
    assert_eq!(shown["pause"]["id"], started["id"], "{shown}");
    assert_eq!(shown["pause"]["reason"], "incident");
    let (since, until) = (&shown["pause"]["since"], &shown["pause"]["until"]);
    let length = until
        .as_i64()
        .zip(since.as_i64())
        .map(|(end, start)| end - start);
    assert_eq!(length, Some(7_200_000), "{shown}");
    let jobs = server.get("/jobs").await.good();
    assert_eq!(jobs["jobs"][0]["pause"], shown["pause"], "{jobs}");
    assert!(jobs["jobs"][1].get("pause").is_none(), "{jobs}");
    let listed = server.get("/pauses").await.good();
    assert_eq!(listed["pauses"][0]["by"], shown["pause"]["by"], "{listed}");
    assert_eq!(listed["pauses"][0]["labels"], json!({ "tier": "1" }));
    // It is no window.
    let windows = server.get("/windows").await.good();
    assert_eq!(windows["windows"], json!([]));
    let path = format!("/windows/{}", started["id"]);
    assert_eq!(server.delete(&path).await.status, StatusCode::NOT_FOUND);
    let path = format!("/pauses/{}", started["id"]);
    server.delete(&path).await.good();
    assert_eq!(server.delete(&path).await.status, StatusCode::NOT_FOUND);
    let shown = server.get("/jobs/a").await.good();
    assert!(shown.get("pause").is_none(), "{shown}");
}

#[tokio::test]
async fn a_pause_says_what_is_wrong_with_it() {
    let server = Server::start().await;
    let refused = server
        .post("/pauses", &json!({ "all": true, "for": "soon" }))
        .await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{refused:?}"
    );
    let text = format!("{refused:?}");
    assert!(text.contains("reason") && text.contains("soon"), "{text}");
    let refused = server.post("/pauses", &json!({ "reason": "x" })).await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{refused:?}"
    );
    let refused = server.delete("/pauses/x").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
}

#[tokio::test]
async fn a_pause_stays_in_its_namespace_and_needs_the_role() {
    let server = Server::start().await;
    let path = format!("/api/v1{TEAM}/pauses");
    let all = json!({ "all": true, "reason": "x" });
    let everywhere = json!({ "all_namespaces": true, "reason": "x" });
    let grants = |role: &str| json!([{ "role": role, "namespace": "team-a" }]);
    let viewer = server.token_with(&grants("viewer")).await;
    let refused = server.by(&viewer, Method::POST, &path, Some(&all)).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    let operator = server.token_with(&grants("operator")).await;
    let refused = server
        .by(&operator, Method::POST, &path, Some(&everywhere))
        .await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    let own = server
        .by(&operator, Method::POST, &path, Some(&all))
        .await
        .good();
    assert_eq!(server.get("/pauses").await.good()["pauses"], json!([]));
    let elsewhere = server.delete(&format!("/pauses/{}", own["id"])).await;
    assert_eq!(elsewhere.status, StatusCode::NOT_FOUND, "{elsewhere:?}");
    let wide = server.post("/pauses", &everywhere).await.good();
    let listed = server.by(&viewer, Method::GET, &path, None).await.good();
    let ids: Vec<&Value> = listed["pauses"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|pause| &pause["id"])
        .collect();
    assert_eq!(ids, [&own["id"], &wide["id"]]);
    let path = format!("{path}/{}", wide["id"]);
    let refused = server.by(&operator, Method::DELETE, &path, None).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
}
