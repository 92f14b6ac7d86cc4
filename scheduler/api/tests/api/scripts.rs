//! Scripts: versions, who may save them, and what a save means for jobs.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Answer, Server, TOKEN};

async fn put(server: &Server, name: &str, body: &Value) -> Answer {
    let path = format!("/api/v1/scripts/{name}");
    server.by(TOKEN, Method::PUT, &path, Some(body)).await
}

fn job(handler: &Value) -> Value {
    json!({ "jobs": [{ "name": "nightly", "schedule": { "manual": true }, "handler": handler }] })
}

#[tokio::test]
async fn a_script_is_saved_used_restored_and_deleted() {
    let server = Server::start().await;
    let first = json!({ "language": "bash", "text": "echo 1\n", "remark": "first" });
    let saved = put(&server, "backup", &first).await.good();
    assert_eq!(
        (&saved["change"], &saved["version"]),
        (&json!("created"), &json!(1))
    );
    let again = put(&server, "backup", &first).await.good();
    assert_eq!(again["change"], "unchanged");
    let applied = server
        .post("/jobs/apply", &job(&json!({ "script": "backup" })))
        .await;
    applied.good();
    let second = json!({ "language": "python3", "text": "print(2)\n" });
    put(&server, "backup", &second).await.good();
    let shown = server.get("/scripts/backup").await.good();
    assert_eq!(shown["newest"]["text"], "print(2)\n");
    assert_eq!(shown["newest"]["by"], "token admin");
    assert_eq!(shown["jobs"], json!([{ "job": "nightly" }]));
    let job = server.get("/jobs/nightly").await.good();
    assert_eq!(
        job["version"], 2,
        "a save makes a new version of the job: {job}"
    );
    assert_eq!(job["handler"], json!({ "script": { "name": "backup" } }));

    let restored = server
        .post("/scripts/backup/restore", &json!({ "version": 1 }))
        .await
        .good();
    assert_eq!(restored["version"], 3);
    let versions = server.get("/scripts/backup/versions").await.good();
    let of = |field: &str| -> Vec<Value> {
        let versions = versions["versions"].as_array().expect("a list").iter();
        versions.map(|version| version[field].clone()).collect()
    };
    assert_eq!(of("version"), [3, 2, 1]);
    assert_eq!(of("remark"), ["version 1 again", "", "first"]);
    assert_eq!(of("text"), [Value::Null, Value::Null, Value::Null]);
    let third = server.get("/scripts/backup/versions/3").await.good();
    assert_eq!(
        (&third["language"], &third["text"]),
        (&json!("bash"), &json!("echo 1\n"))
    );
    let none = server.get("/scripts/backup/versions/9").await;
    assert_eq!(none.status, StatusCode::NOT_FOUND, "{none:?}");

    let used = server.delete("/scripts/backup").await;
    assert_eq!(used.status, StatusCode::CONFLICT, "{used:?}");
    assert!(used.text.contains("used by nightly"), "{used:?}");
    server.delete("/jobs/nightly").await.good();
    server.delete("/scripts/backup").await.good();
    let gone = server.get("/scripts/backup").await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND, "{gone:?}");
    let log = server.get("/audit?action=script").await.good();
    assert_eq!(log["entries"].as_array().map(Vec::len), Some(4), "{log}");
}

#[tokio::test]
async fn of_two_editors_one_saves() {
    let server = Server::start().await;
    let text = |text: &str| json!({ "language": "sh", "text": text });
    put(&server, "s", &text("echo 1")).await.good();
    let shown = server.get("/scripts/s").await.good();
    let tag = format!("\"{}-1\"", shown["id"]);
    let save = async |body: Value, header: &str, value: &str| {
        let request = server.bare(Method::PUT, "/api/v1/scripts/s");
        let request = request.bearer_auth(TOKEN).header(header, value).json(&body);
        server.send(request).await.status
    };
    assert_eq!(save(text("echo 2"), "if-match", &tag).await, StatusCode::OK);
    let late = save(text("echo 3"), "if-match", &tag).await;
    assert_eq!(late, StatusCode::PRECONDITION_FAILED);
    let exists = save(text("echo 3"), "if-none-match", "*").await;
    assert_eq!(exists, StatusCode::PRECONDITION_FAILED);
    let now = server.get("/scripts/s").await.good();
    assert_eq!(now["newest"]["text"], "echo 2");
}

#[tokio::test]
async fn wrong_scripts_and_references_are_named() {
    let server = Server::start().await;
    for (body, field) in [
        (json!({ "language": "sh" }), "text"),
        (json!({ "language": "perl", "text": "x" }), "language"),
        (json!({ "language": "sh", "text": " " }), "text"),
        (
            json!({ "name": "other", "language": "sh", "text": "x" }),
            "name",
        ),
        (
            json!({ "namespace": "team", "language": "sh", "text": "x" }),
            "namespace",
        ),
    ] {
        let answer = put(&server, "s", &body).await;
        assert!(answer.status.is_client_error(), "{answer:?}");
        assert!(answer.text.contains(field), "{field}: {answer:?}");
    }
    let missing = server
        .post("/jobs/apply", &job(&json!({ "script": "s" })))
        .await;
    assert_eq!(
        missing.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{missing:?}"
    );
    assert!(missing.text.contains("there is no script"), "{missing:?}");
    put(&server, "s", &json!({ "language": "sh", "text": "x" }))
        .await
        .good();
    let pinned = json!({ "script": "s", "version": 2 });
    let missing = server.post("/jobs/apply", &job(&pinned)).await;
    assert!(missing.text.contains("it has 1"), "{missing:?}");
}

#[tokio::test]
async fn a_save_needs_the_right_to_edit_scripts_in_the_whole_namespace() {
    let server = Server::start().await;
    let text = json!({ "language": "sh", "text": "true" });
    put(&server, "s", &text).await.good();
    let restore = json!({ "version": 1 });
    for (grants, reads, saves) in [
        (
            json!([{ "namespace": "default", "role": "viewer" }]),
            200,
            403,
        ),
        (
            json!([{ "namespace": "default", "role": "author" }]),
            200,
            403,
        ),
        (
            json!([{ "namespace": "default", "role": "author", "scripts": true }]),
            200,
            200,
        ),
        (
            json!([{ "group": "a", "role": "author", "scripts": true }]),
            403,
            403,
        ),
        (
            json!([{ "namespace": "team", "role": "admin", "scripts": true }]),
            403,
            403,
        ),
    ] {
        let token = server.token_with(&grants).await;
        let ask = async |method: Method, path: &str, body: Option<&Value>| {
            let path = format!("/api/v1/scripts{path}");
            server.by(&token, method, &path, body).await.status.as_u16()
        };
        for path in ["", "/s", "/s/versions", "/s/versions/1"] {
            assert_eq!(ask(Method::GET, path, None).await, reads, "{grants} {path}");
        }
        assert_eq!(ask(Method::PUT, "/s", Some(&text)).await, saves, "{grants}");
        let restored = ask(Method::POST, "/s/restore", Some(&restore)).await;
        assert_eq!(restored, saves, "{grants}");
        let apply = json!({ "scripts": [{ "name": "t", "language": "sh", "text": "true" }] });
        let applied = ask(Method::POST, "/apply", Some(&apply)).await;
        assert_eq!(applied, saves, "{grants}");
        assert_eq!(ask(Method::DELETE, "/t", None).await, saves, "{grants}");
    }
}

#[tokio::test]
async fn a_job_with_a_script_needs_the_right_to_edit_scripts_in_its_group() {
    let server = Server::start().await;
    put(&server, "s", &json!({ "language": "sh", "text": "true" }))
        .await
        .good();
    let apply = json!({ "jobs": [{
        "name": "j", "group": "a", "schedule": { "manual": true }, "handler": { "script": "s" },
    }] });
    for (scripts, status) in [(false, 403), (true, 200)] {
        let grants = json!([{ "group": "a", "role": "author", "scripts": scripts }]);
        let token = server.token_with(&grants).await;
        let applied = server
            .by(&token, Method::POST, "/api/v1/jobs/apply", Some(&apply))
            .await;
        assert_eq!(applied.status.as_u16(), status, "{applied:?}");
    }
}
