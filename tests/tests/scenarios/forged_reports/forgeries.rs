//! What the attacker sends: reports, heartbeats and dead letters that speak of others.

use anyhow::{Result, ensure};
use bytes::Bytes;
use cueline_broker::DeadLetter;
use cueline_model::{
    AttemptEvent, ExecutorId, LogLine, LogStream, Outcome, OutcomeKind, RunId, StoreId, Timestamp,
};
use cueline_protocol::VERSION;
use cueline_protocol::origin::{EnrolmentToken, Purpose, Sealer, WorkerKey};
use cueline_runtime::{Clock as _, SystemClock};
use serde_json::{Value, json};

/// The text that no store, log or answer may have at the end.
pub(super) const WICKED: &str = "wicked";

/// What the attacker has: worker two's key, and what two knows about others.
pub(super) struct Attack {
    pub(super) store: StoreId,
    /// The sealer of worker two, with its genuine key.
    pub(super) two: Sealer,
    /// The same key.
    pub(super) key: WorkerKey,
    /// A run that is running at worker one.
    pub(super) of_one: RunId,
    /// A run that is running at worker two.
    pub(super) of_two: RunId,
    /// A run that waits for an executor.
    pub(super) unrouted: RunId,
}

/// A message, and what its dead letter must say.
pub(super) struct Forgery {
    pub(super) payload: Vec<u8>,
    /// Part of the reason.
    pub(super) reason: &'static str,
    /// The verified sender.
    pub(super) origin: Option<&'static str>,
}

impl Forgery {
    /// Whether its seal is genuine, and it speaks of an attempt that the sealing executor was not given.
    pub(super) fn is_foreign(&self) -> bool {
        self.reason == FOREIGN
    }
}

/// The origin of what worker two has sealed.
const TWO: Option<&str> = Some("executor default/two");

const MISSING: &str = "the message is not sealed";
const MALFORMED: &str = "the seal of the message cannot be read";
const MISMATCH: &str = "the signature was not made by the worker's key";
const UNKNOWN_KEY: &str = "is not enrolled";
const OTHER_EXECUTOR: &str = "executor default/two sealed a message of executor default/one";
pub(super) const FOREIGN: &str = "was not given to";

pub(super) fn executor(name: &str) -> ExecutorId {
    ExecutorId {
        group: "default".parse().expect("a name"),
        name: name.parse().expect("a name"),
    }
}

/// A key that no scheduler knows.
fn stranger() -> WorkerKey {
    WorkerKey::from_seed([9; 32])
}

pub(super) fn now() -> Timestamp {
    Timestamp::from_millis(SystemClock.now_ms())
}

pub(super) fn ended() -> AttemptEvent {
    AttemptEvent::Ended {
        outcome: Outcome {
            output: Some(WICKED.to_owned()),
            ..Outcome::new(OutcomeKind::Succeeded, now())
        },
    }
}

fn all_events() -> [AttemptEvent; 4] {
    let line = LogLine {
        seq: 0,
        at: now(),
        stream: LogStream::Out,
        text: WICKED.to_owned(),
    };
    [
        AttemptEvent::Started { at: now() },
        AttemptEvent::Progress { fraction: 0.9 },
        AttemptEvent::Log { lines: vec![line] },
        ended(),
    ]
}

impl Attack {
    fn report(&self, executor: &str, run: RunId, event: &AttemptEvent) -> Vec<u8> {
        let report = json!({
            "v": VERSION,
            "store": self.store,
            "run": run.0,
            "attempt": 1,
            "group": "default",
            "executor": executor,
            "event": event,
        });
        report.to_string().into_bytes()
    }

    /// The end of worker two's own run, sealed as two would do it.
    pub(super) fn own_end(&self) -> Vec<u8> {
        let report = self.report("two", self.of_two, &ended());
        self.two.seal(Purpose::Reports, report)
    }

    /// Reports about runs that are not at worker two, or that two has not sealed.
    pub(super) fn reports(&self) -> Result<Vec<Forgery>> {
        let about_one = || self.report("one", self.of_one, &ended());
        let sealed_by = |sealer: &Sealer| sealer.seal(Purpose::Reports, about_one());
        let mut all = Vec::new();
        let mut add = |payload, reason, origin| {
            all.push(Forgery {
                payload,
                reason,
                origin,
            });
        };
        add(about_one(), MISSING, None);
        add(sealed_by(&self.two), OTHER_EXECUTOR, TWO);
        let as_one = Sealer::new(executor("one"), self.key.clone());
        add(sealed_by(&as_one), UNKNOWN_KEY, None);
        let unknown = Sealer::new(executor("two"), stranger());
        add(sealed_by(&unknown), UNKNOWN_KEY, None);
        let own = self.report("two", self.of_two, &ended());
        let other_purpose = self.two.seal(Purpose::Heartbeat, own);
        add(other_purpose, MISMATCH, None);
        add(self.changed()?, MISMATCH, None);
        let mut cut = self.own_end();
        cut.truncate(cut.len() - 10);
        add(cut, MALFORMED, None);
        // Two speaks for itself, and of attempts that it was not given.
        for event in all_events() {
            let report = self.report("two", self.of_one, &event);
            add(self.two.seal(Purpose::Reports, report), FOREIGN, TWO);
        }
        let report = self.report("two", self.unrouted, &ended());
        add(self.two.seal(Purpose::Reports, report), FOREIGN, TWO);
        Ok(all)
    }

    /// A genuine message in which the run was changed after it was sealed.
    fn changed(&self) -> Result<Vec<u8>> {
        let genuine = String::from_utf8(self.own_end())?;
        let run = |id: RunId| format!("\"run\":{},", id.0);
        ensure!(genuine.contains(&run(self.of_two)), "{genuine}");
        let changed = genuine.replacen(&run(self.of_two), &run(self.of_one), 1);
        Ok(changed.into_bytes())
    }

    /// A heartbeat of an executor that says that it has stopped.
    pub(super) fn gone(executor: &str, incarnation: &str, sent_at: Timestamp) -> Value {
        json!({
            "v": VERSION,
            "group": "default",
            "name": executor,
            "incarnation": incarnation,
            "session": sent_at.as_millis(),
            "capabilities": ["shell"],
            "capacity": 64,
            "held": 0,
            "running": 0,
            "draining": true,
            "gone": true,
            "sender": {
                "pid": 1,
                "started_at": 0,
                "sent_at": sent_at.as_millis(),
                "number": 1_000_000,
            },
            "lease": { "fence_after_ms": 20_000, "failover_after_ms": 30_000 },
        })
    }

    /// Heartbeats that are not verified. `incarnation` is that of worker one's process.
    pub(super) fn heartbeats(&self, incarnation: &str) -> Result<Vec<Vec<u8>>> {
        let gone = |executor: &str| {
            let heartbeat = Self::gone(executor, incarnation, now());
            serde_json::to_vec(&heartbeat)
        };
        let mut all = Vec::new();
        for name in ["one", "ghost"] {
            let as_victim = |key| Sealer::new(executor(name), key);
            all.push(gone(name)?);
            all.push(self.two.seal(Purpose::Heartbeat, gone(name)?));
            for key in [self.key.clone(), stranger()] {
                let sealer = as_victim(key);
                all.push(sealer.seal(Purpose::Heartbeat, gone(name)?));
            }
        }
        all.push(self.two.seal(Purpose::Reports, gone("two")?));
        Ok(all)
    }

    /// A heartbeat that worker two sealed an hour ago. A genuine one must not be usable again.
    pub(super) fn old_heartbeat(&self) -> Result<Vec<u8>> {
        let long_ago = Timestamp::from_millis(now().as_millis() - 3_600_000);
        let heartbeat = Self::gone("two", "an earlier process", long_ago);
        let heartbeat = serde_json::to_vec(&heartbeat)?;
        Ok(self.two.seal(Purpose::Heartbeat, heartbeat))
    }

    /// A heartbeat with which a stranger asks to be admitted as worker one.
    pub(super) fn enrolment(token: &EnrolmentToken, incarnation: &str) -> Result<Vec<u8>> {
        let (one, key) = (executor("one"), WorkerKey::from_seed([8; 32]));
        let mut heartbeat = Self::gone("one", incarnation, now());
        let claim = token.claim(&one, &key.public());
        heartbeat["enrolment"] = serde_json::to_value(claim)?;
        let heartbeat = serde_json::to_vec(&heartbeat)?;
        Ok(Sealer::new(one, key).seal(Purpose::Heartbeat, heartbeat))
    }

    /// Messages of the dead-letter queue that claim to come from the queues of others, each with a payload that its
    /// replay would bring there.
    pub(super) fn dead_letters(&self) -> Result<Vec<Vec<u8>>> {
        let request = json!({ "v": VERSION, "job": "held", "by": "the operator" });
        let request = Bytes::from(serde_json::to_vec(&request)?);
        let report = Bytes::from(self.report("one", self.of_one, &ended()));
        let as_one = Sealer::new(executor("one"), self.key.clone());
        let requests = letter("requests", request.clone())?;
        let of_one = letter("x.default.one", request)?;
        let seal =
            |sealer: &Sealer, letter: &[u8]| sealer.seal(Purpose::DeadLetter, letter.to_vec());
        Ok(vec![
            seal(&self.two, &requests),
            seal(&self.two, &letter("results", report)?),
            seal(&self.two, &of_one),
            seal(&as_one, &of_one),
            requests,
        ])
    }

    /// A letter that claims to be one of those that the broker moves by itself, which have no seal. Only a driver may say
    /// so.
    pub(super) fn moved_letter(&self) -> Result<Vec<u8>> {
        let report = Bytes::from(self.report("one", self.of_one, &ended()));
        let letter = letter("results", report)?;
        let mut claim: Value = serde_json::from_slice(&letter)?;
        claim["by_broker"] = json!(true);
        Ok(claim.to_string().into_bytes())
    }
}

pub(super) fn letter(queue: &str, payload: Bytes) -> Result<Vec<u8>> {
    let letter = DeadLetter {
        reason: format!("{WICKED} {queue}"),
        queue: queue.to_owned(),
        topic: "held".to_owned(),
        at_ms: now().as_millis(),
        payload,
    };
    Ok(letter.encode()?.to_vec())
}
