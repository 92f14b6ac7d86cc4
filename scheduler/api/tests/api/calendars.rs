//! Calendars, maintenance windows, and what a preview leaves out.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Answer, Server, TOKEN};

const TEAM: &str = "/namespaces/team-a";

async fn put(server: &Server, base: &str, name: &str, body: &Value) -> Answer {
    let path = format!("/api/v1{base}/calendars/{name}");
    server.by(TOKEN, Method::PUT, &path, Some(body)).await
}

fn job(calendar: &str) -> Value {
    json!({
        "name": "report", "schedules": [{ "cron": "0 7 * * *" }, { "cron": "0 19 * * SAT" }],
        "calendars": [calendar], "handler": { "native": "x" },
    })
}

#[tokio::test]
async fn a_calendar_is_created_used_and_deleted() {
    let server = Server::start().await;
    let holidays = json!({ "dates": ["12-25"], "timezone": "Europe/Berlin" });
    let created = put(&server, "", "holidays", &holidays).await.good();
    assert_eq!(
        (&created["change"], &created["version"]),
        (&json!("created"), &json!(1))
    );
    let again = put(&server, "", "holidays", &holidays).await.good();
    assert_eq!(again["change"], "unchanged");
    let jobs = json!({ "jobs": [job("holidays")] });
    server.post("/jobs/apply", &jobs).await.good();
    let shown = server.get("/calendars/holidays").await.good();
    assert_eq!(shown["jobs"], json!(["report"]));
    // What is shown can be applied again.
    let apply = json!({ "calendars": [shown["definition"]] });
    let applied = server.post("/calendars/apply", &apply).await.good();
    assert_eq!(applied["applied"][0]["change"], "unchanged");
    let stored = server.get("/jobs/report").await.good();
    assert_eq!(
        stored["schedule"].as_array().map(Vec::len),
        Some(2),
        "{stored}"
    );
    let used = server.delete("/calendars/holidays").await;
    assert_eq!(used.status, StatusCode::CONFLICT, "{used:?}");
    assert!(used.text.contains("used by report"), "{used:?}");
    server.delete("/jobs/report").await.good();
    server.delete("/calendars/holidays").await.good();
    let gone = server.get("/calendars/holidays").await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND, "{gone:?}");
    let log = server.get("/audit?action=calendar").await.good();
    assert_eq!(log["entries"].as_array().map(Vec::len), Some(2), "{log}");
}

#[tokio::test]
async fn a_calendar_belongs_to_one_namespace() {
    let server = Server::start().await;
    let weekends = json!({ "weekdays": ["sat", "sun"] });
    put(&server, TEAM, "weekends", &weekends).await.good();
    let here = server.get("/calendars").await.good();
    assert_eq!(here["calendars"], json!([]));
    let there = server.get(&format!("{TEAM}/calendars")).await.good();
    assert_eq!(there["calendars"][0]["name"], "team-a/weekends");
    let jobs = json!({ "jobs": [job("weekends")] });
    let refused = server.post("/jobs/apply", &jobs).await;
    assert!(refused.text.contains("there is no calendar"), "{refused:?}");
    server
        .post(&format!("{TEAM}/jobs/apply"), &jobs)
        .await
        .good();
}

#[tokio::test]
async fn wrong_calendars_and_windows_are_named() {
    let server = Server::start().await;
    for (body, field) in [
        (json!({ "dates": ["2027-13-01"] }), "dates[0]"),
        (json!({ "name": "other", "dates": ["12-25"] }), "name"),
        (
            json!({ "namespace": "team-a", "dates": ["12-25"] }),
            "namespace",
        ),
        (json!({}), "nothing to exclude"),
    ] {
        let answer = put(&server, "", "c", &body).await;
        assert!(answer.status.is_client_error(), "{answer:?}");
        assert!(answer.text.contains(field), "{field}: {answer:?}");
    }
    for (body, field) in [
        (json!({}), "start"),
        (json!({ "cron": "0 1 * * *" }), "duration"),
        (
            json!({ "start": "2027-01-02T00:00:00Z", "end": "2027-01-01T00:00:00Z" }),
            "end",
        ),
    ] {
        let answer = server.post("/windows", &body).await;
        assert_eq!(
            answer.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{answer:?}"
        );
        assert!(answer.text.contains(field), "{field}: {answer:?}");
    }
    for path in ["/windows/x", "/windows/0"] {
        let answer = server.delete(path).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    }
    let missing = server.delete("/windows/9").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND, "{missing:?}");
}

#[tokio::test]
async fn a_window_is_seen_in_its_namespace_and_everywhere_if_it_is_for_all() {
    let server = Server::start().await;
    let times = json!({ "start": "2027-01-01T00:00:00Z", "end": "2099-01-01T00:00:00Z", "reason": "upgrade" });
    let own = server.post("/windows", &times).await.good();
    let mut everywhere = times.clone();
    everywhere["all_namespaces"] = json!(true);
    let all = server.post("/windows", &everywhere).await.good();
    let ids = async |base: &str| -> Vec<Value> {
        let found = server.get(&format!("{base}/windows")).await.good();
        let list = found["windows"].as_array().expect("a list").clone();
        list.iter().map(|window| window["id"].clone()).collect()
    };
    assert_eq!(ids("").await, [own["id"].clone(), all["id"].clone()]);
    assert_eq!(ids(TEAM).await, [all["id"].clone()]);
    let elsewhere = server
        .delete(&format!("{TEAM}/windows/{}", own["id"]))
        .await;
    assert_eq!(elsewhere.status, StatusCode::NOT_FOUND, "{elsewhere:?}");
    server
        .delete(&format!("/windows/{}", own["id"]))
        .await
        .good();
    server
        .delete(&format!("{TEAM}/windows/{}", all["id"]))
        .await
        .good();
    assert!(ids("").await.is_empty());
}

#[tokio::test]
async fn a_preview_names_calendars_and_windows() {
    let server = Server::start().await;
    let holidays = json!({ "dates": ["2027-12-24/2027-12-26"] });
    put(&server, "", "holidays", &holidays).await.good();
    let mut definition = job("holidays");
    definition["end_at"] = json!("2027-12-29T00:00:00Z");
    let request = json!({ "job": definition, "from": "2027-12-23T00:00:00Z", "n": 9 });
    let shown = server.post("/preview", &request).await.good();
    let times: Vec<i64> = shown["times"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_i64)
        .collect();
    assert_eq!(times.len(), 3, "{shown}");
    let left_out = &shown["left_out"];
    assert_eq!(left_out[0]["count"], 4, "{shown}");
    assert_eq!(left_out[0]["reason"], "excluded by calendar \"holidays\"");
    assert!(
        left_out[1]["reason"].to_string().contains("end_at"),
        "{shown}"
    );
    let unknown = json!({ "job": job("nothing") });
    let refused = server.post("/preview", &unknown).await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_window_of_all_namespaces_needs_the_right_everywhere() {
    let server = Server::start().await;
    let grants = json!([{ "role": "operator", "namespace": "team-a" }]);
    let token = server.token_with(&grants).await;
    let path = format!("/api/v1{TEAM}/windows");
    let times = json!({ "start": "2027-01-01T00:00:00Z", "end": "2099-01-01T00:00:00Z" });
    let mut everywhere = times.clone();
    everywhere["all_namespaces"] = json!(true);
    let refused = server
        .by(&token, Method::POST, &path, Some(&everywhere))
        .await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    server
        .by(&token, Method::POST, &path, Some(&times))
        .await
        .good();
    let all = server.post("/windows", &everywhere).await.good();
    let path = format!("{path}/{}", all["id"]);
    let refused = server.by(&token, Method::DELETE, &path, None).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    // Calendars need the right to edit jobs.
    let path = format!("/api/v1{TEAM}/calendars/c");
    let calendar = json!({ "dates": ["12-25"] });
    let refused = server.by(&token, Method::PUT, &path, Some(&calendar)).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
}
