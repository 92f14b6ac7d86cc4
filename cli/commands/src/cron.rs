//! `cueline cron …`: tests expressions without a server.

use cueline_interface::{Failure, Out};
use cueline_model::schedule::{CronError, CronSchedule};
use cueline_model::{Dialect, Timestamp};
use cueline_runtime::{Clock, SystemClock};
use serde_json::json;

use crate::args::{CronCommand, CronNextArgs, DialectArg};
use crate::human;

pub(crate) fn run(out: Out, command: CronCommand) -> Result<(), Failure> {
    match command {
        CronCommand::Next(args) => next(out, &args),
    }
}

fn next(out: Out, args: &CronNextArgs) -> Result<(), Failure> {
    let dialect = args.dialect.map(|dialect| match dialect {
        DialectArg::Quartz => Dialect::Quartz,
        DialectArg::Unix => Dialect::Unix,
    });
    let cron = CronSchedule::parse(&args.expression, &args.tz, dialect, None).map_err(|error| {
        Failure::bad_input(match error {
            CronError::Expression(why) => format!("{:?}: {why}", args.expression),
            CronError::TimeZone(zone) => format!("--tz: {}", zone.with_suggestion()),
        })
    })?;
    let from = args
        .from
        .unwrap_or_else(|| Timestamp::from_millis(SystemClock.now_ms()));
    let times: Vec<Timestamp> =
        std::iter::successors(cron.next_after(from), |last| cron.next_after(*last))
            .take(args.n as usize)
            .collect();
    if out.is_json() {
        return out.json(&json!({ "times": times }));
    }
    for at in &times {
        out.line(&human::local(*at, &args.tz))?;
    }
    if times.is_empty() {
        out.line("it never fires again")?;
    }
    Ok(())
}
