//! Quartz's jobs and triggers, from its tables or from its job files.

#[cfg(feature = "postgres")]
mod tables;
mod xml;

use cueline_interface::{Failure, jobfile};
use cueline_model::Timestamp;
use cueline_model::import::quartz::{QuartzJob, QuartzOptions, QuartzTrigger, import};
use cueline_runtime::{Clock as _, SystemClock};

use super::Found;
use crate::import_args::QuartzArgs;

/// What a source has.
#[derive(Debug, Default)]
struct Source {
    jobs: Vec<QuartzJob>,
    triggers: Vec<QuartzTrigger>,
    /// Places and differences that concern no single job.
    left_out: Vec<(String, String)>,
    /// Places and reasons.
    refused: Vec<(String, String)>,
}

/// Reads the tables or the files.
pub(super) async fn read_all(args: &QuartzArgs, found: &mut Found) -> Result<(), Failure> {
    found.things = "triggers";
    let now = Timestamp::from_millis(SystemClock.now_ms());
    let mut source = Source::default();
    for path in &args.source.xml {
        let text = jobfile::read_text(path).map_err(Failure::bad_input)?;
        let place = path.display().to_string();
        xml::read(&text, &place, &found.timezone, now, &mut source)
            .map_err(|message| Failure::bad_input(format!("{place}: {message}")))?;
    }
    if let Some(url) = &args.source.jdbc {
        read_tables(url, args, &mut source).await?;
    }
    let options = QuartzOptions {
        timezone: found.timezone.clone(),
        group: found.group.clone(),
        handlers: args.handlers.iter().cloned().collect(),
        now,
    };
    let left_out = source.left_out.into_iter();
    found
        .notes
        .extend(left_out.map(|(place, message)| ("left out", place, message)));
    for (place, reason) in source.refused {
        found.take(place, Err(reason));
    }
    found.take_all(import(&source.jobs, &source.triggers, &options));
    Ok(())
}

#[cfg(feature = "postgres")]
async fn read_tables(url: &str, args: &QuartzArgs, source: &mut Source) -> Result<(), Failure> {
    tables::read(url, &args.prefix, args.scheduler.as_deref(), source).await
}

#[cfg(not(feature = "postgres"))]
async fn read_tables(_: &str, _: &QuartzArgs, _: &mut Source) -> Result<(), Failure> {
    Err(Failure::bad_input(
        "--jdbc: this program was built without PostgreSQL; give --xml, or a program with it",
    ))
}
