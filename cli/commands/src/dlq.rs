//! `cueline dlq …`

use clap::{Args, Subcommand};
use cueline_api::view::{Count, DeadPage, DeadView, ReplayedDead};
use cueline_interface::{Failure, Out, cell, say};
use cueline_model::Namespace;
use serde_json::{Value, json};

use crate::client::{Api, read};
use crate::human;
use crate::list_args::DeadListArgs;
use crate::lists::{List, print_next, values};
use crate::namespaces::AllNamespaces;

/// `cueline dlq …`
#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, newest first
    List(DeadListArgs),
    /// Show one dead letter with its whole message
    Show(DeadArg),
    /// Publish dead letters to their queues again
    Replay(DeadArgs),
    /// Delete dead letters
    Delete(DeadArgs),
}

/// One dead letter.
#[derive(Debug, Args)]
pub(crate) struct DeadArg {
    #[command(flatten)]
    pub(crate) namespaces: AllNamespaces,
    /// Its number
    #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) id: i64,
}

/// Some dead letters, or all.
#[derive(Debug, Args)]
pub(crate) struct DeadArgs {
    #[command(flatten)]
    pub(crate) namespaces: AllNamespaces,
    /// Their numbers
    #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) ids: Vec<i64>,
    /// All of them, up to a thousand at a time
    #[arg(long)]
    pub(crate) all: bool,
}

pub(crate) async fn run(api: &Api, out: Out, command: DlqCommand) -> Result<(), Failure> {
    match command {
        DlqCommand::List(args) => list(api, out, &args).await,
        DlqCommand::Show(arg) => show(api, out, &arg).await,
        DlqCommand::Replay(args) => replay(api, out, &args).await,
        DlqCommand::Delete(args) => delete(api, out, &args).await,
    }
}

async fn list(api: &Api, out: Out, args: &DeadListArgs) -> Result<(), Failure> {
    let mut query = values("queue", &args.queues);
    query.extend(values("topic", &args.topics));
    query.extend(values("origin", &args.origins));
    query.extend(args.groups.query());
    query.extend(args.window.query());
    let list = List {
        path: &["dead"],
        key: "letters",
        most: Some(50),
    };
    let answer = list.read(api, &query, args.all, &args.page).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: DeadPage = read(answer)?;
    let headings = vec!["ID", "WHEN", "QUEUE", "TOPIC", "REASON"];
    let mut table = out.table(&args.all.column("NAMESPACE", headings));
    for letter in &page.letters {
        let namespace = letter.namespace.as_ref().map_or("-", Namespace::as_str);
        let cells = vec![
            cell(letter.id.to_string(), None),
            cell(human::relative(letter.at, page.now), None),
            cell(letter.queue.clone(), None),
            cell(human::one_line(&letter.topic, 40), None),
            cell(human::one_line(&letter.reason, 100), None),
        ];
        table.add_row(args.all.column(cell(namespace.to_owned(), None), cells));
    }
    out.print_table(&table, "there are no such dead letters")?;
    print_next(out, page.next.as_deref())
}

async fn show(api: &Api, out: Out, arg: &DeadArg) -> Result<(), Failure> {
    let id = arg.id.to_string();
    let answer = api.list(&["dead", &id], &[], arg.namespaces).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let letter: DeadView = read(answer)?;
    out.line(&format!(
        "dead letter {}\nqueue   {}\ntopic   {}\nat      {}\nreason  {}\norigin  {}\n",
        letter.id,
        letter.queue,
        letter.topic,
        letter.at,
        letter.reason,
        letter.origin.as_deref().unwrap_or("not verified")
    ))?;
    match (letter.text, letter.base64) {
        (Some(text), _) => match serde_json::from_str::<Value>(&text) {
            Ok(value) => out.json(&value),
            Err(_) => out.line(&text),
        },
        (None, Some(base64)) => out.line(&format!("not text; in base64:\n{base64}")),
        (None, None) => Ok(()),
    }
}

fn chosen(args: &DeadArgs) -> Result<Value, Failure> {
    let all_namespaces = args.namespaces.all_namespaces;
    match (args.all, args.ids.is_empty()) {
        (true, true) => Ok(json!({ "all": true, "all_namespaces": all_namespaces })),
        (false, false) => Ok(json!({ "ids": args.ids, "all_namespaces": all_namespaces })),
        _ => Err(Failure::bad_input(
            "give either the numbers of dead letters, or --all",
        )),
    }
}

/// Sends a request about chosen letters.
async fn send(api: &Api, verb: &str, args: &DeadArgs) -> Result<Value, Failure> {
    let body = chosen(args)?;
    let path = ["dead", verb];
    if args.namespaces.all_namespaces {
        return api.in_no_namespace().post(&path, &body).await;
    }
    api.post(&path, &body).await
}

async fn replay(api: &Api, out: Out, args: &DeadArgs) -> Result<(), Failure> {
    let answer = send(api, "replay", args).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let replayed: ReplayedDead = read(answer)?;
    for letter in &replayed.letters {
        if let Some(why) = &letter.refused {
            say(&format!("{} stays: {why}", letter.id));
        }
    }
    out.line(&format!("{} back in their queues", replayed.count))
}

async fn delete(api: &Api, out: Out, args: &DeadArgs) -> Result<(), Failure> {
    let answer = send(api, "delete", args).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let Count { count } = read(answer)?;
    out.line(&format!("{count} deleted"))
}
