//! What queues, exchanges and routing keys are called, and back.
//!
//! A name of ours becomes one word of a routing key: dots would split it, and `*` and `#` mean something in a binding. Such
//! characters are written as `%` and two hexadecimal digits, others stay readable.

use std::fmt::Write as _;

use cueline_broker::{BrokerError, Channel, ErrorKind, QueueId};
use lapin::types::ShortString;

/// The longest name of a queue or routing key that AMQP has room for, in bytes.
const LONGEST: usize = 255;

/// Stands for a topic that a routing key has no room for; the whole one is then in the header [`TOPIC_HEADER`].
const LONG_TOPIC: &str = "%long";

/// Where a topic is when it does not fit into the routing key.
pub(crate) const TOPIC_HEADER: &str = "cueline-topic";

/// The names under one prefix.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    /// A prefix of letters, digits, `-`, `_` and `.`: what needs no escape in permissions, which are regular expressions.
    pub(crate) fn new(prefix: &str) -> Result<Self, BrokerError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if prefix.is_empty() || prefix.len() > 60 || !prefix.chars().all(plain) {
            return Err(BrokerError::new(
                ErrorKind::Permanent,
                format!(
                    "failed to open the broker: the prefix {prefix:?} must be 1 to 60 of a-z, A-Z, 0-9, `-`, `_` and `.`"
                ),
            ));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
        })
    }

    /// `<prefix>.<what>`; short by construction.
    pub(crate) fn own(&self, what: &str) -> ShortString {
        short(format!("{}.{what}", self.prefix)).unwrap_or_else(|_| ShortString::from("cueline"))
    }

    /// The exchange through which messages reach the queue.
    pub(crate) fn exchange(&self, queue: &QueueId) -> ShortString {
        self.own(match queue {
            QueueId::Executor { .. } => "triggers",
            QueueId::Results => "results",
            QueueId::Requests => "requests",
            QueueId::Dead => "dead",
        })
    }

    /// The exchange of announcements.
    pub(crate) fn live(&self) -> ShortString {
        self.own("live")
    }

    /// The queue's name on the server.
    pub(crate) fn queue(&self, queue: &QueueId) -> Result<ShortString, BrokerError> {
        short(format!("{}.{}", self.prefix, address(queue)))
    }

    /// The queue that has this name on the server.
    pub(crate) fn parse_queue(&self, name: &str) -> Option<QueueId> {
        let address = name.strip_prefix(&self.prefix)?.strip_prefix('.')?;
        match address {
            "results" => Some(QueueId::Results),
            "requests" => Some(QueueId::Requests),
            "dead" => Some(QueueId::Dead),
            _ => {
                let (group, executor) = address.strip_prefix("x.")?.split_once('.')?;
                Some(QueueId::Executor {
                    group: unescape(group),
                    executor: unescape(executor),
                })
            }
        }
    }

    /// What binds the queue to its exchange.
    pub(crate) fn binding(queue: &QueueId) -> Result<ShortString, BrokerError> {
        match queue {
            QueueId::Executor { .. } => short(format!("{}.*", words(queue))),
            QueueId::Results | QueueId::Requests | QueueId::Dead => Ok(ShortString::from("#")),
        }
    }

    /// The routing key of a message, and whether the topic had no room in it.
    pub(crate) fn key(queue: &QueueId, topic: &str) -> Result<(ShortString, bool), BrokerError> {
        let before = match queue {
            QueueId::Executor { .. } => format!("{}.", words(queue)),
            QueueId::Results | QueueId::Requests | QueueId::Dead => String::new(),
        };
        let key = format!("{before}{}", escape(topic));
        if key.len() <= LONGEST {
            return Ok((short(key)?, false));
        }
        Ok((short(format!("{before}{LONG_TOPIC}"))?, true))
    }

    /// The topic that a routing key ends with.
    pub(crate) fn topic(key: &str) -> String {
        unescape(key.rsplit('.').next().unwrap_or(key))
    }

    /// The routing key of a channel on the exchange of announcements.
    pub(crate) fn channel(channel: &Channel) -> Result<ShortString, BrokerError> {
        short(match channel {
            Channel::Heartbeats => "heartbeat".to_owned(),
            Channel::Control { group, executor } => {
                format!("control.{}.{}", escape(group), escape(executor))
            }
            Channel::Replies(name) => format!("reply.{}", escape(name)),
        })
    }

    /// The channel that has this routing key.
    pub(crate) fn parse_channel(key: &str) -> Option<Channel> {
        let mut words = key.split('.');
        let channel = match (words.next()?, words.next(), words.next()) {
            ("heartbeat", None, None) => Channel::Heartbeats,
            ("control", Some(group), Some(executor)) => Channel::Control {
                group: unescape(group),
                executor: unescape(executor),
            },
            ("reply", Some(name), None) => Channel::Replies(unescape(name)),
            _ => return None,
        };
        words.next().is_none().then_some(channel)
    }
}

fn address(queue: &QueueId) -> String {
    match queue {
        QueueId::Executor { .. } => format!("x.{}", words(queue)),
        other => other.to_string(),
    }
}

/// The words that stand for a queue in routing keys of triggers.
fn words(queue: &QueueId) -> String {
    match queue {
        QueueId::Executor { group, executor } => {
            format!("{}.{}", escape(group), escape(executor))
        }
        other => other.to_string(),
    }
}

pub(crate) fn short(name: String) -> Result<ShortString, BrokerError> {
    ShortString::try_new(name).map_err(|e| {
        BrokerError::new(
            ErrorKind::Permanent,
            "failed to name a queue or topic: the name is too long for AMQP",
        )
        .caused_by(e)
    })
}

/// One word, never empty.
pub(crate) fn escape(name: &str) -> String {
    if name.is_empty() {
        return "%".to_owned();
    }
    let mut escaped = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_alphanumeric() || matches!(c, '-' | '_') {
            escaped.push(c);
        } else {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                // Writing to a string does not fail.
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

/// The inverse of [`escape`]; what that never wrote is left as it is.
pub(crate) fn unescape(word: &str) -> String {
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
        if let Some(byte) = hex {
            bytes.push(byte);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| word.to_owned())
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
    fn names_come_back_as_one_word_each() {
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
                let (key, long) = Names::key(&queue, "a.b").unwrap();
                assert_eq!(key.as_str().split('.').count(), 3, "{key}");
                assert!(!long);
                assert_eq!(Names::topic(key.as_str()), "a.b");
            }
        }
    }

    #[test]
    fn channels_come_back() {
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
    fn what_is_too_long_is_told() {
        let long = "x".repeat(250);
        let (key, told) = Names::key(&QueueId::Results, &long).unwrap();
        assert_eq!((key.as_str(), told), (long.as_str(), false));
        let (key, told) = Names::key(&QueueId::Results, &"x".repeat(256)).unwrap();
        assert_eq!((key.as_str(), told), (LONG_TOPIC, true));
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
