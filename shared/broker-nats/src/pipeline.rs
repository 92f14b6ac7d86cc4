//! Questions and their answers, many at a time: publishes, acks and requests all wait for theirs here, in one window, on
//! one subscription. An answer that does not come is an error within a bounded time, never a guess.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{HeaderMap, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use cueline_broker::BrokerError;
use futures_util::StreamExt as _;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::error::{permanent, transient};
use crate::fence::{self, Fence};
use crate::link::{Link, Watch};

/// Something that is answered.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) subject: Subject,
    pub(crate) headers: Option<HeaderMap>,
    pub(crate) payload: Bytes,
    /// The answer to a later question of the same call says that this one was taken in as well, so it needs none.
    pub(crate) silent: bool,
    /// It is void when it is taken in later than the call's fence says.
    pub(crate) fenced: bool,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Said(Bytes),
    /// The same, so late that what was asked may be void.
    SaidLate(Bytes),
    /// Nobody is there to answer.
    Nobody,
}

const LARGEST_CHUNK: usize = 64;
/// Answers that are sorted at once.
const SORTED_AT_ONCE: usize = 1_024;

#[derive(Default)]
struct Table {
    next: u64,
    /// By the number of their first question.
    calls: BTreeMap<u64, Arc<Call>>,
}

struct Call {
    first: u64,
    state: Mutex<Answers>,
    /// Some were answered.
    progress: Notify,
}

struct Answers {
    came: Vec<Option<Answer>>,
    /// When the questions sent so far become void, in a call with a fence.
    until: Vec<Instant>,
    sent: usize,
    answered: usize,
}

/// Asks over one connection.
pub(crate) struct Pipeline {
    link: Link,
    inbox: String,
    table: Arc<Mutex<Table>>,
    window: Arc<Semaphore>,
    /// Places in the window that are taken at once.
    chunk: usize,
    /// Without any answer for this long, a call fails.
    patience: Duration,
}

impl Pipeline {
    /// `window` questions at most wait for answers at the same time. The future sorts answers until it is dropped.
    pub(crate) async fn open(
        link: Link,
        window: usize,
        patience: Duration,
    ) -> Result<(Self, impl Future<Output = ()> + Send), BrokerError> {
        let inbox = link.client.new_inbox();
        let until = Instant::now() + patience;
        let answers = link
            .hand_over(link.client.subscribe(format!("{inbox}.*")), until)
            .await?;
        let table = Arc::<Mutex<Table>>::default();
        let chunk = LARGEST_CHUNK.min(window);
        let window = Arc::new(Semaphore::new(window));
        let sorting = sort(answers, Arc::clone(&table), Arc::clone(&window));
        let pipeline = Self {
            link,
            inbox,
            table,
            window,
            chunk,
            patience,
        };
        Ok((pipeline, sorting))
    }

    /// One question.
    pub(crate) async fn ask(
        &self,
        subject: impl Into<Subject>,
        payload: Bytes,
    ) -> Result<Answer, BrokerError> {
        let question = Question {
            subject: subject.into(),
            headers: None,
            payload,
            silent: false,
            fenced: false,
        };
        let mut answers = self.ask_all(vec![question]).await?;
        answers
            .pop()
            .ok_or_else(|| permanent("failed to ask nothing"))
    }

    /// Asks in the order given; the answers are in the same order. After an error some may have been heard.
    pub(crate) async fn ask_all(
        &self,
        questions: Vec<Question>,
    ) -> Result<Vec<Answer>, BrokerError> {
        self.ask_within(questions, None).await
    }

    /// The same, with a fence for those that want one.
    pub(crate) async fn ask_within(
        &self,
        questions: Vec<Question>,
        fence: Option<Fence>,
    ) -> Result<Vec<Answer>, BrokerError> {
        if questions.is_empty() {
            return Ok(Vec::new());
        }
        self.link.connected(Instant::now() + self.patience).await?;
        let (watch, connection) = (self.link.watch(), self.link.connection());
        let under_way = self.begin(questions.len());
        let call = Arc::clone(&under_way.call);
        let mut subjects: Vec<Subject> = questions.iter().map(|q| q.subject.clone()).collect();
        subjects.sort_unstable();
        subjects.dedup();
        let sending = async {
            self.send(&call, questions, fence).await?;
            std::future::pending::<Result<(), BrokerError>>().await
        };
        tokio::select! {
            failed = sending => failed?,
            failed = given_up(&call, watch, &subjects, self.patience) => failed?,
        }
        if self.link.connection() != connection {
            // Answers over the new connection say nothing about what went silently over the old one.
            return Err(transient(
                "failed to get answers from NATS: the connection was lost",
            ));
        }
        Ok(under_way.answers())
    }

    /// Which connection this is, counted from the first.
    pub(crate) fn connection(&self) -> u64 {
        self.link.connection()
    }

    /// A round trip to the server: what was sent before has been taken in by it.
    pub(crate) async fn round_trip(&self) -> Result<(), BrokerError> {
        // A message to ourselves: its own subject is the one that the answer is awaited on.
        let until = Instant::now() + self.patience;
        self.link.connected(until).await?;
        let watch = self.link.watch();
        let under_way = self.begin(1);
        let subject = Subject::from(self.reply(under_way.call.first));
        self.take_places(&under_way.call, 1).await?;
        self.link
            .hand_over(
                self.link.client.publish(subject.clone(), Bytes::new()),
                until,
            )
            .await?;
        given_up(&under_way.call, watch, &[subject], self.patience).await
    }

    fn begin(&self, count: usize) -> UnderWay<'_> {
        let mut table = lock(&self.table);
        let first = table.next;
        table.next += count as u64;
        let call = Arc::new(Call {
            first,
            state: Mutex::new(Answers {
                came: vec![None; count],
                until: Vec::new(),
                sent: 0,
                answered: 0,
            }),
            progress: Notify::new(),
        });
        table.calls.insert(first, Arc::clone(&call));
        UnderWay {
            call,
            pipeline: self,
        }
    }

    fn reply(&self, number: u64) -> String {
        format!("{}.{number}", self.inbox)
    }

    async fn send(
        &self,
        call: &Call,
        questions: Vec<Question>,
        fence: Option<Fence>,
    ) -> Result<(), BrokerError> {
        let mut numbered = (call.first..).zip(questions);
        loop {
            let chunk: Vec<(u64, Question)> = numbered.by_ref().take(self.chunk).collect();
            if chunk.is_empty() {
                return Ok(());
            }
            let heard = chunk
                .iter()
                .filter(|(_, question)| !question.silent)
                .count();
            self.take_places(call, heard).await?;
            let until = fence.map(|fence| {
                let (until, value) = fence.until(Instant::now());
                let mut state = lock(&call.state);
                let sent = state.until.len() + chunk.len();
                state.until.resize(sent, until);
                value
            });
            for (number, mut question) in chunk {
                if let Some(until) = until.as_ref().filter(|_| question.fenced) {
                    let headers = question.headers.get_or_insert_default();
                    headers.insert(fence::header(), until.as_str());
                }
                let silent = question.silent;
                self.send_one(number, question).await?;
                if silent {
                    call.needs_no_answer(number);
                }
            }
        }
    }

    async fn send_one(&self, number: u64, question: Question) -> Result<(), BrokerError> {
        let Question {
            subject,
            headers,
            payload,
            silent,
            fenced: _,
        } = question;
        let client = &self.link.client;
        if silent {
            let sent = client.publish(subject, payload).await;
            return sent
                .map_err(|e| transient(format!("failed to send to NATS: {e}")).caused_by(e));
        }
        let reply = Subject::from(self.reply(number));
        let sent = match headers {
            Some(headers) => {
                client
                    .publish_with_reply_and_headers(subject, reply, headers, payload)
                    .await
            }
            None => client.publish_with_reply(subject, reply, payload).await,
        };
        sent.map_err(|e| transient(format!("failed to send to NATS: {e}")).caused_by(e))
    }

    async fn take_places(&self, call: &Call, count: usize) -> Result<(), BrokerError> {
        let permits = u32::try_from(count).unwrap_or(u32::MAX);
        let places = self.window.acquire_many(permits).await;
        let places = places.map_err(|e| transient("failed to send to NATS").caused_by(e))?;
        // Given back for each answer, or when the call ends without it.
        places.forget();
        lock(&call.state).sent += count;
        Ok(())
    }
}

/// Ends when all is answered, or with the reason why it will not be.
async fn given_up(
    call: &Call,
    mut watch: Watch,
    subjects: &[Subject],
    patience: Duration,
) -> Result<(), BrokerError> {
    let concerns = |denied: &str| {
        subjects
            .binary_search_by(|s| s.as_str().cmp(denied))
            .is_ok()
    };
    let failed = watch.failed(concerns);
    tokio::pin!(failed);
    let (mut seen, mut until) = (0, Instant::now() + patience);
    loop {
        let progress = call.progress.notified();
        let (answered, all) = {
            let state = lock(&call.state);
            (state.answered, state.came.len())
        };
        if answered == all {
            return Ok(());
        }
        if answered > seen {
            (seen, until) = (answered, Instant::now() + patience);
        }
        tokio::select! {
            () = progress => {}
            failed = &mut failed => return Err(failed),
            () = sleep_until(until) => {
                return Err(transient(format!(
                    "failed to get answers from NATS: {answered} of {all} came, and none for {patience:?}"
                )));
            }
        }
    }
}

/// Takes the call off the table when it ends, however it does.
struct UnderWay<'a> {
    call: Arc<Call>,
    pipeline: &'a Pipeline,
}

impl UnderWay<'_> {
    fn answers(&self) -> Vec<Answer> {
        let mut state = lock(&self.call.state);
        state.came.iter_mut().filter_map(Option::take).collect()
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // Off the table first: from then on no answer gives back a place.
        lock(&self.pipeline.table).calls.remove(&self.call.first);
        let state = lock(&self.call.state);
        let places = state.sent.saturating_sub(state.answered);
        self.pipeline.window.add_permits(places);
    }
}

/// Gives answers to those who wait for them.
async fn sort(answers: Subscriber, table: Arc<Mutex<Table>>, window: Arc<Semaphore>) {
    let mut chunks = answers.ready_chunks(SORTED_AT_ONCE);
    while let Some(chunk) = chunks.next().await {
        let (mut answered, now) = (0, Instant::now());
        // Held over the whole chunk: a call that ends gives back its places before or after it, not in between.
        let table = lock(&table);
        for message in chunk {
            let number = message
                .subject
                .rsplit('.')
                .next()
                .and_then(|n| n.parse().ok());
            let Some(number) = number else { continue };
            let Some((_, call)) = table.calls.range(..=number).next_back() else {
                continue;
            };
            let answer = if message.status == Some(StatusCode::NO_RESPONDERS) {
                Answer::Nobody
            } else {
                Answer::Said(message.payload)
            };
            answered += usize::from(call.answer(number, answer, now));
        }
        drop(table);
        window.add_permits(answered);
    }
}

impl Call {
    /// Counts as sent and answered: it took no place.
    fn needs_no_answer(&self, number: u64) {
        let mut state = lock(&self.state);
        let place = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        if let Some(empty @ None) = state.came.get_mut(place) {
            *empty = Some(Answer::Said(Bytes::new()));
            state.sent += 1;
            state.answered += 1;
        }
    }

    /// Whether it was the first answer to this question.
    fn answer(&self, number: u64, answer: Answer, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let place = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        let late = state.until.get(place).is_some_and(|until| *until <= now);
        let Some(empty @ None) = state.came.get_mut(place) else {
            return false;
        };
        *empty = Some(match answer {
            Answer::Said(text) if late => Answer::SaidLate(text),
            answer => answer,
        });
        state.answered += 1;
        drop(state);
        self.progress.notify_one();
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
