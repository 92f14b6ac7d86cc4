//! `cueline namespace …`: namespaces, their quotas, and what they use of them.

pub(crate) mod args;

use cueline_api::view::{NamespacePage, QuotaPage};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::Namespace;
use serde_json::{Value, json};

use self::args::{Limit, NamespaceCommand, NamespaceListArgs, QuotaArgs};
use crate::client::{Api, read};
use crate::lists::{List, print_next};
use crate::namespaces::AllNamespaces;

pub(crate) async fn run(api: &Api, out: Out, command: NamespaceCommand) -> Result<(), Failure> {
    match command {
        NamespaceCommand::List(args) => list(api, out, &args).await,
        NamespaceCommand::Show(arg) => {
            let answer = of(api, &arg.name).get(&["quota"], &[]).await?;
            print(out, answer)
        }
        NamespaceCommand::Quota(args) => quota(api, out, &args).await,
    }
}

fn of(api: &Api, namespace: &Namespace) -> Api {
    api.in_namespace(namespace)
}

async fn list(api: &Api, out: Out, args: &NamespaceListArgs) -> Result<(), Failure> {
    let list = List {
        path: &["namespaces"],
        key: "namespaces",
        most: None,
    };
    let everywhere = AllNamespaces::default();
    let answer = list.read(api, &[], everywhere, &args.page).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: NamespacePage = read(answer)?;
    let mut table = out.table(&["NAMESPACE", "JOBS", "WAITING RUNS", "TRIGGERS A MINUTE"]);
    for entry in &page.namespaces {
        let quotas = entry.quotas.unwrap_or_default();
        table.add_row(vec![
            cell(entry.namespace.to_string(), None),
            used(entry.jobs, quotas.max_jobs),
            used(entry.waiting_runs, quotas.max_waiting_runs),
            cell(limit(quotas.max_triggers_per_minute), None),
        ]);
    }
    out.print_table(&table, "there are no namespaces that you may read")?;
    print_next(out, page.next.as_deref())
}

/// `3 of 10`, or `3` without a quota. At the quota it stands out.
fn used(number: Option<u64>, quota: Option<u64>) -> comfy_table::Cell {
    let is_reached = number
        .zip(quota)
        .is_some_and(|(number, most)| number >= most);
    cell(use_text(number, quota), is_reached.then_some(Paint::Warn))
}

fn use_text(number: Option<u64>, quota: Option<u64>) -> String {
    match (number, quota) {
        (None, _) => "-".to_owned(),
        (Some(number), None) => number.to_string(),
        (Some(number), Some(most)) => format!("{number} of {most}"),
    }
}

fn limit(quota: Option<u64>) -> String {
    quota.map_or_else(|| "no limit".to_owned(), |most| format!("at most {most}"))
}

async fn quota(api: &Api, out: Out, args: &QuotaArgs) -> Result<(), Failure> {
    let api = of(api, &args.name);
    if args.delete {
        return print(out, api.delete(&["quota"]).await?);
    }
    if !args.is_any_given() {
        return Err(Failure::bad_input(
            "give --max-jobs, --max-waiting-runs or --max-triggers-per-minute with a number or none, or --delete",
        ));
    }
    let present: QuotaPage = read(api.get(&["quota"], &[]).await?)?;
    print(out, api.put(&["quota"], &request(args, &present)).await?)
}

/// The whole quotas. The version keeps a change that another administrator makes at the same time.
fn request(args: &QuotaArgs, present: &QuotaPage) -> Value {
    let quotas = present.quotas;
    let wanted = |given: Option<Limit>, present| given.map_or(present, Limit::value);
    json!({
        "max_jobs": wanted(args.max_jobs, quotas.max_jobs),
        "max_waiting_runs": wanted(args.max_waiting_runs, quotas.max_waiting_runs),
        "max_triggers_per_minute": wanted(args.max_triggers_per_minute, quotas.max_triggers_per_minute),
        "if_version": present.version,
    })
}

fn print(out: Out, answer: Value) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let page: QuotaPage = read(answer)?;
    let quotas = page.quotas;
    out.line(&format!(
        "namespace          {}\njobs               {}\nwaiting runs       {}\ntriggers a minute  {}",
        page.namespace,
        use_text(Some(page.jobs), quotas.max_jobs),
        use_text(Some(page.waiting_runs), quotas.max_waiting_runs),
        limit(quotas.max_triggers_per_minute),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_the_quotas_that_are_not_given() {
        let present: QuotaPage = serde_json::from_value(json!({
            "namespace": "team-a", "quotas": { "max_jobs": 5, "max_waiting_runs": 7 }, "version": 3,
            "jobs": 1, "waiting_runs": 0,
        }))
        .expect("an answer");
        let args = QuotaArgs {
            name: "team-a".parse().expect("a namespace"),
            max_jobs: Some(Limit::None),
            max_waiting_runs: None,
            max_triggers_per_minute: Some(Limit::Most(60)),
            delete: false,
        };
        let expected = json!({
            "max_jobs": null, "max_waiting_runs": 7, "max_triggers_per_minute": 60, "if_version": 3,
        });
        assert_eq!(request(&args, &present), expected);
    }

    #[test]
    fn a_use_is_shown_with_its_quota() {
        assert_eq!(use_text(Some(3), Some(10)), "3 of 10");
        assert_eq!(use_text(Some(3), None), "3");
        assert_eq!(use_text(None, None), "-");
        assert_eq!(limit(None), "no limit");
        assert_eq!(limit(Some(60)), "at most 60");
    }
}
