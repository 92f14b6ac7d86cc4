//! How queues and channels are called in NATS: streams, consumers and subjects under one prefix. Pure.
//!
//! Subjects end in `<group>.<executor>.<topic>`, so that permissions can be given for one executor and anybody can watch one
//! job. A name is one token: what NATS or a file system gives a meaning to is written as `%XX`. An underscore at the start is
//! too, so that `_` (no executor in particular) is no executor's name.

use std::fmt::Write as _;

use cueline_broker::{Channel, QueueId};

use crate::options::Identity;

/// Where a queue lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) stream: Stream,
    /// The durable consumer's name.
    pub(crate) consumer: String,
    /// What the consumer is to get.
    pub(crate) filter: String,
    /// What a topic is appended to, to publish.
    subject: String,
}

impl Place {
    /// Where a message with this topic goes.
    pub(crate) fn subject(&self, topic: &str) -> String {
        let mut subject = String::with_capacity(self.subject.len() + topic.len() + 8);
        subject.push_str(&self.subject);
        escape(topic, &mut subject);
        subject
    }
}

/// The streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stream {
    /// All queues of executors.
    Triggers,
    /// One queue.
    Results,
    /// One queue.
    Requests,
    /// One queue.
    Dead,
}

impl Stream {
    const ALL: [Self; 4] = [Self::Triggers, Self::Results, Self::Requests, Self::Dead];

    const fn word(self) -> &'static str {
        match self {
            Self::Triggers => "trigger",
            Self::Results => "result",
            Self::Requests => "request",
            Self::Dead => "dead",
        }
    }

    /// The queue that the whole stream is, if it is one.
    pub(crate) const fn queue(self) -> Option<QueueId> {
        match self {
            Self::Triggers => None,
            Self::Results => Some(QueueId::Results),
            Self::Requests => Some(QueueId::Requests),
            Self::Dead => Some(QueueId::Dead),
        }
    }
}

/// All names under one prefix.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
    /// `<group>.<executor>` of this process, or `_._`.
    own: String,
}

impl Names {
    pub(crate) fn new(prefix: &str, identity: Option<&Identity>) -> Self {
        let own = identity.map_or_else(
            || "_._".to_owned(),
            |own| format!("{}.{}", escaped(&own.group), escaped(&own.executor)),
        );
        Self {
            prefix: prefix.to_owned(),
            own,
        }
    }

    /// `CUELINE_TRIGGERS` and so on.
    pub(crate) fn stream(&self, stream: Stream) -> String {
        let plural = match stream {
            Stream::Triggers => "TRIGGERS",
            Stream::Results => "RESULTS",
            Stream::Requests => "REQUESTS",
            Stream::Dead => "DEAD",
        };
        let prefix = self.prefix.to_ascii_uppercase().replace('.', "_");
        format!("{prefix}_{plural}")
    }

    /// What a stream holds.
    pub(crate) fn subjects(&self, stream: Stream) -> String {
        format!("{}.{}.>", self.prefix, stream.word())
    }

    pub(crate) fn place(&self, queue: &QueueId) -> Place {
        let (group, executor) = match queue {
            QueueId::Executor { group, executor } => (group, escaped(executor)),
            QueueId::Results => return self.whole(Stream::Results, "results"),
            QueueId::Requests => return self.whole(Stream::Requests, "requests"),
            QueueId::Dead => return self.whole(Stream::Dead, "dead"),
        };
        let group = escaped(group);
        let subject = format!("{}.trigger.{group}.{executor}.", self.prefix);
        Place {
            stream: Stream::Triggers,
            consumer: shortened(format!("{group}~{executor}")),
            filter: format!("{subject}>"),
            subject,
        }
    }

    fn whole(&self, stream: Stream, consumer: &str) -> Place {
        Place {
            stream,
            consumer: consumer.to_owned(),
            filter: self.subjects(stream),
            subject: format!("{}.{}.{}.", self.prefix, stream.word(), self.own),
        }
    }

    /// The queue whose consumer has this filter.
    pub(crate) fn queue(&self, filter: &str) -> Option<QueueId> {
        let rest = filter.strip_prefix(&self.prefix)?.strip_prefix('.')?;
        let tokens: Vec<&str> = rest.split('.').collect();
        match tokens[..] {
            ["trigger", group, executor, ">"] => Some(QueueId::Executor {
                group: unescaped(group),
                executor: unescaped(executor),
            }),
            [word, ">"] => Stream::ALL
                .into_iter()
                .find(|stream| stream.word() == word)
                .and_then(Stream::queue),
            _ => None,
        }
    }

    pub(crate) fn channel(&self, channel: &Channel) -> String {
        match channel {
            Channel::Heartbeats => format!("{}.heartbeat.{}", self.prefix, self.own),
            Channel::Control { group, executor } => format!(
                "{}.control.{}.{}",
                self.prefix,
                escaped(group),
                escaped(executor)
            ),
            Channel::Replies(name) => format!("{}.reply.{}", self.prefix, escaped(name)),
        }
    }

    /// What to subscribe to, to hear a channel: heartbeats come from everybody.
    pub(crate) fn ears(&self, channel: &Channel) -> String {
        match channel {
            Channel::Heartbeats => format!("{}.heartbeat.>", self.prefix),
            _ => self.channel(channel),
        }
    }

    /// The channel of replies that a subject means, if it does.
    pub(crate) fn replies(&self, subject: &str) -> Option<Channel> {
        let rest = subject.strip_prefix(&self.prefix)?;
        let name = rest.strip_prefix(".reply.")?;
        Some(Channel::Replies(unescaped(name)))
    }

    /// What this process's private subjects start with.
    pub(crate) fn inbox(&self) -> String {
        format!("{}.inbox.{}", self.prefix, self.own)
    }
}

/// The last part of a subject, as it was before it was escaped.
pub(crate) fn topic(subject: &str) -> String {
    unescaped(subject.rsplit('.').next().unwrap_or(subject))
}

fn escaped(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    escape(name, &mut token);
    token
}

fn escape(name: &str, token: &mut String) {
    if name.is_empty() {
        // No token is empty, and no other is a lone per cent sign.
        token.push('%');
    }
    for (place, byte) in name.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || byte == b'-' || (byte == b'_' && place > 0);
        if plain {
            token.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(token, "%{byte:02X}");
        }
    }
}

/// Undoes [`escape`], and user information in URLs. What was never escaped stays as it is.
pub(crate) fn unescaped(token: &str) -> String {
    if token == "%" {
        return String::new();
    }
    let bytes = token.as_bytes();
    let mut name = Vec::with_capacity(bytes.len());
    let mut place = 0;
    while place < bytes.len() {
        let code = bytes
            .get(place + 1..place + 3)
            .filter(|_| bytes[place] == b'%')
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        name.push(code.unwrap_or(bytes[place]));
        place += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8(name).unwrap_or_else(|_| token.to_owned())
}

/// Servers take no longer names for consumers than 255 bytes.
const LONGEST_CONSUMER: usize = 200;

/// A long name is cut, and told apart by a hash of the whole; the queue is known by the filter, never by this name.
fn shortened(name: String) -> String {
    if name.len() <= LONGEST_CONSUMER {
        return name;
    }
    // FNV-1a: the same in every version and process, which std's hashers do not promise.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Escaped names are ASCII.
    format!("{}~{hash:016x}", &name[..LONGEST_CONSUMER])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor(group: &str, executor: &str) -> QueueId {
        QueueId::Executor {
            group: group.into(),
            executor: executor.into(),
        }
    }

    #[test]
    fn names_are_one_token_and_come_back() {
        let all = [
            "", "a", "_", "_any", "a_b", "a.b", "a*", ">", "a b", "#", "%", "%2E", "报表", "x:1",
            "~",
        ];
        let mut tokens: Vec<String> = all.iter().map(|name| escaped(name)).collect();
        for (name, token) in all.iter().zip(&tokens) {
            assert_eq!(unescaped(token), *name);
            assert!(
                token
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-_%".contains(&b)),
                "{token}"
            );
        }
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), all.len());
    }

    #[test]
    fn a_queue_is_known_by_its_filter() {
        let names = Names::new("cueline", None);
        let long = "n".repeat(128);
        for queue in [
            executor("billing", "one"),
            executor("billing", "_any"),
            executor("a.b", "größe"),
            executor(&long, &long),
            QueueId::Results,
            QueueId::Requests,
            QueueId::Dead,
        ] {
            let place = names.place(&queue);
            assert_eq!(names.queue(&place.filter), Some(queue));
            assert!(place.consumer.len() < 255);
        }
        for other in [
            "",
            "cueline.trigger.>",
            "cueline.trigger.a.b.c.>",
            "other.result.>",
        ] {
            assert_eq!(names.queue(other), None, "{other}");
        }
        let (a, b) = (
            executor(&long, &long),
            executor(&long, &format!("{}m", &long[1..])),
        );
        assert_ne!(names.place(&a).consumer, names.place(&b).consumer);
    }

    #[test]
    fn what_an_executor_sends_names_it() {
        let own = Identity {
            group: "billing".into(),
            executor: "host.one".into(),
        };
        let names = Names::new("cueline", Some(&own));
        let results = names.place(&QueueId::Results);
        assert_eq!(
            results.subject("nightly"),
            "cueline.result.billing.host%2Eone.nightly"
        );
        assert_eq!(
            names.channel(&Channel::Heartbeats),
            "cueline.heartbeat.billing.host%2Eone"
        );
        assert_eq!(names.inbox(), "cueline.inbox.billing.host%2Eone");
        assert_eq!(topic(&results.subject("a.b")), "a.b");
        assert_eq!(names.stream(Stream::Dead), "CUELINE_DEAD");
        let reply = names.channel(&Channel::Replies("x.1".into()));
        assert_eq!(names.replies(&reply), Some(Channel::Replies("x.1".into())));
    }
}
