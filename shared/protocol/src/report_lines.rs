//! Messages with several reports: one line of JSON for each.
//!
//! All reports of a message are of one executor, and nearly always of one store. So a line that names neither has those of
//! the line before it. The first line names both.

use cueline_model::{AttemptEvent, ExecutorName, GroupName, RunId, StoreId};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};

use crate::message::{DecodeError, ReportMessage, Versioned, decode, encode};

/// A line. It is written from borrowed values and read into owned ones.
#[derive(Serialize, Deserialize)]
struct Line<S, G, N, E> {
    v: u32,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    store: Option<S>,
    run: RunId,
    attempt: u32,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    group: Option<G>,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    executor: Option<N>,
    event: E,
}

/// What a line takes from the one before it.
struct Names {
    store: StoreId,
    group: GroupName,
    executor: ExecutorName,
}

const fn none<T>() -> Option<T> {
    None
}

impl<S, G, N, E> Versioned for Line<S, G, N, E> {
    fn version(&self) -> u32 {
        self.v
    }
}

/// Encodes a report as the line after that of `before`; as a first line for `None`.
pub fn encode_report(report: &ReportMessage, before: Option<&ReportMessage>) -> Vec<u8> {
    let of_same_store = before.is_some_and(|before| before.store == report.store);
    let of_same_executor = before.is_some_and(|before| {
        (&before.group, &before.executor) == (&report.group, &report.executor)
    });
    encode(&Line {
        v: report.v,
        store: (!of_same_store).then_some(&report.store),
        run: report.run,
        attempt: report.attempt,
        group: (!of_same_executor).then_some(&report.group),
        executor: (!of_same_executor).then_some(&report.executor),
        event: &report.event,
    })
}

/// Decodes a message with one or several [`ReportMessage`]s, one per line. JSON from [`encode_report`] has no line feeds. A
/// line feed at the end is ignored.
///
/// A line that cannot be read names nothing. A line after it is read only if it names its store and its executor itself.
pub fn decode_reports(payload: &[u8]) -> impl Iterator<Item = Result<ReportMessage, DecodeError>> {
    let lines = payload.strip_suffix(b"\n").unwrap_or(payload);
    let mut names: Option<Names> = None;
    lines.split(|byte| *byte == b'\n').map(move |line| {
        let before = names.take();
        let report = report(line, before)?;
        names = Some(Names {
            store: report.store,
            group: report.group.clone(),
            executor: report.executor.clone(),
        });
        Ok(report)
    })
}

fn report(line: &[u8], before: Option<Names>) -> Result<ReportMessage, DecodeError> {
    let line: Line<StoreId, GroupName, ExecutorName, AttemptEvent> = decode(line)?;
    let (store, group, executor) = match before {
        Some(before) => (
            Some(before.store),
            Some(before.group),
            Some(before.executor),
        ),
        None => (None, None, None),
    };
    Ok(ReportMessage {
        v: line.v,
        store: line.store.or(store).ok_or_else(|| missing("store"))?,
        run: line.run,
        attempt: line.attempt,
        group: line.group.or(group).ok_or_else(|| missing("group"))?,
        executor: line
            .executor
            .or(executor)
            .ok_or_else(|| missing("executor"))?,
        event: line.event,
    })
}

fn missing(field: &'static str) -> DecodeError {
    serde_json::Error::missing_field(field).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::VERSION;

    fn report(store: u128, run: i64, executor: &str) -> ReportMessage {
        ReportMessage {
            v: VERSION,
            store: StoreId(store),
            run: RunId(run),
            attempt: 1,
            group: "billing".parse().expect("a name"),
            executor: executor.parse().expect("a name"),
            event: AttemptEvent::Progress { fraction: 0.5 },
        }
    }

    fn message(reports: &[ReportMessage]) -> Vec<u8> {
        let before = std::iter::once(None).chain(reports.iter().map(Some));
        let lines = reports.iter().zip(before);
        let lines: Vec<Vec<u8>> = lines
            .map(|(one, before)| encode_report(one, before))
            .collect();
        lines.join(&b'\n')
    }

    fn read(message: &[u8]) -> Vec<Option<ReportMessage>> {
        decode_reports(message).map(Result::ok).collect()
    }

    #[test]
    fn each_report_is_read_as_it_was_written() {
        let reports = [
            report(1, 1, "one"),
            report(1, 2, "one"),
            report(2, 3, "one"),
            report(2, 4, "two"),
            report(1, 5, "two"),
        ];
        let expected: Vec<_> = reports.iter().cloned().map(Some).collect();
        assert_eq!(read(&message(&reports)), expected);
    }

    #[test]
    fn a_first_report_is_written_as_a_message_of_its_own() {
        let one = report(1, 1, "one");
        assert_eq!(encode_report(&one, None), encode(&one));
    }

    #[test]
    fn nothing_is_taken_from_before_a_line_that_cannot_be_read() {
        let reports = [
            report(1, 1, "one"),
            report(1, 2, "one"),
            report(1, 3, "one"),
        ];
        let text = String::from_utf8(message(&reports)).expect("UTF-8");
        let broken = text.replace("\"run\":2", "\"run\":\"x\"");
        assert_ne!(broken, text);
        assert_eq!(
            read(broken.as_bytes()),
            [Some(reports[0].clone()), None, None]
        );
        let whole = String::from_utf8(encode(&reports[2])).expect("UTF-8");
        let repaired = broken.lines().take(2).chain([whole.as_str()]);
        let repaired: Vec<&str> = repaired.collect();
        let expected = [Some(reports[0].clone()), None, Some(reports[2].clone())];
        assert_eq!(read(repaired.join("\n").as_bytes()), expected);
    }

    #[test]
    fn a_first_line_names_its_store_and_executor() {
        let text = String::from_utf8(message(&[report(1, 1, "one"), report(1, 2, "one")]));
        let text = text.expect("UTF-8");
        let second = text.lines().nth(1).expect("a second line");
        assert!(
            !second.contains("store") && !second.contains("billing"),
            "{second}"
        );
        assert_eq!(read(second.as_bytes()), [None]);
    }
}
