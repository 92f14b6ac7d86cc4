//! A client of a cluster's API. It sends requests to the schedulers in turn until one answers.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cueline_test_support::{Wait, try_eventually};
use reqwest::{Method, StatusCode};
use serde_json::Value;

/// The time limit for a request, even on a busy machine.
pub const WITHIN: Duration = Duration::from_secs(90);

/// Sends requests to schedulers.
#[derive(Debug, Clone)]
pub struct Client {
    urls: Vec<String>,
    token: String,
    http: reqwest::Client,
}

impl Client {
    /// Makes a client of the schedulers at these addresses.
    pub fn new(urls: Vec<String>, token: String) -> Result<Self> {
        cueline_runtime::tls::install_provider();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(10))
            .build()?;
        Ok(Self { urls, token, http })
    }

    /// The number of schedulers.
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

    /// Reads from the first scheduler that answers.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let mut wait = Wait::new(format!("GET {path} is answered"), WITHIN);
        loop {
            let mut last = String::new();
            for scheduler in 0..self.urls.len() {
                match self.get_from(scheduler, path).await {
                    Ok(answer) => return Ok(answer),
                    Err(e) => last = format!("{e:?}"),
                }
            }
            wait.pause(last).await?;
        }
    }

    /// Posts until a scheduler reports success. The request must be safe to repeat.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.send(Method::POST, path, body).await
    }

    /// Deletes until a scheduler reports success, or that there is nothing to delete.
    pub async fn delete(&self, path: &str) -> Result<Value> {
        self.send(Method::DELETE, path, &Value::Null).await
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let mut wait = Wait::new(format!("{method} {path} succeeds"), WITHIN);
        loop {
            let mut last = String::new();
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
            wait.pause(last).await?;
        }
    }

    /// All runs, oldest first.
    pub async fn all_runs(&self) -> Result<Vec<Value>> {
        let mut all = all_runs(async |path| self.get(path).await).await?;
        all.reverse();
        Ok(all)
    }

    /// Waits until every run has ended.
    pub async fn wait_until_all_ended(&self, deadline: Duration) -> Result<()> {
        wait_until_all_ended(deadline, async |path| self.get(path).await).await
    }
}

/// All runs, newest first, page by page.
pub(crate) async fn all_runs(get: impl AsyncFn(&str) -> Result<Value>) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    let mut path = "/runs?limit=1000".to_owned();
    loop {
        let page = get(&path).await?;
        all.extend_from_slice(page["runs"].as_array().context("no list of runs")?);
        match page["next"].as_str() {
            Some(next) => path = format!("/runs?limit=1000&after={next}"),
            None => return Ok(all),
        }
    }
}

pub(crate) async fn wait_until_all_ended(
    deadline: Duration,
    get: impl AsyncFn(&str) -> Result<Value>,
) -> Result<()> {
    try_eventually("every run has ended", deadline, async || {
        let live = get("/stats").await?["live"].take();
        let none = live.as_object().is_some_and(serde_json::Map::is_empty)
            || live.as_array().is_some_and(Vec::is_empty);
        Ok(none.then_some(()).ok_or(live))
    })
    .await
}
