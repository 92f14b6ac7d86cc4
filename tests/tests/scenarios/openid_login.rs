//! A browser logs in by a real OpenID Connect provider.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, bail, ensure};
use cueline_test_servers::canaille::{CLIENT_ID, CLIENT_SECRET, Canaille, PASSWORD, USER};
use cueline_test_servers::free_port;
use cueline_tests::Standalone;
use cueline_tests::standalone::process;
use reqwest::{Method, Response, Url, header};
use serde_json::{Value, json};

/// The most redirects between two pages.
const MAX_REDIRECTS: usize = 10;
/// The most forms until the login has ended: name, password, and one more.
const MAX_FORMS: usize = 3;

/// What a browser does: it keeps cookies and follows redirects. All servers of the test are on one address.
struct Browser {
    http: reqwest::Client,
    cookies: BTreeMap<String, String>,
}

struct Page {
    url: Url,
    text: String,
}

impl Browser {
    fn new() -> Result<Self> {
        cueline_runtime::tls::install_provider();
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self {
            http,
            cookies: BTreeMap::new(),
        })
    }

    async fn send(&mut self, method: Method, url: Url, body: Option<String>) -> Result<Response> {
        let cookies = self.cookies.iter();
        let cookies: Vec<String> = cookies
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let mut request = self.http.request(method, url);
        request = request.header(header::COOKIE, cookies.join("; "));
        if let Some(body) = body {
            let kind = "application/x-www-form-urlencoded";
            request = request.header(header::CONTENT_TYPE, kind).body(body);
        }
        let answer = request.send().await?;
        for cookie in answer.headers().get_all(header::SET_COOKIE) {
            let pair = cookie.to_str()?.split(';').next().unwrap_or_default();
            let (name, value) = pair.split_once('=').context("a cookie")?;
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        Ok(answer)
    }

    /// Sends a form, or opens a page, and follows redirects to the next page.
    async fn open(&mut self, url: Url, form: Option<String>) -> Result<Page> {
        let (mut url, mut form) = (url, form);
        for _ in 0..MAX_REDIRECTS {
            let method = form.as_ref().map_or(Method::GET, |_| Method::POST);
            let answer = self.send(method, url.clone(), form.take()).await?;
            let Some(location) = answer.headers().get(header::LOCATION) else {
                return Ok(Page {
                    url,
                    text: answer.text().await?,
                });
            };
            url = url.join(location.to_str()?)?;
        }
        bail!("more than {MAX_REDIRECTS} redirects, the last one to {url}")
    }

    fn is_logged_in(&self) -> bool {
        self.cookies.contains_key("cueline_session")
    }
}

/// The filled-in form of a page of the provider.
fn filled(page: &Page) -> Result<String> {
    let (_, rest) = page
        .text
        .split_once(r#"name="csrf_token" value=""#)
        .with_context(|| format!("no form at {}: {}", page.url, page.text))?;
    let token = rest.split('"').next().context("the end of the token")?;
    let field = if page.text.contains(r#"name="password""#) {
        format!("password={}", PASSWORD.replace(' ', "+"))
    } else {
        format!("login={USER}")
    };
    Ok(format!("csrf_token={token}&{field}"))
}

#[tokio::test]
async fn a_user_of_a_real_provider_gets_a_session_with_the_grants_of_the_group() -> Result<()> {
    if let Err(missing) = Canaille::modules() {
        eprintln!("skipped: {missing:#}");
        return Ok(());
    }
    let home = tempfile::tempdir()?;
    let port = free_port()?;
    let redirect_url = format!("http://127.0.0.1:{port}/api/v1/login/oidc/callback");
    let provider = tokio::task::spawn_blocking({
        let redirect_url = redirect_url.clone();
        move || Canaille::start(&redirect_url)
    });
    let provider = provider.await??;
    let file = |name: &str| home.path().join(name).display().to_string();
    let (secret, grants) = (file("client.secret"), file("grants.toml"));
    fs::write(&secret, CLIENT_SECRET)?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
    let rule = "[[grant]]\ngroup_claim = \"cueline-operators\"\nrole = \"operator\"\n";
    fs::write(&grants, rule)?;
    let issuer = provider.issuer();
    let extra = [
        "--oidc-issuer",
        &issuer,
        "--oidc-client-id",
        CLIENT_ID,
        "--oidc-client-secret-file",
        &secret,
        "--oidc-redirect-url",
        &redirect_url,
        "--oidc-scopes",
        "openid,profile,email,groups",
        "--oidc-grants",
        &grants,
        "--oidc-create-users",
    ];
    let data = home.path().join("data");
    let server = Standalone::launch(process(&data, port, &extra)?, &data, port).await?;

    // Before the set-up, a login that gives fewer rights would create no user.
    let root = json!({ "name": "root", "grants": [{ "role": "admin", "scripts": true }] });
    server.post("/users", &root).await?;

    let mut browser = Browser::new()?;
    let begin = Url::parse(&format!("{}/api/v1/login/oidc", server.url()))?;
    let mut page = browser.open(begin, None).await?;
    for _ in 0..MAX_FORMS {
        if browser.is_logged_in() {
            break;
        }
        let form = filled(&page).with_context(|| server.last_lines())?;
        page = browser.open(page.url.clone(), Some(form)).await?;
    }
    ensure!(browser.is_logged_in(), "{}: {}", page.url, page.text);
    let session = Url::parse(&format!("{}/api/v1/session", server.url()))?;
    let answer = browser.send(Method::GET, session, None).await?;
    let who: Value = answer.json().await?;
    ensure!(who["name"] == USER, "{who}");
    ensure!(who["grants"] == json!([{ "role": "operator" }]), "{who}");
    let user = server.get(&format!("/users/{USER}")).await?;
    ensure!(user["login"] == "open_id", "{user}");
    ensure!(user["display_name"] == "Alice Doe", "{user}");
    server.terminate().await?;
    Ok(())
}
