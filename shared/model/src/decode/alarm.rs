//! Reads alarm rules, channels and silences.

use super::exclusion::list;
use super::fields::{MAX_TEXT_BYTES, local, name, optional, required, text_map, text_or_secret};
use super::handler::url;
use super::reader::{Fields, Reader, given, shorten};
use super::{Node, Value};
use crate::alarm::{
    AlarmChannel, AlarmRule, AlarmScope, AlarmSilence, ChannelKind, Condition,
    DEFAULT_GROUP_INTERVAL, EmailChannel, HookChannel, Language, MAX_CONDITIONS,
    MAX_GROUP_INTERVAL, MAX_RECIPIENTS, MAX_RULE_CHANNELS, MAX_SCOPE_NAMES, MAX_TEMPLATE_BYTES,
    SmtpTls, Template,
};
use crate::name::{ChannelName, GroupName, JobName, Namespace, RuleName};
use crate::secret::{SecretRef, TextOrSecret};
use crate::time::Timestamp;

const RULE_KEYS: [&str; 10] = [
    "name",
    "namespace",
    "description",
    "jobs",
    "groups",
    "labels",
    "on",
    "channels",
    "group_interval",
    "enabled",
];

const KINDS: [&str; 6] = ["email", "webhook", "slack", "dingtalk", "wecom", "feishu"];

const CHANNEL_KEYS: [&str; 11] = [
    "name",
    "namespace",
    "email",
    "webhook",
    "slack",
    "dingtalk",
    "wecom",
    "feishu",
    "language",
    "title",
    "body",
];

const EMAIL_KEYS: [&str; 7] = ["server", "port", "tls", "user", "password", "from", "to"];

const SILENCE_KEYS: [&str; 8] = [
    "rules", "jobs", "groups", "labels", "from", "until", "for", "reason",
];

/// The conditions that are a word alone.
const WORDS: [(&str, Condition); 6] = [
    ("failed", Condition::Failed),
    ("timed_out", Condition::TimedOut),
    ("lost", Condition::Lost),
    ("unroutable", Condition::Unroutable),
    ("recovered", Condition::Recovered),
    ("missed", Condition::Missed),
];

/// The conditions with a value, for messages.
const WITH_VALUES: &str =
    "{ failed_in_a_row = 3 }, { late = \"5m\" }, { backlog = 100 }, { no_executor = \"1m\" }";

/// The longest reason, in bytes.
const MAX_REASON_BYTES: usize = 1_024;

/// The longest e-mail address, user name and host, in bytes.
const MAX_ADDRESS_BYTES: usize = 320;

/// The longest silence.
const MAX_SILENCE_MS: u64 = 366 * 24 * 3_600_000;

/// Reads a rule. It is in `namespace` if it has no field of that name.
pub(super) fn rule(r: &mut Reader, node: &Node, namespace: &Namespace) -> Option<AlarmRule> {
    let before = r.count();
    let f = r.fields(node, "", &RULE_KEYS, &[])?;
    let namespace = own_namespace(r, &f, namespace);
    let name = required(r, &f, node, "name", "the rule's name", |r, n, p| {
        local(r, n, p, |text| RuleName::in_namespace(&namespace, text))
    });
    let description = optional(r, &f, "description", |r, n, p| {
        r.text(n, p, MAX_TEXT_BYTES).map(str::to_owned)
    });
    let scope = scope(r, &f, &namespace);
    let on = required(r, &f, node, "on", "a list of conditions", |r, n, p| {
        filled_list(r, n, p, MAX_CONDITIONS, "conditions", condition)
    });
    let channels = required(r, &f, node, "channels", "a list of channels", |r, n, p| {
        filled_list(
            r,
            n,
            p,
            MAX_RULE_CHANNELS,
            "names of channels",
            |r, n, p| {
                let name = local(r, n, p, |text| ChannelName::in_namespace(&namespace, text));
                name.map(|name| name.local().to_owned())
            },
        )
    });
    let group_interval = optional(r, &f, "group_interval", |r, n, p| {
        let interval = r.duration(n, p, 0)?;
        if interval > MAX_GROUP_INTERVAL {
            let message = format!("{interval} given; at most {MAX_GROUP_INTERVAL} is accepted");
            r.refuse(n.line, p, message);
            return None;
        }
        Some(interval)
    });
    let enabled = optional(r, &f, "enabled", Reader::boolean);
    if r.count() > before {
        return None;
    }
    Some(AlarmRule {
        name: name?,
        description: description.unwrap_or_default(),
        scope,
        on: on?,
        channels: channels?,
        group_interval: group_interval.unwrap_or(DEFAULT_GROUP_INTERVAL),
        enabled: enabled.unwrap_or(true),
    })
}

fn own_namespace(r: &mut Reader, f: &Fields<'_>, namespace: &Namespace) -> Namespace {
    let own = optional(r, f, "namespace", |r, n, p| name(r, n, p, str::parse));
    own.unwrap_or_else(|| namespace.clone())
}

fn scope(r: &mut Reader, f: &Fields<'_>, namespace: &Namespace) -> AlarmScope {
    let jobs = optional(r, f, "jobs", |r, n, p| {
        list(r, n, p, MAX_SCOPE_NAMES, "names of jobs", |r, n, p| {
            let name = local(r, n, p, |text| JobName::in_namespace(namespace, text));
            name.map(|name| name.local().to_owned())
        })
    });
    let groups = optional(r, f, "groups", |r, n, p| {
        list(r, n, p, MAX_SCOPE_NAMES, "names of groups", |r, n, p| {
            let name = local(r, n, p, |text| GroupName::in_namespace(namespace, text));
            name.map(|name| name.local().to_owned())
        })
    });
    let labels = optional(r, f, "labels", |r, n, p| text_map(r, n, p, "a label"));
    AlarmScope {
        jobs: jobs.unwrap_or_default(),
        groups: groups.unwrap_or_default(),
        labels: labels.unwrap_or_default(),
    }
}

/// Reads a list with at least one item and none twice.
fn filled_list<T: PartialEq>(
    r: &mut Reader,
    node: &Node,
    path: &str,
    most: usize,
    what: &str,
    read: impl Fn(&mut Reader, &Node, &str) -> Option<T>,
) -> Option<Vec<T>> {
    let items = list(r, node, path, most, what, read)?;
    if items.is_empty() {
        let message = format!("an empty list given; a list of {what} is expected");
        r.refuse(node.line, path, message);
        return None;
    }
    for (index, item) in items.iter().enumerate() {
        if items[..index].contains(item) {
            let field = format!("{path}[{index}]");
            r.refuse(node.line, &field, "given twice; once is expected");
            return None;
        }
    }
    Some(items)
}

fn condition(r: &mut Reader, node: &Node, path: &str) -> Option<Condition> {
    let Value::Map(entries) = &node.value else {
        if let Value::Text(text) = &node.value
            && let Some((_, condition)) = WORDS.iter().find(|(word, _)| word == text)
        {
            return Some(*condition);
        }
        let words = WORDS.map(|(word, _)| word).join(", ");
        r.mismatch(
            node,
            path,
            &format!("one of {words}, or one of {WITH_VALUES},"),
        );
        return None;
    };
    let [(key, value)] = &entries[..] else {
        r.mismatch(node, path, &format!("one of {WITH_VALUES}"));
        return None;
    };
    let field = format!("{path}.{}", shorten(key));
    let field = field.as_str();
    match key.as_str() {
        "failed_in_a_row" => r
            .integer(value, field, 1..=1_000)
            .map(Condition::FailedInARow),
        "backlog" => r.integer(value, field, 0..=10_000).map(Condition::Backlog),
        "late" => r.duration(value, field, 1_000).map(Condition::Late),
        "no_executor" => r.duration(value, field, 1_000).map(Condition::NoExecutor),
        _ => {
            let message = format!("unknown condition; one of {WITH_VALUES} is expected");
            r.refuse(value.line, field, message);
            None
        }
    }
}

/// Reads a channel. It is in `namespace` if it has no field of that name.
pub(super) fn channel(r: &mut Reader, node: &Node, namespace: &Namespace) -> Option<AlarmChannel> {
    let before = r.count();
    let f = r.fields(node, "", &CHANNEL_KEYS, &[])?;
    let namespace = own_namespace(r, &f, namespace);
    let name = required(r, &f, node, "name", "the channel's name", |r, n, p| {
        local(r, n, p, |text| ChannelName::in_namespace(&namespace, text))
    });
    let kind = kind(r, &f, node);
    let language = optional(r, &f, "language", |r, n, p| {
        r.word(n, p, "language", &Language::ALL, &[])
    });
    let title = optional(r, &f, "title", template);
    let body = optional(r, &f, "body", template);
    if r.count() > before {
        return None;
    }
    Some(AlarmChannel {
        name: name?,
        kind: kind?,
        language: language.unwrap_or_default(),
        title,
        body,
    })
}

fn template(r: &mut Reader, node: &Node, path: &str) -> Option<Template> {
    let text = r.filled(node, path, MAX_TEMPLATE_BYTES, "a text with placeholders")?;
    match text.parse() {
        Ok(template) => Some(template),
        Err(error) => {
            r.refuse(node.line, path, format!("{:?}: {error}", shorten(text)));
            None
        }
    }
}

fn kind(r: &mut Reader, f: &Fields<'_>, whole: &Node) -> Option<ChannelKind> {
    let [word] = f.present(&KINDS)[..] else {
        let given = f.present(&KINDS).len();
        let message = format!(
            "{given} kinds given; one of {} is expected",
            KINDS.join(", ")
        );
        r.refuse(whole.line, "", message);
        return None;
    };
    let (node, path) = f.get(word)?;
    Some(match word {
        "email" => ChannelKind::Email(email(r, node, &path)?),
        "webhook" => ChannelKind::Webhook(hook(r, node, &path, true)?),
        "slack" => ChannelKind::Slack(hook(r, node, &path, false)?),
        "dingtalk" => ChannelKind::Dingtalk(hook(r, node, &path, true)?),
        "wecom" => ChannelKind::Wecom(hook(r, node, &path, false)?),
        _ => ChannelKind::Feishu(hook(r, node, &path, true)?),
    })
}

/// Only some services verify a signature.
fn hook(r: &mut Reader, node: &Node, path: &str, signs: bool) -> Option<HookChannel> {
    let keys: &[&str] = if signs { &["url", "secret"] } else { &["url"] };
    let f = r.fields(node, path, keys, &[])?;
    let what = "an absolute http or https URL, or { secret = \"name\" },";
    let url = required(r, &f, node, "url", what, |r, n, p| match n.value {
        Value::Map(_) => text_or_secret(r, n, p),
        _ => url(r, n, p).map(TextOrSecret::Text),
    });
    let secret = match f.get("secret") {
        Some((node, path)) => Some(reference(r, node, &path)?),
        None => None,
    };
    Some(HookChannel { url: url?, secret })
}

/// Reads the name of a secret, as a text or as `{ secret = "name" }`. A value would be readable by everybody who can read
/// the store.
fn reference(r: &mut Reader, node: &Node, path: &str) -> Option<SecretRef> {
    match text_or_secret(r, node, path)? {
        TextOrSecret::Secret(reference) => Some(reference),
        TextOrSecret::Text(_) => {
            let message =
                "a text given; { secret = \"name\" } is expected: values of secrets are not stored";
            r.refuse(node.line, path, message);
            None
        }
    }
}

fn email(r: &mut Reader, node: &Node, path: &str) -> Option<EmailChannel> {
    let f = r.fields(node, path, &EMAIL_KEYS, &[])?;
    let server = required(r, &f, node, "server", "the host of the SMTP server", host);
    let port = optional(r, &f, "port", |r, n, p| r.integer(n, p, 1..=65_535));
    let tls = optional(r, &f, "tls", |r, n, p| {
        r.word(n, p, "encryption", &SmtpTls::ALL, &[])
    });
    let tls = tls.unwrap_or_default();
    let user = optional(r, &f, "user", |r, n, p| {
        r.filled(n, p, MAX_ADDRESS_BYTES, "a user name")
            .map(str::to_owned)
    });
    let password = optional(r, &f, "password", reference);
    let from = required(r, &f, node, "from", "the sender's address", address);
    let to = required(r, &f, node, "to", "a list of addresses", |r, n, p| {
        filled_list(r, n, p, MAX_RECIPIENTS, "addresses", address)
    });
    if user.is_some() != password.is_some() {
        let (is, missing) = if user.is_some() {
            ("user", "password")
        } else {
            ("password", "user")
        };
        let message = format!("missing beside {is}; both or none are expected");
        r.refuse(node.line, &f.path_of(missing), message);
        return None;
    }
    if user.is_some() && tls == SmtpTls::None {
        let message = "a password is not sent without encryption; starttls or tls is expected";
        r.refuse(node.line, &f.path_of("tls"), message);
        return None;
    }
    Some(EmailChannel {
        server: server?,
        port,
        tls,
        user,
        password,
        from: from?,
        to: to?,
    })
}

fn host(r: &mut Reader, node: &Node, path: &str) -> Option<String> {
    let what = "a host such as \"smtp.example.com\"";
    let text = r.filled(node, path, MAX_ADDRESS_BYTES, what)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    // An IPv6 address has colons; a port belongs in its own field.
    let is_host = text.chars().all(is_plain) && text.matches(':').count() != 1;
    if !is_host {
        r.mismatch(node, path, &format!("{what}, without a port,"));
        return None;
    }
    Some(text.trim_matches(['[', ']']).to_owned())
}

/// Reads an address such as `ops@example.com`. The mail library checks the whole grammar when it sends.
fn address(r: &mut Reader, node: &Node, path: &str) -> Option<String> {
    let text = r.filled(node, path, MAX_ADDRESS_BYTES, "an address")?;
    let is_address = text.rsplit_once('@').is_some_and(|(user, domain)| {
        !user.is_empty() && !domain.is_empty() && !domain.starts_with('.')
    });
    if !is_address
        || text
            .chars()
            .any(|c| c.is_whitespace() || c.is_control() || "<>,;".contains(c))
    {
        r.mismatch(node, path, "an address such as \"ops@example.com\"");
        return None;
    }
    Some(text.to_owned())
}

/// Reads a silence that begins at `now` if it does not say when. The caller sets who began it.
pub(super) fn silence(
    r: &mut Reader,
    node: &Node,
    namespace: &Namespace,
    now: Timestamp,
) -> Option<AlarmSilence> {
    let before = r.count();
    let f = r.fields(node, "", &SILENCE_KEYS, &[])?;
    let rules = optional(r, &f, "rules", |r, n, p| {
        list(r, n, p, MAX_SCOPE_NAMES, "names of rules", |r, n, p| {
            let name = local(r, n, p, |text| RuleName::in_namespace(namespace, text));
            name.map(|name| name.local().to_owned())
        })
    });
    let scope = scope(r, &f, namespace);
    let reason = required(r, &f, node, "reason", "why, for people,", |r, n, p| {
        r.filled(n, p, MAX_REASON_BYTES, "a reason")
            .map(str::to_owned)
    });
    let from = optional(r, &f, "from", Reader::instant).unwrap_or(now);
    let until = match (f.get("until"), f.get("for")) {
        (Some((node, path)), None) => r.instant(node, &path).map(|until| (until, node, path)),
        (None, Some((node, path))) => {
            let length = r.duration(node, &path, 1_000);
            length.map(|length| (from.plus_ms(length.as_millis()), node, path))
        }
        (until, _) => {
            let message = match until {
                Some(_) => "for and until given; one of both is expected",
                None => "no end given; until or for is expected",
            };
            r.refuse(node.line, "", message);
            None
        }
    };
    if let Some((until, node, path)) = &until {
        let message = if *until <= from.max(now) {
            Some(format!(
                "{} given; an instant after now and after from is expected",
                given(node)
            ))
        } else if until.since_ms(from) > i64::try_from(MAX_SILENCE_MS).unwrap_or(i64::MAX) {
            Some(format!(
                "{} given; a silence lasts at most 366 days",
                given(node)
            ))
        } else {
            None
        };
        if let Some(message) = message {
            r.refuse(node.line, path, message);
        }
    }
    if r.count() > before {
        return None;
    }
    Some(AlarmSilence {
        namespace: namespace.clone(),
        rules: rules.unwrap_or_default(),
        scope,
        from,
        until: until?.0,
        reason: reason?,
        by: String::new(),
    })
}
