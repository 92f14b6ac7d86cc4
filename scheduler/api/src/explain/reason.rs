//! The reasons why a job or a run does not run now, each with its sentence and the thing to look at. Pure.

use cueline_model::{
    After, AfterOn, ExecutorName, GroupName, JobName, Namespace, RunId, RunState, Timestamp,
};

use super::limits::LimitReached;

/// The most executors that one sentence names. The number of the others follows.
const MAX_NAMED: usize = 3;

/// Why an executor does not take a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// It has sent no heartbeat for this long.
    Silent { for_ms: u64 },
    /// Its process has stopped in order.
    Stopped { for_ms: u64 },
    /// Schedulers give it no triggers.
    Refused { why: String },
    /// It stops, and takes no more triggers.
    Draining,
    /// It does not announce the handler.
    LacksHandler,
    /// It has not the labels that the job asks for.
    LacksLabels { selector: String },
    /// The job is for another executor.
    NotNamed,
}

/// Why a job or a run does not run now. A new reason needs its word and its sentence here, and its place in `decide`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reason {
    /// The run has ended.
    Ended {
        state: RunState,
        at: Option<Timestamp>,
        message: Option<String>,
    },
    /// Its cancellation was requested and has not taken effect.
    Stopping { executor: Option<ExecutorName> },
    /// The handler is at work.
    Running {
        executor: Option<ExecutorName>,
        for_ms: u64,
    },
    /// The due time is in the future.
    NotDue { at: Timestamp },
    /// A further attempt waits for its time.
    Retry {
        attempt: u32,
        at: Timestamp,
        after: Option<String>,
    },
    /// No executor of the group can run the job.
    NoExecutor {
        group: GroupName,
        handler: String,
        obstacles: Vec<(ExecutorName, Obstacle)>,
        until: Timestamp,
    },
    /// The run is for one executor, and that one takes no triggers.
    ExecutorUnavailable {
        executor: ExecutorName,
        obstacle: Obstacle,
    },
    /// It is due, executors are there, and no scheduler has dispatched it.
    NotDispatched { for_ms: u64 },
    /// It is due, and all executors that could take it run as many handlers as they may.
    NoRoom {
        group: GroupName,
        executors: u64,
        for_ms: u64,
    },
    /// Its trigger is being published.
    Dispatching { executor: Option<ExecutorName> },
    /// Runs of the same lane are at work.
    LaneBusy {
        executor: ExecutorName,
        policy: &'static str,
        running: u64,
        for_ms: u64,
        ahead: u64,
    },
    /// The executor runs as many handlers as it may.
    ExecutorFull {
        executor: ExecutorName,
        running: u64,
        capacity: u32,
    },
    /// The trigger is in the queue, and nothing visible is in its way.
    Queued {
        executor: Option<ExecutorName>,
        for_ms: u64,
        ahead: u64,
    },
    /// The schedule of the job is paused.
    Paused {
        by: Option<String>,
        since: Option<Timestamp>,
    },
    /// The job is paused together with others.
    PausedTogether {
        pause: i64,
        by: String,
        why: String,
        since: Timestamp,
        until: Option<Timestamp>,
    },
    /// The next time of the schedule is excluded.
    Excluded {
        at: Timestamp,
        is_calendar: bool,
        cause: String,
        next: Option<Timestamp>,
    },
    /// Fires are skipped because of the quota of waiting runs.
    Quota {
        namespace: Namespace,
        limit: u64,
        waiting: u64,
    },
    /// The lane that all executors of the group share is busy, or an older run of it comes first.
    LaneOfGroup {
        policy: &'static str,
        behind: RunId,
        executor: Option<ExecutorName>,
        at_executors: u64,
        ahead: u64,
    },
    /// A limit of its job has no place.
    Limit(LimitReached),
    /// The job has no schedule of its own, and runs after others.
    WaitsForParent { after: After },
    /// The job runs only when somebody triggers it.
    Manual,
    /// The job runs when the scheduler starts.
    Startup,
    /// The next fire time counts from the end of the present run.
    WaitsForEnd,
    /// The first fire time is after `start_at`, which is in the future.
    NotStarted {
        start_at: Timestamp,
        next: Timestamp,
    },
    /// The job fires at that time.
    NextFire { at: Timestamp },
    /// The schedule has no fire time any more.
    NeverAgain { end_at: Option<Timestamp> },
}

impl Reason {
    /// The word for the reason in the API.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Ended { state, .. } => state.as_str(),
            Self::Stopping { .. } => "stopping",
            Self::Running { .. } => "running",
            Self::NotDue { .. } => "not_due",
            Self::Retry { .. } => "retry",
            Self::NoExecutor { .. } => "no_executor",
            Self::ExecutorUnavailable { .. } => "executor_unavailable",
            Self::NotDispatched { .. } => "not_dispatched",
            Self::NoRoom { .. } => "no_room",
            Self::Dispatching { .. } => "dispatching",
            Self::LaneBusy { .. } => "lane_busy",
            Self::ExecutorFull { .. } => "executor_full",
            Self::Queued { .. } => "queued",
            Self::Paused { .. } | Self::PausedTogether { .. } => "paused",
            Self::Excluded {
                is_calendar: true, ..
            } => "calendar",
            Self::Excluded { .. } => "window",
            Self::Quota { .. } => "quota",
            Self::LaneOfGroup { .. } => "lane_of_group",
            Self::Limit(limit) => limit.word(),
            Self::WaitsForParent { .. } => "waits_for_parent",
            Self::Manual => "manual",
            Self::Startup => "startup",
            Self::WaitsForEnd => "waits_for_end",
            Self::NotStarted { .. } => "not_started",
            Self::NextFire { .. } => "next_fire",
            Self::NeverAgain { .. } => "never_again",
        }
    }

    /// Whether a run waits for what normally is there, so that the sentence begins with "is waiting".
    pub(super) fn is_waiting(&self) -> bool {
        !matches!(
            self,
            Self::Ended { .. } | Self::Running { .. } | Self::Stopping { .. } | Self::NotDue { .. }
        )
    }

    /// The reason in words, without the subject.
    #[expect(clippy::too_many_lines, reason = "one sentence for each reason")]
    pub(super) fn text(&self) -> String {
        match self {
            Self::Ended { state, at, message } => ended(*state, *at, message.as_deref()),
            Self::Stopping { executor } => format!(
                "its cancellation was requested, and {} has not confirmed it",
                named(executor.as_ref())
            ),
            Self::Running { executor, for_ms } => {
                format!(
                    "running on {} for {}",
                    named(executor.as_ref()),
                    took(*for_ms)
                )
            }
            Self::NotDue { at } => format!("due at {at}"),
            Self::Retry { attempt, at, after } => {
                let after = after.as_ref().map(|text| format!(", after: {text}"));
                format!(
                    "attempt {attempt} starts at {at}{}",
                    after.unwrap_or_default()
                )
            }
            Self::NoExecutor {
                group,
                handler,
                obstacles,
                until,
            } => no_executor(group, handler, obstacles, *until),
            Self::ExecutorUnavailable { executor, obstacle } => {
                format!(
                    "it is for executor {executor} alone, which {}",
                    obstacle.text()
                )
            }
            Self::NotDispatched { for_ms } => format!(
                "due for {}; executors are alive, and no scheduler has dispatched it yet",
                took(*for_ms)
            ),
            Self::NoRoom {
                group,
                executors,
                for_ms,
            } => format!(
                "due for {}; the {executors} executors of group {} that can run it are full, and the first one with room gets it",
                took(*for_ms),
                group.local()
            ),
            Self::Dispatching { executor } => {
                format!(
                    "its trigger is being published to {}",
                    named(executor.as_ref())
                )
            }
            Self::LaneBusy {
                executor,
                policy,
                running,
                for_ms,
                ahead,
            } => {
                let others = if *running > 1 {
                    format!(", {running} at work")
                } else {
                    String::new()
                };
                format!(
                    "lane busy on {executor} for {} ({policy}{others}), {}",
                    took(*for_ms),
                    triggers_ahead(*ahead)
                )
            }
            Self::ExecutorFull {
                executor,
                running,
                capacity,
            } => format!("{executor} runs {running} handlers, and may run {capacity} at once"),
            Self::Queued {
                executor,
                for_ms,
                ahead,
            } => format!(
                "in the queue of {} for {}, {}; no start was reported",
                named(executor.as_ref()),
                took(*for_ms),
                triggers_ahead(*ahead)
            ),
            Self::Paused { by, since } => {
                let by = by
                    .as_ref()
                    .map(|by| format!(" by {by}"))
                    .unwrap_or_default();
                let since = since.map(|at| format!(" since {at}")).unwrap_or_default();
                format!("its schedule is paused{by}{since}")
            }
            Self::PausedTogether {
                pause,
                by,
                why,
                since,
                until,
            } => {
                let until = match until {
                    Some(at) => format!("until {at}"),
                    None => "until somebody resumes it".to_owned(),
                };
                format!("paused by {by} since {since} {until}: {why} (pause {pause})")
            }
            Self::Excluded {
                at, cause, next, ..
            } => {
                let next = match next {
                    Some(next) => format!("it fires next at {next}"),
                    None => "no later fire time is free".to_owned(),
                };
                format!("its fire time {at} is {cause}; {next}")
            }
            Self::Quota {
                namespace,
                limit,
                waiting,
            } => format!(
                "{waiting} runs of namespace {namespace} wait, and its quota max_waiting_runs is {limit}; fires are skipped until fewer wait"
            ),
            Self::LaneOfGroup {
                policy,
                behind,
                executor,
                at_executors,
                ahead,
            } => lane_of_group(policy, *behind, executor.as_ref(), *at_executors, *ahead),
            Self::Limit(limit) => limit.text(),
            Self::WaitsForParent { after } => waits_for(after),
            Self::Manual => "it never fires by itself; it runs when it is triggered".to_owned(),
            Self::Startup => "it fires when the scheduler starts".to_owned(),
            Self::WaitsForEnd => "its delay begins at the end of the present run".to_owned(),
            Self::NotStarted { start_at, next } => {
                format!("its schedule begins at {start_at}, and fires first at {next}")
            }
            Self::NextFire { at } => format!("it fires next at {at}"),
            Self::NeverAgain { end_at } => {
                let end = end_at.map(|at| format!("; the schedule ended at {at}"));
                format!("it never fires again{}", end.unwrap_or_default())
            }
        }
    }

    /// The command that shows more.
    pub(super) fn look_at(&self, job: &JobName, run: Option<i64>) -> Option<String> {
        let job = job.local();
        Some(match self {
            Self::NoExecutor { group, .. } | Self::NoRoom { group, .. } => {
                format!("cueline executor list --group {}", group.local())
            }
            Self::ExecutorUnavailable { executor, .. } | Self::ExecutorFull { executor, .. } => {
                format!("cueline executor list --name {executor}")
            }
            Self::LaneBusy { .. } => format!("cueline run list --job {job} --state running"),
            Self::NotDispatched { .. } => "cueline doctor".to_owned(),
            Self::Queued { .. } | Self::Dispatching { .. } => "cueline queue list".to_owned(),
            Self::Paused { .. } => format!("cueline job history {job}"),
            Self::PausedTogether { .. } => "cueline pause list".to_owned(),
            Self::Excluded { is_calendar, .. } => {
                let list = if *is_calendar { "calendar" } else { "window" };
                format!("cueline {list} list")
            }
            Self::Quota { namespace, .. } => format!("cueline namespace show {namespace}"),
            Self::LaneOfGroup { behind, .. } => format!("cueline explain {behind}"),
            Self::Limit(limit) => match limit.run() {
                Some(run) => format!("cueline explain {run}"),
                None => format!("cueline job show {job}"),
            },
            Self::WaitsForParent { after } => {
                let parent = after.names().first().map_or("", JobName::local);
                format!("cueline explain {parent}")
            }
            Self::Manual => format!("cueline trigger {job}"),
            Self::NotStarted { .. } | Self::NextFire { .. } => format!("cueline job next {job}"),
            Self::NeverAgain { .. } | Self::Startup => format!("cueline job show {job}"),
            Self::WaitsForEnd => format!("cueline run list --job {job}"),
            Self::Ended { .. }
            | Self::Stopping { .. }
            | Self::Running { .. }
            | Self::NotDue { .. }
            | Self::Retry { .. } => format!("cueline run show {}", run?),
        })
    }
}

impl Obstacle {
    fn text(&self) -> String {
        match self {
            Self::Silent { for_ms } => format!("has been silent for {}", took(*for_ms)),
            Self::Stopped { for_ms } => format!("stopped {} ago", took(*for_ms)),
            Self::Refused { why } => format!("gets no triggers: {why}"),
            Self::Draining => "is draining".to_owned(),
            Self::LacksHandler => "does not announce the handler".to_owned(),
            Self::LacksLabels { selector } => format!("has not the labels {selector}"),
            Self::NotNamed => "is not the executor that the job names".to_owned(),
        }
    }
}

fn ended(state: RunState, at: Option<Timestamp>, message: Option<&str>) -> String {
    let what = match state {
        RunState::Succeeded => "it succeeded",
        RunState::Failed => "it failed",
        RunState::TimedOut => "it passed its time limit and was stopped",
        RunState::Lost => "its executor was lost",
        RunState::Unroutable => "no executor took it in time",
        RunState::Cancelled => "it was cancelled",
        RunState::Discarded => "it was discarded, because its lane was busy or full",
        RunState::Covered => "a newer trigger replaced it",
        RunState::Skipped => "it was skipped",
        RunState::Scheduled | RunState::Dispatching | RunState::Queued | RunState::Running => {
            "it has not ended"
        }
    };
    let at = at.map(|at| format!(" at {at}")).unwrap_or_default();
    let why = message.map(|text| format!(": {text}")).unwrap_or_default();
    format!("{what}{at}{why}")
}

/// What a job without a schedule of its own waits for.
fn waits_for(after: &After) -> String {
    let names: Vec<&str> = after.names().iter().map(JobName::local).collect();
    let which = match (names.len(), after.waits_for_all()) {
        (1, _) => "job ",
        (_, true) => "all of the jobs ",
        (_, false) => "one of the jobs ",
    };
    let ends = if names.len() > 1 && after.waits_for_all() {
        "have"
    } else {
        "has"
    };
    let end = match after.on {
        AfterOn::Success => "succeeded",
        AfterOn::Failure => "failed",
        AfterOn::Always => "succeeded or failed",
    };
    format!("it runs after {which}{} {ends} {end}", names.join(", "))
}

fn no_executor(
    group: &GroupName,
    handler: &str,
    obstacles: &[(ExecutorName, Obstacle)],
    until: Timestamp,
) -> String {
    let mut shown: Vec<String> = obstacles
        .iter()
        .take(MAX_NAMED)
        .map(|(name, obstacle)| format!("{name} {}", obstacle.text()))
        .collect();
    match obstacles.len() {
        0 => shown.push("the group has no executor".to_owned()),
        n if n > MAX_NAMED => shown.push(format!("{} more", n - MAX_NAMED)),
        _ => {}
    }
    format!(
        "no live executor of group {} can run {handler} ({}); it ends unroutable after {until}",
        group.local(),
        shown.join(", ")
    )
}

fn lane_of_group(
    policy: &str,
    behind: RunId,
    executor: Option<&ExecutorName>,
    at_executors: u64,
    ahead: u64,
) -> String {
    if at_executors == 0 {
        return format!(
            "run {behind} of its lane comes first ({policy}), {ahead} older due in all"
        );
    }
    let at = executor.map_or_else(String::new, |executor| format!(" at {executor}"));
    let others = match at_executors {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let older = match ahead {
        0 => String::new(),
        1 => "; 1 older run waits before it".to_owned(),
        n => format!("; {n} older runs wait before it"),
    };
    format!("behind run {behind}{at}{others} in the lane of its group ({policy}){older}")
}

fn named(executor: Option<&ExecutorName>) -> String {
    executor.map_or_else(|| "its executor".to_owned(), ToString::to_string)
}

fn triggers_ahead(ahead: u64) -> String {
    match ahead {
        1 => "1 trigger ahead".to_owned(),
        n => format!("{n} triggers ahead"),
    }
}

/// A duration: `21 ms`, `7 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`.
pub(super) fn took(ms: u64) -> String {
    let pair = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {small_unit}"),
    };
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3_600 => pair(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => pair(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}
