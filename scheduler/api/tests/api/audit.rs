//! The audit log and the versions of jobs.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::server::Server;

async fn apply(server: &Server, priority: u8) {
    let job = json!({
        "name": "a", "schedule": { "manual": true }, "handler": { "native": "work" }, "priority": priority,
    });
    let body = json!({ "jobs": [job] });
    server.post("/jobs/apply", &body).await.good();
}

fn column<'a>(page: &'a Value, list: &str, field: &str) -> Vec<&'a Value> {
    let rows = page[list].as_array().expect("a list");
    rows.iter().map(|row| &row[field]).collect()
}

#[tokio::test]
async fn changes_are_listed_with_their_actor_and_their_values() {
    let server = Server::start().await;
    apply(&server, 3).await;
    apply(&server, 4).await;
    server.post("/jobs/a/pause", &json!({})).await.good();
    let page = server.get("/audit?limit=2").await.good();
    assert_eq!(
        column(&page, "entries", "action"),
        ["job.pause", "job.update"]
    );
    let updated = &page["entries"][1];
    assert_eq!(updated["actor"], "token admin");
    assert_eq!(
        (&updated["object"], &updated["group"]),
        (&json!("a"), &json!("default"))
    );
    assert_eq!(updated["before"]["priority"], 3);
    assert_eq!(updated["after"]["priority"], 4);
    let next = page["next"].as_str().expect("there are more");
    let page = server.get(&format!("/audit?after={next}")).await.good();
    assert_eq!(column(&page, "entries", "action"), ["job.create"]);
    assert_eq!(page.get("next"), None);

    let found = server
        .get("/audit?actor=token%20admin&action=job.pause&object=a&result=done&since=2020-01-01T00:00:00Z")
        .await
        .good();
    assert_eq!(column(&found, "entries", "action"), ["job.pause"]);
    let none = server.get("/audit?until=2020-01-01T00:00:00Z").await.good();
    assert_eq!(none["entries"], json!([]));
}

#[tokio::test]
async fn a_filter_that_does_not_fit_is_named() {
    let server = Server::start().await;
    for (path, words) in [
        ("/audit?result=maybe", "give done or refused"),
        ("/audit?after=%2B", "previous page"),
        ("/audit?actor=", "is empty"),
        ("/audit?all_namespaces=yes", "give true or false"),
        ("/namespaces/a%20b/audit", "namespace"),
        (
            "/namespaces/team-a/audit?all_namespaces=true",
            "leave that out",
        ),
        ("/audit?who=me", "unknown parameter"),
        ("/audit?limit=1001", "limit"),
        ("/jobs/a/versions/x", "is not the number of a version"),
        ("/jobs/a/versions?after=%2B", "previous page"),
    ] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {answer:?}");
        assert!(answer.text.contains(words), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn an_earlier_version_is_shown_and_restored() {
    let server = Server::start().await;
    apply(&server, 3).await;
    apply(&server, 4).await;
    server.post("/jobs/a/pause", &json!({})).await.good();
    let page = server.get("/jobs/a/versions").await.good();
    assert_eq!(column(&page, "versions", "version"), [3, 2, 1]);
    assert_eq!(column(&page, "versions", "enabled"), [false, true, true]);
    assert_eq!(page["versions"][0].get("definition"), None);
    let one = server.get("/jobs/a/versions/1").await.good();
    assert_eq!(
        (&one["definition"]["priority"], &one["by"]),
        (&json!(3), &json!("token admin"))
    );

    let restored = server
        .post("/jobs/a/restore", &json!({ "version": 1 }))
        .await
        .good();
    assert_eq!(
        (&restored["restored"], &restored["change"]),
        (&json!(1), &json!("updated"))
    );
    let job = server.get("/jobs/a").await.good();
    assert_eq!((&job["version"], &job["priority"]), (&json!(4), &json!(3)));
    assert_eq!(job["enabled"], false, "a pause stays");
    let again = server
        .post("/jobs/a/restore", &json!({ "version": 1 }))
        .await
        .good();
    assert_eq!(again["change"], "unchanged");
}

#[tokio::test]
async fn a_deleted_job_is_restored_and_a_missing_version_is_refused() {
    let server = Server::start().await;
    apply(&server, 3).await;
    server.delete("/jobs/a").await.good();
    for body in [json!({}), json!({ "version": "1" }), json!({ "number": 1 })] {
        let answer = server.post("/jobs/a/restore", &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
        assert!(answer.text.contains("version"), "{answer:?}");
    }
    for (path, version) in [("/jobs/a/restore", 7), ("/jobs/b/restore", 1)] {
        let answer = server.post(path, &json!({ "version": version })).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{answer:?}");
    }
    let restored = server
        .post("/jobs/a/restore", &json!({ "version": 1 }))
        .await
        .good();
    assert_eq!(restored["change"], "created");
    let job = server.get("/jobs/a").await.good();
    assert_eq!(job["enabled"], true);
}
