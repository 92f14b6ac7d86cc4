//! Set-up, sessions, API tokens and users over HTTP.

use reqwest::{Method, RequestBuilder, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::raw::Raw;
use crate::server::Server;

const PASSWORD: &str = "correct horse battery";

/// A session: its cookie and the value of `X-CSRF-Token`.
struct Session {
    cookie: String,
    csrf: String,
}

impl Session {
    /// A request as a browser sends it from the right page.
    fn request(&self, server: &Server, method: Method, path: &str) -> RequestBuilder {
        let request = server.bare(method, &format!("/api/v1{path}"));
        request
            .header(header::COOKIE, &self.cookie)
            .header("X-CSRF-Token", &self.csrf)
    }

    async fn post(&self, server: &Server, path: &str, body: &Value) -> (u16, Value) {
        let request = self.request(server, Method::POST, path).json(body);
        let answer = server.send(request).await;
        let json = serde_json::from_str(&answer.text).unwrap_or_default();
        (answer.status.as_u16(), json)
    }

    async fn get(&self, server: &Server, path: &str) -> (u16, Value) {
        let answer = server.send(self.request(server, Method::GET, path)).await;
        (answer.status.as_u16(), answer.json())
    }
}

async fn try_login(server: &Server, name: &str, password: &str) -> Response {
    let body = json!({ "name": name, "password": password });
    let request = server.bare(Method::POST, "/api/v1/login").json(&body);
    request.send().await.expect("an answer")
}

fn cookie_of(response: &Response) -> String {
    let value = response.headers().get(header::SET_COOKIE);
    let value = value.expect("a cookie").to_str().expect("a text");
    value.to_owned()
}

async fn login(server: &Server, name: &str) -> Session {
    let response = try_login(server, name, PASSWORD).await;
    assert_eq!(response.status(), StatusCode::OK);
    let cookie = cookie_of(&response);
    let cookie = cookie.split(';').next().expect("a pair").to_owned();
    let body: Value = response.json().await.expect("a body");
    let csrf = body["csrf"].as_str().expect("a text").to_owned();
    Session { cookie, csrf }
}

async fn create_user(server: &Server, name: &str, grants: &Value) {
    let body = json!({ "name": name, "password": PASSWORD, "grants": grants });
    server.post("/users", &body).await.good();
}

/// A user who may do everything. The store keeps at least one such user.
async fn create_root(server: &Server) {
    let grants = json!([{ "role": "admin", "scripts": true }]);
    let body = json!({ "name": "root", "grants": grants });
    server.post("/users", &body).await.good();
}

async fn setup(server: &Server, secret: &str, name: &str) -> u16 {
    let body = json!({ "secret": secret, "name": name, "password": PASSWORD });
    let request = server.bare(Method::POST, "/api/v1/setup").json(&body);
    server.send(request).await.status.as_u16()
}

#[tokio::test]
async fn the_first_user_is_set_up_once_with_the_secret() {
    let server = Server::start().await;
    let secret = server.setup_secret.clone();
    assert_eq!(setup(&server, "wrong", "root").await, 401);
    assert_eq!(setup(&server, &secret, "root").await, 201);
    assert_eq!(setup(&server, &secret, "other").await, 401);
    let session = login(&server, "root").await;
    assert_eq!(session.get(&server, "/stats").await.0, 200);
    assert_eq!(session.get(&server, "/users/other").await.0, 404);
}

#[tokio::test]
async fn a_set_up_secret_makes_no_second_first_user() {
    let server = Server::start().await;
    create_user(&server, "alice", &json!([{ "role": "viewer" }])).await;
    let secret = server.setup_secret.clone();
    assert_eq!(setup(&server, &secret, "root").await, 409);
}

#[tokio::test]
async fn a_session_has_a_cookie_that_scripts_and_other_sites_cannot_use() {
    let server = Server::start().await;
    create_user(&server, "alice", &json!([{ "role": "viewer" }])).await;
    let response = try_login(&server, "Alice", PASSWORD).await;
    let cookie = cookie_of(&response);
    for flag in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Max-Age="] {
        assert!(cookie.contains(flag), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "there is no TLS: {cookie}");
    let cached = response.headers().get(header::CACHE_CONTROL);
    assert_eq!(cached.and_then(|v| v.to_str().ok()), Some("no-store"));
    let body: Value = response.json().await.expect("a body");
    assert_eq!(body["user"]["name"], "alice");
    let value = cookie["cueline_session=".len()..].split(';').next();
    let value = value.expect("a value");
    assert_eq!(value.len(), 43, "32 bytes in base64");
    assert!(!body.to_string().contains(value), "only the cookie has it");
}

#[tokio::test]
async fn a_change_needs_the_csrf_token_of_its_session_and_a_read_does_not() {
    let server = Server::start().await;
    create_user(&server, "alice", &json!([{ "role": "operator" }])).await;
    let (one, other) = (login(&server, "alice").await, login(&server, "alice").await);
    let preview = |csrf: Option<&str>| {
        let request = server.bare(Method::POST, "/api/v1/preview");
        let request = request.header(header::COOKIE, &one.cookie);
        let body = json!({ "schedule": { "every": "1h" } });
        match csrf {
            Some(csrf) => request.header("X-CSRF-Token", csrf),
            None => request,
        }
        .json(&body)
    };
    for (csrf, expected) in [
        (None, 403),
        (Some(""), 403),
        (Some(other.csrf.as_str()), 403),
        (Some(one.csrf.as_str()), 200),
    ] {
        let answer = server.send(preview(csrf)).await;
        assert_eq!(answer.status.as_u16(), expected, "{csrf:?}: {answer:?}");
    }
    let request = server.bare(Method::GET, "/api/v1/session");
    let shown = server.send(request.header(header::COOKIE, &one.cookie));
    let shown = shown.await.good();
    assert_eq!(
        (&shown["kind"], &shown["name"]),
        (&json!("user"), &json!("alice"))
    );
    assert_eq!(shown["csrf"], one.csrf);
}

#[tokio::test]
async fn after_a_logout_the_session_is_worth_nothing() {
    let server = Server::start().await;
    create_user(&server, "alice", &json!([{ "role": "viewer" }])).await;
    let session = login(&server, "alice").await;
    let request = session.request(&server, Method::POST, "/logout");
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    assert!(cookie_of(&response).contains("Max-Age=0"));
    assert_eq!(session.get(&server, "/session").await.0, 401);
}

#[tokio::test]
async fn an_unknown_name_a_wrong_password_and_a_disabled_user_get_the_same_answer() {
    let server = Server::start().await;
    create_root(&server).await;
    for name in ["alice", "bob"] {
        create_user(&server, name, &json!([{ "role": "viewer" }])).await;
    }
    let request = server.bare(Method::PATCH, "/api/v1/users/bob");
    let request = request.bearer_auth(crate::server::TOKEN);
    let disabled = server
        .send(request.json(&json!({ "enabled": false })))
        .await;
    assert_eq!(disabled.good()["enabled"], false);
    let mut answers = Vec::new();
    for (name, password) in [("alice", "wrong"), ("bob", PASSWORD), ("carol", PASSWORD)] {
        let response = try_login(&server, name, password).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{name}");
        answers.push(response.text().await.expect("a body"));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    let filter = cueline_store::AuditFilter {
        actions: vec!["session.login".to_owned()],
        result: Some(cueline_store::AuditResult::Refused),
        limit: 10,
        ..cueline_store::AuditFilter::default()
    };
    let entries = server.ports.audit.audit_entries(&filter).await;
    let entries = entries.expect("entries");
    let objects: Vec<_> = entries.iter().map(|e| e.entry.object.as_str()).collect();
    assert_eq!(objects, ["unknown", "bob", "alice"], "newest first");
    assert!(
        !format!("{entries:?}").contains("carol"),
        "it may be a password"
    );
}

#[tokio::test]
async fn a_password_that_is_tried_too_often_is_not_tried_any_more() {
    let server = Server::start().await;
    create_user(&server, "alice", &json!([{ "role": "viewer" }])).await;
    let mut last = None;
    // Ten attempts, and one for each 30 s that the others may take.
    for _ in 0..30 {
        let response = try_login(&server, "alice", "wrong").await;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            last = Some(response);
            break;
        }
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    }
    let refused = last.expect("refused");
    let wait = refused.headers().get(header::RETRY_AFTER).cloned();
    let wait: u64 = wait
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .expect("seconds");
    assert!((1..=30).contains(&wait), "{wait}");
    let problem: Value = refused.json().await.expect("a body");
    assert_eq!(problem["type"], "cueline:too-many-attempts");
    assert_eq!(problem["retry_after_s"], wait);
    let right = try_login(&server, "alice", PASSWORD).await;
    assert_eq!(right.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_revoked_token_is_refused_at_once() {
    let server = Server::start().await;
    let token = server.token_with(&json!([{ "role": "viewer" }])).await;
    let id = token.split('_').nth(1).expect("an id").to_owned();
    let stats = async || server.by(&token, Method::GET, "/api/v1/stats", None).await;
    assert_eq!(stats().await.status, StatusCode::OK);
    let listed = server.get("/tokens").await;
    assert!(listed.text.contains(&id), "{listed:?}");
    let secret = token.rsplit('_').next().expect("a secret");
    assert!(!listed.text.contains(secret), "{listed:?}");
    server.delete(&format!("/tokens/{id}")).await.good();
    assert_eq!(stats().await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_token_of_a_user_loses_what_the_user_loses() {
    let server = Server::start().await;
    create_root(&server).await;
    create_user(&server, "alice", &json!([{ "role": "operator" }])).await;
    let session = login(&server, "alice").await;
    let viewer = json!({ "name": "x", "grants": [{ "role": "viewer" }] });
    let (status, created) = session.post(&server, "/tokens", &viewer).await;
    assert_eq!(status, 201, "{created}");
    let admin = json!({ "name": "x", "grants": [{ "role": "admin" }] });
    assert_eq!(session.post(&server, "/tokens", &admin).await.0, 403);
    let token = created["token"].as_str().expect("a token");
    let ask_stats = async || {
        server
            .by(token, Method::GET, "/api/v1/stats", None)
            .await
            .status
    };
    assert_eq!(ask_stats().await, StatusCode::OK);
    let request = server.bare(Method::PATCH, "/api/v1/users/alice");
    let request = request.bearer_auth(crate::server::TOKEN);
    let narrowed = json!({ "grants": [{ "group": "a", "role": "viewer" }] });
    server.send(request.json(&narrowed)).await.good();
    assert_eq!(ask_stats().await, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn an_administrator_of_a_group_makes_users_of_that_group_only() {
    let server = Server::start().await;
    let own = json!([{ "group": "a", "role": "admin" }]);
    let token = server.token_with(&own).await;
    create_root(&server).await;
    let post = async |path: &str, body: Value| {
        let answer = server.by(&token, Method::POST, path, Some(&body)).await;
        answer.status.as_u16()
    };
    let user = |name: &str, grants: Value| json!({ "name": name, "grants": grants });
    let inside = user("carol", json!([{ "group": "a", "role": "operator" }]));
    assert_eq!(post("/api/v1/users", inside).await, 201);
    for outside in [
        json!([{ "role": "viewer" }]),
        json!([{ "group": "b", "role": "viewer" }]),
        json!([{ "group": "a", "role": "author", "scripts": true }]),
        json!([{ "group": "a", "role": "viewer" }, { "role": "admin" }]),
    ] {
        assert_eq!(post("/api/v1/users", user("dave", outside)).await, 403);
    }
    let password = json!({ "password": "another long password" });
    let of = |name: &str| format!("/api/v1/users/{name}/password");
    assert_eq!(
        post(&of("root"), password.clone()).await,
        404,
        "as if unknown"
    );
    assert_eq!(post(&of("carol"), password).await, 200);
    let listed = server
        .by(&token, Method::GET, "/api/v1/users", None)
        .await
        .good();
    let names = listed["users"].as_array().expect("a list").iter();
    let names: Vec<_> = names.map(|user| user["name"].clone()).collect();
    assert_eq!(names, [json!("carol")]);
}

#[tokio::test]
async fn the_own_password_needs_the_old_one_and_ends_the_sessions() {
    let server = Server::start().await;
    create_root(&server).await;
    create_user(&server, "alice", &json!([{ "role": "viewer" }])).await;
    let session = login(&server, "alice").await;
    let path = "/users/alice/password";
    for (body, expected) in [
        (json!({ "password": "short" }), 400),
        (json!({ "password": "another long password" }), 403),
        (
            json!({ "password": "another long password", "old_password": "" }),
            400,
        ),
        (
            json!({ "password": "another long password", "old_password": "wrong" }),
            403,
        ),
        (
            json!({ "password": "another long password", "old_password": PASSWORD }),
            200,
        ),
    ] {
        let (status, answer) = session.post(&server, path, &body).await;
        assert_eq!(status, expected, "{answer}");
    }
    assert_eq!(session.get(&server, "/session").await.0, 401);
    let old = try_login(&server, "alice", PASSWORD).await;
    assert_eq!(old.status(), StatusCode::UNAUTHORIZED);
    let new = try_login(&server, "alice", "another long password").await;
    assert_eq!(new.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_new_password_revokes_the_tokens_of_the_user_unless_they_are_to_be_kept() {
    let server = Server::start().await;
    create_user(&server, "alice", &json!([{ "role": "viewer" }])).await;
    let session = login(&server, "alice").await;
    let body = json!({ "name": "x", "grants": [{ "role": "viewer" }], "valid": "never" });
    let (status, created) = session.post(&server, "/tokens", &body).await;
    assert_eq!(status, 201, "{created}");
    let token = created["token"].as_str().expect("a token");
    let program = server.token_with(&json!([{ "role": "viewer" }])).await;
    let status = async |token: &str| {
        let shown = server.by(token, Method::GET, "/api/v1/session", None);
        shown.await.status.as_u16()
    };
    let path = "/users/alice/password";
    let mut body = json!({ "password": "another long password", "keep_tokens": true });
    let kept = server.post(path, &body).await.good();
    assert_eq!(kept, json!({ "name": "alice", "tokens_revoked": 0 }));
    assert_eq!(status(token).await, 200);
    body = json!({ "password": "a third long password" });
    let revoked = server.post(path, &body).await.good();
    assert_eq!(revoked["tokens_revoked"], 1);
    assert_eq!((status(token).await, status(&program).await), (401, 200));
}

#[tokio::test]
async fn a_session_that_ends_during_a_request_makes_no_token() {
    let server = Server::start().await;
    create_user(&server, "alice", &json!([{ "role": "viewer" }])).await;
    let session = login(&server, "alice").await;
    let body = json!({ "name": "x", "grants": [{ "role": "viewer" }], "valid": "never" });
    let body = body.to_string();
    let head = format!(
        "POST /api/v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nCookie: {}\r\nX-CSRF-Token: {}\r\nContent-Length: {}\r\n\r\n",
        session.cookie,
        session.csrf,
        body.len()
    );
    let mut raw = Raw::connect(&server).await;
    raw.begin_with(head.as_bytes()).await;
    let password = json!({ "password": "another long password" });
    let set = server.post("/users/alice/password", &password).await;
    set.good();
    raw.send(body.as_bytes()).await;
    let reply = raw.reply().await.expect("a reply");
    assert_eq!(reply.status, 401, "{}", reply.text());
    let listed = server.get("/tokens").await.good();
    assert_eq!(listed["tokens"], json!([]));
}

#[tokio::test]
async fn the_own_name_in_any_spelling_needs_the_old_password() {
    let server = Server::start().await;
    create_root(&server).await;
    let grants = json!([{ "role": "admin", "scripts": true }]);
    create_user(&server, "ΑΣ", &grants).await;
    let session = login(&server, "ΑΣ").await;
    // A last sigma has two small forms. The store takes the one that is no last letter for the same name.
    for (name, expected) in [("ΑΣ", 403), ("ασ", 403), ("αΣ", 403), ("ας", 404)] {
        let path = format!("/users/{name}/password");
        let body = json!({ "password": "another long password" });
        let (status, answer) = session.post(&server, &path, &body).await;
        assert_eq!(status, expected, "{name}: {answer}");
    }
    let known = json!({ "password": "another long password", "old_password": PASSWORD });
    let (status, answer) = session.post(&server, "/users/ασ/password", &known).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn the_admin_token_says_who_it_is() {
    let server = Server::start().await;
    let shown = server.get("/session").await.good();
    assert_eq!(shown["kind"], "admin_token");
    assert_eq!(
        shown["grants"],
        json!([{ "role": "admin", "scripts": true }])
    );
    assert!(shown.get("csrf").is_none(), "{shown}");
}
