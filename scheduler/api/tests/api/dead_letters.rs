//! Dead letters and queues. Requests that need a broker are tested with real ones, from the command line (`tests/`).

use cueline_model::{GroupName, Namespace, Timestamp};
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
        namespace: namespace_of(origin),
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

/// The namespace of an executor's group.
fn namespace_of(origin: Option<&str>) -> Option<Namespace> {
    let executor = origin?.strip_prefix("executor ")?;
    let (group, _) = executor.rsplit_once('/')?;
    let group: GroupName = group.parse().expect("a name");
    Some(group.namespace())
}

#[tokio::test]
async fn dead_letters_are_listed_shown_and_deleted() {
    let server = Server::start().await;
    insert_dead_letter(&server, "a", b"{\"v\":1}", Some("executor default/one")).await;
    insert_dead_letter(&server, "b", &[0xff, 0], None).await;
    let page = server.get("/dead?limit=1&all_namespaces=true").await.good();
    let newest = &page["letters"][0];
    assert_eq!(newest["reason"], "reason b");
    assert_eq!(newest["base64"], "/wA=");
    assert_eq!(newest["text"], json!(null));
    assert_eq!(newest["origin"], json!(null));
    assert_eq!(newest["namespace"], json!(null));
    let next = page["next"].as_str().expect("there are more");
    let page = server
        .get(&format!("/dead?after={next}&all_namespaces=true"))
        .await
        .good();
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
    assert_eq!(deleted["count"], 0, "the other letter is of no namespace");
    let deleted = server
        .post(
            "/dead/delete",
            &json!({ "all": true, "all_namespaces": true }),
        )
        .await
        .good();
    assert_eq!(deleted["count"], 1);
    assert_eq!(
        server.get("/dead?all_namespaces=true").await.good()["letters"],
        json!([])
    );
}

/// The number of each letter, newest first.
async fn listed(server: &Server, path: &str) -> Vec<i64> {
    let page = server.get(path).await.good();
    let letters = page["letters"].as_array().expect("a list");
    let ids = letters.iter().map(|letter| letter["id"].as_i64());
    ids.collect::<Option<Vec<i64>>>().expect("numbers")
}

#[tokio::test]
async fn a_namespace_has_its_own_dead_letters() {
    let server = Server::start().await;
    for (key, origin) in [
        ("a", Some("executor default/one")),
        ("b", Some("executor team-a/default/one")),
        ("c", Some("executor team-b/default/one")),
        ("d", None),
    ] {
        insert_dead_letter(&server, key, key.as_bytes(), origin).await;
    }
    let all = listed(&server, "/dead?all_namespaces=true").await;
    let [none, of_b, of_a, of_default] = all[..] else {
        panic!("{all:?}");
    };
    assert_eq!(listed(&server, "/dead").await, [of_default]);
    let team = "/namespaces/team-a";
    assert_eq!(listed(&server, &format!("{team}/dead")).await, [of_a]);
    let own = server.get(&format!("{team}/dead/{of_a}")).await.good();
    assert_eq!(own["namespace"], "team-a");
    for other in [none, of_b, of_default] {
        let answer = server.get(&format!("{team}/dead/{other}")).await;
        let unknown = server.get(&format!("{team}/dead/999")).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{answer:?}");
        let text = answer
            .text
            .replace(&format!("letter {other}"), "letter 999");
        assert_eq!(text, unknown.text);
    }
    // By number and by `all`, only the letters of the namespace are deleted.
    let ids = json!({ "ids": all });
    let deleted = server.post(&format!("{team}/dead/delete"), &ids).await;
    assert_eq!(deleted.good()["count"], 1);
    let every = json!({ "all": true });
    let deleted = server
        .post("/namespaces/team-b/dead/delete", &every)
        .await
        .good();
    assert_eq!(deleted["count"], 1);
    let left = listed(&server, "/dead?all_namespaces=true").await;
    assert_eq!(left, [none, of_default]);
    // The entry of the audit log is in the namespace of the letter.
    let audit = server
        .get(&format!("{team}/audit?action=dead_letter.delete"))
        .await
        .good();
    assert_eq!(audit["entries"][0]["object"], of_a.to_string());
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
        ("/dead?after=%2B", "previous page"),
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
