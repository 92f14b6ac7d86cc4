//! The API of a cluster, asked of whichever scheduler answers.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::{Patience, until};

/// How long something of the cluster may take. On a busy machine it takes its time.
pub const WITHIN: Duration = Duration::from_secs(90);

/// Asks schedulers.
#[derive(Debug, Clone)]
pub struct Client {
    urls: Vec<String>,
    token: String,
    http: reqwest::Client,
}

impl Client {
    /// For the schedulers at these addresses.
    pub fn new(urls: Vec<String>, token: String) -> Result<Self> {
        cueline_runtime::tls::install_provider();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(10))
            .build()?;
        Ok(Self { urls, token, http })
    }

    /// How many schedulers there are.
    pub fn schedulers(&self) -> usize {
        self.urls.len()
    }

    /// Reads from the API of one scheduler, once.
    pub async fn get_from(&self, scheduler: usize, path: &str) -> Result<Value> {
        let url = format!("{}/api/v1{path}", self.urls[scheduler]);
        let answer = self.http.get(url).bearer_auth(&self.token).send().await?;
        let status = answer.status();
        let body: Value = answer.json().await?;
        if status != StatusCode::OK {
            bail!("GET {path}: {status}: {body}");
        }
        Ok(body)
    }

    /// Reads from whichever scheduler answers.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let patience = Patience::of(WITHIN);
        let mut last = String::new();
        while patience.pause().await {
            for at in 0..self.urls.len() {
                match self.get_from(at, path).await {
                    Ok(answer) => return Ok(answer),
                    Err(e) => last = format!("{e:?}"),
                }
            }
        }
        bail!("GET {path}: no answer within {WITHIN:?}: {last}")
    }

    /// Posts to whichever scheduler answers well, again and again: only for what may be repeated.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.send(Method::POST, path, body).await
    }

    /// The same; that there is nothing to delete is as good as having deleted it.
    pub async fn delete(&self, path: &str) -> Result<Value> {
        self.send(Method::DELETE, path, &Value::Null).await
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let patience = Patience::of(WITHIN);
        let mut last = String::new();
        while patience.pause().await {
            for url in &self.urls {
                let mut request = self
                    .http
                    .request(method.clone(), format!("{url}/api/v1{path}"))
                    .bearer_auth(&self.token);
                if !body.is_null() {
                    request = request.json(body);
                }
                match request.send().await {
                    Ok(answer) if answer.status().is_success() => {
                        let text = answer.text().await.unwrap_or_default();
                        return Ok(serde_json::from_str(&text).unwrap_or(Value::Null));
                    }
                    Ok(answer)
                        if method == Method::DELETE && answer.status() == StatusCode::NOT_FOUND =>
                    {
                        return Ok(Value::Null);
                    }
                    Ok(answer) => last = answer.text().await.unwrap_or_default(),
                    Err(e) => last = format!("{e:?}"),
                }
            }
        }
        bail!("{method} {path}: no good answer within {WITHIN:?}: {last}")
    }

    /// All runs, oldest first.
    pub async fn all_runs(&self) -> Result<Vec<Value>> {
        let mut all = all_runs(async |path| self.get(path).await).await?;
        all.reverse();
        Ok(all)
    }

    /// Waits until no run is alive.
    pub async fn quiet(&self, within: Duration) -> Result<()> {
        let mut last = Value::Null;
        until("no run is alive", within, async || {
            last = self.get("/stats").await?["live"].clone();
            let none = last.as_object().is_some_and(serde_json::Map::is_empty)
                || last.as_array().is_some_and(Vec::is_empty);
            Ok(none.then_some(()))
        })
        .await
        .with_context(|| format!("still alive: {last}"))
    }
}

/// All runs, newest first, page by page.
pub(crate) async fn all_runs(get: impl AsyncFn(&str) -> Result<Value>) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    let mut path = "/runs?limit=1000".to_owned();
    loop {
        let page = get(&path).await?;
        all.extend_from_slice(page["runs"].as_array().context("no list of runs")?);
        match page["next"].as_i64() {
            Some(before) => path = format!("/runs?limit=1000&before={before}"),
            None => return Ok(all),
        }
    }
}
