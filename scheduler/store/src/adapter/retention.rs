//! Retention: which runs a sweep looks at, where it stops, and what a prune by hand may delete.
//!
//! A sweep reads windows of runs by id. The statement of an adapter says what has expired in a window; the [`Sweep`]
//! collects it up to the limit of the call, and says whether another window is wanted.

use std::collections::BTreeMap;

use cueline_model::{Actor, DurationMs, GroupName, JobName, Retention, RunId, Timestamp};

use super::audit::runs_pruned;
use super::convert::{parse_name, to_i64, to_u64};
use crate::{
    ErrorKind, ExpireRequest, Expired, GroupRetention, MAX_GROUP_RULES, MAX_PRUNED_AT_ONCE,
    NewAuditEntry, PruneRequest, Pruned, PrunedOfJob, StoreError, is_within,
};

/// The number of runs that one statement looks at.
pub const WINDOW: usize = 5_000;

/// The most windows of one call. The next call continues, so that no call takes long.
pub const MAX_WINDOWS: usize = 10;

/// The columns of a rule: age, number of runs, age of logs, age of outputs. Times are in milliseconds.
pub type RuleColumns = (Option<i64>, Option<i64>, Option<i64>, Option<i64>);

/// The columns of a rule.
pub fn rule_columns(rule: &Retention) -> RuleColumns {
    let time = |time: Option<DurationMs>| time.map(|time| to_i64(time.as_millis()));
    (
        time(rule.age),
        rule.runs.map(i64::from),
        time(rule.logs),
        time(rule.outputs),
    )
}

/// A group with the columns of its rule.
pub type GroupRow = (String, Option<i64>, Option<i64>, Option<i64>, Option<i64>);

/// The rule of a group from its row.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for an unreadable name.
pub fn group_retention(
    (group, age, runs, logs, outputs): GroupRow,
) -> Result<GroupRetention, StoreError> {
    let time = |ms: Option<i64>| ms.map(|ms| DurationMs::millis(to_u64(ms)));
    Ok(GroupRetention {
        group: parse_name(&group)?,
        rule: Retention {
            age: time(age),
            runs: runs.map(|runs| u32::try_from(runs).unwrap_or(u32::MAX)),
            logs: time(logs),
            outputs: time(outputs),
        },
    })
}

/// Refuses a further group with a rule.
///
/// # Errors
///
/// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict).
pub fn room_for_rule(others: i64) -> Result<(), StoreError> {
    if to_u64(others) < MAX_GROUP_RULES as u64 {
        return Ok(());
    }
    let message = format!(
        "failed to set the retention of a group: {MAX_GROUP_RULES} groups have a rule already; delete one that is not needed"
    );
    Err(StoreError::new(ErrorKind::Conflict, message))
}

/// What all rules of jobs and groups say together: the shortest time, the longest age, and whether one has a number of
/// runs.
pub type RulesRow = (Option<i64>, Option<i64>, Option<bool>);

/// The times that a sweep compares with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// The present time.
    pub now: Timestamp,
    /// Runs without a rule that ended before have expired.
    pub before: Timestamp,
    /// Of a run that was written at this time or later, nothing has expired.
    pub until: Timestamp,
    /// Whether a job or a group has a rule.
    pub has_rules: bool,
    /// Whether something may expire earlier than a run without a rule.
    pub has_shorter: bool,
    /// Whether a run may stay longer than a run without a rule.
    pub has_longer: bool,
}

impl Horizon {
    /// The times for runs that are kept for `age_ms`, and for these rules.
    pub fn new(now: Timestamp, age_ms: u64, (shortest, longest, by_number): RulesRow) -> Self {
        let before = now.minus_ms(age_ms);
        let by_number = by_number == Some(true);
        let shorter = shortest.map(to_u64).filter(|shortest| *shortest < age_ms);
        let until = if by_number {
            Timestamp::from_millis(i64::MAX)
        } else {
            shorter.map_or(before, |shorter| now.minus_ms(shorter))
        };
        Self {
            now,
            before,
            until,
            has_rules: shortest.is_some() || by_number,
            has_shorter: by_number || shorter.is_some(),
            has_longer: longest.is_some_and(|longest| to_u64(longest) > age_ms),
        }
    }
}

/// What a statement found in a window of runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Window {
    /// The highest id of the window; `None` if it is empty.
    pub last: Option<i64>,
    /// When the first run of the window was written.
    pub earliest: Option<i64>,
    /// Expired runs, in any order.
    pub runs: Vec<i64>,
    /// Other runs with an expired log.
    pub logs: Vec<i64>,
    /// Other runs with an expired output.
    pub outputs: Vec<i64>,
}

/// How a sweep goes on after a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// With the next window of the same range of ids.
    Window,
    /// Nothing behind this window of the range has expired.
    EndOfRange,
    /// In the next call.
    NextCall,
}

/// A part of a sweep. Ids ascend with the time of writing within a range.
#[derive(Debug)]
pub struct Sweep {
    limit: usize,
    windows: usize,
    position: i64,
    is_over: bool,
    /// Runs to delete.
    pub runs: Vec<i64>,
    /// Runs whose logs are to be deleted.
    pub logs: Vec<i64>,
    /// Runs whose outputs are to be deleted.
    pub outputs: Vec<i64>,
}

impl Sweep {
    /// The part that a request asks for.
    pub fn new(request: &ExpireRequest) -> Self {
        Self {
            limit: request.limit.max(1),
            windows: MAX_WINDOWS,
            position: request.after.map_or(0, |run| run.0),
            is_over: false,
            runs: Vec::new(),
            logs: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// Windows have higher ids than this.
    pub const fn position(&self) -> i64 {
        self.position
    }

    /// Goes on with a range that begins behind this id.
    pub fn enter_range(&mut self, first: i64) {
        self.position = self.position.max(first.saturating_sub(1));
    }

    /// Notes that there is no further range.
    pub const fn end(&mut self) {
        self.is_over = true;
    }

    /// Takes a window that begins at [`position`](Self::position). Nothing that was written at `until` or later has
    /// expired.
    pub fn take(&mut self, mut window: Window, until: Timestamp) -> Step {
        self.windows = self.windows.saturating_sub(1);
        for found in [&mut window.runs, &mut window.logs, &mut window.outputs] {
            found.sort_unstable();
        }
        let Some(last) = window.last else {
            return Step::EndOfRange;
        };
        // The first one beyond a limit is where the next call begins.
        let beyond = [
            (&self.runs, &window.runs),
            (&self.logs, &window.logs),
            (&self.outputs, &window.outputs),
        ]
        .into_iter()
        .filter_map(|(taken, found)| found.get(self.limit.saturating_sub(taken.len())))
        .min()
        .copied();
        let end = beyond.unwrap_or(i64::MAX);
        let within = |found: Vec<i64>| found.into_iter().filter(move |id| *id < end);
        self.runs.extend(within(window.runs));
        self.logs.extend(within(window.logs));
        self.outputs.extend(within(window.outputs));
        if beyond.is_some() {
            self.position = end - 1;
            return Step::NextCall;
        }
        self.position = last;
        if window
            .earliest
            .is_none_or(|earliest| earliest >= until.as_millis())
        {
            Step::EndOfRange
        } else if self.windows == 0 {
            Step::NextCall
        } else {
            Step::Window
        }
    }

    /// Whether there is something to delete.
    pub const fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.logs.is_empty() && self.outputs.is_empty()
    }

    /// What the part deletes.
    pub fn expired(&self) -> Expired {
        Expired {
            runs: self.runs.len() as u64,
            logs: self.logs.len() as u64,
            outputs: self.outputs.len() as u64,
            next: (!self.is_over).then_some(RunId(self.position)),
        }
    }
}

/// A run to delete by hand: id, name and group of its job, and whether it has ended with all shards of its fire.
pub type PruneRow = (i64, String, String, bool);

/// What a prune by hand deletes.
#[derive(Debug)]
pub struct PrunePlan {
    /// The runs to delete.
    pub runs: Vec<i64>,
    /// The answer.
    pub pruned: Pruned,
    /// The entries of the audit log.
    pub entries: Vec<NewAuditEntry>,
}

/// Decides which of the runs are deleted.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for an unreadable name.
pub fn plan_prune(
    request: &PruneRequest,
    rows: Vec<PruneRow>,
    by: &Actor,
) -> Result<PrunePlan, StoreError> {
    let mut live = Vec::new();
    let mut of_jobs: BTreeMap<JobName, (GroupName, Vec<i64>)> = BTreeMap::new();
    for (run, job, group, has_ended) in rows {
        let (job, group): (JobName, GroupName) = (parse_name(&job)?, parse_name(&group)?);
        let is_asked_for = request.namespace.as_ref().is_none_or(|own| job.is_in(own))
            && is_within(request.within.as_deref(), &group);
        if !is_asked_for {
            continue;
        }
        if has_ended {
            of_jobs
                .entry(job)
                .or_insert_with(|| (group, Vec::new()))
                .1
                .push(run);
        } else {
            live.push(RunId(run));
        }
    }
    live.sort_unstable();
    let entries = of_jobs
        .iter()
        .map(|(job, (group, runs))| runs_pruned(by, job, group, runs));
    let entries = entries.collect();
    let deleted = of_jobs.iter().map(|(job, (_, runs))| PrunedOfJob {
        job: job.clone(),
        runs: runs.len() as u64,
    });
    let pruned = Pruned {
        deleted: deleted.collect(),
        live,
    };
    let mut runs: Vec<i64> = of_jobs.into_values().flat_map(|(_, runs)| runs).collect();
    runs.sort_unstable();
    Ok(PrunePlan {
        runs,
        pruned,
        entries,
    })
}

/// Refuses too many runs.
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
pub fn check_prune(request: &PruneRequest) -> Result<(), StoreError> {
    let given = request.runs.len();
    if given <= MAX_PRUNED_AT_ONCE {
        return Ok(());
    }
    Err(StoreError::invalid(format!(
        "failed to prune runs: {given} are given; give at most {MAX_PRUNED_AT_ONCE} at once"
    )))
}

#[cfg(test)]
mod tests {
    use cueline_model::{AccessScope, ActorKind, Namespace};

    use super::*;

    fn request(limit: usize) -> ExpireRequest {
        ExpireRequest {
            age_ms: 0,
            limit,
            after: None,
        }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_sweep_stops_at_its_limit_and_goes_on_behind_what_it_took() {
        let mut sweep = Sweep::new(&request(3));
        let window = |last, runs: &[i64], logs: &[i64]| Window {
            last: Some(last),
            earliest: Some(0),
            runs: runs.to_vec(),
            logs: logs.to_vec(),
            outputs: Vec::new(),
        };
        assert_eq!(sweep.take(window(10, &[1, 4], &[2]), at(5)), Step::Window);
        assert_eq!(sweep.position(), 10);
        let step = sweep.take(window(20, &[11, 14, 16], &[12, 15]), at(5));
        assert_eq!(step, Step::NextCall);
        assert_eq!(
            (sweep.runs.as_slice(), sweep.logs.as_slice()),
            (&[1, 4, 11][..], &[2, 12][..])
        );
        assert_eq!(sweep.expired().next, Some(RunId(13)), "14 is the next one");
        assert_eq!((sweep.expired().runs, sweep.expired().logs), (3, 2));
    }

    #[test]
    fn a_sweep_ends_where_nothing_has_expired() {
        let mut sweep = Sweep::new(&request(10));
        let young = Window {
            last: Some(9),
            earliest: Some(5),
            ..Window::default()
        };
        assert_eq!(sweep.take(young.clone(), at(6)), Step::Window);
        assert_eq!(sweep.take(young.clone(), at(5)), Step::EndOfRange);
        assert_eq!(sweep.take(Window::default(), at(5)), Step::EndOfRange);
        sweep.end();
        assert_eq!(sweep.expired().next, None);
        let mut long = Sweep::new(&request(10));
        let steps = (0..MAX_WINDOWS).map(|_| long.take(young.clone(), at(6)));
        assert_eq!(steps.last(), Some(Step::NextCall), "a call is short");
    }

    #[test]
    fn the_horizon_follows_the_shortest_and_the_longest_rule() {
        let day = 86_400_000;
        let now = at(100 * day);
        let week = 7 * u64::try_from(day).expect("positive");
        let none = Horizon::new(now, week, (None, None, None));
        assert_eq!((none.before, none.until), (at(93 * day), at(93 * day)));
        assert!(!none.has_rules && !none.has_shorter && !none.has_longer);
        let long = Horizon::new(now, week, (Some(30 * day), Some(30 * day), Some(false)));
        assert_eq!(long.until, at(93 * day));
        assert!(long.has_rules && !long.has_shorter && long.has_longer);
        let logs = Horizon::new(now, week, (Some(day), None, Some(false)));
        assert_eq!(logs.until, at(99 * day));
        assert!(logs.has_shorter && !logs.has_longer);
        let number = Horizon::new(now, week, (None, None, Some(true)));
        assert!(number.until > now && number.has_rules && number.has_shorter);
    }

    #[test]
    fn a_prune_stays_within_its_namespace_and_its_scopes() {
        let by = Actor::new(ActorKind::User, "ann");
        let rows = || {
            let row =
                |id, job: &str, group: &str, ended| (id, job.to_owned(), group.to_owned(), ended);
            vec![
                row(4, "b", "g", true),
                row(1, "a", "g", true),
                row(2, "a", "g", false),
                row(3, "team/a", "team/g", true),
                row(5, "c", "h", true),
            ]
        };
        let request = PruneRequest {
            runs: Vec::new(),
            namespace: Some(Namespace::default()),
            within: Some(vec![AccessScope::Group("g".parse().expect("a name"))]),
        };
        let plan = plan_prune(&request, rows(), &by).expect("readable");
        assert_eq!(plan.runs, [1, 4]);
        assert_eq!(plan.pruned.live, [RunId(2)]);
        assert_eq!((plan.pruned.count(), plan.entries.len()), (2, 2));
        let all = plan_prune(&PruneRequest::default(), rows(), &by).expect("readable");
        assert_eq!(all.runs, [1, 3, 4, 5]);
    }

    #[test]
    fn a_rule_survives_its_columns() {
        let rule = Retention {
            age: Some(DurationMs::secs(60)),
            runs: Some(5),
            logs: None,
            outputs: Some(DurationMs::secs(90)),
        };
        let (age, runs, logs, outputs) = rule_columns(&rule);
        let read = group_retention(("g".to_owned(), age, runs, logs, outputs));
        assert_eq!(read.expect("a name").rule, rule);
    }
}
