//! Compares served metrics with the tables of `docs/metrics.md`.

use std::collections::{BTreeMap, BTreeSet};

/// Name, type and meaning of a metric.
pub type DescribedMetric = (String, String, String);

/// The metrics in the table below `<!-- section -->`. Their rows have the cells name, type, labels and meaning.
///
/// # Panics
///
/// When a row has other cells.
pub fn documented_metrics(page: &str, section: &str) -> BTreeSet<DescribedMetric> {
    let marker = format!("<!-- {section} -->");
    let lines = page.lines().skip_while(|line| *line != marker).skip(1);
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let metrics = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, _labels, meaning] = cells[..] else {
            panic!("four cells are expected: {row}");
        };
        let name = name.trim_matches('`');
        (name.to_owned(), kind.to_owned(), meaning.to_owned())
    });
    metrics.collect()
}

/// The metrics that an answer in the `OpenMetrics` text format describes.
pub fn served_metrics(text: &str) -> BTreeSet<DescribedMetric> {
    let described = |what: &str| -> BTreeMap<String, String> {
        let prefix = format!("# {what} ");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        let pairs = lines.filter_map(|line| line.split_once(' '));
        pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    };
    let meanings = described("HELP");
    let metrics = described("TYPE").into_iter().map(|(name, kind)| {
        let meaning = meanings.get(&name).cloned().unwrap_or_default();
        // The samples of counters have this ending, and so have queries.
        let total = if kind == "counter" { "_total" } else { "" };
        (format!("{name}{total}"), kind, meaning)
    });
    metrics.collect()
}
