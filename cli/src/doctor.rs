//! `cueline doctor`: checks server, clock, store, executors, jobs and data, with a hint for each problem.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cueline_api::view::{Executors, JobPage, Stats};
use cueline_model::{RunState, Timestamp};
use cueline_runtime::{Clock, SystemClock};
use serde::Serialize;
use serde_json::json;

use crate::args::DoctorArgs;
use crate::client::{Api, read};
use crate::discovery::{self, Discovered};
use crate::executor::{DEAD_AFTER_MS, alive};
use crate::failure::Failure;
use crate::human;
use crate::output::{Out, Paint};

/// Beyond this difference a node logs a warning about its own clock.
const CLOCK_WARN_MS: u64 = 500;
const CLOCK_BAD_MS: u64 = 30_000;
/// A due run that waits longer than this is a problem.
const BEHIND_WARN_MS: u64 = 10_000;
const FREE_WARN_BYTES: u64 = 1 << 30;
const FREE_BAD_BYTES: u64 = 100 << 20;
/// The most jobs that are checked.
const MOST_JOBS: u32 = 1_000;
/// The most jobs that are named.
const MOST_NAMED: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Bad,
}

#[derive(Debug, Serialize)]
struct Check {
    what: &'static str,
    level: Level,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Check {
    fn ok(what: &'static str, text: impl Into<String>) -> Self {
        Self {
            what,
            level: Level::Ok,
            text: text.into(),
            hint: None,
        }
    }

    fn not(
        level: Level,
        what: &'static str,
        text: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            what,
            level,
            text: text.into(),
            hint: Some(hint.into()),
        }
    }

    fn failed(what: &'static str, failure: Failure) -> Self {
        let (text, hint) = match failure {
            Failure::Failed { message, hint } => (message, hint),
            Failure::BadInput { messages, .. } => (messages.join("; "), None),
            Failure::Silent | Failure::PipeClosed => (String::new(), None),
        };
        Self {
            what,
            level: Level::Bad,
            text,
            hint,
        }
    }
}

/// Checks, prints, and fails if something is bad.
pub(crate) async fn run(
    url: Option<&str>,
    token: Option<&str>,
    out: Out,
    args: &DoctorArgs,
) -> Result<(), Failure> {
    let mut checks = Vec::new();
    let found = found_server(&mut checks);
    match Api::new(url, token) {
        Ok(api) => server(&api, &mut checks).await,
        Err(Failure::BadInput { messages, summary }) => {
            return Err(Failure::BadInput { messages, summary });
        }
        Err(failure) => checks.push(Check::failed("token", failure)),
    }
    let data = args.data.clone().or_else(|| {
        let token_file = found.map(|found| found.token_file)?;
        token_file.parent().map(Path::to_path_buf)
    });
    if let Some(data) = data {
        data_dir(data, &mut checks).await;
    }
    print(out, &checks)?;
    if checks.iter().any(|check| check.level == Level::Bad) {
        return Err(Failure::Silent);
    }
    Ok(())
}

fn print(out: Out, checks: &[Check]) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&json!({ "checks": checks }));
    }
    for check in checks {
        let (word, paint) = match check.level {
            Level::Ok => ("ok  ", Paint::Good),
            Level::Warn => ("warn", Paint::Warn),
            Level::Bad => ("bad ", Paint::Bad),
        };
        out.line(&format!(
            "{} {:<9} {}",
            out.paint(word, paint),
            check.what,
            check.text
        ))?;
        if let Some(hint) = &check.hint {
            out.line(&format!("               → {hint}"))?;
        }
    }
    Ok(())
}

/// The server that announced itself on this machine, and its token file.
fn found_server(checks: &mut Vec<Check>) -> Option<Discovered> {
    let found = match discovery::read() {
        Ok(found) => found?,
        Err(error) => {
            let file = discovery::path().unwrap_or_default();
            checks.push(Check::not(
                Level::Warn,
                "discovery",
                format!("failed to read {}: {error}", file.display()),
                "delete the file; a standalone server writes it when it starts",
            ));
            return None;
        }
    };
    let file = found.token_file.display();
    match std::fs::metadata(&found.token_file) {
        Ok(metadata) => {
            let mode = metadata.permissions().mode() & 0o777;
            let for_others = mode & 0o077;
            if for_others == 0 {
                checks.push(Check::ok(
                    "token",
                    format!("{file} is readable by its owner only"),
                ));
            } else {
                checks.push(Check::not(
                    Level::Warn,
                    "token",
                    format!("{file} has mode {mode:03o}: others on this machine can read it"),
                    format!("chmod 600 {file}"),
                ));
            }
        }
        Err(error) => checks.push(Check::not(
            Level::Warn,
            "token",
            format!("failed to look at {file}: {error}"),
            "run this as the user who started the server, or set CUELINE_TOKEN",
        )),
    }
    Some(found)
}

async fn server(api: &Api, checks: &mut Vec<Check>) {
    if let Err(failure) = api.ready().await {
        checks.push(Check::failed("server", failure));
        return;
    }
    let before = SystemClock.now_ms();
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
    match api.get(&["executors"], &[]).await.and_then(read) {
        Ok(executors) => {
            executors_there(&executors, checks);
            handlers_there(api, &executors, checks).await;
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
        Check::not(Level::Warn, "server", text, hint)
    }
}

fn clock(server: Timestamp, before: i64, after: i64) -> Check {
    // The server looked at its clock somewhere between the two.
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
        CLOCK_WARN_MS..CLOCK_BAD_MS => Check::not(Level::Warn, "clock", text, hint),
        _ => Check::not(Level::Bad, "clock", text, hint),
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
        Some(behind) if behind > BEHIND_WARN_MS => Check::not(
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

fn executors_there(found: &Executors, checks: &mut Vec<Check>) {
    let live = found.executors.iter().filter(|view| is_live(view)).count();
    for view in &found.executors {
        if !view.executor.heartbeat.gone && view.silent_ms > DEAD_AFTER_MS {
            checks.push(Check::not(
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
        Check::not(
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

/// Whether each enabled job has a live executor that can run it.
async fn handlers_there(api: &Api, found: &Executors, checks: &mut Vec<Check>) {
    let query = [("limit", MOST_JOBS.to_string())];
    let page: JobPage = match api.get(&["jobs"], &query).await.and_then(read) {
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
    checks.push(Check::not(
        Level::Warn,
        "jobs",
        format!("no live executor can run {named}{more}"),
        "start an executor of that group with that handler, or allow the kind with --allow",
    ));
}

/// Whether there is room, and the right to write.
async fn data_dir(data: PathBuf, checks: &mut Vec<Check>) {
    let shown = data.display().to_string();
    let looked = tokio::task::spawn_blocking(move || {
        let probe = data.join(format!(".doctor-{}", std::process::id()));
        std::fs::write(&probe, b"x").and_then(|()| std::fs::remove_file(&probe))?;
        let space = nix::sys::statvfs::statvfs(&data)?;
        std::io::Result::Ok(
            space
                .blocks_available()
                .saturating_mul(space.fragment_size()),
        )
    });
    let free = match looked.await {
        Ok(Ok(free)) => free,
        Ok(Err(error)) => {
            checks.push(Check::not(
                Level::Bad,
                "data",
                format!("{shown} cannot be written to: {error}"),
                "give the server's user the right to write there, or name another directory",
            ));
            return;
        }
        Err(_) => return,
    };
    let text = format!("{shown} is writable, {} MiB free", free >> 20);
    let hint = "make room on that file system: without it the server cannot write";
    checks.push(match free {
        0..FREE_BAD_BYTES => Check::not(Level::Bad, "data", text, hint),
        FREE_BAD_BYTES..FREE_WARN_BYTES => Check::not(Level::Warn, "data", text, hint),
        _ => Check::ok("data", text),
    });
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::{Level, clock};

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
