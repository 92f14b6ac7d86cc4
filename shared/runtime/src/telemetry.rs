//! Logs.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::terminal::{Style, harmless};

/// The client of `RabbitMQ` logs messages that no queue took, with their payloads; the driver says what there is to say about them.
const WITHOUT_PAYLOADS: &str = "lapin::returned_messages=off";

/// Writes logs to standard error: at `default` and above unless `CUELINE_LOG` names other filters, as JSON lines if
/// `json`; in colours only to a terminal whose user has not set `NO_COLOR`. Call it once, first thing.
pub fn init(default: &str, json: bool) {
    let filter = EnvFilter::try_from_env("CUELINE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let filter = without_payloads(filter);
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = io::stderr().is_terminal() && !unwanted;
    let style = style_of(colours, json);
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(move || Harmless::new(io::stderr(), style));
    let done = if json {
        logs.json().try_init()
    } else {
        logs.with_target(false).try_init()
    };
    if done.is_err() {
        tracing::debug!("logs were set up already");
    }
}

fn style_of(colours: bool, json: bool) -> Style {
    match (json, colours) {
        (true, _) => Style::Json,
        (false, true) => Style::Coloured,
        (false, false) => Style::Text,
    }
}

/// Escapes control characters. The formatter escapes only some of them, and none in a field that is given by `%`.
struct Harmless<W> {
    inner: W,
    style: Style,
}

impl<W> Harmless<W> {
    fn new(inner: W, style: Style) -> Self {
        Self { inner, style }
    }
}

impl<W: io::Write> io::Write for Harmless<W> {
    /// The formatter passes a whole event, so no character is divided between two calls.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.inner
            .write_all(harmless(&text, self.style).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Whatever else is to be seen.
fn without_payloads(filter: EnvFilter) -> EnvFilter {
    match WITHOUT_PAYLOADS.parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What an event with hostile texts writes.
    fn hostile_event(colours: bool, json: bool) -> String {
        let written = Written::default();
        let sink = written.clone();
        let style = style_of(colours, json);
        let logs = tracing_subscriber::fmt()
            .with_ansi(colours)
            .with_writer(move || Harmless::new(sink.clone(), style));
        let event = || tracing::warn!(job = %"a\x1b]0;title\x07\u{9b}2J\u{202e}", error = ?"b\x1b[2J", "c\x1b[2J");
        if json {
            tracing::subscriber::with_default(logs.json().finish(), event);
        } else {
            tracing::subscriber::with_default(logs.finish(), event);
        }
        String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn no_log_line_controls_a_terminal() {
        let harmful = |c: &char| (c.is_control() && *c != '\n') || *c == '\u{202e}';
        for json in [false, true] {
            let written = hostile_event(false, json);
            assert!(written.contains("]0;title"), "{written}");
            assert_eq!(written.chars().find(harmful), None, "{written:?}");
        }
        let coloured = hostile_event(true, false);
        assert!(coloured.contains("\x1b[33m"), "{coloured:?}");
        for sequence in ["\x1b]", "\x1b[2J", "\x07", "\u{9b}", "\u{202e}"] {
            assert!(!coloured.contains(sequence), "{sequence:?}: {coloured:?}");
        }
    }

    #[test]
    fn no_filter_lets_payloads_into_the_log() {
        for filter in [
            "info",
            "trace",
            "lapin=trace",
            "lapin::returned_messages=trace",
        ] {
            let written = Written::default();
            let sink = written.clone();
            let logs = tracing_subscriber::fmt()
                .with_env_filter(without_payloads(EnvFilter::new(filter)))
                .with_writer(move || sink.clone())
                .finish();
            tracing::subscriber::with_default(logs, || {
                tracing::warn!(target: "lapin::returned_messages", "a payload");
                tracing::warn!(target: "lapin::channel", "a warning");
            });
            let written = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
            assert!(!written.contains("a payload"), "{filter}: {written}");
            let others = filter != "lapin::returned_messages=trace";
            assert_eq!(written.contains("a warning"), others, "{filter}");
        }
    }
}
