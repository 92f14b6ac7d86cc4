//! `cueline limit …`: the rate limits of groups.

use clap::{Args, Subcommand};
use cueline_api::view::{GroupRateView, LimitsPage};
use cueline_interface::{Failure, Out, cell};
use cueline_model::{GroupName, Rate, RatePer};
use serde_json::{Value, json};

use crate::client::{Api, read};

/// `cueline limit …`
#[derive(Debug, Subcommand)]
pub(crate) enum LimitCommand {
    /// List the rate limits of groups; those of jobs are in their definitions
    List,
    /// Set how many attempts of all jobs of a group are dispatched in a second, a minute or an hour
    Set(LimitSetArgs),
    /// Delete the rate limit of a group
    Delete(LimitGroupArg),
}

/// One group.
#[derive(Debug, Args)]
pub(crate) struct LimitGroupArg {
    /// The group
    #[arg(value_name = "GROUP")]
    group: GroupName,
}

/// `cueline limit set`
#[derive(Debug, Args)]
pub(crate) struct LimitSetArgs {
    /// The group
    #[arg(value_name = "GROUP")]
    group: GroupName,
    /// The rate, such as 10/second, 100/minute or 1000/hour
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Rate,
}

/// Reads `10/second`.
fn rate(text: &str) -> Result<Rate, String> {
    let advice = "give a number and second, minute or hour, such as 10/second";
    let (count, per) = text.split_once('/').ok_or(advice)?;
    let mut known = RatePer::ALL.into_iter();
    let per = known.find(|(word, _)| *word == per).ok_or(advice)?.1;
    let most = cueline_model::limit::MAX_RATE;
    let count = count.parse().map_err(|_| advice)?;
    if !(1..=most).contains(&count) {
        return Err(format!("{count} is out of range 1–{most}"));
    }
    Ok(Rate { count, per })
}

pub(crate) async fn run(api: &Api, out: Out, command: LimitCommand) -> Result<(), Failure> {
    match command {
        LimitCommand::List => list(api, out).await,
        LimitCommand::Set(args) => {
            let body = json!({ "count": args.rate.count, "per": args.rate.per.as_str() });
            let answer = api.put(&["limits", args.group.as_str()], &body).await?;
            print(out, answer)
        }
        LimitCommand::Delete(arg) => {
            let answer = api.delete(&["limits", arg.group.as_str()]).await?;
            print(out, answer)
        }
    }
}

async fn list(api: &Api, out: Out) -> Result<(), Failure> {
    let answer = api.get(&["limits"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: LimitsPage = read(answer)?;
    let mut table = out.table(&["GROUP", "RATE LIMIT"]);
    for view in &page.groups {
        table.add_row(vec![
            cell(view.group.local(), None),
            cell(in_words(view), None),
        ]);
    }
    out.print_table(&table, "no group has a rate limit")
}

fn print(out: Out, answer: Value) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let view: GroupRateView = read(answer)?;
    out.line(&format!(
        "group {}: {}",
        view.group.local(),
        in_words(&view)
    ))
}

fn in_words(view: &GroupRateView) -> String {
    view.rate_limit.map_or_else(
        || "no rate limit".to_owned(),
        |rate| format!("{} per {}", rate.count, rate.per.as_str()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_and_an_interval() {
        let ten = Rate {
            count: 10,
            per: RatePer::Minute,
        };
        assert_eq!(rate("10/minute"), Ok(ten));
        for text in ["10", "x/second", "10/day", "-1/hour"] {
            let problem = rate(text).expect_err("is refused");
            assert!(problem.contains("10/second"), "{problem}");
        }
        let problem = rate("0/hour").expect_err("is refused");
        assert_eq!(problem, "0 is out of range 1–1000000");
    }
}
