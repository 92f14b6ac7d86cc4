//! The failover phase of `fleet`: many executors freeze at once, and their triggers are done elsewhere.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use sqlx::postgres::PgConnection;
use tokio::time::{Instant, sleep};

use super::Cluster;
use super::failovers::Schedulers;
use super::fleet_phase::{LOOK_EVERY, new_report, wait_until_accepting};
use super::jobs::apply;
use crate::fleet_args::Fleet;
use crate::fleet_queries::{Ends, Moves, last_heartbeats_spread_ms, last_run};
use crate::load::Load;
use crate::process::Process;
use crate::progress::bar;
use crate::report::{Report, number};
use crate::worker::Question;

/// The jobs of the failover fall due this long after they were made.
const FAILOVER_LEAD: Duration = Duration::from_secs(10);
/// The executors are frozen this long before the jobs fall due. By then their last request for triggers, of half a
/// second, has expired, so that NATS delivers nothing to them. All triggers must be routed before the executors have
/// been silent for 15 s.
const FROZEN_BEFORE_DUE: Duration = Duration::from_secs(4);
/// How long the triggers may take to be queued.
const QUEUED_TIMEOUT: Duration = Duration::from_mins(1);
/// How long the failover may take, from the freeze to the last end.
const FAILOVER_TIMEOUT: Duration = Duration::from_mins(10);
/// How long unfrozen executors may take to accept triggers again.
const RETURN_TIMEOUT: Duration = Duration::from_mins(2);

/// A failover of the frozen process, as the database saw it.
struct Failover {
    /// The id of the last run before.
    last_run: i64,
    /// When the process was frozen, by the database's clock.
    frozen_ms: i64,
    /// When no run was left, by the same clock.
    ended_ms: i64,
    /// Triggers that were queued at the frozen executors.
    queued: u64,
    /// The time between the first and the last of their last heartbeats. Their silence is noticed over this time.
    heartbeats_ms: i64,
}

/// Measures how long the work of frozen executors takes to be done elsewhere.
pub(super) async fn failover(
    cluster: &mut Cluster,
    fleet: &Fleet,
    schedulers: &Schedulers,
) -> Result<Report> {
    let load = Load::sharded(fleet.queued as usize, fleet.frozen as usize, FAILOVER_LEAD);
    let mut report = new_report(cluster, fleet, "fleet failover", &load.about);
    let mut connection = cluster.database.connect().await?;
    let before = schedulers.read(cluster).await?;
    let last_run = last_run(&mut connection).await?;
    apply(cluster, &load).await?;
    let (there, elsewhere) = attempts_there_and_elsewhere(cluster).await?;
    let until = load.until_due();
    let until = until.and_then(|due| due.checked_sub(FROZEN_BEFORE_DUE));
    let late = "applying the jobs took too long; give a smaller --queued";
    sleep(until.context(late)?).await;

    // Not among the workers while it is frozen, because it answers no questions.
    let frozen = cluster.workers.remove(0);
    let failed_over = fail_over(cluster, fleet, &frozen, &mut connection, last_run).await;
    let unfrozen = frozen.unfreeze();
    cluster.workers.insert(0, frozen);
    let failed_over = failed_over?;
    unfrozen?;

    let after = schedulers.read(cluster).await?;
    let begin = Instant::now();
    let all = u64::from(fleet.executors);
    let since_ms = failed_over.ended_ms;
    wait_until_accepting(cluster, &mut connection, all, since_ms, RETURN_TIMEOUT).await?;
    let returned_after = begin.elapsed().as_secs_f64();
    let (there_now, elsewhere_now) = attempts_there_and_elsewhere(cluster).await?;
    let ends = Ends::read(&mut connection, last_run, Fleet::FROZEN).await?;

    add_failover(&failed_over, &ends, &mut report)?;
    let executors = after.failovers.saturating_sub(before.failovers);
    report.add("executors failed over", number(executors), "");
    let attempts = after.failed_over.saturating_sub(before.failed_over);
    report.add("attempts failed over", number(attempts), "");
    let handled = elsewhere_now.saturating_sub(elsewhere);
    report.add("attempts of the handler elsewhere", number(handled), "");
    let stale = there_now.saturating_sub(there);
    report.add("attempts at the frozen executors", number(stale), "");
    report.add("unfrozen executors are back after", returned_after, "s");
    Ok(report)
}

/// The attempts so far of the process that is frozen, and of all others.
async fn attempts_there_and_elsewhere(cluster: &mut Cluster) -> Result<(u64, u64)> {
    let answers = cluster.ask_workers(Question::Count).await?;
    let mut attempts = answers.iter().map(|answer| answer.attempts);
    let there = attempts.next().unwrap_or_default();
    Ok((there, attempts.sum()))
}

/// Freezes the process, and waits until its work has ended elsewhere.
async fn fail_over(
    cluster: &mut Cluster,
    fleet: &Fleet,
    frozen: &Process,
    connection: &mut PgConnection,
    last_run: i64,
) -> Result<Failover> {
    frozen.freeze()?;
    let begin = Instant::now();
    let all = u64::from(fleet.frozen) * u64::from(fleet.queued);
    let mut moves = Moves::read(connection, last_run, Fleet::FROZEN).await?;
    let frozen_ms = moves.now_ms;
    while moves.created < all || moves.unpublished > 0 {
        if begin.elapsed() > QUEUED_TIMEOUT {
            bail!(
                "{} of {all} runs exist, and {} of them are not published",
                moves.created,
                moves.unpublished
            );
        }
        sleep(LOOK_EVERY).await;
        moves = Moves::read(connection, last_run, Fleet::FROZEN).await?;
    }
    let queued = moves.queued_there;
    let heartbeats_ms = last_heartbeats_spread_ms(connection, Fleet::FROZEN).await?;
    let bar = bar(all, "failover");
    while moves.live > 0 {
        cluster.check_running()?;
        if begin.elapsed() > FAILOVER_TIMEOUT {
            bail!("{} of {all} runs have not ended", moves.live);
        }
        bar.set_position(all.saturating_sub(moves.live));
        sleep(LOOK_EVERY).await;
        moves = Moves::read(connection, last_run, Fleet::FROZEN).await?;
    }
    bar.finish_and_clear();
    Ok(Failover {
        last_run,
        frozen_ms,
        ended_ms: moves.now_ms,
        queued,
        heartbeats_ms,
    })
}

fn add_failover(failover: &Failover, ends: &Ends, report: &mut Report) -> Result<()> {
    let Some(first_ms) = ends.first_taken_ms else {
        bail!(
            "no attempt after run {} was taken from a frozen executor",
            failover.last_run
        );
    };
    let seconds = |from_ms: i64, to_ms: i64| number((to_ms - from_ms).unsigned_abs()) / 1_000.0;
    let took = seconds(first_ms, failover.ended_ms);
    report.add("from the first failover to the last end", took, "s");
    let noticed = seconds(failover.frozen_ms, first_ms);
    report.add("from the freeze to the first failover", noticed, "s");
    let spread = seconds(0, failover.heartbeats_ms);
    report.add("their last heartbeats are within", spread, "s");
    // The parts of the first number.
    let taken_ms = ends.last_taken_ms.unwrap_or(first_ms);
    let published_ms = ends.last_published_ms.unwrap_or(taken_ms).max(taken_ms);
    for (name, from_ms, to_ms) in [
        ("until the last is taken", first_ms, taken_ms),
        ("then until all are published", taken_ms, published_ms),
        ("then until the last end", published_ms, failover.ended_ms),
    ] {
        report.add(name, seconds(from_ms, to_ms), "s");
    }
    for (name, count) in [
        ("triggers queued there", failover.queued),
        ("returned and routed again", ends.returned),
        ("lost and run again", ends.lost),
        (
            "succeeded elsewhere at attempt 2",
            ends.second_attempt_elsewhere,
        ),
        ("runs with further attempts", ends.further_attempts),
        ("runs that did not succeed", ends.unsuccessful),
    ] {
        report.add(name, number(count), "");
    }
    Ok(())
}
