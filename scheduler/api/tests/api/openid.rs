//! Login by OpenID Connect, with a provider that may say anything.

use std::sync::Arc;

use cueline_api::openid::{
    CALLBACK_PATH, GrantMapping, GrantRule, OpenId, OpenIdSettings, TOKENS_VALID,
};
use cueline_http::ServerLimits;
use cueline_model::{DurationMs, Grant, Role};
use cueline_store::{AuditFilter, AuditResult};
use reqwest::{Client, Response, Url, header};
use serde_json::{Value, json};

use crate::openid_provider::{CLIENT_ID, CLIENT_SECRET, CODE, Provider};
use crate::server::Server;

fn grant(role: Role) -> Grant {
    Grant {
        role,
        scripts: false,
        ..Grant::everything()
    }
}

fn settings(issuer: &str) -> OpenIdSettings {
    let rule = |group: &str, role: Role| GrantRule {
        group_claim: group.to_owned(),
        grant: grant(role),
    };
    let rules = vec![
        rule("operators", Role::Operator),
        rule("watchers", Role::Viewer),
        GrantRule {
            group_claim: "billing".to_owned(),
            grant: Grant {
                namespace: Some("team-b".parse().expect("a name")),
                group: Some("team-b/billing".parse().expect("a name")),
                ..grant(Role::Viewer)
            },
        },
    ];
    OpenIdSettings {
        issuer: issuer.to_owned(),
        client_id: CLIENT_ID.to_owned(),
        client_secret: Some(CLIENT_SECRET.to_owned()),
        redirect_url: format!("https://cueline.example.com{CALLBACK_PATH}"),
        scopes: vec!["openid".to_owned(), "groups".to_owned()],
        groups_claim: "groups".to_owned(),
        grants: Some(GrantMapping::new(rules).expect("a mapping")),
        create_users: true,
        tokens_valid: TOKENS_VALID,
    }
}

struct Fixture {
    server: Server,
    provider: Provider,
    browser: Client,
}

/// A login that a browser has begun.
struct Begun {
    cookie: String,
    state: String,
}

impl Fixture {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut OpenIdSettings)) -> Self {
        let provider = Provider::start().await;
        let mut settings = settings(&provider.issuer);
        change(&mut settings);
        let openid = Arc::new(OpenId::new(settings).expect("good settings"));
        let limits = ServerLimits::of_connections(100);
        let server = Server::with_state(limits, |state| state.openid = Some(openid)).await;
        // The store keeps a user who may do everything.
        let root = json!({ "name": "root", "grants": [{ "role": "admin", "scripts": true }] });
        server.post("/users", &root).await.good();
        let browser = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build();
        Self {
            server,
            provider,
            browser: browser.expect("a client"),
        }
    }

    async fn get(&self, path_and_query: &str, cookie: &str) -> Response {
        let url = format!("http://{}{path_and_query}", self.server.address);
        let request = self.browser.get(url).header(header::COOKIE, cookie);
        request.send().await.expect("an answer")
    }

    async fn begin(&self) -> Begun {
        let answer = self.get("/api/v1/login/oidc", "").await;
        assert_eq!(answer.status(), 303);
        let url = Url::parse(text(&answer, header::LOCATION)).expect("a URL");
        let one = |wanted: &str| {
            let found = url.query_pairs().find(|(name, _)| name == wanted);
            found.expect("a parameter").1.into_owned()
        };
        let now = self.server.store.now().await.expect("a clock");
        let mut says = self.provider.says();
        says.now_s = now.as_millis() / 1_000;
        says.nonce = one("nonce");
        says.challenge = one("code_challenge");
        assert_eq!(one("code_challenge_method"), "S256");
        assert_eq!(one("scope"), "openid groups");
        assert_eq!(one("client_id"), CLIENT_ID);
        let cookie = text(&answer, header::SET_COOKIE);
        for flag in [
            "; Path=/api/v1/login/oidc",
            "; Max-Age=600",
            "; HttpOnly",
            "; SameSite=Lax",
            "; Secure",
        ] {
            assert!(cookie.contains(flag), "{cookie}");
        }
        let cookie = cookie.split(';').next().expect("a pair").to_owned();
        Begun {
            cookie,
            state: one("state"),
        }
    }

    async fn end(&self, cookie: &str, state: &str) -> Response {
        let path = format!("{CALLBACK_PATH}?code={CODE}&state={state}");
        self.get(&path, cookie).await
    }

    async fn login(&self) -> Response {
        let begun = self.begin().await;
        self.end(&begun.cookie, &begun.state).await
    }

    async fn user(&self, name: &str) -> (u16, Value) {
        let answer = self.server.get(&format!("/users/{name}")).await;
        (answer.status.as_u16(), answer.json())
    }

    /// The reasons of refused logins in the audit log, newest first.
    async fn refusals(&self) -> Vec<String> {
        let filter = AuditFilter {
            actions: vec!["session.login".to_owned()],
            result: Some(AuditResult::Refused),
            limit: 100,
            ..AuditFilter::default()
        };
        let entries = self.server.ports.audit.audit_entries(&filter).await;
        let entries = entries.expect("entries").into_iter();
        entries.map(|one| one.entry.detail).collect()
    }
}

fn text(answer: &Response, name: header::HeaderName) -> &str {
    let value = answer.headers().get(name).expect("a header");
    value.to_str().expect("a text")
}

/// The session in the cookies of an answer.
#[track_caller]
fn session(answer: &Response) -> String {
    assert_eq!(answer.status(), 303, "{answer:?}");
    assert_eq!(text(answer, header::LOCATION), "/");
    assert_eq!(text(answer, header::CACHE_CONTROL), "no-store");
    let cookies = answer.headers().get_all(header::SET_COOKIE).iter();
    let cookies: Vec<&str> = cookies.map(|v| v.to_str().expect("a text")).collect();
    let ends = cookies.iter().any(|c| c.starts_with("cueline_login=; "));
    assert!(ends, "the login has ended: {cookies:?}");
    let session = cookies.iter().find(|c| c.starts_with("cueline_session="));
    let session = session.expect("a session");
    assert!(session.contains("; SameSite=Strict; Secure"), "{session}");
    session.split(';').next().expect("a pair").to_owned()
}

#[tokio::test]
async fn a_login_creates_the_user_and_each_login_gives_the_grants_of_the_groups() {
    let fixture = Fixture::start().await;
    let cookie = session(&fixture.login().await);
    let answer = fixture.get("/api/v1/session", &cookie).await;
    let who: Value = answer.json().await.expect("JSON");
    assert_eq!(
        (&who["kind"], &who["name"]),
        (&json!("user"), &json!("alice"))
    );
    assert_eq!(who["grants"], json!([{ "role": "operator" }]));
    let (_, user) = fixture.user("alice").await;
    assert_eq!(
        (&user["login"], &user["display_name"]),
        (&json!("open_id"), &json!("Alice Doe"))
    );

    fixture
        .provider
        .claims(&json!({ "groups": ["watchers"], "preferred_username": "bob" }));
    session(&fixture.login().await);
    let (_, user) = fixture.user("alice").await;
    assert_eq!(user["grants"], json!([{ "role": "viewer" }]));
    assert_eq!(fixture.user("bob").await.0, 404, "the subject is the same");

    for lost in [json!({ "groups": [] }), json!({ "groups": null })] {
        fixture.provider.claims(&lost);
        session(&fixture.login().await);
        let (_, user) = fixture.user("alice").await;
        assert_eq!(user["grants"], json!([]), "{lost}");
    }
    // The session that had more has less now.
    assert_eq!(fixture.get("/api/v1/jobs", &cookie).await.status(), 403);
    assert_eq!(fixture.refusals().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_group_of_the_provider_gives_a_grant_in_a_namespace() {
    let fixture = Fixture::start().await;
    fixture.provider.claims(&json!({ "groups": ["billing"] }));
    let cookie = session(&fixture.login().await);
    let (_, user) = fixture.user("alice").await;
    let grants = json!([{ "group": "team-b/billing", "role": "viewer" }]);
    assert_eq!(user["grants"], grants);
    for (path, status) in [
        ("/api/v1/namespaces/team-b/jobs", 200),
        ("/api/v1/namespaces/team-c/jobs", 403),
        ("/api/v1/jobs", 403),
    ] {
        let answer = fixture.get(path, &cookie).await;
        assert_eq!(answer.status(), status, "{path}");
    }
}

#[tokio::test]
async fn a_login_belongs_to_no_namespace() {
    let fixture = Fixture::start().await;
    for path in ["login/oidc", "login/oidc/callback"] {
        let path = format!("/api/v1/namespaces/team-b/{path}");
        let answer = fixture.get(&path, "").await;
        assert_eq!(answer.status(), 404, "{path}");
        let body = answer.text().await.expect("a body");
        assert!(body.contains("belongs to no namespace"), "{body}");
    }
}

#[tokio::test]
async fn an_id_token_that_is_not_valid_starts_no_session() {
    let fixture = Fixture::start().await;
    let now_s = fixture
        .server
        .store
        .now()
        .await
        .expect("a clock")
        .as_millis()
        / 1_000;
    for (claims, reason) in [
        (json!({ "iss": "https://other.example.com" }), "issuer"),
        (json!({ "aud": "other" }), "audience"),
        (json!({ "aud": [CLIENT_ID, "other"] }), "audience"),
        (json!({ "azp": "other" }), "another client"),
        (json!({ "exp": now_s - 1 }), "xpired"),
        (json!({ "nonce": "other" }), "nonce"),
        (json!({ "nonce": null }), "nonce"),
        (json!({ "sub": "" }), "subject"),
        (json!({ "at_hash": "other" }), "access token"),
    ] {
        fixture.provider.claims(&claims);
        assert_eq!(fixture.login().await.status(), 401, "{claims}");
        let newest = fixture.refusals().await.swap_remove(0);
        assert!(newest.contains(reason), "{claims}: {newest}");
    }
    fixture.provider.claims(&json!({}));
    for head in [
        json!({ "alg": "none" }),
        json!({ "alg": "HS256" }),
        json!({ "alg": "RS256", "kid": "1" }),
    ] {
        fixture.provider.says().head = Some(head.clone());
        assert_eq!(fixture.login().await.status(), 401, "{head}");
    }
    // Another key that calls itself the published one.
    fixture.provider.says().head = Some(json!({ "alg": "EdDSA", "kid": "1" }));
    fixture.provider.says().signs = 2;
    assert_eq!(fixture.login().await.status(), 401);
    assert_eq!(fixture.user("alice").await.0, 404);
    assert_eq!(fixture.refusals().await.len(), 13);
    fixture.provider.says().signs = 1;
    session(&fixture.login().await);
}

#[tokio::test]
async fn only_the_browser_that_has_begun_a_login_ends_it() {
    let fixture = Fixture::start().await;
    let (one, other) = (fixture.begin().await, fixture.begin().await);
    for (cookie, state) in [
        ("", one.state.as_str()),
        ("cueline_login=", one.state.as_str()),
        (one.cookie.as_str(), other.state.as_str()),
        (other.cookie.as_str(), one.state.as_str()),
        (one.cookie.as_str(), "x"),
    ] {
        let answer = fixture.end(cookie, state).await;
        assert_eq!(answer.status(), 401, "{cookie} {state}");
    }
    // The challenge is that of the other login, so the verifier of this one does not fit.
    assert_eq!(fixture.end(&one.cookie, &one.state).await.status(), 401);
    let refusals = fixture.refusals().await;
    assert!(refusals[0].contains("invalid_grant"), "{refusals:?}");
    assert_eq!(refusals.len(), 6);
    session(&fixture.end(&other.cookie, &other.state).await);
}

#[tokio::test]
async fn an_error_of_the_provider_ends_the_login_and_its_words_are_not_shown() {
    let fixture = Fixture::start().await;
    let begun = fixture.begin().await;
    let path = format!(
        "{CALLBACK_PATH}?error=access_denied&error_description=call+us&state={}",
        begun.state
    );
    let answer = fixture.get(&path, &begun.cookie).await;
    assert_eq!(answer.status(), 401);
    let body = answer.text().await.expect("a body");
    assert!(
        body.contains("access_denied") && !body.contains("call"),
        "{body}"
    );
    let path = format!("{CALLBACK_PATH}?code={CODE}&iss=x&state={}", begun.state);
    let answer = fixture.get(&path, &begun.cookie).await;
    assert_eq!(answer.status(), 401, "another issuer");
    session(&fixture.end(&begun.cookie, &begun.state).await);
}

#[tokio::test]
async fn keys_are_fetched_again_when_a_token_names_another_one() {
    let fixture = Fixture::start().await;
    session(&fixture.login().await);
    session(&fixture.login().await);
    assert_eq!(fixture.provider.says().discoveries, 1, "it is kept");
    {
        let mut says = fixture.provider.says();
        (says.signs, says.publishes) = (2, 2);
    }
    session(&fixture.login().await);
    assert_eq!(fixture.provider.says().discoveries, 2);
    // A key that is not published leads to at most one further request in 10 s.
    fixture.provider.says().signs = 3;
    for _ in 0..3 {
        assert_eq!(fixture.login().await.status(), 401);
    }
    assert!(fixture.provider.says().discoveries <= 3);
}

#[tokio::test]
async fn a_disabled_user_is_refused_and_no_password_logs_an_openid_user_in() {
    let fixture = Fixture::start().await;
    session(&fixture.login().await);
    let body = json!({ "name": "alice", "password": "correct horse battery" });
    let request = fixture.server.bare(reqwest::Method::POST, "/api/v1/login");
    let answer = fixture.server.send(request.json(&body)).await;
    assert_eq!(answer.status.as_u16(), 401);
    let request = fixture
        .server
        .bare(reqwest::Method::PATCH, "/api/v1/users/alice");
    let request = request.bearer_auth(crate::server::TOKEN);
    let answer = fixture
        .server
        .send(request.json(&json!({ "enabled": false })));
    answer.await.good();
    assert_eq!(fixture.login().await.status(), 403);
    let refusals = fixture.refusals().await;
    assert_eq!(refusals[0], "the user is disabled");
    let (_, user) = fixture.user("alice").await;
    assert_eq!(user["enabled"], json!(false));
}

#[tokio::test]
async fn a_name_of_the_provider_never_leads_to_a_user() {
    let fixture = Fixture::start().await;
    let alice = json!({ "name": "alice", "password": "correct horse battery" });
    fixture.server.post("/users", &alice).await.good();
    assert_eq!(fixture.login().await.status(), 409);
    let (_, user) = fixture.user("alice").await;
    assert_eq!(user["login"], json!("password"));
}

#[tokio::test]
async fn who_is_in_no_group_of_a_rule_becomes_no_user() {
    let fixture = Fixture::start().await;
    fixture.provider.claims(&json!({ "groups": ["unknown"] }));
    assert_eq!(fixture.login().await.status(), 403);
    assert_eq!(fixture.user("alice").await.0, 404);
    let closed = Fixture::with(|settings| settings.create_users = false).await;
    assert_eq!(closed.login().await.status(), 403);
    assert_eq!(closed.user("alice").await.0, 404);
}

#[tokio::test]
async fn a_token_of_a_user_counts_for_a_while_after_the_login_by_the_provider() {
    for (tokens_valid, expected) in [(TOKENS_VALID, 200), (DurationMs::millis(0), 401)] {
        let fixture = Fixture::with(|settings| settings.tokens_valid = tokens_valid).await;
        let cookie = session(&fixture.login().await);
        let answer = fixture.get("/api/v1/session", &cookie).await;
        let who: Value = answer.json().await.expect("JSON");
        let csrf = who["csrf"].as_str().expect("a text");
        let server = &fixture.server;
        let body = json!({ "name": "x", "grants": [{ "role": "viewer" }], "valid": "never" });
        let request = server.bare(reqwest::Method::POST, "/api/v1/tokens");
        let request = request
            .header(header::COOKIE, &cookie)
            .header("X-CSRF-Token", csrf);
        let created = server.send(request.json(&body)).await.good();
        let token = created["token"].as_str().expect("a token");
        let path = "/api/v1/session";
        let shown = server.by(token, reqwest::Method::GET, path, None).await;
        assert_eq!(shown.status.as_u16(), expected, "{shown:?}");
    }
}

#[tokio::test]
async fn before_the_set_up_only_who_gets_all_rights_becomes_a_user() {
    let mapped = |settings: &mut OpenIdSettings| {
        let rule = |group: &str, grant: Grant| GrantRule {
            group_claim: group.to_owned(),
            grant,
        };
        let rules = vec![
            rule("operators", grant(Role::Operator)),
            rule("half", grant(Role::Admin)),
            rule("admins", Grant::everything()),
        ];
        settings.grants = Some(GrantMapping::new(rules).expect("a mapping"));
    };
    let fixture = Fixture::with(mapped).await;
    fixture.server.delete("/users/root").await.good();
    for group in ["operators", "half"] {
        fixture.provider.claims(&json!({ "groups": [group] }));
        assert_eq!(fixture.login().await.status(), 403, "{group}");
        let newest = fixture.refusals().await.swap_remove(0);
        assert!(newest.contains("no user yet"), "{newest}");
        assert!(
            !fixture
                .server
                .ports
                .accounts
                .has_users()
                .await
                .expect("answers")
        );
    }
    fixture.provider.claims(&json!({ "groups": ["admins"] }));
    session(&fixture.login().await);
    let other = json!({ "sub": "subject-2", "preferred_username": "bob" });
    fixture.provider.claims(&other);
    session(&fixture.login().await);
    let (_, bob) = fixture.user("bob").await;
    assert_eq!(bob["grants"], json!([{ "role": "operator" }]));

    // Without a mapping a login gives no grants, so it makes no first user either.
    let unmapped = Fixture::with(|settings| settings.grants = None).await;
    unmapped.server.delete("/users/root").await.good();
    assert_eq!(unmapped.login().await.status(), 403);
}

#[tokio::test]
async fn a_provider_that_does_not_answer_well_stops_only_logins_by_it() {
    let fixture = Fixture::start().await;
    for bad in [
        "no JSON".to_owned(),
        json!({ "issuer": "https://other.example.com" }).to_string(),
        " ".repeat(1024 * 1024 + 1),
    ] {
        let fixture = Fixture::start().await;
        fixture.provider.says().discovery = Some(bad);
        let answer = fixture.get("/api/v1/login/oidc", "").await;
        assert_eq!(answer.status(), 503);
        assert_eq!(fixture.get("/readyz", "").await.status(), 200);
    }
    assert_eq!(
        fixture.provider.says().discoveries,
        0,
        "nothing is fetched at the start"
    );
}

#[tokio::test]
async fn without_a_provider_the_routes_say_so() {
    let server = Server::start().await;
    for path in ["/api/v1/login/oidc", CALLBACK_PATH] {
        let answer = server.send(server.bare(reqwest::Method::GET, path)).await;
        assert_eq!(answer.status.as_u16(), 404);
        assert!(answer.text.contains("oidc_issuer"), "{answer:?}");
    }
}
