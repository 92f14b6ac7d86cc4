//! Alarm rules, channels and silences.

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::server::Server;

const TEAM: &str = "/namespaces/team-a";

#[tokio::test]
async fn rules_and_channels_are_kept_in_versions() {
    let server = Server::start().await;
    let channel = json!({ "webhook": { "url": { "secret": "hook" } } });
    let rule = json!({ "on": [{ "failed_in_a_row": 3 }], "channels": ["ops"], "jobs": ["a"] });
    let refused = server.put("/alarms/rules/r", &rule).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{refused:?}");
    let created = server.put("/alarms/channels/ops", &channel).await.good();
    assert_eq!(
        (&created["change"], &created["version"]),
        (&json!("created"), &json!(1))
    );
    server.put("/alarms/rules/r", &rule).await.good();
    let shown = server.get("/alarms/rules/r").await.good();
    assert_eq!(shown["definition"]["on"], rule["on"], "{shown}");
    assert_eq!(shown["definition"]["group_interval"], "30s");
    let again = server.put("/alarms/rules/r", &rule).await.good();
    assert_eq!(again["change"], "unchanged", "{again}");
    // What is shown is accepted again.
    let again = server
        .put("/alarms/rules/r", &shown["definition"])
        .await
        .good();
    assert_eq!(again["change"], "unchanged", "{again}");
    let shown = server.get("/alarms/channels/ops").await.good();
    assert_eq!(
        shown["definition"]["webhook"], channel["webhook"],
        "{shown}"
    );
    let refused = server.delete("/alarms/channels/ops").await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{refused:?}");
    server.delete("/alarms/rules/r").await.good();
    server.delete("/alarms/channels/ops").await.good();
    assert_eq!(server.get("/alarms/rules").await.good()["rules"], json!([]));
    assert_eq!(
        server.get("/alarms/channels").await.good()["channels"],
        json!([])
    );
}

#[tokio::test]
async fn each_mistake_is_named() {
    let server = Server::start().await;
    let rule = json!({ "on": ["faild"], "channels": [], "group_interval": "soon" });
    let refused = server.put("/alarms/rules/r", &rule).await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{refused:?}"
    );
    let text = format!("{refused:?}");
    for field in ["on[0]", "channels", "group_interval"] {
        assert!(text.contains(field), "{field}: {text}");
    }
    let channel = json!({ "slack": { "url": "https://a.b" }, "body": "{jbo}" });
    let refused = server.put("/alarms/channels/c", &channel).await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{refused:?}"
    );
    assert!(
        format!("{refused:?}").contains("unknown placeholder"),
        "{refused:?}"
    );
    let refused = server
        .put("/alarms/channels/c", &json!({ "name": "d" }))
        .await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{refused:?}"
    );
    let refused = server.delete("/alarms/silences/x").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
}

#[tokio::test]
async fn a_test_message_is_listed_with_its_delivery() {
    let server = Server::start().await;
    let refused = server.post("/alarms/channels/ops/test", &json!({})).await;
    assert_eq!(refused.status, StatusCode::NOT_FOUND, "{refused:?}");
    let channel = json!({ "webhook": { "url": "https://example.com" } });
    server.put("/alarms/channels/ops", &channel).await.good();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let asked = server
            .post("/alarms/channels/ops/test", &json!({}))
            .await
            .good();
        ids.insert(0, asked["delivery"].clone());
    }
    let path = format!("/alarms/deliveries/{}", ids[0]);
    let delivery = server.get(&path).await.good();
    assert_eq!(
        (&delivery["state"], &delivery["attempts"]),
        (&json!("pending"), &json!(0))
    );
    let page = server.get("/alarms/deliveries?limit=2").await.good();
    let listed: Vec<_> = page["deliveries"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|d| d["id"].clone())
        .collect();
    assert_eq!(listed, ids[..2]);
    let next = page["next"].as_str().expect("another page");
    let rest = server
        .get(&format!("/alarms/deliveries?limit=2&after={next}"))
        .await
        .good();
    assert_eq!(rest["deliveries"][0]["id"], ids[2], "{rest}");
    assert!(rest.get("next").is_none(), "{rest}");
    let alarms = server.get("/alarms?rule=test").await.good();
    assert_eq!(
        alarms["alarms"].as_array().map(Vec::len),
        Some(3),
        "{alarms}"
    );
    assert_eq!(alarms["alarms"][0]["fate"], "sent");
    assert_eq!(
        server.get("/alarms?rule=other").await.good()["alarms"],
        json!([])
    );
    let elsewhere = server.get(&format!("{TEAM}{path}")).await;
    assert_eq!(elsewhere.status, StatusCode::NOT_FOUND, "{elsewhere:?}");
}

#[tokio::test]
async fn silences_begin_and_end_in_their_namespace() {
    let server = Server::start().await;
    let silence = json!({ "jobs": ["a"], "for": "2h", "reason": "work" });
    let begun = server.post("/alarms/silences", &silence).await.good();
    let listed = server.get("/alarms/silences").await.good();
    assert_eq!(listed["silences"][0]["id"], begun["id"], "{listed}");
    assert_eq!(listed["silences"][0]["jobs"], json!(["a"]));
    let elsewhere = server.get(&format!("{TEAM}/alarms/silences")).await.good();
    assert_eq!(elsewhere["silences"], json!([]));
    let path = format!("/alarms/silences/{}", begun["id"]);
    let refused = server.delete(&format!("{TEAM}{path}")).await;
    assert_eq!(refused.status, StatusCode::NOT_FOUND, "{refused:?}");
    server.delete(&path).await.good();
    assert_eq!(server.delete(&path).await.status, StatusCode::NOT_FOUND);
}

/// An author of rules may not make schedulers connect anywhere, with the schedulers' secrets.
#[tokio::test]
async fn channels_need_an_admin_of_the_namespace() {
    let server = Server::start().await;
    let grants = |role: &str| json!([{ "role": role, "namespace": "team-a" }]);
    let author = server.token_with(&grants("author")).await;
    let admin = server.token_with(&grants("admin")).await;
    let path = format!("/api/v1{TEAM}/alarms/channels/ops");
    let channel = json!({ "webhook": { "url": "https://example.com" } });
    let refused = server.by(&author, Method::PUT, &path, Some(&channel)).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    server
        .by(&admin, Method::PUT, &path, Some(&channel))
        .await
        .good();
    let path = format!("/api/v1{TEAM}/alarms/rules/r");
    let rule = json!({ "on": ["failed"], "channels": ["ops"] });
    server
        .by(&author, Method::PUT, &path, Some(&rule))
        .await
        .good();
}
