//! `cueline executor …`

use cueline_api::view::{ExecutorView, Executors};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::{ExecutorId, Weight};
use serde_json::Value;

use crate::args::ExecutorCommand;
use crate::client::{Api, read};
use crate::human;
use crate::list_args::ExecutorListArgs;
use crate::lists::{List, print_next, values};
use crate::namespaces::AllNamespaces;
use crate::watch;

/// The list of executors.
pub(crate) const EXECUTORS: List<'static> = List {
    path: &["executors"],
    key: "executors",
    most: None,
};

/// An executor gets no new triggers after this time without a heartbeat.
pub(crate) const DEAD_AFTER_MS: u64 = 15_000;

pub(crate) async fn run(api: &Api, out: Out, command: &ExecutorCommand) -> Result<(), Failure> {
    match command {
        ExecutorCommand::List(args) => {
            let fetch = async || fetch_list(api, args).await;
            watch::show(out, args.watch, fetch, |found| list(out, found, args.all)).await
        }
    }
}

async fn fetch_list(api: &Api, args: &ExecutorListArgs) -> Result<Value, Failure> {
    let mut query = values("name", &args.names);
    query.extend(args.groups.query());
    query.extend(values("label", &args.labels));
    query.extend(values("state", &args.states));
    EXECUTORS.read(api, &query, args.all, &args.page).await
}

fn list(out: Out, answer: Value, all: AllNamespaces) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let found: Executors = read(answer)?;
    let heads = ["EXECUTOR", "ALIVE", "HELD", "RUNNING", "CAPACITY", "RUNS"];
    // Most executors have no labels.
    let has_labels = found.executors.iter().any(|view| !labels(view).is_empty());
    let heads = heads.into_iter().chain(has_labels.then_some("LABELS"));
    let mut table = out.table(&all.column("NAMESPACE", heads.collect()));
    for view in &found.executors {
        let heartbeat = &view.executor.heartbeat;
        let (alive, paint) = alive(view);
        let ExecutorId { group, name } = &heartbeat.executor;
        let mut row = vec![
            cell(format!("{}/{name}", group.local()), None),
            cell(alive, Some(paint)),
            cell(heartbeat.held.to_string(), None),
            cell(heartbeat.running.to_string(), None),
            cell(heartbeat.capacity.to_string(), None),
            cell(
                human::one_line(&human::capabilities(&heartbeat.capabilities), 80),
                None,
            ),
        ];
        if has_labels {
            row.push(cell(human::one_line(&labels(view), 80), None));
        }
        let namespace = cell(view.namespace.as_str(), None);
        table.add_row(all.column(namespace, row));
    }
    out.print_table(&table, "there are no such executors")?;
    print_next(out, found.next.as_deref())
}

/// The labels of an executor and its weight, unless that is 1.
fn labels(view: &ExecutorView) -> String {
    let heartbeat = &view.executor.heartbeat;
    let labels = heartbeat
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    let weight = (heartbeat.weight != Weight::default())
        .then(|| format!("weight {}", heartbeat.weight.get()));
    labels.chain(weight).collect::<Vec<_>>().join(", ")
}

/// Whether an executor is alive, in words.
pub(crate) fn alive(view: &ExecutorView) -> (String, Paint) {
    let ago = human::took(view.silent_ms / 1_000 * 1_000);
    if view.executor.heartbeat.gone {
        (format!("stopped {ago} ago"), Paint::Dim)
    } else if view.silent_ms > DEAD_AFTER_MS {
        (format!("silent for {ago}"), Paint::Bad)
    } else if let Some(refusal) = &view.executor.heartbeat.refusal {
        (
            format!("refused: {}", human::one_line(refusal, 120)),
            Paint::Bad,
        )
    } else if view.executor.heartbeat.draining {
        ("draining".to_owned(), Paint::Warn)
    } else {
        ("yes".to_owned(), Paint::Good)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_and_weight_are_one_text() {
        let mut view = json!({
            "group": "default", "name": "one", "incarnation": "1", "session": 1, "capabilities": [], "capacity": 1, "held": 0,
            "running": 0, "draining": false, "gone": false, "last_heartbeat_at": 1, "silent_ms": 2_000,
        });
        let shown = |view: &serde_json::Value| {
            labels(&serde_json::from_value(view.clone()).expect("a view"))
        };
        assert_eq!(shown(&view), "");
        view["labels"] = json!({ "zone": "a", "disk": "ssd" });
        assert_eq!(shown(&view), "disk=ssd, zone=a");
        view["weight"] = json!(3);
        assert_eq!(shown(&view), "disk=ssd, zone=a, weight 3");
    }

    #[test]
    fn a_refused_executor_is_shown_with_the_reason() {
        let mut view = json!({
            "group": "default", "name": "one", "incarnation": "1", "session": 1, "capabilities": [], "capacity": 1, "held": 0,
            "running": 0, "draining": false, "gone": false, "last_heartbeat_at": 1, "silent_ms": 2_000,
        });
        let shown = |view: &serde_json::Value| {
            let view: ExecutorView = serde_json::from_value(view.clone()).expect("a view");
            alive(&view).0
        };
        assert_eq!(shown(&view), "yes");
        view["refusal"] = json!("unsafe times");
        assert_eq!(shown(&view), "refused: unsafe times");
        view["silent_ms"] = json!(16_000);
        assert_eq!(shown(&view), "silent for 16 s");
    }
}
