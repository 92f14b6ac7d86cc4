//! `GET /api/v1/runs/{id}/logs/events`: the lines of a run's log as they are stored.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, Uri};
use axum::response::sse::{Event as Message, Sse};
use axum::response::{IntoResponse, Response};
use cueline_model::RunId;
use cueline_runtime::Backoff;
use cueline_store::{ErrorKind, Store, StoreError};
use futures_util::stream;

use super::change_stream::{LAST_EVENT_ID, UNBUFFERED, last_event_text, message};
use super::event::json;
use super::life::{Life, Waited};
use super::places::Holder;
use crate::SharedState;
use crate::access::Caller;
use crate::namespace::InNamespace;
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query::Params;
use crate::runs::{RunPath, run_id};
use crate::view::EndOfLog;

/// Lines that are read at a time. Each stream keeps at most so many that were not sent.
const PART: usize = 100;
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// Lines are at most this late.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Streams a run's log until the run has ended.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{id}/logs/events",
    operation_id = "run_log_events",
    tag = "runs",
    summary = "Streams the log of a run until the run has ended.",
    description = "Server-sent events: `line`, with a line of the log as a JSON object, and `end`, with the final `state` of \
                   the run. The stream ends then, or after 10 minutes; continue it with the last id.",
    params(
        ("id" = openapi::RunNumber, Path, description = "The id of the run."),
        ("after" = Option<openapi::Cursor>, Query, description = "The cursor after which lines are sent; 0, the default, is the beginning."),
        ("Last-Event-ID" = Option<openapi::LastLine>, Header, description = "The id of the last line that the client has seen. It goes before `after`."),
    ),
    responses(
        (status = 200, description = "The stream. The schema is that of each of its events.", body = openapi::LogMessage, content_type = "text/event-stream"),
    )
)]
pub(crate) async fn log(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: RunPath,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri, &["after"]);
    let after = params.number("after", 0, 0..=i64::MAX);
    params.finish()?;
    // The header wins: a client that comes back repeats the parameter of its first request.
    let after = last_event_text(&headers)?.map_or(Ok(after), cursor)?;
    let run = run_id(path)?;
    // Before the stream begins, so that an unknown run is answered with 404, as is one of another namespace.
    namespace.run(&state, run).await?;
    let place = state.events.place(Holder::of(&caller))?;
    let reader = LogReader {
        store: state.store.clone(),
        run,
        after,
        has_ended: false,
        waiting: VecDeque::new(),
        backoff: Backoff::new(FIRST_LOOK, LONGEST_LOOK),
        life: Life::new(state.stop.clone(), place),
    };
    let stream = stream::unfold(reader, |mut reader| async move {
        let message = reader.next().await?;
        Some((Ok::<_, Infallible>(message), reader))
    });
    Ok((UNBUFFERED, Sse::new(stream)).into_response())
}

fn cursor(text: &str) -> Result<i64, Problem> {
    let cursor = text.parse::<i64>().ok().filter(|cursor| *cursor >= 0);
    cursor.ok_or_else(|| {
        let message = format!("{text:?} is not the id of a log line; ids are whole numbers");
        Problem::malformed_fields(vec![FieldProblem::new(LAST_EVENT_ID, message)])
    })
}

struct LogReader {
    store: Arc<dyn Store>,
    run: RunId,
    /// The cursor of the last line that was read.
    after: i64,
    has_ended: bool,
    /// Messages that were not sent yet: one part, and the end.
    waiting: VecDeque<Message>,
    backoff: Backoff,
    life: Life,
}

impl LogReader {
    /// `None` at the end of the stream.
    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.waiting.pop_front() {
                self.life.sent();
                return Some(message);
            }
            if self.has_ended || self.life.is_over() {
                return None;
            }
            if let Err(error) = self.read().await {
                self.note(&error);
                return None;
            }
            if !self.waiting.is_empty() {
                self.backoff.reset();
                continue;
            }
            let look = tokio::time::sleep(self.backoff.next_wait());
            match self.life.wait(look).await {
                Waited::News(()) => {}
                Waited::Heartbeat => self.waiting.push_back(Message::default().comment("")),
                Waited::End => return None,
            }
        }
    }

    async fn read(&mut self) -> Result<(), StoreError> {
        // Read the state first. All lines of an ended run are stored before its end, so the read of the lines finds
        // them.
        let state = self.store.run(self.run).await?.run.state;
        let lines = self.store.log_lines(self.run, self.after, PART).await?;
        self.has_ended = state.is_terminal() && lines.len() < PART;
        for line in &lines {
            self.after = line.cursor;
            let message = message("line", &json(line)).id(line.cursor.to_string());
            self.waiting.push_back(message);
        }
        if self.has_ended {
            let end = message("end", &json(&EndOfLog { state }));
            self.waiting.push_back(end.id(self.after.to_string()));
        }
        Ok(())
    }

    /// The stream ends, and the client may continue it.
    fn note(&self, error: &StoreError) {
        // Retention has deleted the run.
        if error.kind() != ErrorKind::NotFound {
            tracing::warn!(
                %error,
                run_id = self.run.0,
                "log stream was ended because the store failed; check the database if this continues"
            );
        }
    }
}
