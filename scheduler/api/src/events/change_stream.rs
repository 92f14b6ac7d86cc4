//! `GET /api/v1/events`: changes as they are found.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, Uri};
use axum::response::sse::{Event as Message, Sse};
use axum::response::{IntoResponse, Response};
use cueline_model::Right;
use futures_util::stream;
use tokio::sync::watch;

use super::event::{Filter, Kind, Kinds, RESYNC, json};
use super::feed::{EventId, Events};
use super::life::{Life, Waited};
use super::places::Holder;
use super::poller;
use crate::SharedState;
use crate::access::Caller;
use crate::list::Filters;
use crate::namespace::{ALL, InNamespace};
use crate::openapi;
use crate::problem::{FieldProblem, Problem};
use crate::query::Params;
use crate::runs::run_state;
use crate::view::{Lagged, Ready};

/// Events that are taken from the feed at a time.
const PART: usize = 500;

/// The header with which a client continues after an event.
pub(super) const LAST_EVENT_ID: &str = "last-event-id";

/// Tells nginx to forward each event at once.
pub(super) const UNBUFFERED: [(&str, &str); 1] = [("x-accel-buffering", "no")];

/// Streams changes of runs, jobs and executors, as far as the caller may read them.
#[utoipa::path(
    get,
    path = "/api/v1/events",
    operation_id = "events",
    tag = "server",
    summary = "Streams changes of runs, jobs and executors that the caller may read.",
    description = "Server-sent events: `ready`, `run`, `job`, `executor`, `lagged`, `overflow` and `resync`. The data of each \
                   is a JSON object. After `lagged`, `overflow` and `resync`, changes may be missing, so read the lists. \
                   The stream ends after 10 minutes; continue it with the last id.",
    params(
        ("kinds" = Option<openapi::EventKinds>, Query, description = "`run`, `job` and `executor`, separated by commas. By default all; with `job` only jobs and runs, with `state` only runs."),
        ("job" = Option<Vec<openapi::ListedName>>, Query, description = "Only this job and its runs; may be repeated."),
        ("group" = Option<Vec<openapi::ListedName>>, Query, description = "Only what belongs to this group; may be repeated."),
        ("state" = Option<Vec<openapi::RunState>>, Query, description = "Only runs that come into this state; may be repeated."),
        ("all_namespaces" = Option<openapi::AllNamespaces>, Query, description = "Whether changes in all namespaces are sent."),
        ("Last-Event-ID" = Option<openapi::LastEvent>, Header, description = "The id of the last event that the client has seen. The stream continues after it, if this server still has what followed."),
    ),
    responses(
        (status = 200, description = "The stream. The schema is that of each of its events.", body = openapi::ChangeMessage, content_type = "text/event-stream"),
        (status = 422, description = "A filter names what is in another namespace than the request.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn changes(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let holder = Holder::of(&caller);
    let filter = filter(caller, &namespace, &uri)?;
    let after = last_event_text(&headers)?;
    let place = state.events.place(holder)?;
    let (news, to_start) = state.events.join(filter.kinds);
    if let Some(running) = to_start {
        tokio::spawn(poller::run(
            running,
            state.store.clone(),
            state.stop.clone(),
        ));
    }
    let mut subscriber = Subscriber {
        events: state.events.clone(),
        news,
        filter,
        next: None,
        waiting: VecDeque::new(),
        life: Life::new(state.stop.clone(), place),
    };
    subscriber.begin(after);
    let stream = stream::unfold(subscriber, |mut subscriber| async move {
        let message = subscriber.next().await?;
        Some((Ok::<_, Infallible>(message), subscriber))
    });
    Ok((UNBUFFERED, Sse::new(stream)).into_response())
}

fn filter(caller: Caller, namespace: &InNamespace, uri: &Uri) -> Result<Filter, Problem> {
    let mut params = Params::of(uri, &["kinds", "job", "group", "state", ALL]);
    let listed = namespace.listed(&mut params);
    let kinds = params.parsed("kinds", |text| {
        let kinds = text.split(',').map(Kind::parse);
        kinds.collect::<Result<Kinds, String>>()
    });
    let mut filters = Filters::new(&mut params, namespace, listed.as_ref());
    let (jobs, groups) = (filters.jobs(), filters.groups());
    let states = params.many("state", run_state);
    params.finish()?;
    caller.require_somewhere(Right::Read, listed.as_ref())?;
    // The narrowest kinds that the other parameters are about.
    let by_default: &[Kind] = match (jobs.is_empty(), states.is_empty()) {
        (_, false) => &[Kind::Run],
        (false, true) => &[Kind::Job, Kind::Run],
        (true, true) => &Kind::ALL,
    };
    Ok(Filter {
        kinds: kinds.unwrap_or_else(|| by_default.iter().copied().collect()),
        namespace: listed,
        jobs,
        groups,
        states,
        may_read: Box::new(move |group| caller.may(Right::Read, group)),
    })
}

/// The value of the header; an empty one counts as none.
pub(super) fn last_event_text(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(LAST_EVENT_ID) else {
        return Ok(None);
    };
    let text = value.to_str().map_err(|_| {
        let message = "the header has characters that no id has; send the id of an event";
        Problem::malformed_fields(vec![FieldProblem::new("Last-Event-ID", message)])
    })?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// The reader of the feed for one client.
struct Subscriber {
    events: Events,
    news: watch::Receiver<()>,
    filter: Filter,
    /// The number of the next event; `None` until all kinds are read.
    next: Option<u64>,
    /// Messages that were not sent yet, some more than [`PART`] at most.
    waiting: VecDeque<Message>,
    life: Life,
}

impl Subscriber {
    /// Continues after the event that the client has seen, if possible.
    fn begin(&mut self, after: Option<&str>) {
        let Some(after) = after else {
            return;
        };
        let after = EventId::parse(after);
        self.next = after.and_then(|after| self.events.resume(after, self.filter.kinds));
        match self.next {
            Some(next) => self.tell_ready(next, true),
            None => self.waiting.push_back(message(RESYNC, "{}")),
        }
    }

    /// `None` at the end of the stream.
    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.waiting.pop_front() {
                self.life.sent();
                return Some(message);
            }
            if self.life.is_over() {
                return None;
            }
            self.take_events();
            if !self.waiting.is_empty() {
                continue;
            }
            match self.life.wait(self.news.changed()).await {
                Waited::News(Ok(())) => {}
                // The task that reads the store has ended. The client comes back and starts another one.
                Waited::News(Err(_)) | Waited::End => return None,
                Waited::Heartbeat => self.heartbeat(),
            }
        }
    }

    /// Takes events until some of them are for this client, or there are no more.
    fn take_events(&mut self) {
        let Some(mut next) = self.next else {
            if let Some(next) = self.events.begin(self.filter.kinds) {
                self.next = Some(next);
                self.tell_ready(next, false);
            }
            return;
        };
        loop {
            let part = self.events.read(next, PART);
            next = part.next;
            self.next = Some(next);
            if part.missed > 0 {
                let missed = part.missed;
                let lagged = message("lagged", &json(&Lagged { missed }));
                self.waiting.push_back(lagged);
            }
            let is_last = part.events.len() < PART;
            for (number, event) in part.events {
                if self.filter.passes(&event) {
                    let message = message(event.name, &event.data);
                    self.waiting.push_back(self.with_id(message, number));
                }
            }
            if is_last || !self.waiting.is_empty() {
                return;
            }
        }
    }

    fn tell_ready(&mut self, next: u64, resumed: bool) {
        let ready = message("ready", &json(&Ready { resumed }));
        let ready = self.with_id(ready, next.saturating_sub(1));
        self.waiting.push_back(ready);
    }

    /// A comment. Its id keeps the client's place while no event is for it.
    fn heartbeat(&mut self) {
        let comment = Message::default().comment("");
        let comment = match self.next {
            Some(next) => self.with_id(comment, next.saturating_sub(1)),
            None => comment,
        };
        self.waiting.push_back(comment);
    }

    fn with_id(&self, message: Message, number: u64) -> Message {
        match self.events.id(number) {
            Some(id) => message.id(id),
            None => message,
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.events.leave(self.filter.kinds);
    }
}

/// A message with one line of JSON.
pub(super) fn message(name: &str, data: &str) -> Message {
    Message::default().event(name).data(data)
}

#[cfg(test)]
mod tests {
    use cueline_http::Peer;
    use cueline_runtime::Stop;

    use super::super::event::Event;
    use super::super::feed::Running;
    use super::super::ring::KEPT_EVENTS;
    use super::*;

    /// What the administrator asks for.
    fn asked(query: &str) -> Filter {
        let uri = format!("/events{query}").parse().expect("a URI");
        let namespace = InNamespace(cueline_model::Namespace::default());
        let caller = Caller::admin_token(Peer::UNKNOWN);
        filter(caller, &namespace, &uri).expect("well formed")
    }

    fn runs() -> Kinds {
        [Kind::Run].into_iter().collect()
    }

    /// A subscriber of runs, and the side of the feed that the test plays.
    fn subscribed(last_event: Option<&str>) -> (Subscriber, Running) {
        let events = Events::new(1);
        let (news, running) = events.join(runs());
        let running = running.expect("nothing reads the store yet");
        let place = events.place(Holder::AdminToken).expect("a place");
        let mut subscriber = Subscriber {
            events,
            news,
            filter: asked("?kinds=run"),
            next: None,
            waiting: VecDeque::new(),
            life: Life::new(Stop::new(), place),
        };
        subscriber.begin(last_event);
        (subscriber, running)
    }

    async fn next(subscriber: &mut Subscriber) -> String {
        let message = subscriber.next().await.expect("goes on");
        format!("{message:?}")
    }

    #[tokio::test]
    async fn a_subscriber_that_is_too_slow_is_told_what_it_lost_and_goes_on() {
        let (mut subscriber, running) = subscribed(None);
        running.begin(Kind::Run);
        assert!(next(&mut subscriber).await.contains("event: ready"));
        let events = (0..KEPT_EVENTS + 7).map(|n| Event::overflow(Kind::Run, n));
        running.publish(events);
        let lagged = next(&mut subscriber).await;
        assert!(lagged.contains("event: lagged"), "{lagged}");
        assert!(
            lagged.contains("missed") && lagged.contains(":7}"),
            "{lagged}"
        );
        for n in 7..KEPT_EVENTS + 7 {
            let event = next(&mut subscriber).await;
            assert!(event.contains(&format!(":{n}}}")), "{n}: {event}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscriber_is_ready_once_the_store_is_read_and_keeps_its_place_by_heartbeats() {
        let (mut subscriber, running) = subscribed(Some("an id of nothing"));
        assert!(next(&mut subscriber).await.contains("event: resync"));
        let silence = next(&mut subscriber).await;
        assert!(!silence.contains("id:"), "it has no place yet: {silence}");
        running.begin(Kind::Run);
        assert!(next(&mut subscriber).await.contains("event: ready"));
        running.publish([Event::resync(Kind::Job)]);
        let heartbeat = next(&mut subscriber).await;
        let id = subscriber.events.id(1).expect("an id");
        assert!(heartbeat.contains(&format!("id: {id}")), "{heartbeat}");
        assert!(!heartbeat.contains("data:"), "{heartbeat}");
    }

    #[tokio::test]
    async fn a_stream_ends_with_the_task_that_reads_the_store() {
        let (mut subscriber, running) = subscribed(None);
        drop(running);
        assert!(subscriber.next().await.is_none());
        let (_, another) = subscriber.events.join(runs());
        assert!(another.is_some(), "the next subscriber starts another one");
    }

    fn kinds(query: &str) -> Vec<&'static str> {
        asked(query).kinds.iter().map(Kind::as_str).collect()
    }

    #[test]
    fn without_kinds_the_other_parameters_say_what_is_wanted() {
        assert_eq!(kinds(""), ["job", "run", "executor"]);
        assert_eq!(kinds("?job=a"), ["job", "run"]);
        assert_eq!(kinds("?state=failed&job=a"), ["run"]);
        assert_eq!(kinds("?kinds=executor,job&job=a"), ["job", "executor"]);
        assert_eq!(kinds("?group=g"), ["job", "run", "executor"]);
    }
}
