//! Enrolment tokens, and the keys of workers.

use cueline_model::ExecutorId;
use cueline_protocol::origin::{EnrolmentToken, WorkerKey};
use cueline_store::{EnrolOutcome, KeyOrigin, NewWorkerKey};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::server::{Server, TOKEN};

/// Creates a token as the request says.
async fn created(server: &Server, body: &serde_json::Value) -> EnrolmentToken {
    let answer = server.post("/enrolment-tokens", body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    let answer = answer.json();
    let token = answer["token"].as_str().expect("a token");
    let token: EnrolmentToken = token.parse().expect("a token");
    assert_eq!(answer["id"], token.id());
    token
}

/// Enrols a key of this executor, and returns the key's id.
async fn enrolled(
    server: &Server,
    token: &EnrolmentToken,
    executor: (&str, &str),
    seed: u8,
) -> String {
    let key = WorkerKey::from_seed([seed; 32]).public();
    let request = NewWorkerKey {
        executor: ExecutorId {
            group: executor.0.parse().expect("a name"),
            name: executor.1.parse().expect("a name"),
        },
        key: *key.as_bytes(),
        key_id: key.id().to_string(),
        by: KeyOrigin::Token(token.id().to_owned()),
    };
    let outcome = server
        .store
        .enrol_workers(std::slice::from_ref(&request))
        .await;
    assert_eq!(outcome.expect("answers"), [EnrolOutcome::Enrolled]);
    request.key_id
}

#[tokio::test]
async fn a_tokens_secret_is_shown_once() {
    let server = Server::start().await;
    let body = json!({ "group": "default", "executor": "one", "uses": 3, "valid": "2h" });
    let token = created(&server, &body).await;
    let verifier = server.store.token_verifier(token.id()).await;
    assert_eq!(verifier.expect("reads"), Some(token.verifier()));
    let listed = server.get("/enrolment-tokens").await;
    let text = listed.text.clone();
    let listed = listed.good();
    let one = &listed["tokens"][0];
    assert_eq!(one["id"], token.id());
    assert_eq!(
        (&one["group"], &one["executor"]),
        (&json!("default"), &json!("one"))
    );
    assert_eq!(
        (&one["uses_left"], &one["by"]),
        (&json!(3), &json!("token admin"))
    );
    let (created_at, expires_at) = (one["created_at"].as_i64(), one["expires_at"].as_i64());
    assert_eq!(created_at.map(|at| at + 7_200_000), expires_at);
    let secret = token.to_text();
    let secret = secret.rsplit(':').next().expect("a secret");
    assert!(!text.contains(secret), "{text}");
    assert!(!text.contains("verifier"), "{text}");

    let path = format!("/enrolment-tokens/{}", token.id());
    assert_eq!(server.delete(&path).await.good()["id"], token.id());
    assert_eq!(server.delete(&path).await.status, StatusCode::NOT_FOUND);
    assert_eq!(
        server.get("/enrolment-tokens").await.good()["tokens"],
        json!([])
    );
}

#[tokio::test]
async fn a_token_is_used_once_within_an_hour_by_default() {
    let server = Server::start().await;
    created(&server, &json!({})).await;
    let unlimited = created(&server, &json!({ "valid": "never" })).await;
    let listed = server.get("/enrolment-tokens").await.good();
    let tokens = listed["tokens"].as_array().expect("a list");
    assert_eq!(tokens.len(), 2);
    for token in tokens {
        assert_eq!(
            (&token["group"], &token["uses_left"]),
            (&json!(null), &json!(1))
        );
        let created_at = token["created_at"].as_i64().expect("a time");
        let expected = if token["id"] == unlimited.id() {
            json!(null)
        } else {
            json!(created_at + 3_600_000)
        };
        assert_eq!(token["expires_at"], expected);
    }
}

#[tokio::test]
async fn a_wrong_token_request_names_its_fields() {
    let server = Server::start().await;
    for (body, words) in [
        (json!({ "executor": "one" }), "give its group too"),
        (json!({ "group": "no/name" }), "group"),
        (json!({ "group": 7 }), "a number is given; give a text"),
        (
            json!({ "uses": 0 }),
            "0 is not a whole number from 1 to 10000",
        ),
        (json!({ "uses": 10_001 }), "from 1 to 10000"),
        (json!({ "valid": "3600" }), "is not a duration"),
        (json!({ "valid": "1ms" }), "give 1s to "),
        (json!({ "secret": "x" }), "unknown field"),
    ] {
        let answer = server.post("/enrolment-tokens", &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}: {answer:?}");
        assert!(answer.text.contains(words), "{body}: {answer:?}");
    }
    assert_eq!(
        server.get("/enrolment-tokens").await.good()["tokens"],
        json!([])
    );
}

#[tokio::test]
async fn keys_are_listed_revoked_and_allowed_again() {
    let server = Server::start().await;
    let token = created(&server, &json!({ "uses": 3 })).await;
    let one = enrolled(&server, &token, ("default", "one"), 1).await;
    let two = enrolled(&server, &token, ("other", "two"), 2).await;
    let three = enrolled(&server, &token, ("default", "three"), 3).await;

    let first = server.get("/worker-keys?limit=1").await.good();
    assert_eq!(first["keys"][0]["id"], json!(one));
    assert_eq!(first["keys"][0]["state"], "allowed");
    assert_eq!(
        first["keys"][0]["enrolled_by"],
        format!("enrolment token {}", token.id())
    );
    let key = WorkerKey::from_seed([1; 32]).public();
    assert_eq!(first["keys"][0]["key"], key.to_string());
    let after = first["next"].as_str().expect("there are more");
    let rest = server
        .get(&format!("/worker-keys?after={after}"))
        .await
        .good();
    assert_eq!(rest["keys"].as_array().map(Vec::len), Some(2), "{rest}");
    assert_eq!(rest.get("next"), None);
    let of_group = server
        .get("/worker-keys?group=default&limit=2")
        .await
        .good();
    let ids: Vec<_> = of_group["keys"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|key| key["id"].clone())
        .collect();
    assert_eq!(ids, [json!(one), json!(three)]);

    let path = |what: &str| format!("/worker-keys/other/two/{two}/{what}");
    for (what, state) in [
        ("revoke", "revoked"),
        ("revoke", "revoked"),
        ("allow", "allowed"),
    ] {
        let done = server.post(&path(what), &json!({})).await.good();
        assert_eq!(
            done,
            json!({ "group": "other", "executor": "two", "id": two, "state": state })
        );
        let found = server.get("/worker-keys?group=other").await.good();
        assert_eq!(found["keys"][0]["state"], state);
        assert_eq!(found["keys"][0]["changed_by"], "token admin");
    }
}

#[tokio::test]
async fn a_key_that_does_not_exist_is_named() {
    let server = Server::start().await;
    let missing = server
        .post(
            "/worker-keys/default/one/0123456789abcdef/revoke",
            &json!({}),
        )
        .await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert!(
        missing
            .text
            .contains("default/one has no key 0123456789abcdef")
    );
    let wrong = server
        .post("/worker-keys/default/one/xyz/allow", &json!({}))
        .await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert!(wrong.text.contains("16 lower-case hexadecimal digits"));
    let wrong = server.get("/worker-keys?group=no/name").await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn no_cache_keeps_a_tokens_secret() {
    let server = Server::start().await;
    let request = server
        .bare(Method::POST, "/api/v1/enrolment-tokens")
        .bearer_auth(TOKEN)
        .json(&json!({}));
    let answer = request.send().await.expect("an answer");
    let header = answer.headers().get("cache-control");
    let text = header.and_then(|value| value.to_str().ok());
    assert_eq!(text, Some("no-store"));
}
