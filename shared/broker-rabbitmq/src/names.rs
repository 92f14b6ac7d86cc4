//! Names of queues and exchanges, and routing keys, in both directions.
//!
//! Each of our names becomes one word of a routing key. Dots would split it, and `*` and `#` have a meaning in
//! bindings. Such characters become `%` and two hexadecimal digits; all others stay readable. In the topic of a message
//! that is not for one executor, a slash separates words: `<namespace>.<job>`. Permissions can therefore name the jobs of
//! one namespace.

use std::fmt::Write as _;

use cueline_broker::{BrokerError, Channel, QueueId, StartLog};
use lapin::types::ShortString;

use crate::error::permanent;

/// AMQP's longest name of a queue and longest routing key, in bytes.
const LONGEST: usize = 255;

/// Replaces the last part of a topic that does not fit into a routing key. The header [`TOPIC_HEADER`] then carries the
/// topic.
const LONG_TOPIC: &str = "%long";

pub(crate) const TOPIC_HEADER: &str = "cueline-topic";

/// The names under one prefix.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    /// The prefix is restricted to characters that need no escape in permissions, which are regular expressions.
    pub(crate) fn new(prefix: &str) -> Result<Self, BrokerError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if prefix.is_empty() || prefix.len() > 60 || !prefix.chars().all(plain) {
            return Err(permanent(format!(
                "failed to open the broker: the prefix {prefix:?} must be 1 to 60 of a-z, A-Z, 0-9, `-`, `_` and `.`"
            )));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
        })
    }

    /// The exchange `<prefix>.<name>`.
    pub(crate) fn exchange(&self, name: &str) -> ShortString {
        // A prefix of at most 60 bytes always fits.
        short(format!("{}.{name}", self.prefix)).unwrap_or_else(|_| ShortString::from("cueline"))
    }

    /// The exchange that routes messages to the queue.
    pub(crate) fn exchange_of(&self, queue: &QueueId) -> ShortString {
        self.exchange(match queue {
            QueueId::Executor { .. } => "triggers",
            QueueId::Results => "results",
            QueueId::Requests => "requests",
            QueueId::Dead => "dead",
        })
    }

    pub(crate) fn announcement_exchange(&self) -> ShortString {
        self.exchange("live")
    }

    /// The name of the queue with which one process of `user` receives announcements.
    pub(crate) fn announcement_queue(
        &self,
        user: &str,
        process: u64,
    ) -> Result<ShortString, BrokerError> {
        short(format!("{}.l.{}.{process:016x}", self.prefix, escape(user)))
    }

    pub(crate) fn queue(&self, queue: &QueueId) -> Result<ShortString, BrokerError> {
        short(match queue {
            QueueId::Executor { group, executor } => {
                format!("{}.x.{}", self.prefix, words(group, executor))
            }
            other => format!("{}.{other}", self.prefix),
        })
    }

    /// The stream of an executor's start log.
    pub(crate) fn log(&self, log: &StartLog) -> Result<ShortString, BrokerError> {
        let StartLog { group, executor } = log;
        short(format!("{}.starts.{}", self.prefix, words(group, executor)))
    }

    /// The exchange that routes records to the logs.
    pub(crate) fn log_exchange(&self) -> ShortString {
        self.exchange("starts")
    }

    /// The routing key of a log's records. It also binds the log.
    pub(crate) fn log_key(log: &StartLog) -> Result<ShortString, BrokerError> {
        short(words(&log.group, &log.executor))
    }

    /// The queue of proofs.
    pub(crate) fn proofs(&self) -> ShortString {
        // A prefix of at most 60 bytes always fits.
        self.exchange("proofs")
    }

    /// The routing key of proofs on the exchange of announcements. Only the queue of proofs is bound with it.
    pub(crate) fn proof_key() -> ShortString {
        ShortString::from("proof")
    }

    /// The inverse of [`Names::queue`].
    pub(crate) fn parse_queue(&self, name: &str) -> Option<QueueId> {
        match name.strip_prefix(&self.prefix)?.strip_prefix('.')? {
            "results" => Some(QueueId::Results),
            "requests" => Some(QueueId::Requests),
            "dead" => Some(QueueId::Dead),
            other => {
                let (group, executor) = other.strip_prefix("x.")?.split_once('.')?;
                Some(QueueId::Executor {
                    group: unescape(group),
                    executor: unescape(executor),
                })
            }
        }
    }

    /// The pattern that binds the queue to its exchange.
    pub(crate) fn binding(queue: &QueueId) -> Result<ShortString, BrokerError> {
        match queue {
            QueueId::Executor { group, executor } => short(format!("{}.*", words(group, executor))),
            QueueId::Results | QueueId::Requests | QueueId::Dead => Ok(ShortString::from("#")),
        }
    }

    /// The routing key of a message, and whether a header must carry its topic.
    pub(crate) fn routing_key(
        queue: &QueueId,
        topic: &str,
    ) -> Result<(ShortString, bool), BrokerError> {
        let (address, last) = match queue {
            QueueId::Executor { group, executor } => {
                (format!("{}.", words(group, executor)), topic)
            }
            QueueId::Results | QueueId::Requests | QueueId::Dead => match topic.rsplit_once('/') {
                Some((before, last)) => {
                    let before: Vec<String> = before.split('/').map(escape).collect();
                    (format!("{}.", before.join(".")), last)
                }
                None => (String::new(), topic),
            },
        };
        let key = format!("{address}{}", escape(last));
        if key.len() <= LONGEST {
            return Ok((short(key)?, false));
        }
        let key = format!("{address}{LONG_TOPIC}");
        let is_executor = matches!(queue, QueueId::Executor { .. });
        if key.len() <= LONGEST || is_executor {
            return Ok((short(key)?, true));
        }
        // No namespace is that long.
        Ok((ShortString::from(LONG_TOPIC), true))
    }

    /// The topic of a message with this routing key. `header` is the value of [`TOPIC_HEADER`], which the sender chooses.
    /// It counts only where the key leaves room for it, because permissions are about the key.
    pub(crate) fn parse_topic(queue: &QueueId, key: &str, header: Option<String>) -> String {
        if let Some(topic) = header
            && Self::routing_key(queue, &topic)
                .is_ok_and(|(full, is_long)| is_long && full.as_str() == key)
        {
            return topic;
        }
        if let QueueId::Executor { .. } = queue {
            return unescape(key.rsplit('.').next().unwrap_or(key));
        }
        let parts: Vec<String> = key.split('.').map(topic_part).collect();
        parts.join("/")
    }

    /// The routing key of announcements on `channel`.
    pub(crate) fn channel(channel: &Channel) -> Result<ShortString, BrokerError> {
        short(match channel {
            Channel::Heartbeats => "heartbeat".to_owned(),
            Channel::Control { group, executor } => format!("control.{}", words(group, executor)),
            Channel::Replies(name) => format!("reply.{}", escape(name)),
        })
    }

    /// The inverse of [`Names::channel`].
    pub(crate) fn parse_channel(key: &str) -> Option<Channel> {
        match *key.split('.').collect::<Vec<_>>() {
            ["heartbeat"] => Some(Channel::Heartbeats),
            ["control", group, executor] => Some(Channel::Control {
                group: unescape(group),
                executor: unescape(executor),
            }),
            ["reply", name] => Some(Channel::Replies(unescape(name))),
            _ => None,
        }
    }
}

fn words(group: &str, executor: &str) -> String {
    format!("{}.{}", escape(group), escape(executor))
}

pub(crate) fn short(name: String) -> Result<ShortString, BrokerError> {
    ShortString::try_new(name).map_err(|e| {
        permanent("failed to name a queue or topic: the name is too long for AMQP").caused_by(e)
    })
}

/// Escapes `name` as one word, which is never empty.
fn escape(name: &str) -> String {
    if name.is_empty() {
        return "%".to_owned();
    }
    let mut escaped = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_alphanumeric() || matches!(c, '-' | '_') {
            escaped.push(c);
        } else {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a string does not fail.
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

/// The inverse of [`escape`]. It leaves a word that [`escape`] cannot have produced as it is.
fn unescape(word: &str) -> String {
    if word == "%" {
        return String::new();
    }
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(hex.unwrap_or(*first));
        rest = if hex.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| word.to_owned())
}

/// The part of a topic that this word stands for. Permissions are about words, so one word never becomes two parts: its
/// slash stays escaped, or becomes it.
fn topic_part(word: &str) -> String {
    let part = unescape(word);
    if part.contains('/') {
        word.replace('/', "%2F")
    } else {
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: [&str; 12] = [
        "",
        "%",
        "%25",
        "a.b",
        "*",
        "#",
        "_any",
        "_",
        "größe 报表",
        "a b",
        "\0\n",
        "%zz",
    ];

    #[test]
    fn every_name_is_one_word_and_parses_back() {
        let names = Names::new("cueline.test-1").unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for group in NASTY {
            let word = escape(group);
            assert!(
                !word.is_empty() && !word.contains(['.', '*', '#', ' ']),
                "{word}"
            );
            assert_eq!(unescape(&word), group);
            for queue in NASTY.map(|executor| QueueId::Executor {
                group: group.to_owned(),
                executor: executor.to_owned(),
            }) {
                let name = names.queue(&queue).unwrap();
                assert_eq!(names.parse_queue(name.as_str()), Some(queue.clone()));
                assert!(seen.insert(name.to_string()), "{name} twice");
                let QueueId::Executor { group, executor } = queue.clone() else {
                    panic!("{queue}");
                };
                let log = StartLog { group, executor };
                let name = names.log(&log).unwrap();
                assert_eq!(names.parse_queue(name.as_str()), None);
                assert!(seen.insert(name.to_string()), "{name} twice");
                let key = Names::log_key(&log).unwrap();
                assert_eq!(key.as_str().split('.').count(), 2, "{key}");
                assert!(!key.as_str().contains(['*', '#']), "{key}");
                let (key, is_long) = Names::routing_key(&queue, "a.b").unwrap();
                assert_eq!(key.as_str().split('.').count(), 3, "{key}");
                assert!(!is_long);
                assert_eq!(Names::parse_topic(&queue, key.as_str(), None), "a.b");
            }
        }
    }

    #[test]
    fn the_namespace_of_a_requested_job_is_a_word_of_its_own() {
        let requests = QueueId::Requests;
        let key = |topic: &str| Names::routing_key(&requests, topic).unwrap().0;
        assert_eq!(key("team-a/report").as_str(), "team-a.report");
        assert_eq!(key("report").as_str(), "report");
        let topics = [
            "", "a", "a/b", "a.b", "a:b", "a_b", "a-b", "a%2Fb", "/", "a/b/c", "a/b.c",
        ];
        let mut seen = std::collections::BTreeSet::new();
        for topic in topics {
            let key = key(topic);
            assert!(seen.insert(key.to_string()), "{key} twice");
            assert_eq!(Names::parse_topic(&requests, key.as_str(), None), topic);
        }
        // A trigger keeps one word for its job: the binding of a queue has one star.
        let queue = QueueId::Executor {
            group: "a/g".to_owned(),
            executor: "one".to_owned(),
        };
        let (key, _) = Names::routing_key(&queue, "a/b").unwrap();
        assert_eq!(key.as_str(), "a%2Fg.one.a%2Fb");
        assert_eq!(Names::parse_topic(&queue, key.as_str(), None), "a/b");
    }

    #[test]
    fn one_word_of_another_program_never_names_a_namespace() {
        let requests = QueueId::Requests;
        for (key, topic) in [
            ("team-a%2Freport", "team-a%2Freport"),
            ("team-a%2freport", "team-a%2freport"),
            ("team-a/report", "team-a%2Freport"),
            ("team-a.x%2Fy", "team-a/x%2Fy"),
        ] {
            assert_eq!(Names::parse_topic(&requests, key, None), topic, "{key}");
        }
    }

    #[test]
    fn a_header_cannot_name_another_namespace_than_the_routing_key() {
        let requests = QueueId::Requests;
        let long = format!("team-a/{}", ":".repeat(90));
        let (key, is_long) = Names::routing_key(&requests, &long).unwrap();
        assert_eq!((key.as_str(), is_long), ("team-a.%long", true));
        let topic =
            |key: &str, header: &str| Names::parse_topic(&requests, key, Some(header.to_owned()));
        assert_eq!(topic("team-a.%long", &long), long);
        for (key, header) in [
            ("team-b.%long", long.as_str()),
            ("%long", long.as_str()),
            ("report", "team-a/report"),
            ("team-b.report", "team-a/report"),
        ] {
            assert!(!topic(key, header).starts_with("team-a/"), "{key} {header}");
        }
    }

    #[test]
    fn groups_of_two_namespaces_share_no_name() {
        let names = Names::new("cueline").unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for group in ["a/b", "a_b", "a.b", "a:b", "a-b", "ab", "b"] {
            let queue = QueueId::Executor {
                group: group.to_owned(),
                executor: "one".to_owned(),
            };
            let control = Channel::Control {
                group: group.to_owned(),
                executor: "one".to_owned(),
            };
            let name = names.queue(&queue).unwrap();
            assert_eq!(names.parse_queue(name.as_str()), Some(queue.clone()));
            assert!(seen.insert(name.to_string()), "{name} twice");
            assert!(seen.insert(Names::binding(&queue).unwrap().to_string()));
            assert!(seen.insert(Names::channel(&control).unwrap().to_string()));
        }
    }

    #[test]
    fn proofs_are_neither_a_queue_nor_a_channel() {
        let names = Names::new("cueline").unwrap();
        assert_eq!(names.proofs().as_str(), "cueline.proofs");
        assert_eq!(names.parse_queue("cueline.proofs"), None);
        assert_eq!(Names::parse_channel(Names::proof_key().as_str()), None);
    }

    #[test]
    fn every_channel_parses_back() {
        let mut all = vec![Channel::Heartbeats];
        all.extend(NASTY.map(|name| Channel::Replies(name.to_owned())));
        all.extend(NASTY.map(|name| Channel::Control {
            group: name.to_owned(),
            executor: "one".to_owned(),
        }));
        for channel in all {
            let key = Names::channel(&channel).unwrap();
            assert_eq!(Names::parse_channel(key.as_str()), Some(channel));
        }
        assert_eq!(Names::parse_channel("control.a"), None);
        assert_eq!(Names::parse_channel("reply.a.b"), None);
    }

    #[test]
    fn names_that_are_too_long_are_refused_and_long_topics_are_replaced() {
        let long = "x".repeat(250);
        let (key, in_header) = Names::routing_key(&QueueId::Results, &long).unwrap();
        assert_eq!((key.as_str(), in_header), (long.as_str(), false));
        let (key, in_header) = Names::routing_key(&QueueId::Results, &"x".repeat(256)).unwrap();
        assert_eq!((key.as_str(), in_header), (LONG_TOPIC, true));
        let queue = QueueId::Executor {
            group: long,
            executor: "one".to_owned(),
        };
        assert!(Names::new("cueline").unwrap().queue(&queue).is_err());
        for prefix in ["", "a b", "a*", "ü", &"x".repeat(61)] {
            assert!(Names::new(prefix).is_err(), "{prefix}");
        }
    }
}
