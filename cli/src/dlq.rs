//! `cueline dlq …`

use cueline_api::view::{Count, DeadPage, DeadView, ReplayedDead};
use serde_json::{Value, json};

use crate::args::{DeadArgs, DlqCommand};
use crate::client::{Api, read};
use crate::failure::{Failure, say};
use crate::human;
use crate::list_args::DeadListArgs;
use crate::lists::{List, print_next, values};
use crate::namespaces::AllNamespaces;
use crate::output::{Out, cell};

pub(crate) async fn run(api: &Api, out: Out, command: DlqCommand) -> Result<(), Failure> {
    match command {
        DlqCommand::List(args) => list(api, out, &args).await,
        DlqCommand::Show(arg) => show(api, out, arg.id).await,
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
    let here = AllNamespaces::default();
    let answer = list.read(api, &query, here, &args.page).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: DeadPage = read(answer)?;
    let mut table = out.table(&["ID", "WHEN", "QUEUE", "TOPIC", "REASON"]);
    for letter in &page.letters {
        table.add_row(vec![
            cell(letter.id.to_string(), None),
            cell(human::relative(letter.at, page.now), None),
            cell(letter.queue.clone(), None),
            cell(human::one_line(&letter.topic, 40), None),
            cell(human::one_line(&letter.reason, 100), None),
        ]);
    }
    out.print_table(&table, "there are no such dead letters")?;
    print_next(out, page.next.as_deref())
}

async fn show(api: &Api, out: Out, id: i64) -> Result<(), Failure> {
    let answer = api.get(&["dead", &id.to_string()], &[]).await?;
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
    match (args.all, args.ids.is_empty()) {
        (true, true) => Ok(json!({ "all": true })),
        (false, false) => Ok(json!({ "ids": args.ids })),
        _ => Err(Failure::bad_input(
            "give either the numbers of dead letters, or --all",
        )),
    }
}

async fn replay(api: &Api, out: Out, args: &DeadArgs) -> Result<(), Failure> {
    let answer = api.post(&["dead", "replay"], &chosen(args)?).await?;
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
    let answer = api.post(&["dead", "delete"], &chosen(args)?).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let Count { count } = read(answer)?;
    out.line(&format!("{count} deleted"))
}
