//! Reads typed values from nodes. It notes every problem instead of stopping at the first.
//!
//! Each method notes a problem and then returns `None`. The caller continues with a default; any problem makes the
//! decoder refuse the definition in the end. This module does not know the fields of a job.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::{MAX_PROBLEMS, Node, Problem, Value};
use crate::duration::DurationMs;
use crate::nearest::nearest;
use crate::time::Timestamp;

/// The longest duration in a job definition. It is longer than any useful one, and too short to overflow an instant.
const MAX_DURATION: DurationMs = DurationMs::secs(3_650 * 86_400);

/// The most unknown time zones of one input for which the nearest known one is searched. A search takes a millisecond.
const MAX_ZONE_SUGGESTIONS: usize = 20;

/// Collects the problems of a definition.
#[derive(Default)]
pub(super) struct Reader {
    job: Option<String>,
    place: String,
    problems: Vec<Problem>,
    overflow: bool,
    /// Messages about unknown time zones, by name. Each takes a comparison with hundreds of names.
    zone_messages: HashMap<String, String>,
}

/// The entries of a map whose keys have been checked.
pub(super) struct Fields<'n> {
    path: String,
    entries: &'n [(String, Node)],
}

impl<'n> Fields<'n> {
    /// The value of `key` and its path. `None` if it is absent or null.
    pub(super) fn get(&self, key: &str) -> Option<(&'n Node, String)> {
        self.entries
            .iter()
            .find(|(k, node)| k == key && node.value != Value::Null)
            .map(|(_, node)| (node, join(&self.path, key)))
    }

    /// Returns those of `keys` that are present.
    pub(super) fn present(&self, keys: &[&'static str]) -> Vec<&'static str> {
        keys.iter()
            .copied()
            .filter(|key| self.get(key).is_some())
            .collect()
    }

    /// The path of `key`, present or not.
    pub(super) fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }
}

impl Reader {
    /// Starts a job: its problems carry its name, or `place` if it has none.
    pub(super) fn enter(&mut self, job: Option<String>, place: &str) {
        self.job = job;
        place.clone_into(&mut self.place);
    }

    /// Ends a job.
    pub(super) fn leave(&mut self) {
        self.job = None;
        self.place.clear();
    }

    /// Returns the problems, if there are any.
    pub(super) fn finish(mut self) -> Result<(), Vec<Problem>> {
        if self.overflow {
            self.problems.push(Problem {
                line: None,
                job: None,
                field: String::new(),
                message: format!("more than {MAX_PROBLEMS} problems; the others are not listed"),
            });
        }
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(self.problems)
        }
    }

    /// Whether there are more problems than are reported. Further reading would find nothing to say.
    pub(super) fn is_full(&self) -> bool {
        self.overflow
    }

    /// The message about this unknown time zone, if it was found before.
    pub(super) fn zone_message(&self, zone: &str) -> Option<&str> {
        self.zone_messages.get(zone).map(String::as_str)
    }

    /// Remembers the message about an unknown time zone. There is at most one for each problem.
    pub(super) fn remember_zone_message(&mut self, zone: &str, message: &str) {
        if self.zone_messages.len() < MAX_PROBLEMS {
            self.zone_messages
                .insert(zone.to_owned(), message.to_owned());
        }
    }

    /// Whether a message about another unknown time zone may say which zone was meant.
    pub(super) fn may_suggest_zone(&self) -> bool {
        self.zone_messages.len() < MAX_ZONE_SUGGESTIONS
    }

    /// How many problems there are.
    pub(super) fn count(&self) -> usize {
        self.problems.len()
    }

    /// Notes a problem.
    pub(super) fn refuse(&mut self, line: Option<u32>, field: &str, message: impl Into<String>) {
        if self.problems.len() >= MAX_PROBLEMS {
            self.overflow = true;
            return;
        }
        self.problems.push(Problem {
            line,
            job: self.job.clone(),
            field: join(&self.place, field),
            message: message.into(),
        });
    }

    /// Notes that `node` is not of the expected kind.
    pub(super) fn mismatch(&mut self, node: &Node, field: &str, expected: &str) {
        let message = format!("{} given; {expected} is expected", given(node));
        self.refuse(node.line, field, message);
    }

    /// Returns the entries of a map that has only keys in `known`. Keys in `later` belong to a later version.
    pub(super) fn fields<'n>(
        &mut self,
        node: &'n Node,
        path: &str,
        known: &[&str],
        later: &[&str],
    ) -> Option<Fields<'n>> {
        let Value::Map(entries) = &node.value else {
            let expected = format!("a table with {}", known.join(", "));
            self.mismatch(node, path, &expected);
            return None;
        };
        for (index, (key, value)) in entries.iter().enumerate() {
            if self.is_full() {
                break;
            }
            let field = join(path, &shorten(key));
            if later.contains(&key.as_str()) {
                self.refuse(value.line, &field, "not supported yet");
            } else if !known.contains(&key.as_str()) {
                let message = format!("unknown key{}", suggestion(key, known));
                self.refuse(value.line, &field, message);
            } else if entries[..index].iter().any(|(earlier, _)| earlier == key) {
                self.refuse(value.line, &field, "given twice; one value is expected");
            }
        }
        Some(Fields {
            path: path.to_owned(),
            entries,
        })
    }

    /// Reads a text of at most `max_bytes` bytes.
    pub(super) fn text<'n>(
        &mut self,
        node: &'n Node,
        field: &str,
        max_bytes: usize,
    ) -> Option<&'n str> {
        let Value::Text(text) = &node.value else {
            self.mismatch(node, field, "a text");
            return None;
        };
        self.fits(node, field, text, max_bytes)
            .then_some(text.as_str())
    }

    /// Whether `text` has at most `max_bytes` bytes and no NUL, which process arguments and headers cannot contain.
    pub(super) fn fits(&mut self, node: &Node, field: &str, text: &str, max_bytes: usize) -> bool {
        if text.len() > max_bytes {
            let message = format!(
                "a text of {} bytes given; at most {max_bytes} bytes are accepted",
                text.len()
            );
            self.refuse(node.line, field, message);
            return false;
        }
        if text.contains('\0') {
            self.refuse(
                node.line,
                field,
                "a text with a NUL character given; a text without one is expected",
            );
            return false;
        }
        true
    }

    /// Reads a text that is not empty.
    pub(super) fn filled<'n>(
        &mut self,
        node: &'n Node,
        field: &str,
        max_bytes: usize,
        what: &str,
    ) -> Option<&'n str> {
        let text = self.text(node, field, max_bytes)?;
        if text.trim().is_empty() {
            self.refuse(
                node.line,
                field,
                format!("an empty text given; {what} is expected"),
            );
            return None;
        }
        Some(text)
    }

    /// Reads a text. A number or a truth value becomes its text, because users write variables and labels in all three
    /// forms.
    pub(super) fn scalar_text(
        &mut self,
        node: &Node,
        field: &str,
        max_bytes: usize,
    ) -> Option<String> {
        match &node.value {
            Value::Int(n) => Some(n.to_string()),
            Value::Bool(b) => Some(b.to_string()),
            _ => self.text(node, field, max_bytes).map(str::to_owned),
        }
    }

    /// Reads true or false.
    pub(super) fn boolean(&mut self, node: &Node, field: &str) -> Option<bool> {
        if let Value::Bool(b) = node.value {
            return Some(b);
        }
        self.mismatch(node, field, "true or false");
        None
    }

    /// Reads a whole number in `range`.
    pub(super) fn integer<T: TryFrom<i64>>(
        &mut self,
        node: &Node,
        field: &str,
        range: RangeInclusive<i64>,
    ) -> Option<T> {
        let (low, high) = (*range.start(), *range.end());
        match node.value {
            Value::Int(n) if range.contains(&n) => T::try_from(n).ok(),
            Value::Int(n) => {
                self.refuse(
                    node.line,
                    field,
                    format!("{n} is out of range {low}–{high}"),
                );
                None
            }
            _ => {
                self.mismatch(node, field, &format!("a whole number {low}–{high}"));
                None
            }
        }
    }

    /// Reads a duration of at least `min_ms` milliseconds.
    pub(super) fn duration(&mut self, node: &Node, field: &str, min_ms: u64) -> Option<DurationMs> {
        let Value::Text(text) = &node.value else {
            self.mismatch(
                node,
                field,
                "a duration with its unit, such as \"250ms\", \"10s\" or \"1h30m\",",
            );
            return None;
        };
        let duration = match text.parse::<DurationMs>() {
            Ok(duration) => duration,
            Err(error) => {
                self.refuse(node.line, field, shorten_to(&error.to_string(), 200));
                return None;
            }
        };
        if duration.as_millis() < min_ms {
            let least = DurationMs::millis(min_ms);
            let message = format!("{text:?} is too short; at least {least} is expected");
            self.refuse(node.line, field, message);
            return None;
        }
        if duration > MAX_DURATION {
            let message = format!("{text:?} is too long; at most {MAX_DURATION} is accepted");
            self.refuse(node.line, field, message);
            return None;
        }
        Some(duration)
    }

    /// Reads an instant: RFC 3339 text, or milliseconds since the Unix epoch.
    pub(super) fn instant(&mut self, node: &Node, field: &str) -> Option<Timestamp> {
        let parsed = match &node.value {
            Value::Int(millis) => Some(Timestamp::from_millis(*millis)),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        };
        if parsed.is_none() {
            self.mismatch(
                node,
                field,
                "an instant such as \"2027-01-01T00:00:00Z\" or \"2027-01-01T01:00:00+01:00\"",
            );
        }
        parsed
    }

    /// Reads one of `words`. The words in `later` belong to a later version.
    pub(super) fn word<T: Clone>(
        &mut self,
        node: &Node,
        field: &str,
        what: &str,
        words: &[(&str, T)],
        later: &[&str],
    ) -> Option<T> {
        let list: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let Value::Text(text) = &node.value else {
            self.mismatch(node, field, &format!("one of {}", list.join(", ")));
            return None;
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| word == text) {
            return Some(value.clone());
        }
        if self.is_full() {
            return None;
        }
        let message = unknown_word(what, text, &list, later);
        self.refuse(node.line, field, message);
        None
    }
}

/// The message that `text` is not among `words`.
fn unknown_word(what: &str, text: &str, words: &[&str], later: &[&str]) -> String {
    let shown = shorten(text);
    if later.contains(&text) {
        let list = words.join(", ");
        format!("{what} {shown:?} is not supported yet ({list})")
    } else {
        format!("unknown {what} {shown:?}{}", suggestion(text, words))
    }
}

/// `path.key`, or the non-empty one of them.
pub(super) fn join(path: &str, key: &str) -> String {
    match (path, key) {
        ("", key) => key.to_owned(),
        (path, "") => path.to_owned(),
        (path, key) => format!("{path}.{key}"),
    }
}

/// Describes the given value in a few words.
pub(super) fn given(node: &Node) -> String {
    match &node.value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Float(n) => n.to_string(),
        Value::Text(text) => format!("{:?}", shorten(text)),
        Value::List(items) => format!("a list of {}", items.len()),
        Value::Map(entries) => match &entries[..] {
            [(key, _)] => format!("a table with {:?}", shorten(key)),
            _ => format!("a table of {} keys", entries.len()),
        },
    }
}

/// Cuts a text that is too long for a message.
pub(super) fn shorten(text: &str) -> String {
    shorten_to(text, 80)
}

fn shorten_to(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// `; did you mean "round"? (first, round, …)`, or only the words if none is similar.
fn suggestion(text: &str, words: &[&str]) -> String {
    let list = words.join(", ");
    match nearest(text, words.iter().copied()) {
        Some(word) => format!("; did you mean {word:?}? ({list})"),
        None => format!("; expected one of {list}"),
    }
}
