//! Dead letters and queues. Requests that need a broker are tested with real ones, from the command line (`tests/`).

use cueline_model::Timestamp;
use cueline_store::NewDeadLetter;
use reqwest::StatusCode;
use serde_json::json;

use crate::server::Server;

async fn insert_dead_letter(server: &Server, key: &str, payload: &[u8], origin: Option<&str>) {
    let letter = NewDeadLetter {
        key: key.to_owned(),
        queue: "x.default.one".to_owned(),
        topic: "job".to_owned(),
        reason: format!("reason {key}"),
        at: Timestamp::from_millis(1_800_000_000_000),
        payload: payload.to_vec(),
        origin: origin.map(str::to_owned),
    };
    assert_eq!(
        server
            .store
            .insert_dead_letters(&[letter])
            .await
            .expect("keeps"),
        1
    );
}

#[tokio::test]
async fn dead_letters_are_listed_shown_and_deleted() {
    let server = Server::start().await;
    insert_dead_letter(&server, "a", b"{\"v\":1}", Some("executor default/one")).await;
    insert_dead_letter(&server, "b", &[0xff, 0], None).await;
    let page = server.get("/dead?limit=1").await.good();
    let newest = &page["letters"][0];
    assert_eq!(newest["reason"], "reason b");
    assert_eq!(newest["base64"], "/wA=");
    assert_eq!(newest["text"], json!(null));
    assert_eq!(newest["origin"], json!(null));
    let next = page["next"].as_str().expect("there are more");
    let page = server.get(&format!("/dead?after={next}")).await.good();
    assert_eq!(page.get("next"), None);
    assert_eq!(page["letters"].as_array().map(Vec::len), Some(1), "{page}");
    let id = page["letters"][0]["id"].as_i64().expect("a number");
    let one = server.get(&format!("/dead/{id}")).await.good();
    assert_eq!(
        (&one["text"], &one["queue"]),
        (&json!("{\"v\":1}"), &json!("x.default.one"))
    );
    assert_eq!(one["origin"], "executor default/one");
    assert_eq!(server.get("/dead/999").await.status, StatusCode::NOT_FOUND);

    let deleted = server
        .post("/dead/delete", &json!({ "ids": [id, 999] }))
        .await
        .good();
    assert_eq!(deleted["count"], 1);
    let deleted = server
        .post("/dead/delete", &json!({ "all": true }))
        .await
        .good();
    assert_eq!(deleted["count"], 1);
    assert_eq!(server.get("/dead").await.good()["letters"], json!([]));
}

#[tokio::test]
async fn what_does_not_fit_is_named() {
    let server = Server::start().await;
    for (body, words) in [
        (
            json!({}),
            "give either ids, a list of numbers, or all: true",
        ),
        (json!({ "ids": [1], "all": true }), "give either ids"),
        (
            json!({ "ids": 7 }),
            "a number is given; give a list of numbers",
        ),
        (json!({ "ids": ["x"] }), "is not a dead letter's number"),
        (
            json!({ "ids": vec![1; 1_001] }),
            "give at most 1000 at once",
        ),
        (
            json!({ "every": true }),
            "unknown field; this request takes ids, all",
        ),
    ] {
        let answer = server.post("/dead/delete", &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
        assert!(answer.text.contains(words), "{words}: {answer:?}");
    }
    for (path, words) in [
        ("/dead/x", "is not a dead letter's number"),
        ("/dead?after=x", "previous page"),
        ("/dead?limit=0", "limit"),
        ("/dead?all=1", "unknown parameter"),
        ("/queues?x=1", "unknown parameter"),
        ("/queues/-/one", "group"),
        ("/queues/default/a%20b", "executor"),
    ] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {answer:?}");
        assert!(answer.text.contains(words), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn requests_about_queues_are_unavailable_while_the_broker_is() {
    let server = Server::start().await;
    let replay = json!({ "all": true });
    for answer in [
        server.get("/queues").await,
        server.get("/queues/default/one").await,
        server.post("/queues/default/one/drain", &json!({})).await,
        server.post("/dead/replay", &replay).await,
    ] {
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
        assert!(answer.text.contains("no broker"), "{answer:?}");
    }
}
