//! Splits the bytes of one stream into lines of a run's log.

use cueline_worker::{Context, LogStream};

use crate::masks::Masks;

/// The longest line of a log. A longer one continues in the next line.
pub(crate) const MAX_LINE_BYTES: usize = 64 * 1024;

/// The start of a line that reports progress and is not logged.
const PROGRESS: &str = "::progress ";

/// Splits one stream into lines, and logs each as soon as it is complete.
pub(crate) struct Lines<'a> {
    cx: &'a Context,
    stream: LogStream,
    masks: &'a Masks,
    /// The start of a line whose end has not been read yet; at most [`MAX_LINE_BYTES`].
    pending: Vec<u8>,
    /// Whether `pending` continues a line that was cut.
    continued: bool,
    last: Option<String>,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(cx: &'a Context, stream: LogStream, masks: &'a Masks) -> Self {
        Self {
            cx,
            stream,
            masks,
            pending: Vec::new(),
            continued: false,
            last: None,
        }
    }

    /// Takes bytes that were read.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            self.take(&bytes[..end]);
            self.end_line();
            bytes = &bytes[end + 1..];
        }
        self.take(bytes);
    }

    /// Logs a last line that has no end. Returns the last line that is not blank, trimmed, and only the first part of a
    /// line that was cut.
    pub(crate) fn finish(mut self) -> Option<String> {
        if !self.pending.is_empty() {
            self.end_line();
        }
        self.last
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while self.pending.len() + bytes.len() > MAX_LINE_BYTES {
            let (now, later) = bytes.split_at(MAX_LINE_BYTES - self.pending.len());
            self.pending.extend_from_slice(now);
            bytes = later;
            // A secret that a cut would split could not be recognised later.
            self.masks.hide(&mut self.pending);
            if self.pending.len() < MAX_LINE_BYTES {
                continue;
            }
            let end = character_end(&self.pending).min(self.masks.whole(&self.pending));
            let rest = self.pending.split_off(end);
            self.emit();
            self.pending = rest;
            self.continued = true;
        }
        self.pending.extend_from_slice(bytes);
    }

    fn end_line(&mut self) {
        if self.pending.last() == Some(&b'\r') {
            self.pending.pop();
        }
        // If a line was cut exactly at its end, nothing is left to log.
        if !(self.continued && self.pending.is_empty()) {
            self.emit();
        }
        self.pending.clear();
        self.continued = false;
    }

    fn emit(&mut self) {
        self.masks.hide(&mut self.pending);
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        if self.stream == LogStream::Out && !self.continued {
            if let Some(fraction) = progress(&text) {
                self.cx.progress(fraction);
                return;
            }
            let trimmed = text.trim();
            if !trimmed.is_empty() {
                self.last = Some(cut(trimmed, MAX_LINE_BYTES).to_owned());
            }
        }
        self.cx.line(self.stream, text);
    }
}

/// The start of `text` that has at most `max` bytes.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// The length of `bytes` without an incomplete character at their end. Bytes that are not UTF-8 are kept.
pub(crate) fn character_end(bytes: &[u8]) -> usize {
    let start = bytes.len().saturating_sub(4);
    match bytes.get(start..).and_then(|tail| {
        let lead = tail.iter().rposition(|b| b & 0xC0 != 0x80)?;
        std::str::from_utf8(&tail[lead..])
            .err()
            .filter(|e| e.error_len().is_none())
            .map(|_| start + lead)
    }) {
        Some(end) if end > 0 => end,
        _ => bytes.len(),
    }
}

fn progress(line: &str) -> Option<f64> {
    let fraction: f64 = line.strip_prefix(PROGRESS)?.trim().parse().ok()?;
    fraction.is_finite().then_some(fraction)
}

#[cfg(test)]
mod tests {
    use cueline_worker::Context;
    use cueline_worker::model::HandlerSpec;
    use cueline_worker::testing::{Recorded, attempt_info, context};
    use proptest::prelude::*;

    use super::*;

    fn recorder() -> (Context, Recorded) {
        context(attempt_info(HandlerSpec::Native("n".into())))
    }

    fn split(stream: LogStream, chunks: &[&[u8]]) -> (Vec<String>, Option<String>, Vec<f64>) {
        split_with(&Masks::default(), stream, chunks)
    }

    fn split_with(
        masks: &Masks,
        stream: LogStream,
        chunks: &[&[u8]],
    ) -> (Vec<String>, Option<String>, Vec<f64>) {
        let (cx, recorded) = recorder();
        let mut lines = Lines::new(&cx, stream, masks);
        for chunk in chunks {
            lines.feed(chunk);
        }
        let last = lines.finish();
        let texts = recorded.lines().into_iter().map(|(_, text)| text).collect();
        (texts, last, recorded.progress())
    }

    #[test]
    fn the_last_line_needs_no_end_and_blank_lines_do_not_count() {
        let (lines, last, _) = split(LogStream::Out, &[b"one\r\n\n two ", b"\n  \n"]);
        assert_eq!(lines, ["one", "", " two ", "  "]);
        assert_eq!(last.as_deref(), Some("two"));
        let (lines, last, _) = split(LogStream::Out, &[b"one\ntw", b"o"]);
        assert_eq!(lines, ["one", "two"]);
        assert_eq!(last.as_deref(), Some("two"));
    }

    #[test]
    fn progress_lines_are_reported_and_not_logged() {
        let text = b"::progress 0.4\n::progress x\n::progress nan\n::progress 7\n";
        let (lines, _, progress) = split(LogStream::Out, &[text]);
        assert_eq!(lines, ["::progress x", "::progress nan"]);
        assert_eq!(progress, [0.4, 1.0]);
        let (lines, _, progress) = split(LogStream::Err, &[b"::progress 0.4"]);
        assert_eq!((lines.len(), progress.len()), (1, 0));
    }

    #[test]
    fn a_long_line_continues_in_the_next_without_cutting_a_character() {
        let long = format!("a{}", "\u{e9}".repeat(MAX_LINE_BYTES));
        let (lines, last, _) = split(LogStream::Out, &[long.as_bytes(), b"\nx"]);
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[..3].concat(), long);
        assert_eq!(lines[0].len(), MAX_LINE_BYTES - 1);
        assert_eq!(last.as_deref(), Some("x"));
        let exact = "b".repeat(MAX_LINE_BYTES);
        let (lines, last, _) = split(LogStream::Out, &[exact.as_bytes(), b"\n"]);
        assert_eq!(lines, std::slice::from_ref(&exact));
        assert_eq!(last, Some(exact));
    }

    #[test]
    fn a_secret_is_hidden_however_the_output_is_split() {
        let masks = Masks::of(&["hush-hush"]);
        let text = format!(
            "a hush-hush\n{}hush-hush tail\nhush-hush",
            "x".repeat(MAX_LINE_BYTES - 4)
        );
        for cut_every in [1, 7, 4_096, text.len()] {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(cut_every).collect();
            let (lines, last, _) = split_with(&masks, LogStream::Out, &chunks);
            assert_eq!(lines[0], "a ***");
            assert_eq!(
                lines[1..lines.len() - 1].concat(),
                format!("{}*** tail", "x".repeat(MAX_LINE_BYTES - 4))
            );
            assert!(lines.iter().all(|line| line.len() <= MAX_LINE_BYTES));
            assert_eq!(last.as_deref(), Some("***"));
        }
    }

    proptest! {
        #[test]
        fn the_split_of_the_bytes_does_not_matter(
            parts in prop::collection::vec(
                (prop::sample::select(vec!["\n", "\r\n", "x", "\u{20ac}", "\u{1f600}", " "]), 0_usize..40_000),
                0..8,
            ),
            cut_every in 1_usize..9_000,
        ) {
            let text: String = parts
                .iter()
                .map(|(unit, times)| unit.repeat(if unit.contains('\n') { times % 5 } else { *times }))
                .collect();
            let whole = split(LogStream::Out, &[text.as_bytes()]);
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(cut_every).collect();
            prop_assert_eq!(&split(LogStream::Out, &chunks), &whole);
            prop_assert!(whole.0.iter().all(|line| line.len() <= MAX_LINE_BYTES));
            let unbroken = text.replace(['\r', '\n'], "");
            prop_assert_eq!(whole.0.concat(), unbroken);
        }

        #[test]
        fn any_bytes_are_accepted(bytes in prop::collection::vec(any::<u8>(), 0..4_000)) {
            let (lines, _, _) = split(LogStream::Out, &[&bytes]);
            prop_assert!(lines.iter().all(|line| !line.contains('\n')));
        }
    }
}
