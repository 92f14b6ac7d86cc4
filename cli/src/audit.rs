//! `cueline audit …`

use clap::{Args, Subcommand, ValueEnum};
use cueline_api::view::AuditPage;
use cueline_model::{Namespace, Timestamp};
use cueline_store::AuditResult;
use serde_json::Value;

use crate::client::{Api, read};
use crate::failure::Failure;
use crate::human;
use crate::namespaces::AllNamespaces;
use crate::output::{Out, Paint, cell};
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
    /// Only changes by this actor, such as "user alice" or "token admin"
    #[arg(long, value_name = "ACTOR")]
    pub(crate) actor: Option<String>,
    /// Only this action, such as job.pause, or all actions of one kind of object, such as job
    #[arg(long, value_name = "ACTION")]
    pub(crate) action: Option<String>,
    /// Only changes of the object with this name or number; with the namespace before it, as in team-a/report
    #[arg(long, value_name = "NAME")]
    pub(crate) object: Option<String>,
    /// Only actions that ended like this
    #[arg(long, value_enum)]
    pub(crate) result: Option<ResultArg>,
    /// Not before this time
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) from: Option<Timestamp>,
    /// Before this time
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) to: Option<Timestamp>,
    /// Only entries with lower numbers, for the next page
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) before: Option<i64>,
    /// At most N
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
}

/// `cueline audit export`
#[derive(Debug, Args)]
pub(crate) struct AuditExportArgs {
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
    /// Not before this time
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) from: Option<Timestamp>,
    /// Before this time
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) to: Option<Timestamp>,
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

type Query = Vec<(&'static str, String)>;

pub(crate) async fn run(api: &Api, out: Out, command: AuditCommand) -> Result<(), Failure> {
    match command {
        AuditCommand::List(args) => list(api, out, args).await,
        AuditCommand::Export(args) => export(api, out, &args).await,
    }
}

/// The parameters of a window of time.
fn window(from: Option<Timestamp>, to: Option<Timestamp>) -> Query {
    [("from", from), ("to", to)]
        .into_iter()
        .filter_map(|(name, at)| Some((name, at?.as_millis().to_string())))
        .collect()
}

fn list_query(args: AuditListArgs) -> Query {
    let mut query = window(args.from, args.to);
    let result = args.result.map(AuditResult::from);
    let texts = [
        ("actor", args.actor),
        ("action", args.action),
        ("object", args.object),
        ("result", result.map(|result| result.as_str().to_owned())),
        ("before", args.before.map(|id| id.to_string())),
        ("limit", Some(args.limit.to_string())),
    ];
    query.extend(
        texts
            .into_iter()
            .filter_map(|(name, text)| Some((name, text?))),
    );
    query
}

async fn list(api: &Api, out: Out, args: AuditListArgs) -> Result<(), Failure> {
    let all = args.all;
    let answer = api.list(&["audit"], &list_query(args), all).await?;
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
    match page.next {
        Some(next) => out.line(&out.paint(&format!("older ones: --before {next}"), Paint::Dim)),
        None => Ok(()),
    }
}

/// Prints each page as it arrives, so that the memory does not grow with the log.
async fn export(api: &Api, out: Out, args: &AuditExportArgs) -> Result<(), Failure> {
    // On a terminal, the lines show the progress themselves.
    let progress = (!out.is_terminal()).then(|| Progress::spinner(out, "exporting the audit log"));
    let (mut before, mut count) = (None, 0_usize);
    loop {
        let mut query = window(args.from, args.to);
        query.push(("limit", PAGE.to_string()));
        query.extend(before.map(|id: i64| ("before", id.to_string())));
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
        before = page.get("next").and_then(Value::as_i64);
        if before.is_none() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_given_filters_are_sent() {
        let args = AuditListArgs {
            all: AllNamespaces {
                all_namespaces: false,
            },
            actor: None,
            action: Some("job".to_owned()),
            object: None,
            result: Some(ResultArg::Refused),
            from: Some(Timestamp::from_millis(7)),
            to: None,
            before: None,
            limit: 5,
        };
        let sent = list_query(args);
        let sent: Vec<_> = sent.iter().map(|(k, v)| (*k, v.as_str())).collect();
        assert_eq!(
            sent,
            [
                ("from", "7"),
                ("action", "job"),
                ("result", "refused"),
                ("limit", "5")
            ]
        );
    }
}
