//! `cueline audit …`

use clap::{Args, Subcommand, ValueEnum};
use cueline_api::view::AuditPage;
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::Namespace;
use cueline_store::AuditResult;
use serde_json::Value;

use crate::client::{Api, read};
use crate::human;
use crate::lists::{GroupArgs, List, PageArgs, Query, WindowArgs, print_next, values};
use crate::namespaces::AllNamespaces;
use crate::progress::Progress;

/// The most entries asked for at once.
const PAGE: usize = 1_000;

/// `cueline audit …`
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List who changed what, newest first
    List(AuditListArgs),
    /// Print all entries of a time as JSON lines, newest first
    Export(AuditExportArgs),
}

/// `cueline audit list`
#[derive(Debug, Args)]
pub(crate) struct AuditListArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    /// Only changes by this actor, such as "user alice" or "token admin"; may be given several times
    #[arg(long = "actor", value_name = "ACTOR")]
    pub(crate) actors: Vec<String>,
    /// Only this action, such as job.pause, or all actions of one kind of object, such as job; may be given several times
    #[arg(long = "action", value_name = "ACTION")]
    pub(crate) actions: Vec<String>,
    /// Only changes of the object with this name or number; with the namespace before it, as in team-a/report
    #[arg(long = "object", value_name = "NAME")]
    pub(crate) objects: Vec<String>,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    /// Only actions that ended like this
    #[arg(long, value_enum)]
    pub(crate) result: Option<ResultArg>,
    #[command(flatten)]
    pub(crate) window: WindowArgs,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `cueline audit export`
#[derive(Debug, Args)]
pub(crate) struct AuditExportArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    #[command(flatten)]
    pub(crate) window: WindowArgs,
}

/// How an action ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultArg {
    /// It was carried out
    Done,
    /// The actor had no right to it
    Refused,
}

impl From<ResultArg> for AuditResult {
    fn from(arg: ResultArg) -> Self {
        match arg {
            ResultArg::Done => Self::Done,
            ResultArg::Refused => Self::Refused,
        }
    }
}

pub(crate) async fn run(api: &Api, out: Out, command: AuditCommand) -> Result<(), Failure> {
    match command {
        AuditCommand::List(args) => list(api, out, &args).await,
        AuditCommand::Export(args) => export(api, out, &args).await,
    }
}

fn list_query(args: &AuditListArgs) -> Query {
    let mut query = args.window.query();
    query.extend(values("actor", &args.actors));
    query.extend(values("action", &args.actions));
    query.extend(values("object", &args.objects));
    query.extend(args.groups.query());
    let result = args.result.map(AuditResult::from);
    query.extend(result.map(|result| ("result", result.as_str().to_owned())));
    query
}

async fn list(api: &Api, out: Out, args: &AuditListArgs) -> Result<(), Failure> {
    let all = args.all;
    let list = List {
        path: &["audit"],
        key: "entries",
        most: Some(50),
    };
    let answer = list.read(api, &list_query(args), all, &args.page).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: AuditPage = read(answer)?;
    let heads = ["ID", "WHEN", "ACTOR", "ACTION", "OBJECT", "DETAIL"];
    let mut table = out.table(&all.column("NAMESPACE", heads.to_vec()));
    for entry in &page.entries {
        let (words, paint) = match entry.result {
            AuditResult::Done => (entry.detail.clone(), None),
            AuditResult::Refused => (format!("refused: {}", entry.detail), Some(Paint::Bad)),
        };
        let row = vec![
            cell(entry.id.to_string(), None),
            cell(human::relative(entry.at, page.now), None),
            cell(human::one_line(&entry.actor, 40), None),
            cell(entry.action.clone(), None),
            cell(human::one_line(&entry.object, 60), None),
            cell(human::one_line(&words, 80), paint),
        ];
        let namespace = entry.namespace.as_ref().map_or("–", Namespace::as_str);
        table.add_row(all.column(cell(namespace, None), row));
    }
    out.print_table(&table, "there are no such entries")?;
    print_next(out, page.next.as_deref())
}

/// Prints each page as it arrives, so that the memory does not grow with the log.
async fn export(api: &Api, out: Out, args: &AuditExportArgs) -> Result<(), Failure> {
    // On a terminal, the lines show the progress themselves.
    let progress = (!out.is_terminal()).then(|| Progress::spinner(out, "exporting the audit log"));
    let (mut after, mut count): (Option<String>, usize) = (None, 0);
    loop {
        let mut query = args.window.query();
        query.push(("limit", PAGE.to_string()));
        query.extend(after.map(|after| ("after", after)));
        let mut page = api.list(&["audit"], &query, args.all).await?;
        if let Some(Value::Array(entries)) = page.get_mut("entries").map(Value::take) {
            count += entries.len();
            for entry in &entries {
                out.json_line(entry)?;
            }
        }
        if let Some(progress) = &progress {
            progress.change(&format!("exported {count} entries of the audit log"));
        }
        after = page.get("next").and_then(Value::as_str).map(str::to_owned);
        if after.is_none() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;

    #[test]
    fn only_given_filters_are_sent() {
        let args = AuditListArgs {
            all: AllNamespaces::default(),
            actors: Vec::new(),
            actions: vec!["job".to_owned(), "user".to_owned()],
            objects: Vec::new(),
            groups: GroupArgs::default(),
            result: Some(ResultArg::Refused),
            window: WindowArgs {
                since: Some(Timestamp::from_millis(7)),
                until: None,
            },
            page: PageArgs::default(),
        };
        let sent = list_query(&args);
        let sent: Vec<_> = sent.iter().map(|(k, v)| (*k, v.as_str())).collect();
        assert_eq!(
            sent,
            [
                ("since", "7"),
                ("action", "job"),
                ("action", "user"),
                ("result", "refused")
            ]
        );
    }
}
