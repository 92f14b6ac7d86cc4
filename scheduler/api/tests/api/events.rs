//! Streams of events, read like by a client.

use std::time::Duration;

use crate::behaviour::{apply, dispatching, log_line, report, triggered};
use crate::openapi::{by_name, document, errors};
use crate::raw::{Raw, request};
use crate::server::{DEADLINE, Server, TOKEN, until};
use cueline_http::ServerLimits;
use cueline_model::{AttemptEvent, ExecutorId, Heartbeat, Outcome, OutcomeKind, Session};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

/// An open stream.
struct Stream {
    response: Response,
    received: String,
}

/// A message of a stream.
#[derive(Debug)]
struct Message {
    event: String,
    id: String,
    data: Value,
}

impl Stream {
    async fn open(server: &Server, path: &str) -> Self {
        Self::after(server, path, None).await
    }

    async fn after(server: &Server, path: &str, last_event: Option<&str>) -> Self {
        Self::of(send(server, path, last_event).await)
    }

    async fn by(server: &Server, token: &str, path: &str) -> Self {
        Self::of(send_by(server, token, path, None).await)
    }

    #[track_caller]
    fn of(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        let of_type = response.headers()["content-type"].to_str();
        assert_eq!(of_type.ok(), Some("text/event-stream"));
        Self {
            response,
            received: String::new(),
        }
    }

    /// The next message, without heartbeats. `None` at the end of the stream.
    async fn next(&mut self) -> Option<Message> {
        let message = tokio::time::timeout(DEADLINE, self.receive());
        message.await.expect("neither a message nor an end")
    }

    async fn receive(&mut self) -> Option<Message> {
        loop {
            while let Some((block, rest)) = self.received.split_once("\n\n") {
                let field = |name: &str| {
                    let found = block.lines().find_map(|line| line.strip_prefix(name));
                    found.unwrap_or_default().to_owned()
                };
                let (event, id, data) = (field("event: "), field("id: "), field("data: "));
                let read = self.received.len() - rest.len();
                self.received.drain(..read);
                if !event.is_empty() {
                    let data = serde_json::from_str(&data).expect("JSON");
                    return Some(Message { event, id, data });
                }
            }
            let chunk = self.response.chunk().await.expect("no error")?;
            self.received
                .push_str(std::str::from_utf8(&chunk).expect("whole characters"));
        }
    }

    /// The next message, which has to be of this event.
    async fn expect(&mut self, event: &str) -> Message {
        let message = self.next().await.expect("the stream goes on");
        assert_eq!(message.event, event, "{message:?}");
        message
    }
}

async fn send(server: &Server, path: &str, last_event: Option<&str>) -> Response {
    send_by(server, TOKEN, path, last_event).await
}

async fn send_by(server: &Server, token: &str, path: &str, last_event: Option<&str>) -> Response {
    let mut request = server.bare(Method::GET, &format!("/api/v1{path}"));
    if let Some(id) = last_event {
        request = request.header("Last-Event-ID", id);
    }
    let sent = tokio::time::timeout(DEADLINE, request.bearer_auth(token).send());
    sent.await.expect("no answer").expect("an answer")
}

/// Checks that the message fits the schema of the stream, and its data the schema with this name.
#[track_caller]
fn assert_fits(message: &Message, of_stream: &str, of_data: &str) {
    let document = document();
    let whole =
        json!({ "event": message.event, "id": message.id, "data": message.data.to_string() });
    for (name, value) in [(of_stream, &whole), (of_data, &message.data)] {
        let errors = errors(&document, &by_name(name), value);
        assert!(errors.is_empty(), "{name}: {value}: {errors:?}");
    }
}

fn succeeded() -> AttemptEvent {
    let at = cueline_model::Timestamp::from_millis(1_800_000_000_000);
    AttemptEvent::Ended {
        outcome: Outcome::new(OutcomeKind::Succeeded, at),
    }
}

#[tokio::test]
async fn a_run_appears_and_its_end_appears() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let before = triggered(&server, "a").await;
    let attempt = dispatching(&server, before).await;
    let mut stream = Stream::open(&server, "/events?kinds=run").await;
    let ready = stream.expect("ready").await;
    assert_eq!(ready.data, json!({ "resumed": false }));
    assert_fits(&ready, "ChangeMessage", "Ready");
    let run = triggered(&server, "a").await;
    let created = stream.expect("run").await;
    assert_fits(&created, "ChangeMessage", "RunEvent");
    assert_eq!(created.data["change"], "created");
    assert_eq!(created.data["id"], run.0);
    assert_eq!(created.data["job"], "a");
    assert_eq!(created.data["group"], "default");
    assert_eq!(created.data["state"], "scheduled");
    assert!(!created.id.is_empty() && created.id != ready.id);
    // A run from before the stream was opened.
    report(&server, attempt, succeeded()).await;
    let ended = stream.expect("run").await;
    assert_eq!(
        (&ended.data["change"], &ended.data["id"]),
        (&json!("ended"), &json!(before.0))
    );
    assert_eq!(ended.data["state"], "succeeded");
    assert_eq!(ended.data["executor"], "worker-1");
    assert_fits(&ended, "ChangeMessage", "RunEvent");
    server
        .post(&format!("/runs/{run}/cancel"), &json!({}))
        .await
        .good();
    let cancelled = stream.expect("run").await;
    assert_eq!(
        (&cancelled.data["change"], &cancelled.data["state"]),
        (&json!("ended"), &json!("cancelled"))
    );
}

#[tokio::test]
async fn changes_of_jobs_and_executors_appear() {
    let server = Server::start().await;
    apply(&server, "old").await;
    let mut stream = Stream::open(&server, "/events?kinds=job,executor").await;
    stream.expect("ready").await;
    apply(&server, "new").await;
    let created = stream.expect("job").await;
    assert_eq!(
        (&created.data["change"], &created.data["name"]),
        (&json!("created"), &json!("new"))
    );
    server.post("/jobs/old/pause", &json!({})).await.good();
    let paused = stream.expect("job").await;
    assert_eq!(
        (&paused.data["change"], &paused.data["version"]),
        (&json!("paused"), &json!(2))
    );
    assert_fits(&paused, "ChangeMessage", "JobEvent");
    let heartbeat = Heartbeat {
        executor: ExecutorId {
            group: "default".parse().expect("a name"),
            name: "worker-1".parse().expect("a name"),
        },
        incarnation: "1".to_owned(),
        session: Session(1),
        capabilities: Vec::new(),
        capacity: 4,
        labels: cueline_model::ExecutorLabels::default(),
        weight: cueline_model::Weight::default(),
        held: 0,
        running: 0,
        draining: false,
        gone: false,
        refusal: None,
    };
    let recorded = server.store.record_heartbeats(&[heartbeat]).await;
    recorded.expect("recorded");
    let appeared = stream.expect("executor").await;
    assert_eq!(
        (&appeared.data["change"], &appeared.data["state"]),
        (&json!("appeared"), &json!("alive"))
    );
    assert_fits(&appeared, "ChangeMessage", "ExecutorEvent");
}

#[tokio::test]
async fn a_stream_of_one_job_leaves_out_the_others() {
    let server = Server::start().await;
    apply(&server, "a").await;
    apply(&server, "b").await;
    let mut stream = Stream::open(&server, "/events?job=b&state=cancelled").await;
    stream.expect("ready").await;
    for job in ["a", "b"] {
        let run = triggered(&server, job).await;
        server
            .post(&format!("/runs/{run}/cancel"), &json!({}))
            .await
            .good();
    }
    let event = stream.expect("run").await;
    assert_eq!(
        (&event.data["job"], &event.data["state"]),
        (&json!("b"), &json!("cancelled"))
    );
}

/// Applies a job that runs on request only, and returns what triggers it.
async fn manual_job(server: &Server, base: &str, name: &str, group: &str) -> String {
    let job = json!({ "name": name, "group": group, "schedule": {"manual": true}, "handler": {"native": "x"} });
    let body = json!({ "jobs": [job] });
    let applied = server.post(&format!("{base}/jobs/apply"), &body).await;
    applied.good();
    format!("{base}/jobs/{name}/trigger")
}

async fn run_of(server: &Server, trigger: &str) -> i64 {
    let triggered = server.post(trigger, &json!({})).await.good();
    triggered["runs"][0].as_i64().expect("a run")
}

#[tokio::test]
async fn a_stream_has_the_changes_of_its_namespace_only() {
    let server = Server::start().await;
    let in_default = manual_job(&server, "", "a", "default").await;
    let in_team = manual_job(&server, "/namespaces/team-a", "a", "default").await;
    let path = "/namespaces/team-a/events?kinds=run&job=a";
    let mut of_team = Stream::open(&server, path).await;
    of_team.expect("ready").await;
    let mut of_all = Stream::open(&server, "/events?kinds=run&all_namespaces=true").await;
    of_all.expect("ready").await;
    let runs = [
        run_of(&server, &in_default).await,
        run_of(&server, &in_team).await,
    ];
    let event = of_team.expect("run").await;
    assert_eq!(event.data["id"], runs[1]);
    assert_eq!(
        (&event.data["namespace"], &event.data["job"]),
        (&json!("team-a"), &json!("team-a/a"))
    );
    for (run, namespace) in runs.into_iter().zip([Value::Null, json!("team-a")]) {
        let event = of_all.expect("run").await;
        assert_eq!(
            (&event.data["id"], &event.data["namespace"]),
            (&json!(run), &namespace)
        );
    }
    let [other, own] = runs;
    let other = format!("/namespaces/team-a/runs/{other}/logs/events");
    assert_eq!(server.get(&other).await.status, StatusCode::NOT_FOUND);
    Stream::open(
        &server,
        &format!("/namespaces/team-a/runs/{own}/logs/events"),
    )
    .await;
}

#[tokio::test]
async fn a_caller_gets_the_changes_of_readable_groups_only() {
    let server = Server::start().await;
    let of_others = manual_job(&server, "", "theirs", "others").await;
    let of_mine = manual_job(&server, "", "ours", "mine").await;
    let grants = json!([{ "group": "mine", "role": "viewer" }]);
    let viewer = server.token_with(&grants).await;
    let mut stream = Stream::by(&server, &viewer, "/events?kinds=run").await;
    stream.expect("ready").await;
    let theirs = run_of(&server, &of_others).await;
    let ours = run_of(&server, &of_mine).await;
    let event = stream.expect("run").await;
    assert_eq!(event.data["id"], ours);
    Stream::by(&server, &viewer, &format!("/runs/{ours}/logs/events")).await;
    for (path, expected) in [
        (format!("/runs/{theirs}/logs/events"), StatusCode::NOT_FOUND),
        (
            "/namespaces/team-a/events".to_owned(),
            StatusCode::FORBIDDEN,
        ),
    ] {
        let refused = send_by(&server, &viewer, &path, None).await;
        assert_eq!(refused.status(), expected, "{path}");
    }
}

#[tokio::test]
async fn a_client_that_comes_back_gets_what_it_missed_once() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let mut stream = Stream::open(&server, "/events?kinds=run").await;
    stream.expect("ready").await;
    triggered(&server, "a").await;
    let seen = stream.expect("run").await;
    drop(stream);
    let missed = triggered(&server, "a").await;
    let mut again = Stream::after(&server, "/events?kinds=run", Some(&seen.id)).await;
    let ready = again.expect("ready").await;
    assert_eq!(
        (&ready.data["resumed"], &ready.id),
        (&json!(true), &seen.id)
    );
    assert_eq!(again.expect("run").await.data["id"], missed.0);

    let unknown = "0123456789abcdef-7";
    let mut lost = Stream::after(&server, "/events?kinds=run", Some(unknown)).await;
    lost.expect("resync").await;
    let ready = lost.expect("ready").await;
    assert_eq!(ready.data["resumed"], false);
}

#[tokio::test]
async fn log_lines_come_as_they_are_stored_and_the_end_ends_the_stream() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let run = triggered(&server, "a").await;
    let attempt = dispatching(&server, run).await;
    let path = format!("/runs/{run}/logs/events");
    let mut stream = Stream::open(&server, &path).await;
    let now = server.store.now().await.expect("the time");
    let mut ids = Vec::new();
    for (seq, text) in [(0, "one"), (1, "two")] {
        let lines = vec![log_line(seq, now, text)];
        report(&server, attempt, AttemptEvent::Log { lines }).await;
        let line = stream.expect("line").await;
        assert_eq!(
            (&line.data["text"], &line.data["attempt"]),
            (&json!(text), &json!(1))
        );
        assert_fits(&line, "LogMessage", "LogLine");
        ids.push(line.id);
    }
    report(&server, attempt, succeeded()).await;
    let end = stream.expect("end").await;
    assert_eq!(end.data, json!({ "state": "succeeded" }));
    assert_fits(&end, "LogMessage", "EndOfLog");
    assert!(stream.next().await.is_none());

    let mut rest = Stream::after(&server, &path, Some(&ids[0])).await;
    assert_eq!(rest.expect("line").await.data["text"], "two");
    rest.expect("end").await;
    let after = format!("{path}?after={}", ids[1]);
    Stream::open(&server, &after).await.expect("end").await;
}

#[tokio::test]
async fn streams_are_bounded_and_a_closed_one_gives_its_place_back() {
    let limits = ServerLimits::of_connections(100);
    let server = Server::with_state(limits, |state| state.limit_event_streams(1)).await;
    let mut stream = Stream::open(&server, "/events").await;
    stream.expect("ready").await;
    let refused = send(&server, "/events", None).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "1");
    drop(stream);
    until("a place is free", async || {
        send(&server, "/events", None).await.status() == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn one_caller_has_a_quarter_of_the_streams_and_leaves_the_rest_to_others() {
    let limits = ServerLimits::of_connections(100);
    let server = Server::with_state(limits, |state| state.limit_event_streams(8)).await;
    apply(&server, "a").await;
    let run = triggered(&server, "a").await;
    let viewer = json!([{ "role": "viewer" }]);
    let token = server.token_with(&viewer).await;
    let log = format!("/runs/{run}/logs/events");
    let streams = [
        Stream::by(&server, &token, "/events").await,
        Stream::by(&server, &token, &log).await,
    ];
    for path in ["/events", log.as_str()] {
        let refused = send_by(&server, &token, path, None).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
        let body = refused.text().await.expect("a body");
        assert!(body.contains("2 event streams of yours"), "{path}: {body}");
    }
    let other = server.token_with(&viewer).await;
    for token in [other.as_str(), TOKEN] {
        let mut stream = Stream::by(&server, token, "/events").await;
        stream.expect("ready").await;
    }
    drop(streams);
    until("a place is free", async || {
        send_by(&server, &token, "/events", None).await.status() == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn a_stop_ends_all_streams() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let run = triggered(&server, "a").await;
    let mut changes = Stream::open(&server, "/events").await;
    changes.expect("ready").await;
    let mut log = Stream::open(&server, &format!("/runs/{run}/logs/events")).await;
    server.stop.ask_soft();
    assert!(changes.next().await.is_none());
    assert!(log.next().await.is_none());
}

#[tokio::test]
async fn a_client_that_accepts_nothing_loses_its_stream() {
    let limits = ServerLimits {
        write_timeout: Duration::from_millis(300),
        ..ServerLimits::of_connections(100)
    };
    let server = Server::with_state(limits, |state| state.limit_event_streams(1)).await;
    apply(&server, "a").await;
    let run = triggered(&server, "a").await;
    let attempt = dispatching(&server, run).await;
    let now = server.store.now().await.expect("the time");
    // More than the buffers of a connection hold.
    let text = "x".repeat(16 * 1024);
    for part in 0..20 {
        let lines = (0..100).map(|n| log_line(part * 100 + n, now, &text));
        let lines = lines.collect();
        report(&server, attempt, AttemptEvent::Log { lines }).await;
    }
    let mut raw = Raw::connect(&server).await;
    let line = format!("GET /api/v1/runs/{run}/logs/events HTTP/1.1");
    raw.send(&request(&line, &[], b"")).await;
    let begun = raw.reply().await.expect("a head");
    assert_eq!(begun.status, 200);
    until("its place is free", async || {
        send(&server, "/events", None).await.status() == StatusCode::OK
    })
    .await;
    drop(raw);
}

#[tokio::test]
async fn streams_that_make_no_sense_are_refused() {
    let server = Server::start().await;
    apply(&server, "a").await;
    let run = triggered(&server, "a").await;
    for (path, field) in [
        ("/events?kinds=runs".to_owned(), "kinds"),
        ("/events?kinds=".to_owned(), "kinds"),
        ("/events?state=happy".to_owned(), "state"),
        ("/events?job=%20".to_owned(), "job"),
        ("/events?job=team-a/a".to_owned(), "job"),
        ("/events?all_namespaces=yes".to_owned(), "all_namespaces"),
        (
            "/namespaces/team-a/events?all_namespaces=true".to_owned(),
            "all_namespaces",
        ),
        ("/events?limit=1".to_owned(), "limit"),
        (format!("/runs/{run}/logs/events?after=x"), "after"),
    ] {
        let answer = server.get(&path).await;
        // Well formed, but of another namespace.
        let expected = if path.contains("team-a/a") {
            StatusCode::UNPROCESSABLE_ENTITY
        } else {
            StatusCode::BAD_REQUEST
        };
        assert_eq!(answer.status, expected, "{path}");
        assert_eq!(answer.json()["errors"][0]["field"], field, "{path}");
    }
    let unknown = server.get("/runs/999999/logs/events").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let answer = send(&server, &format!("/runs/{run}/logs/events"), Some("x")).await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    let bare = server.bare(Method::GET, "/api/v1/events");
    assert_eq!(server.send(bare).await.status, StatusCode::UNAUTHORIZED);
}
