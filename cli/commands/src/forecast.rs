//! `cueline forecast`

use clap::Args;
use cueline_api::view::Forecast;
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::JobName;

use crate::client::{Api, read};
use crate::lists::GroupArgs;
use crate::namespaces::AllNamespaces;

/// Bars of a picture; each is half an hour.
const BARS: usize = 48;

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The most jobs of a collision that are printed.
const NAMED: usize = 3;

/// `cueline forecast`
#[derive(Debug, Args)]
pub(crate) struct ForecastArgs {
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    #[command(flatten)]
    pub(crate) all: AllNamespaces,
}

pub(crate) async fn run(api: &Api, out: Out, args: &ForecastArgs) -> Result<(), Failure> {
    let groups = args.groups.query();
    let answer = api.list(&["forecast"], &groups, args.all).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    print(out, &read(answer)?)
}

fn print(out: Out, forecast: &Forecast) -> Result<(), Failure> {
    out.line(&format!(
        "{} fires of {} jobs from {} to {}",
        forecast.fires, forecast.jobs, forecast.from, forecast.to
    ))?;
    if forecast.left_out > 0 {
        let left_out = format!(
            "{} jobs are not counted: too many fire times",
            forecast.left_out
        );
        out.line(&out.paint(&left_out, Paint::Warn))?;
    }
    if forecast.fires == 0 {
        return Ok(());
    }
    let mut table = out.table(&["GROUP", "FIRES", "A MINUTE", "NEXT 24 H"]);
    let mut row = |name: &str, fires: u64, minutes: &[u64]| {
        let most = minutes.iter().max().copied().unwrap_or(0);
        table.add_row(vec![
            cell(name, None),
            cell(fires.to_string(), None),
            cell(format!("≤ {most}"), None),
            cell(bars(minutes), None),
        ]);
    };
    row("all", forecast.fires, &forecast.minutes);
    for group in &forecast.groups {
        row(group.group.as_str(), group.fires, &group.minutes);
    }
    out.print_table(&table, "no group fires")?;
    let mut table = out.table(&["BUSIEST MINUTE", "FIRES"]);
    for minute in &forecast.busiest {
        table.add_row(vec![
            cell(minute.at.to_string(), None),
            cell(minute.fires.to_string(), None),
        ]);
    }
    out.print_table(&table, "nothing fires")?;
    let mut table = out.table(&["JOBS DUE AT", "JOBS", "NAMES"]);
    for collision in &forecast.collisions {
        table.add_row(vec![
            cell(collision.at.to_string(), None),
            cell(collision.jobs.to_string(), None),
            cell(names(&collision.names, collision.jobs), None),
        ]);
    }
    out.print_table(&table, "no two jobs are due in the same second")
}

/// One bar for each half an hour, as high as its busiest minute. A blank is half an hour without fires.
fn bars(minutes: &[u64]) -> String {
    let most = minutes.iter().max().copied().unwrap_or(0);
    let width = (minutes.len() / BARS).max(1);
    let bar = |part: &[u64]| {
        let height = part.iter().max().copied().unwrap_or(0);
        // Rounded up: the highest level is the busiest minute of all, and the lowest one is not nothing.
        let level = (height * LEVELS.len() as u64).div_ceil(most.max(1));
        let index = usize::try_from(level).ok()?.checked_sub(1)?;
        LEVELS.get(index).copied()
    };
    minutes
        .chunks(width)
        .map(|part| bar(part).unwrap_or(' '))
        .collect()
}

fn names(names: &[JobName], jobs: u64) -> String {
    let mut shown: Vec<String> = names.iter().take(NAMED).map(ToString::to_string).collect();
    let more = jobs.saturating_sub(shown.len() as u64);
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{bars, names};

    #[test]
    fn bars_are_as_high_as_the_busiest_minute_of_their_half_hour() {
        let mut minutes = vec![0_u64; 1_440];
        assert_eq!(bars(&minutes), " ".repeat(48));
        minutes[0] = 8;
        minutes[59] = 1;
        minutes[1_439] = 4;
        let shown = bars(&minutes);
        assert_eq!(shown.chars().count(), 48);
        assert!(shown.starts_with("█▁ "), "{shown}");
        assert!(shown.ends_with(" ▄"), "{shown}");
    }

    #[test]
    fn names_beyond_the_third_are_counted() {
        let jobs: Vec<_> = ["a", "b", "c", "d"]
            .map(|name| name.parse().expect("a name"))
            .into();
        assert_eq!(names(&jobs, 12), "a, b, c, and 9 more");
        assert_eq!(names(&jobs[..2], 2), "a, b");
    }
}
