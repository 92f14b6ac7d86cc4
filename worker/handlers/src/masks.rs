//! Hides the values of secrets in what an attempt writes. Pure.

use std::ops::Range;

use cueline_worker::Failure;

/// Shorter values are not hidden: they occur by chance, and hiding them would give them away.
const MIN_CHARACTERS: usize = 6;

/// What stands in the place of a value.
const HIDDEN: &[u8] = b"***";

/// The values that an attempt must not show. It has no `Debug`, which would show them.
#[derive(Clone, Default)]
pub(crate) struct Masks(Vec<Vec<u8>>);

impl Masks {
    /// Hides these values.
    #[cfg(test)]
    pub(crate) fn of(values: &[&str]) -> Self {
        let mut masks = Self::default();
        for value in values {
            masks.add(value);
        }
        masks
    }

    /// Hides `value` from now on. Logs have lines, so each line of a value is hidden as well.
    pub(crate) fn add(&mut self, value: &str) {
        for part in std::iter::once(value).chain(value.lines()) {
            let bytes = part.as_bytes();
            if part.chars().count() >= MIN_CHARACTERS && !self.0.iter().any(|m| m == bytes) {
                self.0.push(bytes.to_vec());
            }
        }
    }

    /// Replaces the values in `bytes`.
    pub(crate) fn hide(&self, bytes: &mut Vec<u8>) {
        let found = self.find_all(bytes);
        if found.is_empty() {
            return;
        }
        let mut shown = Vec::with_capacity(bytes.len());
        let mut from = 0;
        for range in found {
            shown.extend_from_slice(&bytes[from..range.start]);
            shown.extend_from_slice(HIDDEN);
            from = range.end;
        }
        shown.extend_from_slice(&bytes[from..]);
        *bytes = shown;
    }

    /// Replaces the values in the message of a failure.
    pub(crate) fn hide_in(&self, failure: Failure) -> Failure {
        let mut message = failure.message.into_bytes();
        self.hide(&mut message);
        Failure {
            message: String::from_utf8_lossy(&message).into_owned(),
            ..failure
        }
    }

    /// The length of `bytes` without the beginning of a value at their end. The rest of the value may follow.
    pub(crate) fn whole(&self, bytes: &[u8]) -> usize {
        let held = self.0.iter().map(|mask| {
            let mut lengths = (1..mask.len()).rev();
            let held = lengths.find(|n| bytes.ends_with(&mask[..*n]));
            held.unwrap_or(0)
        });
        bytes.len() - held.max().unwrap_or(0)
    }

    /// Where values are, in order. Values that overlap or touch are one range.
    fn find_all(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for mask in &self.0 {
            let windows = bytes.windows(mask.len()).enumerate();
            let here = windows.filter(|(_, window)| window == mask);
            found.extend(here.map(|(start, _)| start..start + mask.len()));
        }
        found.sort_unstable_by_key(|range| range.start);
        found.dedup_by(|later, earlier| {
            let is_one = later.start <= earlier.end;
            if is_one {
                earlier.end = earlier.end.max(later.end);
            }
            is_one
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(values: &[&str], text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        Masks::of(values).hide(&mut bytes);
        String::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn every_occurrence_is_hidden() {
        for (values, text, expected) in [
            (&["secret"][..], "a secret, the secret", "a ***, the ***"),
            (&["secret"], "secretsecret", "***"),
            (&["abcabc"], "abcabcabc.", "***."),
            (&["abcdef", "efghij"], "-abcdefghij-", "-***-"),
            (&["secret", "secret-long"], "secret-long", "***"),
            (&["gehäim"], "gehäim gehaim", "*** gehaim"),
            (&["short"], "short", "short"),
            (&[], "secret", "secret"),
        ] {
            assert_eq!(hidden(values, text), expected, "{values:?}");
        }
    }

    #[test]
    fn each_line_of_a_value_is_hidden() {
        let key = "-----BEGIN-----\r\nline one\nab\n";
        assert_eq!(hidden(&[key], "line one"), "***");
        assert_eq!(hidden(&[key], "-----BEGIN-----"), "***");
        assert_eq!(hidden(&[key], "ab"), "ab");
        assert_eq!(hidden(&[key], &format!("<{key}>")), "<***>");
    }

    #[test]
    fn the_beginning_of_a_value_is_held_back() {
        let masks = Masks::of(&["secret", "tomorrow"]);
        for (text, whole) in [
            ("a secre", 2),
            ("a secret", 7),
            ("a secret.", 9),
            ("tomorro", 0),
            ("", 0),
        ] {
            assert_eq!(masks.whole(text.as_bytes()), whole, "{text}");
        }
        assert_eq!(Masks::default().whole(b"any"), 3);
    }

    #[test]
    fn messages_of_failures_are_hidden() {
        let failure = Failure {
            message: "wrong: secret".to_owned(),
            exit_status: Some(3),
        };
        let shown = Masks::of(&["secret"]).hide_in(failure);
        assert_eq!(shown.message, "wrong: ***");
        assert_eq!(shown.exit_status, Some(3));
    }
}
