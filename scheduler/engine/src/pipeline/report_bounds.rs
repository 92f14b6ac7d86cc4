//! The bounds of what one message may report. Pure.
//!
//! Workers keep to narrower ones. Past these, a message would cost the store more than any attempt may.

use cueline_model::{AttemptEvent, Outcome};

/// The most reports in one message. Workers send up to 400.
pub(super) const MAX_REPORTS: usize = 1_000;
/// The most log lines in one message. Workers send up to 64 KiB, which is about 1,200 empty lines.
const MAX_LOG_LINES: usize = 2_000;
/// The longest log line, in bytes. Workers cut longer ones.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Why these events are more than one message may have. `None` if they are not.
pub(super) fn beyond<'a>(events: impl Iterator<Item = &'a AttemptEvent>) -> Option<String> {
    let (mut reports, mut lines) = (0, 0);
    for event in events {
        reports += 1;
        if reports > MAX_REPORTS {
            return Some(format!("it has more than {MAX_REPORTS} reports"));
        }
        if let AttemptEvent::Log { lines: more } = event {
            lines += more.len();
            if lines > MAX_LOG_LINES {
                return Some(format!("it has more than {MAX_LOG_LINES} log lines"));
            }
        }
        if let Some(why) = beyond_texts(event) {
            return Some(why);
        }
    }
    None
}

fn beyond_texts(event: &AttemptEvent) -> Option<String> {
    match event {
        AttemptEvent::Log { lines } => {
            let longest = lines.iter().map(|line| line.text.len()).max()?;
            too_long("a log line", longest, MAX_LINE_BYTES)
        }
        AttemptEvent::Ended { outcome } => {
            let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
            let limit = Outcome::MAX_TEXT_BYTES;
            too_long("`message`", text(&outcome.message), limit)
                .or_else(|| too_long("`output`", text(&outcome.output), limit))
        }
        AttemptEvent::Started { .. } | AttemptEvent::Progress { .. } => None,
    }
}

fn too_long(what: &str, bytes: usize, limit: usize) -> Option<String> {
    (bytes > limit).then(|| format!("{what} has {bytes} bytes, more than {limit}"))
}

#[cfg(test)]
mod tests {
    use cueline_model::{LogLine, LogStream, OutcomeKind, Timestamp};

    use super::*;

    const AT: Timestamp = Timestamp::from_millis(0);

    fn log(lines: usize, bytes: usize) -> AttemptEvent {
        let line = |seq| LogLine {
            seq,
            at: AT,
            stream: LogStream::Out,
            text: "x".repeat(bytes),
        };
        AttemptEvent::Log {
            lines: (0..).take(lines).map(line).collect(),
        }
    }

    fn ended(message: usize, output: usize) -> AttemptEvent {
        let mut outcome = Outcome::new(OutcomeKind::Failed, AT).because("x".repeat(message));
        outcome.output = Some("x".repeat(output));
        AttemptEvent::Ended { outcome }
    }

    fn is_beyond(events: &[AttemptEvent]) -> bool {
        beyond(events.iter()).is_some()
    }

    #[test]
    fn what_a_worker_may_send_is_within_the_bounds() {
        let most = Outcome::MAX_TEXT_BYTES;
        assert!(!is_beyond(&[]));
        assert!(!is_beyond(&[log(1_300, 0), ended(most, most)]));
        assert!(!is_beyond(&[log(1, MAX_LINE_BYTES), log(0, 0)]));
        assert!(!is_beyond(&vec![
            AttemptEvent::Started { at: AT };
            MAX_REPORTS
        ]));
    }

    #[test]
    fn each_bound_is_named_with_its_limit() {
        let most = Outcome::MAX_TEXT_BYTES;
        let started = AttemptEvent::Started { at: AT };
        for (events, expected) in [
            (vec![started; MAX_REPORTS + 1], "more than 1000 reports"),
            (
                vec![log(1_000, 0), log(1_001, 0)],
                "more than 2000 log lines",
            ),
            (
                vec![log(1, MAX_LINE_BYTES + 1)],
                "a log line has 65537 bytes",
            ),
            (vec![ended(most + 1, 0)], "`message` has 65537 bytes"),
            (vec![ended(0, most + 1)], "`output` has 65537 bytes"),
        ] {
            let why = beyond(events.iter()).expect("beyond");
            assert!(why.contains(expected), "{why}");
        }
    }
}
