//! Names of streams, consumers, subjects and inboxes under one prefix. No I/O.
//!
//! Subjects end in `<group>.<executor>.<topic>`. Permissions can therefore name one executor, and an operator can watch
//! one job. A name is one token: bytes with a meaning to NATS or to a file system are written as `%XX`. So is a leading
//! underscore, because `_` replaces the group and the name in a process that is not an executor. Only in a topic, a slash
//! separates tokens: `<namespace>.<job>`. Permissions can therefore name the jobs of one namespace.

use std::fmt::Write as _;

use cueline_broker::{Channel, QueueId, StartLog};

use crate::options::Identity;

/// The stream and the consumer of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) stream: Stream,
    pub(crate) stream_name: String,
    /// The name of the durable consumer.
    pub(crate) consumer: String,
    /// The subjects that the consumer reads.
    pub(crate) filter: String,
    subject_prefix: String,
}

impl Location {
    /// The subject of a message with this topic.
    pub(crate) fn subject(&self, topic: &str) -> String {
        let mut subject = String::with_capacity(self.subject_prefix.len() + topic.len() + 8);
        subject.push_str(&self.subject_prefix);
        for (index, part) in topic.split('/').enumerate() {
            if index > 0 {
                subject.push('.');
            }
            escape(part, &mut subject);
        }
        subject
    }

    /// The topic of a subject from [`subject`](Self::subject), of this process or another one.
    pub(crate) fn topic(&self, subject: &str) -> String {
        // The subjects of a stream have the same number of tokens before the topic, whichever process published them.
        let before = self.subject_prefix.matches('.').count();
        let parts: Vec<String> = subject.split('.').skip(before).map(topic_part).collect();
        parts.join("/")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stream {
    /// The stream for the queues of all executors.
    Triggers,
    Results,
    Requests,
    Dead,
    /// The stream for the start logs of all executors.
    Starts,
    /// The stream for the proofs of stored announcements.
    Proofs,
}

impl Stream {
    const ALL: [Self; 6] = [
        Self::Triggers,
        Self::Results,
        Self::Requests,
        Self::Dead,
        Self::Starts,
        Self::Proofs,
    ];

    const fn token(self) -> &'static str {
        match self {
            Self::Triggers => "trigger",
            Self::Results => "result",
            Self::Requests => "request",
            Self::Dead => "dead",
            Self::Starts => "start",
            Self::Proofs => "proof",
        }
    }

    /// The queue of the stream. `None` for the stream with many queues, and for those without queues.
    pub(crate) const fn queue(self) -> Option<QueueId> {
        match self {
            Self::Triggers | Self::Starts | Self::Proofs => None,
            Self::Results => Some(QueueId::Results),
            Self::Requests => Some(QueueId::Requests),
            Self::Dead => Some(QueueId::Dead),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
    /// `<group>.<executor>` of this process, or `_._` if it is not an executor.
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
        let (prefix, token) = (self.prefix.replace('.', "_"), stream.token());
        let plural = if stream == Stream::Dead { "" } else { "s" };
        format!("{prefix}_{token}{plural}").to_ascii_uppercase()
    }

    /// The subjects that a stream stores.
    pub(crate) fn subjects(&self, stream: Stream) -> String {
        format!("{}.{}.>", self.prefix, stream.token())
    }

    pub(crate) fn locate(&self, queue: &QueueId) -> Location {
        let (group, executor) = match queue {
            QueueId::Executor { group, executor } => (escaped(group), escaped(executor)),
            QueueId::Results => return self.whole_stream(Stream::Results, "results"),
            QueueId::Requests => return self.whole_stream(Stream::Requests, "requests"),
            QueueId::Dead => return self.whole_stream(Stream::Dead, "dead"),
        };
        let subject_prefix = format!("{}.trigger.{group}.{executor}.", self.prefix);
        Location {
            stream: Stream::Triggers,
            stream_name: self.stream(Stream::Triggers),
            consumer: shortened(format!("{group}~{executor}")),
            filter: format!("{subject_prefix}>"),
            subject_prefix,
        }
    }

    /// The subject of the log's records.
    pub(crate) fn start_log(&self, log: &StartLog) -> String {
        let StartLog { group, executor } = log;
        let token = Stream::Starts.token();
        format!(
            "{}.{token}.{}.{}",
            self.prefix,
            escaped(group),
            escaped(executor)
        )
    }

    /// The consumer of one reader of the log. `unique` distinguishes it from those of other readers.
    pub(crate) fn start_log_reader(&self, log: &StartLog, unique: &str) -> Location {
        let subject = self.start_log(log);
        Location {
            stream: Stream::Starts,
            stream_name: self.stream(Stream::Starts),
            consumer: format!("reader~{unique}"),
            filter: subject.clone(),
            subject_prefix: subject,
        }
    }

    /// The subject of this process's proofs.
    pub(crate) fn proof(&self) -> String {
        format!("{}.{}.{}", self.prefix, Stream::Proofs.token(), self.own)
    }

    fn whole_stream(&self, stream: Stream, consumer: &str) -> Location {
        Location {
            stream,
            stream_name: self.stream(stream),
            consumer: consumer.to_owned(),
            filter: self.subjects(stream),
            subject_prefix: format!("{}.{}.{}.", self.prefix, stream.token(), self.own),
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
            [token, ">"] => Stream::ALL
                .into_iter()
                .find(|stream| stream.token() == token)
                .and_then(Stream::queue),
            _ => None,
        }
    }

    /// The subject on which this process announces.
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

    /// The subjects on which all processes announce.
    pub(crate) fn subscription(&self, channel: &Channel) -> String {
        match channel {
            Channel::Heartbeats => format!("{}.heartbeat.>", self.prefix),
            _ => self.channel(channel),
        }
    }

    /// The reply channel with this subject.
    pub(crate) fn reply_channel(&self, subject: &str) -> Option<Channel> {
        let rest = subject.strip_prefix(&self.prefix)?;
        let name = rest.strip_prefix(".reply.")?;
        Some(Channel::Replies(unescaped(name)))
    }

    /// The first tokens of this process's private subjects.
    pub(crate) fn inbox(&self) -> String {
        format!("{}.inbox.{}", self.prefix, self.own)
    }
}

fn escaped(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    escape(name, &mut token);
    token
}

fn escape(name: &str, token: &mut String) {
    if name.is_empty() {
        // A token must not be empty. No other name is written as a single per cent sign.
        token.push('%');
    }
    for (index, byte) in name.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || byte == b'-' || (byte == b'_' && index > 0);
        if plain {
            token.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(token, "%{byte:02X}");
        }
    }
}

/// Reverses [`escape`], and the escapes of user information in URLs. Other text stays unchanged.
pub(crate) fn unescaped(token: &str) -> String {
    if token == "%" {
        return String::new();
    }
    let bytes = token.as_bytes();
    let mut name = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let code = bytes
            .get(index + 1..index + 3)
            .filter(|_| bytes[index] == b'%')
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        name.push(code.unwrap_or(bytes[index]));
        index += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8(name).unwrap_or_else(|_| token.to_owned())
}

/// The part of a topic that this token stands for. Permissions are about tokens, so one token never becomes two parts:
/// its slash stays escaped, or becomes it.
fn topic_part(token: &str) -> String {
    let part = unescaped(token);
    if part.contains('/') {
        token.replace('/', "%2F")
    } else {
        part
    }
}

/// In bytes. Servers refuse names over 255 bytes.
const MAX_CONSUMER_NAME: usize = 200;

/// Cuts a long name and appends a hash of the whole name. The filter identifies the queue; this name never does.
fn shortened(name: String) -> String {
    if name.len() <= MAX_CONSUMER_NAME {
        return name;
    }
    // FNV-1a, because the hashers of std may differ between versions and processes.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Escaped names are ASCII.
    format!("{}~{hash:016x}", &name[..MAX_CONSUMER_NAME])
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
    fn an_escaped_name_is_one_token_and_can_be_unescaped() {
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
    fn the_namespace_of_a_requested_job_is_a_token_of_its_own() {
        let requests = Names::new("cueline.test", None).locate(&QueueId::Requests);
        assert_eq!(
            requests.subject("team-a/report"),
            "cueline.test.request._._.team-a.report"
        );
        assert_eq!(
            requests.subject("report"),
            "cueline.test.request._._.report"
        );
        let own = Identity {
            group: "a/g".into(),
            executor: "one".into(),
        };
        let of_executor = Names::new("cueline.test", Some(&own)).locate(&QueueId::Requests);
        let topics = [
            "", "a", "a/b", "a.b", "a:b", "a_b", "a-b", "a%2Fb", "_/b", "/", "a/b/c", "a/b.c",
        ];
        let mut subjects = Vec::new();
        for topic in topics {
            let subject = requests.subject(topic);
            assert_eq!(requests.topic(&subject), topic);
            // The scheduler reads requests of all processes.
            assert_eq!(requests.topic(&of_executor.subject(topic)), topic);
            subjects.push(subject);
        }
        subjects.sort();
        subjects.dedup();
        assert_eq!(subjects.len(), topics.len());
    }

    #[test]
    fn one_token_of_another_program_never_names_a_namespace() {
        let requests = Names::new("cueline", None).locate(&QueueId::Requests);
        for (token, topic) in [
            ("team-a%2Freport", "team-a%2Freport"),
            ("team-a%2freport", "team-a%2freport"),
            ("team-a/report", "team-a%2Freport"),
            ("team-a.x%2Fy", "team-a/x%2Fy"),
        ] {
            let subject = format!("cueline.request._._.{token}");
            assert_eq!(requests.topic(&subject), topic, "{token}");
        }
    }

    #[test]
    fn groups_of_two_namespaces_share_no_name() {
        let names = Names::new("cueline", None);
        let groups = ["a/b", "a_b", "a.b", "a:b", "a-b", "ab", "b"];
        let mut found: Vec<String> = Vec::new();
        for group in groups {
            let location = names.locate(&executor(group, "one"));
            assert_eq!(names.queue(&location.filter), Some(executor(group, "one")));
            assert_eq!(location.filter.split('.').count(), 5, "{}", location.filter);
            found.push(location.filter);
            found.push(location.consumer);
            found.push(names.channel(&Channel::Control {
                group: group.into(),
                executor: "one".into(),
            }));
            found.push(names.start_log(&StartLog {
                group: group.into(),
                executor: "one".into(),
            }));
        }
        let count = found.len();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), count);
    }

    #[test]
    fn a_filter_identifies_its_queue() {
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
            let location = names.locate(&queue);
            assert_eq!(names.queue(&location.filter), Some(queue));
            assert!(location.consumer.len() < 255);
        }
        for other in [
            "",
            "cueline.trigger.>",
            "cueline.trigger.a.b.c.>",
            "cueline.start.>",
            "cueline.start.a.b",
            "cueline.proof.>",
            "other.result.>",
        ] {
            assert_eq!(names.queue(other), None, "{other}");
        }
        let (a, b) = (
            executor(&long, &long),
            executor(&long, &format!("{}m", &long[1..])),
        );
        assert_ne!(names.locate(&a).consumer, names.locate(&b).consumer);
    }

    #[test]
    fn subjects_of_an_executor_contain_its_group_and_name() {
        let own = Identity {
            group: "billing".into(),
            executor: "host.one".into(),
        };
        let names = Names::new("cueline", Some(&own));
        let results = names.locate(&QueueId::Results);
        assert_eq!(
            results.subject("nightly"),
            "cueline.result.billing.host%2Eone.nightly"
        );
        assert_eq!(
            names.channel(&Channel::Heartbeats),
            "cueline.heartbeat.billing.host%2Eone"
        );
        assert_eq!(names.inbox(), "cueline.inbox.billing.host%2Eone");
        assert_eq!(results.topic(&results.subject("a.b")), "a.b");
        assert_eq!(names.stream(Stream::Dead), "CUELINE_DEAD");
        let log = StartLog {
            group: own.group.clone(),
            executor: own.executor.clone(),
        };
        assert_eq!(names.stream(Stream::Starts), "CUELINE_STARTS");
        assert_eq!(names.subjects(Stream::Starts), "cueline.start.>");
        assert_eq!(names.start_log(&log), "cueline.start.billing.host%2Eone");
        assert_eq!(names.stream(Stream::Proofs), "CUELINE_PROOFS");
        assert_eq!(names.subjects(Stream::Proofs), "cueline.proof.>");
        assert_eq!(names.proof(), "cueline.proof.billing.host%2Eone");
        let reply = names.channel(&Channel::Replies("x.1".into()));
        assert_eq!(
            names.reply_channel(&reply),
            Some(Channel::Replies("x.1".into()))
        );
    }
}
