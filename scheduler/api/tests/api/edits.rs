//! Edits by several people: `ETag`, `If-Match`, `If-None-Match`, and the versions of an apply.

use reqwest::{Method, header};
use serde_json::{Value, json};

use crate::server::{Server, TOKEN};

/// A status, a tag and a body, which is `null` if there is none.
#[derive(Debug)]
struct Answer {
    status: u16,
    etag: Option<String>,
    body: Value,
}

impl Answer {
    #[track_caller]
    fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    #[track_caller]
    fn tag(self) -> String {
        assert!(self.status < 400, "{self:?}");
        self.etag.expect("a tag")
    }

    #[track_caller]
    fn refused(self, status: u16, kind: &str) -> Value {
        let answer = self.is(status);
        assert_eq!(answer.body["type"], kind, "{answer:?}");
        answer.body
    }
}

async fn send(
    server: &Server,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> Answer {
    let path = format!("/api/v1{path}");
    let mut request = server.bare(method, &path).bearer_auth(TOKEN);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if let Some(body) = body {
        request = request.json(body);
    }
    let answer = request.send().await.expect("an answer");
    let etag = answer.headers().get(header::ETAG);
    let etag = etag.map(|tag| tag.to_str().expect("a text").to_owned());
    let status = answer.status().as_u16();
    let text = answer.text().await.expect("a body");
    let body = serde_json::from_str(&text).unwrap_or(Value::Null);
    Answer { status, etag, body }
}

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Answer {
    send(server, Method::GET, path, headers, None).await
}

async fn put(server: &Server, path: &str, headers: &[(&str, &str)], definition: &Value) -> Answer {
    send(server, Method::PUT, path, headers, Some(definition)).await
}

fn definition(priority: u8) -> Value {
    json!({ "schedule": { "manual": true }, "handler": { "native": "x" }, "priority": priority })
}

const PRECONDITION_FAILED: &str = "cueline:precondition-failed";
const MALFORMED: &str = "cueline:malformed";
const UNFIT_VALUE: &str = "cueline:unfit-value";

#[tokio::test]
async fn a_job_is_created_and_replaced_at_its_path() {
    let server = Server::start().await;
    let absent = [("if-none-match", "*")];
    let created = put(&server, "/jobs/report", &absent, &definition(1))
        .await
        .is(201);
    assert_eq!(created.body["change"], "created");
    assert_eq!(created.body["version"], 1);
    let first = created.tag();
    let shown = get(&server, "/jobs/report", &[]).await;
    assert_eq!(shown.body["priority"], 1);
    assert_eq!(shown.tag(), first);
    let again = put(&server, "/jobs/report", &absent, &definition(2)).await;
    again.refused(412, PRECONDITION_FAILED);

    let same = put(&server, "/jobs/report", &[], &definition(1))
        .await
        .is(200);
    assert_eq!(
        (&same.body["change"], &same.body["version"]),
        (&json!("unchanged"), &json!(1))
    );
    assert_eq!(same.tag(), first);
    let replaced = put(
        &server,
        "/jobs/report",
        &[("if-match", &first)],
        &definition(2),
    )
    .await;
    assert_eq!(replaced.body["change"], "updated");
    let second = replaced.is(200).tag();
    assert_ne!(second, first);
    let late = put(
        &server,
        "/jobs/report",
        &[("if-match", &first)],
        &definition(3),
    )
    .await;
    late.refused(412, PRECONDITION_FAILED);
    let both = format!("{first}, {second}");
    put(
        &server,
        "/jobs/report",
        &[("if-match", &both)],
        &definition(3),
    )
    .await
    .is(200);
    let missing = put(&server, "/jobs/other", &[("if-match", "*")], &definition(1)).await;
    missing.refused(412, PRECONDITION_FAILED);
    get(&server, "/jobs/other", &[]).await.is(404);
}

#[tokio::test]
async fn a_replacement_is_checked_as_an_apply() {
    let server = Server::start().await;
    let mut other_name = definition(1);
    other_name["name"] = json!("other");
    let refused = put(&server, "/jobs/report", &[], &other_name).await;
    assert_eq!(
        refused.refused(422, UNFIT_VALUE)["errors"][0]["field"],
        "name"
    );
    let mut own_name = definition(1);
    own_name["name"] = json!("report");
    put(&server, "/jobs/report", &[], &own_name).await.is(201);
    let unfit = put(
        &server,
        "/jobs/report",
        &[],
        &json!({ "schedule": { "manual": true } }),
    )
    .await;
    let problem = unfit.refused(422, "cueline:unfit");
    assert_eq!(problem["errors"][0]["job"], "report");
    let in_team = "/namespaces/team-a/jobs/report";
    let created = put(&server, in_team, &[("if-none-match", "*")], &definition(1))
        .await
        .is(201);
    assert_eq!(created.body["name"], "team-a/report");
    let versions = get(&server, "/jobs/report/versions", &[]).await.is(200);
    assert_eq!(versions.body["versions"].as_array().map(Vec::len), Some(1));
    let entries = get(&server, "/audit?action=job.create&all_namespaces=true", &[])
        .await
        .is(200);
    assert_eq!(
        entries.body["entries"].as_array().map(Vec::len),
        Some(2),
        "{entries:?}"
    );
}

#[tokio::test]
async fn each_change_of_a_job_depends_on_its_tag() {
    let server = Server::start().await;
    let old = put(&server, "/jobs/a", &[], &definition(1)).await.tag();
    let mut present = put(&server, "/jobs/a", &[], &definition(2)).await.tag();
    let nothing = json!({});
    let version = json!({ "version": 1 });
    for (path, body, changes) in [
        ("/jobs/a/trigger", &nothing, false),
        ("/jobs/a/pause", &nothing, true),
        ("/jobs/a/resume", &nothing, true),
        ("/jobs/a/restore", &version, true),
    ] {
        let weak = format!("W/{present}");
        for wrong in [old.as_str(), weak.as_str(), "\"x\"", "\"0-1\""] {
            let headers = [("if-match", wrong)];
            let refused = send(&server, Method::POST, path, &headers, Some(body)).await;
            let problem = refused.refused(412, PRECONDITION_FAILED);
            assert_eq!(problem["errors"][0]["field"], "a", "{path} {wrong}");
        }
        let headers = [("if-match", present.as_str())];
        let done = send(&server, Method::POST, path, &headers, Some(body)).await;
        if changes {
            let next = done.tag();
            assert_ne!(next, present, "{path}");
            present = next;
        } else {
            done.is(202);
        }
        let shown = get(&server, "/jobs/a", &[]).await.tag();
        assert_eq!(shown, present, "{path}");
    }
    let headers = [("if-match", old.as_str())];
    let refused = send(&server, Method::DELETE, "/jobs/a", &headers, None).await;
    refused.refused(412, PRECONDITION_FAILED);
    let headers = [("if-match", present.as_str())];
    send(&server, Method::DELETE, "/jobs/a", &headers, None)
        .await
        .is(200);
    // A job that is created again counts from 1, and has another tag.
    let again = put(&server, "/jobs/a", &[], &definition(1)).await.tag();
    assert_ne!(again, old);
    let refused = put(&server, "/jobs/a", &[("if-match", &old)], &definition(3)).await;
    refused.refused(412, PRECONDITION_FAILED);
    let entries = get(&server, "/audit?action=job.delete", &[]).await.is(200);
    assert_eq!(entries.body["entries"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_known_version_is_not_sent_again() {
    let server = Server::start().await;
    let tag = put(&server, "/jobs/a", &[], &definition(1)).await.tag();
    server
        .post("/users", &json!({ "name": "ann" }))
        .await
        .good();
    let user = get(&server, "/users/ann", &[]).await.tag();
    for (path, tag) in [("/jobs/a", &tag), ("/users/ann", &user)] {
        let weak = format!("\"x\", W/{tag}");
        for known in [tag.as_str(), weak.as_str(), "*"] {
            let answer = get(&server, path, &[("if-none-match", known)])
                .await
                .is(304);
            assert_eq!(
                (answer.etag.as_ref(), answer.body),
                (Some(tag), Value::Null)
            );
        }
        get(&server, path, &[("if-none-match", "\"1-99\"")])
            .await
            .is(200);
        let malformed = get(&server, path, &[("if-none-match", "1-1")]).await;
        let problem = malformed.refused(400, MALFORMED);
        assert_eq!(problem["errors"][0]["field"], "If-None-Match");
    }
    put(&server, "/jobs/a", &[], &definition(2)).await.is(200);
    get(&server, "/jobs/a", &[("if-none-match", &tag)])
        .await
        .is(200);
}

#[tokio::test]
async fn each_change_of_a_user_depends_on_its_tag() {
    let server = Server::start().await;
    let name = json!({ "name": "ann" });
    let created = send(&server, Method::POST, "/users", &[], Some(&name))
        .await
        .is(201);
    let old = created.tag();
    let change = json!({ "display_name": "Ann" });
    let change_ann = async |tag: &str, change: &Value| {
        let headers = [("if-match", tag)];
        send(&server, Method::PATCH, "/users/ann", &headers, Some(change)).await
    };
    let second = change_ann(&old, &change).await.is(200).tag();
    assert_ne!(second, old);
    change_ann(&old, &change)
        .await
        .refused(412, PRECONDITION_FAILED);
    let headers = [("if-match", old.as_str())];
    let password = json!({ "password": "correct horse battery" });
    let path = "/users/ann/password";
    let refused = send(&server, Method::POST, path, &headers, Some(&password)).await;
    refused.refused(412, PRECONDITION_FAILED);
    let headers = [("if-match", second.as_str())];
    let third = send(&server, Method::POST, path, &headers, Some(&password))
        .await
        .tag();
    assert_eq!(get(&server, "/users/ann", &[]).await.tag(), third);
    let refused = send(&server, Method::DELETE, "/users/ann", &headers, None).await;
    refused.refused(412, PRECONDITION_FAILED);
    let headers = [("if-match", third.as_str())];
    send(&server, Method::DELETE, "/users/ann", &headers, None)
        .await
        .is(200);
}

#[tokio::test]
async fn one_of_two_editors_with_the_same_tag_wins() {
    let server = Server::start().await;
    let tag = put(&server, "/jobs/a", &[], &definition(1)).await.tag();
    let headers = [("if-match", tag.as_str())];
    let (two, three) = (definition(2), definition(3));
    let (one, other) = tokio::join!(
        put(&server, "/jobs/a", &headers, &two),
        put(&server, "/jobs/a", &headers, &three)
    );
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412]);
}

#[tokio::test]
async fn a_precondition_that_would_be_ignored_is_refused() {
    let server = Server::start().await;
    put(&server, "/jobs/a", &[], &definition(1)).await.is(201);
    let nothing = json!({});
    for (method, path, header, shown) in [
        (Method::POST, "/jobs/apply", "if-match", "If-Match"),
        (Method::POST, "/preview", "if-match", "If-Match"),
        (Method::POST, "/tokens", "if-match", "If-Match"),
        (
            Method::POST,
            "/jobs/a/pause",
            "if-none-match",
            "If-None-Match",
        ),
        (
            Method::DELETE,
            "/namespaces/default/jobs/a",
            "if-none-match",
            "If-None-Match",
        ),
    ] {
        let answer = send(&server, method, path, &[(header, "*")], Some(&nothing)).await;
        let problem = answer.refused(400, MALFORMED);
        assert_eq!(problem["errors"][0]["field"], shown, "{path}");
    }
    for wrong in ["1-1", "", "\"1-1", "*, \"1-1\""] {
        let answer = put(&server, "/jobs/a", &[("if-match", wrong)], &definition(2)).await;
        let problem = answer.refused(400, MALFORMED);
        assert_eq!(problem["errors"][0]["field"], "If-Match", "{wrong}");
    }
    let shown = get(&server, "/jobs/a", &[("if-match", "\"9-9\"")])
        .await
        .is(200);
    assert_eq!(shown.body["enabled"], true);
}

#[tokio::test]
async fn an_apply_names_each_job_with_another_version() {
    let server = Server::start().await;
    let job = |name: &str, priority: u8| {
        let mut job = definition(priority);
        job["name"] = json!(name);
        job
    };
    let apply = async |jobs: Value, if_versions: Value| {
        let body = json!({ "jobs": jobs, "if_versions": if_versions });
        send(&server, Method::POST, "/jobs/apply", &[], Some(&body)).await
    };
    let jobs = json!([job("a", 1), job("b", 1)]);
    let new = json!({ "a": null, "b": null });
    let created = apply(jobs.clone(), new.clone()).await.is(200);
    assert_eq!(created.body["applied"][1]["version"], 1);
    let problem = apply(jobs, new).await.refused(412, PRECONDITION_FAILED);
    let named: Vec<_> = problem["errors"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|error| (error["job"].clone(), error["field"].clone()))
        .collect();
    let field = json!("if_versions");
    assert_eq!(named, [(json!("a"), field.clone()), (json!("b"), field)]);

    let edited = json!([job("a", 2), job("b", 2), job("c", 2)]);
    let wrong = json!({ "a": 1, "b": 7 });
    apply(edited.clone(), wrong)
        .await
        .refused(412, PRECONDITION_FAILED);
    get(&server, "/jobs/c", &[]).await.is(404);
    assert_eq!(get(&server, "/jobs/a", &[]).await.body["priority"], 1);
    let right = json!({ "default/a": 1, "b": 1, "c": null });
    let applied = apply(edited.clone(), right).await.is(200);
    assert_eq!(applied.body["applied"][0]["version"], 2);

    for (wrong, field) in [
        (json!([1]), "if_versions"),
        (json!({ "a": 0 }), "if_versions.a"),
        (json!({ "a": "1" }), "if_versions.a"),
        (json!({ "a b": 1 }), "if_versions.a b"),
    ] {
        let problem = apply(edited.clone(), wrong).await.refused(400, MALFORMED);
        assert_eq!(problem["errors"][0]["field"], field);
    }
    for (unfit, field) in [
        (json!({ "a": 2, "default/a": 2 }), "if_versions.default/a"),
        (json!({ "nothing": 1 }), "if_versions.nothing"),
        (json!({ "team-a/a": 1 }), "if_versions.team-a/a"),
    ] {
        let problem = apply(edited.clone(), unfit).await.refused(422, UNFIT_VALUE);
        assert_eq!(problem["errors"][0]["field"], field);
    }
}
