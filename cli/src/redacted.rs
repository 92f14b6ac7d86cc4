//! Addresses with passwords, which must not reach a log.

use std::fmt;

/// An address. It is shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Redacted(String);

impl Redacted {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// With its password.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Removes the address's secrets from `message`. Errors of other crates may quote them.
    pub(crate) fn scrub(&self, message: &str) -> String {
        let mut text = message.replace(&self.0, &self.to_string());
        for secret in secrets(&self.0) {
            // Shorter secrets could be part of ordinary words.
            if secret.len() >= 4 {
                text = text.replace(secret, HIDDEN);
            }
        }
        text
    }
}

impl fmt::Display for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&self.0))
    }
}

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", redact(&self.0))
    }
}

/// Replaces a secret.
pub(crate) const HIDDEN: &str = "***";

/// The user part before the host: everything up to the last `@`. Passwords may contain unescaped `/` and `@`.
fn user_part(text: &str) -> Option<(usize, usize)> {
    let start = text.find("://").map_or(0, |at| at + 3);
    let end = start + text.get(start..)?.rfind('@')?;
    Some((start, end))
}

/// The position of the secret. A user without a password is a token on NATS, and only a name elsewhere.
fn secret_part(text: &str) -> Option<(usize, usize)> {
    let (start, end) = user_part(text)?;
    match text.get(start..end)?.find(':') {
        Some(colon) => Some((start + colon + 1, end)),
        None if text.starts_with("postgres") || text.starts_with("amqp") => None,
        None => Some((start, end)),
    }
}

/// The positions of the values of `…?password=…`.
fn password_parameters(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| rest.find("password=")) {
        let start = from + at + "password=".len();
        let end = text[start..].find('&').map_or(text.len(), |n| start + n);
        found.push((start, end));
        from = end;
    }
    found
}

fn secret_parts(text: &str) -> Vec<(usize, usize)> {
    let mut parts = password_parameters(text);
    parts.extend(secret_part(text));
    parts.sort_unstable();
    parts
}

fn secrets(text: &str) -> Vec<&str> {
    secret_parts(text)
        .into_iter()
        .filter_map(|(start, end)| text.get(start..end))
        .collect()
}

fn redact(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut from = 0;
    for (start, end) in secret_parts(text) {
        if start < from {
            continue;
        }
        shown.push_str(&text[from..start]);
        shown.push_str(HIDDEN);
        from = end;
    }
    shown.push_str(&text[from..]);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_shown() {
        for (given, shown) in [
            ("postgres://u:secret@h/d", "postgres://u:***@h/d"),
            ("postgres://u:se/cr@et@h/d", "postgres://u:***@h/d"),
            ("postgres://u@h/d", "postgres://u@h/d"),
            (
                "postgres://h/d?user=u&password=secret&a=b",
                "postgres://h/d?user=u&password=***&a=b",
            ),
            ("nats://secret@h:4222", "nats://***@h:4222"),
            ("nats://u:secret@a,nats://u:secret@b", "nats://u:***@b"),
            ("amqps://u:secret@h/%2F", "amqps://u:***@h/%2F"),
            ("amqp://h/", "amqp://h/"),
            ("sqlite:a/b.db", "sqlite:a/b.db"),
            ("u:secret@h", "u:***@h"),
            ("", ""),
        ] {
            let address = Redacted::new(given);
            assert_eq!(address.to_string(), shown);
            assert!(!format!("{address:?}").contains("secret"));
        }
    }

    #[test]
    fn messages_of_other_crates_are_scrubbed() {
        let address = Redacted::new("postgres://u:secret@h/d");
        let scrubbed = address.scrub("cannot use postgres://u:secret@h/d with \"secret\"");
        assert_eq!(scrubbed, "cannot use postgres://u:***@h/d with \"***\"");
    }
}
