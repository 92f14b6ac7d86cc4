//! Alarms of a cluster with two schedulers: a job that fails several times in a row raises one message, which a webhook gets
//! with a signature. A mail server that does not answer delays no run, and a restart of the schedulers loses no message.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use cueline_channels::webhook_signature;
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use serde_json::Value;
use tokio::net::TcpListener;

const SECRET: &str = "the key of the hook";

const JOBS: &str = r#"
[[job]]
name = "broken"
schedule = { every = "300ms" }
handler = { shell = "exit 3" }

[[job]]
name = "by-hand"
schedule = { manual = true }
handler = { shell = "exit 4" }

[[job]]
name = "good"
schedule = { every = "300ms" }
handler = { shell = "true" }
"#;

/// The requests that the hook has accepted.
#[derive(Debug, Clone, Default)]
struct Hook(Arc<Mutex<Vec<(HeaderMap, Bytes)>>>);

impl Hook {
    /// A server that accepts everything. Returns its address.
    async fn start(&self) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/alarms", listener.local_addr()?);
        let routes = Router::new()
            .route("/alarms", post(Self::receive))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(url)
    }

    #[expect(clippy::unused_async, reason = "handlers of axum are asynchronous")]
    async fn receive(State(hook): State<Self>, headers: HeaderMap, body: Bytes) -> &'static str {
        hook.0.lock().expect("is whole").push((headers, body));
        "received"
    }

    /// The bodies about a job so far, whose signatures are verified.
    fn about(&self, job: &str) -> Result<Vec<Value>> {
        let mut found = Vec::new();
        for (headers, body) in &*self.0.lock().expect("is whole") {
            let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            let at: i64 = header("cueline-timestamp").context("a time")?.parse()?;
            let signature = header("cueline-signature").context("a signature")?;
            ensure!(
                signature == webhook_signature(SECRET, at, body),
                "{signature}"
            );
            let body: Value = serde_json::from_slice(body)?;
            if body["events"][0]["job"] == job {
                found.push(body);
            }
        }
        Ok(found)
    }

    /// Waits for a message about a job.
    async fn wait_for(&self, job: &str, cluster: &Cluster) -> Result<Value> {
        let received = eventually(format!("a message about {job}"), WITHIN, async || {
            let found = self.about(job).map_err(|error| format!("{error:#}"))?;
            found.into_iter().next().ok_or_else(|| "none".to_owned())
        });
        received.await.with_context(|| cluster.logs())
    }
}

/// A mail server that accepts connections and never says a word.
async fn silent_mail_server() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    Ok(port)
}

fn alarms(url: &str, port: u16) -> String {
    format!(
        r#"
[[channel]]
name = "hook"
webhook = {{ url = "{url}", secret = {{ secret = "hook" }} }}

[[channel]]
name = "mail"
email = {{ server = "127.0.0.1", port = {port}, tls = "none", from = "cueline@example.com", to = ["ops@example.com"] }}

[[rule]]
name = "streak"
jobs = ["broken"]
on = [{{ failed_in_a_row = 3 }}]
channels = ["hook", "mail"]
group_interval = "1s"

[[rule]]
name = "each"
jobs = ["by-hand"]
on = ["failed"]
channels = ["hook"]
group_interval = "3s"
"#
    )
}

/// Waits until so many runs of the job have ended in this state.
async fn wait_for_runs(cluster: &Cluster, job: &str, state: &str, count: usize) -> Result<()> {
    let path = format!("/runs?job={job}&state={state}&limit=1000");
    let ended = eventually(format!("{count} runs of {job}"), WITHIN, async || {
        let page = cluster.client.get(&path).await;
        let page = page.map_err(|error| format!("{error:#}"))?;
        match page["runs"].as_array().map(Vec::len) {
            Some(found) if found >= count => Ok(()),
            found => Err(format!("{found:?}")),
        }
    });
    ended.await.with_context(|| cluster.logs())
}

async fn deliveries(cluster: &Cluster, channel: &str) -> Result<Vec<Value>> {
    let page = cluster.client.get("/alarms/deliveries?limit=1000").await?;
    let all = page["deliveries"].as_array().context("a list")?;
    let own = all.iter().filter(|delivery| delivery["channel"] == channel);
    Ok(own.cloned().collect())
}

async fn count(cluster: &Cluster, job: &str, state: &str) -> Result<usize> {
    let path = format!("/runs?job={job}&state={state}&limit=1000");
    let page = cluster.client.get(&path).await?;
    Ok(page["runs"].as_array().context("a list")?.len())
}

#[tokio::test]
async fn a_failing_job_raises_one_message_and_a_dead_channel_delays_no_run() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    let (_postgres, store) = database()?;
    let cluster = Cluster::new(store, nats.url()).await?;
    let secrets = cluster.path("secrets");
    std::fs::create_dir(&secrets)?;
    std::fs::write(secrets.join("hook"), SECRET)?;
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(secrets.join("hook"), private)?;
    let flags = ["--secrets-dir", secrets.to_str().context("letters")?];
    let mut first = cluster.scheduler(&flags)?;
    cluster.wait_until_ready(&mut first).await?;
    let mut second = cluster.scheduler_beside(&flags)?;
    let mut worker = cluster.worker("one")?;
    let hook = Hook::default();
    let port = silent_mail_server().await?;
    std::fs::write(
        cluster.path("alarms.toml"),
        alarms(&hook.start().await?, port),
    )?;
    let applied = cluster
        .run(&["alarm", "apply", "-f", "alarms.toml"])
        .await?
        .success()?;
    ensure!(
        applied.contains("alarms: 4 created, 0 changed, 0 unchanged"),
        "{applied}"
    );
    let tested = cluster.run(&["alarm", "test", "hook"]).await?.success()?;
    ensure!(tested.contains("delivered: 200 received"), "{tested}");
    cluster.apply(JOBS).await?;

    let message = hook.wait_for("broken", &cluster).await?;
    ensure!(message["count"] == 1, "{message}");
    ensure!(
        message["events"][0]["condition"] == "failed_in_a_row",
        "{message}"
    );
    ensure!(message["events"][0]["count"] == 3, "{message}");
    // The mail server holds its message; the runs go on, those that fail and those that do not.
    let mail = deliveries(&cluster, "mail").await?;
    ensure!(mail.len() == 1 && mail[0]["state"] == "pending", "{mail:?}");
    for (job, state) in [("broken", "failed"), ("good", "succeeded")] {
        let before = count(&cluster, job, state).await?;
        wait_for_runs(&cluster, job, state, before + 10).await?;
    }
    let mail = deliveries(&cluster, "mail").await?;
    ensure!(mail.len() == 1 && mail[0]["state"] == "pending", "{mail:?}");
    ensure!(hook.about("broken")?.len() == 1, "the streak goes on");

    // The alarm is in the store with the outcome. Both schedulers die before its message is sent.
    cluster.run(&["job", "pause", "broken"]).await?.success()?;
    let run = cluster.trigger("by-hand").await?;
    cluster.wait_for_state(&run, "failed").await?;
    first.kill().await?;
    second.kill().await?;
    ensure!(
        hook.about("by-hand")?.is_empty(),
        "its message was sent before the schedulers were dead"
    );
    first.start()?;
    cluster.wait_until_ready(&mut first).await?;
    second.start()?;
    let message = hook.wait_for("by-hand", &cluster).await?;
    let alarmed = message["events"][0]["run"].as_i64();
    ensure!(alarmed == run.parse().ok(), "{message}");
    let listed = cluster.run(&["alarm", "list"]).await?.success()?;
    ensure!(
        listed.contains("by-hand") && listed.contains("failed_in_a_row"),
        "{listed}"
    );
    let listed = cluster.run(&["alarm", "deliveries"]).await?.success()?;
    ensure!(listed.contains("200 received"), "{listed}");
    worker.terminate().await?;
    second.terminate().await?;
    first.terminate().await
}
