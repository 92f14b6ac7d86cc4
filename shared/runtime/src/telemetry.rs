//! Logs.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// The client of `RabbitMQ` logs messages that no queue took, with their payloads; the driver says what there is to say about them.
const WITHOUT_PAYLOADS: &str = "lapin::returned_messages=off";

/// Writes logs to standard error: at `default` and above unless `CUELINE_LOG` names other filters, as JSON lines if
/// `json`; in colours only to a terminal whose user has not set `NO_COLOR`. Call it once, first thing.
pub fn init(default: &str, json: bool) {
    let filter = EnvFilter::try_from_env("CUELINE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let filter = without_payloads(filter);
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal() && !unwanted)
        .with_writer(std::io::stderr);
    let done = if json {
        logs.json().try_init()
    } else {
        logs.with_target(false).try_init()
    };
    if done.is_err() {
        tracing::debug!("logs were set up already");
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
