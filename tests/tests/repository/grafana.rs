//! The dashboard and the alert rules name only metrics and labels that `docs/metrics.md` lists. Other tests compare that
//! page with what is served.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/metrics.md");
const DASHBOARD: &str = include_str!("../../../infra/grafana/cueline.json");
const ALERTS: &str = include_str!("../../../infra/grafana/alerts.yaml");

/// Labels that Prometheus adds to each series.
const LABELS_OF_SCRAPES: [&str; 2] = ["job", "instance"];

/// The labels of each series that the page documents. A histogram has three series.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `cueline_"));
    let mut series = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        // The tables of metrics have these four cells, the others have fewer.
        let [name, kind, labels, _meaning] = cells[..] else {
            continue;
        };
        let name = name.trim_matches('`');
        let labels: BTreeSet<String> = quoted(labels, '`').map(str::to_owned).collect();
        let endings: &[&str] = match kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        for ending in endings {
            series.insert(format!("{name}{ending}"), labels.clone());
        }
    }
    series
}

/// The parts of the text between two of these signs.
fn quoted(text: &str, sign: char) -> impl Iterator<Item = &str> {
    text.split(sign).skip(1).step_by(2)
}

/// The series that expressions in the text name, each with the labels that select among its values.
fn named(text: &str) -> Vec<(String, Vec<String>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut series = Vec::new();
    for (at, _) in text.match_indices("cueline_") {
        let name: String = text[at..].chars().take_while(|c| is_part(*c)).collect();
        let selector = text[at + name.len()..].strip_prefix('{');
        let selector = selector.and_then(|rest| rest.split('}').next());
        let matchers = selector.unwrap_or_default().split(',');
        let labels = matchers.filter_map(|matcher| matcher.split(['=', '!']).next());
        let labels = labels.map(str::trim).filter(|label| !label.is_empty());
        series.push((name, labels.map(str::to_owned).collect()));
    }
    series
}

/// The series and labels of the text that are not documented.
fn unknown(text: &str) -> Vec<String> {
    let documented = documented();
    let mut unknown = Vec::new();
    for (name, labels) in named(text) {
        let Some(known) = documented.get(&name) else {
            unknown.push(name);
            continue;
        };
        let is_known =
            |label: &String| known.contains(label) || LABELS_OF_SCRAPES.contains(&label.as_str());
        let labels = labels.into_iter().filter(|label| !is_known(label));
        unknown.extend(labels.map(|label| format!("{name}{{{label}}}")));
    }
    unknown
}

/// All strings below the key in the JSON value.
fn strings_of<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == key => found.push(text),
                    _ => strings_of(value, key, found),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                strings_of(item, key, found);
            }
        }
        _ => {}
    }
}

#[test]
fn an_undocumented_series_or_label_is_found() {
    let text =
        "sum(cueline_fires_total) / cueline_nothing + cueline_runs{job=~\"$job\", color!=\"red\"}
        + rate(cueline_trigger_lateness_seconds{le=\"1\"}[5m])";
    assert_eq!(
        unknown(text),
        [
            "cueline_nothing",
            "cueline_runs{color}",
            "cueline_trigger_lateness_seconds"
        ]
    );
}

#[test]
fn the_dashboard_names_only_documented_metrics() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("the dashboard is JSON");
    let mut expressions = Vec::new();
    strings_of(&dashboard, "expr", &mut expressions);
    assert!(expressions.len() > 20, "{expressions:?}");
    for expression in &expressions {
        assert!(!named(expression).is_empty(), "{expression}");
        let unknown = unknown(expression);
        assert!(unknown.is_empty(), "{unknown:?} in {expression}");
    }
    let mut queries = Vec::new();
    strings_of(&dashboard, "query", &mut queries);
    for query in queries {
        let unknown = unknown(query);
        assert!(unknown.is_empty(), "{unknown:?} in {query}");
    }
}

#[test]
fn panels_of_the_dashboard_have_ids_of_their_own_and_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in panels {
        let number = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
        let id = panel["id"].as_u64().expect("a number");
        assert!(ids.insert(id), "panel {id} occurs twice");
        assert!(number("x") + number("w") <= 24, "panel {id} is too wide");
        for x in number("x")..number("x") + number("w") {
            for y in number("y")..number("y") + number("h") {
                assert!(cells.insert((x, y)), "panel {id} overlaps another one");
            }
        }
    }
}

#[test]
fn the_alert_rules_name_only_documented_metrics() {
    let unknown = unknown(ALERTS);
    assert!(unknown.is_empty(), "{unknown:?}");
    let count = |part: &str| {
        ALERTS
            .lines()
            .filter(|l| l.trim_start().starts_with(part))
            .count()
    };
    let rules = count("- alert: Cueline");
    assert!(rules > 5, "{rules}");
    for part in ["expr:", "severity:", "summary:", "description:"] {
        assert_eq!(count(part), rules, "each rule has one {part}");
    }
}
