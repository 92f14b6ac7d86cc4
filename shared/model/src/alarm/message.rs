//! The text of messages, in English and Chinese.

use std::collections::BTreeSet;

use super::channel::{AlarmChannel, Language};
use super::event::{AlarmFacts, ConditionKind};
use super::template::Template;
use crate::name::{GroupName, JobName, RuleName};
use crate::time::Timestamp;

/// The most events that a message lists. The rest is counted.
pub const MAX_LISTED_EVENTS: usize = 20;

/// The longest title, in bytes.
const MAX_TITLE_BYTES: usize = 200;

/// The longest text, in bytes. `DingTalk` accepts 20,000 bytes, and a text field of `WeCom` 2,048: its format cuts further.
const MAX_BODY_BYTES: usize = 16_000;

/// An event of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageEvent {
    /// When it happened.
    pub at: Timestamp,
    /// Which condition it fulfils.
    pub kind: ConditionKind,
    /// What is known.
    pub facts: AlarmFacts,
}

/// A message, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlarmMessage {
    /// One line.
    pub title: String,
    /// Several lines.
    pub body: String,
}

/// Writes the message of a rule to a channel. `events` are the first ones of `count`.
pub fn render(
    rule: &RuleName,
    channel: &AlarmChannel,
    count: u64,
    events: &[MessageEvent],
) -> AlarmMessage {
    let language = channel.language;
    let values = Values {
        rule,
        channel,
        count,
        events,
    };
    let write = |template: Option<&Template>, default: &str| match template {
        Some(template) => template.fill(|name| values.get(name)),
        // The texts of the languages are templates; a test reads them.
        None => default
            .parse::<Template>()
            .map(|template| template.fill(|name| values.get(name)))
            .unwrap_or_default(),
    };
    let title = write(channel.title.as_ref(), default_title(language, count));
    let body = write(channel.body.as_ref(), default_body(language));
    AlarmMessage {
        title: cut(&title.replace(['\r', '\n'], " "), MAX_TITLE_BYTES),
        body: cut(&body, MAX_BODY_BYTES),
    }
}

const fn default_title(language: Language, count: u64) -> &'static str {
    match (language, count) {
        (Language::En, 0 | 1) => "Cueline: {jobs} {condition}",
        (Language::En, _) => "Cueline: {count} alarms of rule {rule}: {jobs}",
        (Language::Zh, 0 | 1) => "Cueline：{jobs} {condition}",
        (Language::Zh, _) => "Cueline：规则 {rule} 有 {count} 条告警：{jobs}",
    }
}

const fn default_body(language: Language) -> &'static str {
    match language {
        Language::En => "{events}\n\nNamespace {namespace}, rule {rule}, channel {channel}.",
        Language::Zh => "{events}\n\n命名空间 {namespace}，规则 {rule}，渠道 {channel}。",
    }
}

struct Values<'a> {
    rule: &'a RuleName,
    channel: &'a AlarmChannel,
    count: u64,
    events: &'a [MessageEvent],
}

impl Values<'_> {
    fn get(&self, name: &str) -> String {
        let language = self.channel.language;
        let first = self.events.first();
        let facts = first.map(|event| &event.facts);
        let text = |value: Option<String>| value.unwrap_or_default();
        match name {
            "rule" => self.rule.local().to_owned(),
            "namespace" => self.rule.namespace().to_string(),
            "channel" => self.channel.name.local().to_owned(),
            "count" => self.count.to_string(),
            "jobs" => self.jobs(),
            "events" => self.list(),
            "condition" => text(first.map(|event| words(language, event.kind).to_owned())),
            "at" => text(first.map(|event| event.at.to_string())),
            "job" => text(
                facts
                    .and_then(|f| f.job.as_ref())
                    .map(|job| job.local().to_owned()),
            ),
            "group" => text(
                facts
                    .and_then(|f| f.group.as_ref())
                    .map(|group| group.local().to_owned()),
            ),
            "run" => text(facts.and_then(|f| f.run).map(|run| run.to_string())),
            "state" => text(facts.and_then(|f| f.state).map(|state| state.to_string())),
            "failures" => text(facts.and_then(|f| f.count).map(|count| count.to_string())),
            "since" => text(facts.and_then(|f| f.since).map(|since| since.to_string())),
            "message" => text(facts.map(|f| f.message.clone())),
            _ => String::new(),
        }
    }

    /// The names of the jobs, or of the groups where no job is known.
    fn jobs(&self) -> String {
        let name = |event: &MessageEvent| {
            let facts = &event.facts;
            let job = facts.job.as_ref().map(JobName::local);
            job.or_else(|| facts.group.as_ref().map(GroupName::local))
                .map(str::to_owned)
        };
        let names: BTreeSet<String> = self.events.iter().filter_map(name).collect();
        let shown: Vec<String> = names.iter().take(3).cloned().collect();
        let more = if names.len() > shown.len() {
            ", …"
        } else {
            ""
        };
        format!("{}{more}", shown.join(", "))
    }

    fn list(&self) -> String {
        let language = self.channel.language;
        let shown = self.events.iter().take(MAX_LISTED_EVENTS);
        let mut lines: Vec<String> = shown.map(|event| line(language, event)).collect();
        let rest = self.count.saturating_sub(lines.len() as u64);
        if rest > 0 {
            lines.push(match language {
                Language::En => format!("… and {rest} more"),
                Language::Zh => format!("……还有 {rest} 条"),
            });
        }
        lines.join("\n")
    }
}

/// What happened, in a few words.
const fn words(language: Language, kind: ConditionKind) -> &'static str {
    use ConditionKind as K;
    match (language, kind) {
        (Language::En, K::Failed) => "failed",
        (Language::En, K::FailedInARow) => "failed several times in a row",
        (Language::En, K::TimedOut) => "timed out",
        (Language::En, K::Lost) => "was lost with its executor",
        (Language::En, K::Unroutable) => "found no executor in time",
        (Language::En, K::Recovered) => "succeeded again",
        (Language::En, K::Missed) => "missed fire times",
        (Language::En, K::Late) => "is late",
        (Language::En, K::Backlog) => "has a backlog",
        (Language::En, K::NoExecutor) => "has no live executor",
        (Language::En, K::Test) => "test message",
        (Language::Zh, K::Failed) => "执行失败",
        (Language::Zh, K::FailedInARow) => "连续多次失败",
        (Language::Zh, K::TimedOut) => "执行超时",
        (Language::Zh, K::Lost) => "随执行器丢失",
        (Language::Zh, K::Unroutable) => "未能及时找到执行器",
        (Language::Zh, K::Recovered) => "已恢复成功",
        (Language::Zh, K::Missed) => "错过触发时间",
        (Language::Zh, K::Late) => "启动延迟",
        (Language::Zh, K::Backlog) => "出现积压",
        (Language::Zh, K::NoExecutor) => "没有存活的执行器",
        (Language::Zh, K::Test) => "测试消息",
    }
}

/// One event in one line.
fn line(language: Language, event: &MessageEvent) -> String {
    let facts = &event.facts;
    let subject = match (&facts.job, &facts.group) {
        (Some(job), _) => match language {
            Language::En => format!("job {} ", job.local()),
            Language::Zh => format!("任务 {} ", job.local()),
        },
        (None, Some(group)) => match language {
            Language::En => format!("group {} ", group.local()),
            Language::Zh => format!("执行器组 {} ", group.local()),
        },
        (None, None) => String::new(),
    };
    let what = words(language, event.kind);
    let mut details = Vec::new();
    if let Some(run) = facts.run {
        details.push(match language {
            Language::En => format!("run {run}"),
            Language::Zh => format!("运行 {run}"),
        });
    }
    details.extend(counted(language, event.kind, facts.count));
    if let Some(since) = facts.since {
        details.push(match language {
            Language::En => format!("since {since}"),
            Language::Zh => format!("自 {since} 起"),
        });
    }
    let details = match (details.is_empty(), language) {
        (true, _) => String::new(),
        (false, Language::En) => format!(" ({})", details.join(", ")),
        (false, Language::Zh) => format!("（{}）", details.join("，")),
    };
    let message = match (facts.message.is_empty(), language) {
        (true, _) => String::new(),
        (false, Language::En) => format!(": {}", facts.message),
        (false, Language::Zh) => format!("：{}", facts.message),
    };
    format!("{} {subject}{what}{details}{message}", event.at)
}

fn counted(language: Language, kind: ConditionKind, count: Option<u64>) -> Option<String> {
    use ConditionKind as K;
    let count = count?;
    Some(match (language, kind) {
        (Language::En, K::Missed) => format!("{count} missed"),
        (Language::Zh, K::Missed) => format!("错过 {count} 次"),
        (Language::En, K::Late | K::Backlog) => format!("{count} waiting"),
        (Language::Zh, K::Late | K::Backlog) => format!("{count} 个等待"),
        (Language::En, K::Recovered) => format!("after {count} failures"),
        (Language::Zh, K::Recovered) => format!("此前失败 {count} 次"),
        (Language::En, _) => format!("{count} failures in a row"),
        (Language::Zh, _) => format!("连续失败 {count} 次"),
    })
}

/// Cuts a text at a character, and says so.
fn cut(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let mut end = max_bytes - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{RunId, RunState};

    #[test]
    fn the_texts_of_the_languages_are_templates() {
        for language in [Language::En, Language::Zh] {
            for count in [1, 2] {
                let title = default_title(language, count);
                title.parse::<Template>().expect("a template");
            }
            default_body(language)
                .parse::<Template>()
                .expect("a template");
            for kind in ConditionKind::ALL {
                assert!(!words(language, kind).is_empty());
            }
        }
    }

    fn channel(json: serde_json::Value) -> AlarmChannel {
        serde_json::from_value(json).expect("a channel")
    }

    fn event(kind: ConditionKind) -> MessageEvent {
        MessageEvent {
            at: Timestamp::from_millis(0),
            kind,
            facts: AlarmFacts {
                job: Some("team/nightly".parse().expect("a name")),
                run: Some(RunId(7)),
                state: Some(RunState::Failed),
                count: Some(3),
                message: "disk full".to_owned(),
                ..AlarmFacts::default()
            },
        }
    }

    #[test]
    fn messages_are_written_in_both_languages() {
        let rule: RuleName = "team/backups".parse().expect("a name");
        let english = channel(serde_json::json!({
            "name": "ops", "namespace": "team", "webhook": { "url": "https://example.com" },
        }));
        let one = render(&rule, &english, 1, &[event(ConditionKind::Failed)]);
        assert_eq!(one.title, "Cueline: nightly failed");
        assert_eq!(
            one.body,
            "1970-01-01T00:00:00.000Z job nightly failed (run 7, 3 failures in a row): disk full\n\n\
             Namespace team, rule backups, channel ops."
        );
        let chinese = AlarmChannel {
            language: Language::Zh,
            ..english
        };
        let two = render(&rule, &chinese, 5, &[event(ConditionKind::FailedInARow)]);
        assert_eq!(two.title, "Cueline：规则 backups 有 5 条告警：nightly");
        assert!(
            two.body
                .contains("任务 nightly 连续多次失败（运行 7，连续失败 3 次）：disk full")
        );
        assert!(two.body.contains("……还有 4 条"), "{}", two.body);
    }

    #[test]
    fn a_channel_may_have_texts_of_its_own_and_titles_have_one_line() {
        let rule: RuleName = "backups".parse().expect("a name");
        let own = channel(serde_json::json!({
            "name": "ops", "webhook": { "url": "https://example.com" },
            "title": "{job}: {message}", "body": "{run} {state} {failures} {namespace}",
        }));
        let mut first = event(ConditionKind::Failed);
        first.facts.message = "line 1\nline 2 {job}".to_owned();
        let message = render(&rule, &own, 1, &[first]);
        assert_eq!(message.title, "nightly: line 1 line 2 {job}");
        assert_eq!(message.body, "7 failed 3 default");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(cut("告警告警", 12), "告警告警");
        assert_eq!(cut("告警告警告", 13), "告警告…");
    }
}
