//! The server, by its API: version, clock, store, executors and jobs.

use cueline_api::view::{Executors, JobPage, Stats};
use cueline_model::{Namespace, RunState, Timestamp};
use cueline_runtime::{Clock, SystemClock};

use super::check::{Check, Level};
use crate::client::{Api, read};
use crate::executor::{DEAD_AFTER_MS, EXECUTORS, alive};
use crate::human;
use crate::namespaces::AllNamespaces;

/// Beyond this difference a node logs a warning about its own clock.
const CLOCK_WARN_MS: u64 = 500;
const CLOCK_BAD_MS: u64 = 30_000;
/// A due run that waits longer than this is a problem.
const BEHIND_WARN_MS: u64 = 10_000;
/// A server that has just started has sent no message to itself yet.
const STARTED_MS: u64 = 15_000;
/// The most jobs that are checked.
const MOST_JOBS: u32 = 1_000;
/// The most jobs that are named.
const MOST_NAMED: usize = 5;

pub(super) async fn check(api: &Api, checks: &mut Vec<Check>) {
    if let Err(failure) = api.ready().await {
        checks.push(Check::failed("server", failure));
        return;
    }
    let all = AllNamespaces {
        all_namespaces: true,
    };
    let before = SystemClock.now_ms();
    let api = &api.in_namespace(&Namespace::default());
    let stats: Stats = match api.get(&["stats"], &[]).await.and_then(read) {
        Ok(stats) => stats,
        Err(failure) => {
            checks.push(Check::failed("server", failure));
            return;
        }
    };
    let after = SystemClock.now_ms();
    checks.push(version(api, &stats));
    checks.push(clock(stats.now, before, after));
    checks.push(store(&stats));
    checks.push(failover(&stats));
    checks.extend(claims(&stats));
    match EXECUTORS.read_all(api, all).await.and_then(read) {
        Ok(executors) => {
            check_executors(&executors, checks);
            check_handlers(api, all, &executors, checks).await;
        }
        Err(failure) => checks.push(Check::failed("executors", failure)),
    }
}

fn version(api: &Api, stats: &Stats) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    let text = format!(
        "{} is ready, version {}, up for {}",
        api.url(),
        stats.version,
        human::took(stats.uptime_ms)
    );
    if stats.version == own {
        Check::ok("server", text)
    } else {
        let hint = format!("this command is version {own}; use the same version on both sides");
        Check::problem(Level::Warn, "server", text, hint)
    }
}

fn clock(server: Timestamp, before: i64, after: i64) -> Check {
    // The server read its clock at some time between `before` and `after`.
    let (server, before, after) = (server.as_millis(), before, after.max(before));
    let off = if server < before {
        before.saturating_sub(server)
    } else {
        server.saturating_sub(after).max(0)
    };
    let off = off.unsigned_abs();
    let text = format!(
        "the server's clock and this machine's differ by {}",
        human::took(off)
    );
    let hint = "let both machines set their clocks by NTP";
    match off {
        0..CLOCK_WARN_MS => Check::ok("clock", text),
        CLOCK_WARN_MS..CLOCK_BAD_MS => Check::problem(Level::Warn, "clock", text, hint),
        _ => Check::problem(Level::Bad, "clock", text, hint),
    }
}

fn store(stats: &Stats) -> Check {
    let live = |state: RunState| stats.live.get(&state).copied().unwrap_or(0);
    let text = format!(
        "{} jobs; runs: {} scheduled, {} queued, {} running",
        stats.jobs,
        live(RunState::Scheduled) + live(RunState::Dispatching),
        live(RunState::Queued),
        live(RunState::Running)
    );
    match stats.oldest_due_ms {
        Some(behind) if behind > BEHIND_WARN_MS => Check::problem(
            Level::Warn,
            "store",
            format!(
                "{text}; the oldest that is due has waited for {}",
                human::took(behind)
            ),
            "`cueline run list --state scheduled` shows what waits: it needs a live executor of its group that runs its handler",
        ),
        _ => Check::ok("store", text),
    }
}

fn failover(stats: &Stats) -> Check {
    match &stats.executor_timeouts_paused {
        Some(why) if stats.uptime_ms >= STARTED_MS => Check::problem(
            Level::Warn,
            "failover",
            format!("this server declares no executor dead: {why}"),
            "look at the broker: most of its servers must be up and reach each other, and the scheduler's user needs all rights of the manual",
        ),
        Some(_) => Check::ok("failover", "the server has just started"),
        None => Check::ok("failover", "the server notices when an executor dies"),
    }
}

/// Only a server that claims nothing has this check.
fn claims(stats: &Stats) -> Option<Check> {
    let why = stats.claims_paused.as_ref()?;
    Some(Check::problem(
        Level::Warn,
        "claims",
        format!("this server claims no runs, the others do: {why}"),
        "look at the network between this server and the broker",
    ))
}

fn check_executors(found: &Executors, checks: &mut Vec<Check>) {
    let live = found.executors.iter().filter(|view| is_live(view)).count();
    for view in &found.executors {
        if !view.executor.heartbeat.gone && view.silent_ms > DEAD_AFTER_MS {
            checks.push(Check::problem(
                Level::Warn,
                "executors",
                format!("{} is {}", view.executor.heartbeat.executor, alive(view).0),
                "look at its process and its connection to the broker",
            ));
        }
    }
    checks.push(if live > 0 {
        Check::ok("executors", format!("{live} alive"))
    } else {
        Check::problem(
            Level::Bad,
            "executors",
            "none is alive: nothing can run",
            "start one; `cueline standalone` has one built in",
        )
    });
}

fn is_live(view: &cueline_api::view::ExecutorView) -> bool {
    !view.executor.heartbeat.gone && view.silent_ms <= DEAD_AFTER_MS
}

/// Checks whether each enabled job has a live executor that can run it.
async fn check_handlers(api: &Api, all: AllNamespaces, found: &Executors, checks: &mut Vec<Check>) {
    let query = [("limit", MOST_JOBS.to_string())];
    let page: JobPage = match api.list(&["jobs"], &query, all).await.and_then(read) {
        Ok(page) => page,
        Err(failure) => {
            checks.push(Check::failed("jobs", failure));
            return;
        }
    };
    let orphans: Vec<String> = page
        .jobs
        .iter()
        .map(|job| &job.job.spec)
        .filter(|spec| {
            let wanted = spec.handler.capability();
            spec.is_enabled()
                && !found.executors.iter().any(|view| {
                    is_live(view)
                        && view.executor.heartbeat.executor.group == spec.group
                        && view
                            .executor
                            .heartbeat
                            .capabilities
                            .iter()
                            .any(|has| *has == wanted)
                })
        })
        .map(|spec| {
            format!(
                "{} ({}, group {})",
                spec.name,
                spec.handler.capability(),
                spec.group
            )
        })
        .collect();
    if orphans.is_empty() {
        checks.push(Check::ok(
            "jobs",
            "each enabled job has an executor that can run it",
        ));
        return;
    }
    let named = orphans
        .iter()
        .take(MOST_NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    let more = match orphans.len() {
        n if n > MOST_NAMED => format!(" and {} more", n - MOST_NAMED),
        _ => String::new(),
    };
    checks.push(Check::problem(
        Level::Warn,
        "jobs",
        format!("no live executor can run {named}{more}"),
        "start an executor of that group with that handler, or allow the kind with --allow",
    ));
}

#[cfg(test)]
mod tests {
    use cueline_api::view::Stats;
    use cueline_model::Timestamp;
    use serde_json::json;

    use super::{Level, claims, clock, failover};

    #[test]
    fn paused_executor_timeouts_are_a_problem_of_a_server_that_is_up_for_some_time() {
        let why = "no right to store proofs";
        for (uptime_ms, paused, level) in [
            (14_999, Some(why), Level::Ok),
            (15_000, Some(why), Level::Warn),
            (15_000, None, Level::Ok),
        ] {
            let stats = json!({
                "version": "1", "uptime_ms": uptime_ms, "now": 0, "jobs": 0, "live": {},
                "oldest_due_ms": null, "executor_timeouts_paused": paused,
            });
            let stats: Stats = serde_json::from_value(stats).expect("readable");
            let check = failover(&stats);
            assert_eq!(check.level, level, "{uptime_ms} {paused:?}");
            assert_eq!(check.text.contains(why), level == Level::Warn);
        }
    }

    #[test]
    fn a_server_that_claims_nothing_is_a_problem() {
        for (paused, expected) in [(None, None), (Some("no answer"), Some(Level::Warn))] {
            let stats = json!({
                "version": "1", "uptime_ms": 0, "now": 0, "jobs": 0, "live": {},
                "oldest_due_ms": null, "claims_paused": paused,
            });
            let stats: Stats = serde_json::from_value(stats).expect("readable");
            assert_eq!(claims(&stats).map(|check| check.level), expected);
        }
    }

    #[test]
    fn a_slow_answer_is_no_clock_difference() {
        let at = Timestamp::from_millis;
        for (server, before, after, level) in [
            (1_000, 900, 1_100, Level::Ok),
            (1_000, 0, 20_000, Level::Ok),
            (1_000, 2_000, 2_001, Level::Warn),
            (10_000, 2_000, 2_001, Level::Warn),
            (100_000, 2_000, 2_001, Level::Bad),
            (i64::MAX, i64::MIN, 0, Level::Bad),
        ] {
            assert_eq!(
                clock(at(server), before, after).level,
                level,
                "{server} {before} {after}"
            );
        }
    }
}
