//! Fire rules: their cached form, which jobs a change is about, and the new plans of these jobs.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use cueline_model::exclusion::{NextDue, next_due, passed};
use cueline_model::schedule::zones::ZoneDigest;
use cueline_model::{
    Calendar, CalendarName, CalendarSpec, Exclusions, FireRules, Job, JobSpec, MaintenanceWindow,
    Namespace, Schedule, Shard, Timestamp, WindowSpec,
};

use super::convert::corrupt;
use super::definitions::JobsById;
use super::new_run::NewRun;
use crate::{
    Change, ErrorKind, MAX_CALENDARS_OF_NAMESPACE, NodeId, PlannedRun, Precondition, Revision,
    SkippedFires, StoreError,
};

/// How long before its time a job is planned, in milliseconds, where the engine does not say it.
const CLAIMED_AHEAD_MS: u64 = 1_500;

/// The most fire times that are looked at for a job when a change ends the wait of its excluded ones.
const MAX_COUNTED: usize = 200_000;

/// The most jobs that a refusal names.
const MAX_NAMED: usize = 5;

/// The fire rules of a store: revision, calendars (version, definition) and windows (id, definition, end by a person), the
/// latter two as JSON lists.
pub type RulesRow = (i64, String, String);

/// A stored calendar: id, version, definition.
pub type CalendarRow = (i64, i64, String);

/// The newest fire rules that this process has read.
#[derive(Debug, Default)]
pub struct RulesCache(Mutex<Arc<FireRules>>);

impl RulesCache {
    /// The cached rules, if they are at least as new as `revision`.
    pub fn at_least(&self, revision: i64) -> Option<Arc<FireRules>> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (cached.revision >= revision).then(|| Arc::clone(&cached))
    }

    /// The cached rules, if they have just this revision.
    pub fn exactly(&self, revision: i64) -> Option<Arc<FireRules>> {
        self.at_least(revision)
            .filter(|rules| rules.revision == revision)
    }

    /// Keeps committed rules, unless newer ones are cached.
    pub fn keep(&self, rules: &Arc<FireRules>) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.revision < rules.revision {
            *cached = Arc::clone(rules);
        }
    }

    /// Forgets the rules, because the database may issue their revisions again.
    pub fn clear(&self) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *cached = Arc::default();
    }
}

/// Reads fire rules. One that this program cannot read excludes nothing.
///
/// # Errors
///
/// [`ErrorKind::Broken`] if the lists are not JSON.
pub fn parse_rules((revision, calendars, windows): RulesRow) -> Result<FireRules, StoreError> {
    let unreadable = |e| corrupt("failed to read calendars and windows", e);
    let calendars: Vec<(i64, String)> = serde_json::from_str(&calendars).map_err(unreadable)?;
    let windows: Vec<(i64, String, Option<i64>)> =
        serde_json::from_str(&windows).map_err(unreadable)?;
    let mut rules = FireRules {
        revision,
        ..FireRules::default()
    };
    for (version, definition) in calendars {
        match serde_json::from_str::<CalendarSpec>(&definition) {
            Ok(spec) => {
                let name = spec.name.clone();
                rules
                    .calendars
                    .insert(name, Arc::new(Calendar::new(spec, version)));
            }
            Err(error) => {
                tracing::error!(%error, "failed to read a calendar; it excludes nothing. Upgrade this node, or apply the calendar again");
            }
        }
    }
    for (id, definition, ended_at) in windows {
        match serde_json::from_str::<WindowSpec>(&definition) {
            Ok(spec) => rules.windows.push(Arc::new(MaintenanceWindow {
                id,
                spec,
                ended_at: ended_at.map(Timestamp::from_millis),
            })),
            Err(error) => {
                tracing::error!(window = id, %error, "failed to read a maintenance window; it excludes nothing. Upgrade this node, or delete the window");
            }
        }
    }
    rules.windows.sort_by_key(|window| window.id);
    Ok(rules)
}

/// The columns of a job's schedule that follow from its definition and the fire rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DueColumns {
    /// When it is planned next.
    pub next_fire_at: Option<i64>,
    /// The first excluded fire time that is not accounted for.
    pub excluded_from: Option<i64>,
    /// The revision of the rules, or 0 if no rule is about the job.
    pub rules: i64,
    /// When the last pause of its scope ends. Until then nothing of the job is dispatched again, apart from manual runs.
    pub paused_until: Option<i64>,
}

impl DueColumns {
    /// The columns of a job whose first fire time after a change is `next`.
    pub fn new(spec: &JobSpec, rules: &FireRules, next: Option<Timestamp>) -> Self {
        let exclusions = rules.of(spec);
        if exclusions.is_empty() {
            return Self {
                next_fire_at: next.map(Timestamp::as_millis),
                ..Self::default()
            };
        }
        let next = next.filter(|_| spec.is_enabled());
        let NextDue { at, excluded_from } =
            next_due(spec, &exclusions, next, None, false, CLAIMED_AHEAD_MS);
        Self {
            next_fire_at: at.map(Timestamp::as_millis),
            excluded_from: excluded_from.map(Timestamp::as_millis),
            rules: rules.revision,
            paused_until: exclusions.paused_until().map(Timestamp::as_millis),
        }
    }
}

/// The schedule of a job as stored: id, next fire time, first excluded fire time, whether it is enabled.
pub type DueRow = (i64, Option<i64>, Option<i64>, bool);

/// The plan of a job after a change of what it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replanned {
    /// The job.
    pub job: i64,
    /// Its new columns.
    pub columns: DueColumns,
}

/// New plans of jobs at `now`, after a change of the rules at `changed_at`. A fire time that is due already stays due. The
/// runs that were written ahead of their fire time have to be deleted in the same transaction.
///
/// A job with excluded fire times is planned again from the change on, because some of them may not be excluded any more.
/// Those before the change are [accounted for](account_excluded) by the rules `before`.
pub fn replan(
    rows: &[DueRow],
    jobs: &JobsById,
    (before, rules): (&FireRules, &FireRules),
    (changed_at, now): (Timestamp, Timestamp),
) -> Vec<Replanned> {
    let plan = |&(id, next, excluded_from, enabled): &DueRow| {
        let spec = &jobs.get(&id)?.spec;
        let is_fixed_delay = matches!(spec.schedule, Schedule::FixedDelay { .. });
        let stored = next.map(Timestamp::from_millis);
        let since = if excluded_from.is_some() {
            changed_at
        } else {
            now
        };
        let next = match stored {
            _ if !enabled => None,
            Some(at) if is_fixed_delay => Some(at),
            Some(at) if at <= since && excluded_from.is_some() => {
                let free = first_free(spec, &before.of(spec), at, since);
                free.or_else(|| spec.next_fire(since))
            }
            Some(at) if at <= since => Some(at),
            _ => spec.next_fire(since),
        };
        Some(Replanned {
            job: id,
            columns: DueColumns::new(spec, rules, next),
        })
    };
    rows.iter().filter_map(plan).collect()
}

/// The first fire time from `from` to `until` that is not excluded. It is still due after a change. Excluded ones before it are
/// accounted for with the change, because the rule that excludes them may be gone after it.
fn first_free(
    spec: &JobSpec,
    exclusions: &Exclusions,
    from: Timestamp,
    until: Timestamp,
) -> Option<Timestamp> {
    let first = spec.next_fire(from.minus_ms(1));
    let times = std::iter::successors(first, |last| spec.next_fire(*last));
    let mut passed = times.take_while(|at| *at <= until).take(MAX_COUNTED);
    passed.find(|at| !exclusions.exclude(*at))
}

/// The schedule of a job with excluded fire times that are not accounted for: id, version, the first of them, when it is
/// planned next, the number of its runs.
pub type ExcludedRow = (i64, i64, i64, Option<i64>, i64);

/// The `skipped` runs for excluded fire times that have passed. A change of a job writes them before it takes effect.
pub fn account_excluded(
    rows: &[ExcludedRow],
    jobs: &JobsById,
    rules: &FireRules,
    now: Timestamp,
) -> Vec<NewRun> {
    let run = |&(id, _, from, next, run_count): &ExcludedRow| {
        let job = jobs.get(&id)?;
        let (spec, exclusions) = (&job.spec, rules.of(&job.spec));
        let next = next.map(Timestamp::from_millis);
        let until = match next.filter(|next| *next <= now) {
            Some(next) if !matches!(spec.schedule, Schedule::FixedDelay { .. }) => {
                first_free(spec, &exclusions, next, now)
            }
            due => due,
        };
        let until = until.unwrap_or(now.plus_ms(1)).as_millis();
        skipped_run(job, &exclusions, from, until, run_count)
    };
    rows.iter().filter_map(run).collect()
}

fn skipped_run(
    job: &Arc<Job>,
    exclusions: &Exclusions,
    from: i64,
    until: i64,
    run_count: i64,
) -> Option<NewRun> {
    let (from, until) = (Timestamp::from_millis(from), Timestamp::from_millis(until));
    let passed = passed(&job.spec, exclusions, from, until)?;
    let planned = PlannedRun {
        fire_at: passed.last,
        due_at: passed.last,
        shard: Shard::whole(),
        executor: None,
        skipped: Some(SkippedFires {
            missed: false,
            reason: passed.reason(),
            count: passed.count,
            since: passed.since,
        }),
    };
    Some(NewRun::planned(job, run_count, NodeId(0), planned))
}

/// What a change of fire rules is about.
#[derive(Debug)]
pub enum About<'a> {
    /// Jobs that use one of these calendars.
    Calendars(&'a BTreeSet<CalendarName>),
    /// Jobs whose fire times depend on one of these time zones.
    Zones(&'a BTreeSet<String>, &'a FireRules),
}

impl About<'_> {
    /// The only namespace whose jobs it can be about; `None` for all.
    pub fn namespace(&self) -> Option<Namespace> {
        match self {
            Self::Calendars(names) => {
                let mut namespaces = names.iter().map(CalendarName::namespace);
                let first = namespaces.next()?;
                namespaces.all(|other| other == first).then_some(first)
            }
            Self::Zones(..) => None,
        }
    }

    /// Whether it is about this job.
    pub fn has(&self, spec: &JobSpec) -> bool {
        match self {
            Self::Calendars(names) => spec.calendar_names().any(|name| names.contains(&name)),
            Self::Zones(zones, rules) => {
                spec.schedule.zones().any(|zone| zones.contains(zone))
                    || rules.of(spec).zones().any(|zone| zones.contains(zone))
            }
        }
    }
}

/// Fails if a job names a calendar that does not exist.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] with the job and the calendar.
pub fn require_calendars(specs: &[JobSpec], rules: &FireRules) -> Result<(), StoreError> {
    for spec in specs {
        for name in spec.calendar_names() {
            if !rules.calendars.contains_key(&name) {
                return Err(StoreError::invalid(format!(
                    "failed to apply jobs: calendars of {:?}: there is no calendar {:?}; apply the calendar first, or with the job",
                    spec.name.as_str(),
                    name.as_str()
                )));
            }
        }
    }
    Ok(())
}

/// The change of one calendar.
#[derive(Debug)]
pub struct CalendarChange<'a> {
    /// The new definition.
    pub spec: &'a CalendarSpec,
    /// The text of the new definition.
    pub definition: String,
    /// The stored calendar.
    pub before: Option<CalendarRow>,
    /// What happens.
    pub change: Change,
}

/// Compares calendars with the stored ones, and checks the condition of each. `others` has the numbers of further calendars
/// of the namespaces.
///
/// # Errors
///
/// [`ErrorKind::Precondition`], and [`ErrorKind::Conflict`] for too many calendars.
#[expect(clippy::implicit_hasher, reason = "both stores use the usual one")]
pub fn change_calendars<'a>(
    specs: &'a [CalendarSpec],
    stored: &HashMap<CalendarName, CalendarRow>,
    present: &HashMap<Namespace, usize>,
    condition: &Precondition,
) -> Result<Vec<CalendarChange<'a>>, StoreError> {
    let mut new: HashMap<Namespace, usize> = HashMap::new();
    let mut changes = Vec::with_capacity(specs.len());
    for spec in specs {
        let before = stored.get(&spec.name).cloned();
        let revision = before.as_ref().map(|(id, version, _)| Revision {
            id: *id,
            version: *version,
        });
        condition.require("change the calendar", spec.name.as_str(), revision)?;
        let definition = serde_json::to_string(spec)
            .map_err(|e| corrupt("failed to write a calendar's definition", e))?;
        let change = match &before {
            None => {
                *new.entry(spec.name.namespace()).or_default() += 1;
                Change::Created
            }
            // Equal texts of another program may mean other things, so the meaning counts.
            Some((_, _, text))
                if serde_json::from_str(text).is_ok_and(|old: CalendarSpec| old == *spec) =>
            {
                Change::Unchanged
            }
            Some(_) => Change::Updated,
        };
        changes.push(CalendarChange {
            spec,
            definition,
            before,
            change,
        });
    }
    for (namespace, new) in new {
        let all = present.get(&namespace).copied().unwrap_or_default() + new;
        if all > MAX_CALENDARS_OF_NAMESPACE {
            return Err(StoreError::new(
                ErrorKind::Conflict,
                format!(
                    "failed to apply calendars: namespace {namespace} would have {all}; at most {MAX_CALENDARS_OF_NAMESPACE} are kept. Delete some, or put their dates into one calendar"
                ),
            ));
        }
    }
    Ok(changes)
}

/// Returns an error if jobs use the calendar that is deleted.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] with the names of the jobs.
pub fn refuse_used_calendar(name: &CalendarName, jobs: &[Arc<Job>]) -> Result<(), StoreError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let mut names: Vec<&str> = jobs.iter().map(|job| job.spec.name.as_str()).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {more} more")
    };
    Err(StoreError::new(
        ErrorKind::Conflict,
        format!(
            "failed to delete calendar {:?}: it is used by {}{more}",
            name.as_str(),
            names.join(", ")
        ),
    ))
}

/// The zones with other rules than the stored ones. A zone that is not stored has changed nothing yet.
pub fn changed_zones(stored: &[(String, i64)], zones: &[ZoneDigest]) -> BTreeSet<String> {
    let stored: HashMap<&str, i64> = stored.iter().map(|(n, d)| (n.as_str(), *d)).collect();
    let changed = |zone: &&ZoneDigest| {
        let before = stored.get(zone.name.as_str());
        before.is_some_and(|digest| *digest != zone.digest)
    };
    zones
        .iter()
        .filter(changed)
        .map(|zone| zone.name.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(fields: &serde_json::Value) -> JobSpec {
        let mut whole = json!({ "name": "j", "group": "default", "handler": { "native": "x" } });
        for (key, value) in fields.as_object().expect("a table") {
            whole[key] = value.clone();
        }
        serde_json::from_value(whole).expect("a valid definition")
    }

    fn rules(revision: i64) -> Arc<FireRules> {
        Arc::new(FireRules {
            revision,
            ..FireRules::default()
        })
    }

    #[test]
    fn a_cache_keeps_the_newest_rules() {
        let cache = RulesCache::default();
        assert!(cache.at_least(1).is_none());
        cache.keep(&rules(3));
        cache.keep(&rules(2));
        assert_eq!(cache.at_least(3).map(|r| r.revision), Some(3));
        assert!(cache.at_least(4).is_none());
        cache.clear();
        assert!(cache.at_least(1).is_none());
    }

    #[test]
    fn a_fire_time_that_is_due_stays_due() {
        let job = Arc::new(Job {
            id: cueline_model::JobId(1),
            version: 1,
            spec: spec(&json!({ "schedule": { "every": "10s" } })),
        });
        let jobs: JobsById = [(1, job)].into();
        let at = |next, enabled| {
            let rows = [(1, next, None, enabled)];
            let (now, none) = (Timestamp::from_millis(25_000), FireRules::default());
            replan(&rows, &jobs, (&none, &none), (now, now))[0]
                .columns
                .next_fire_at
        };
        assert_eq!(at(Some(20_000), true), Some(20_000));
        assert_eq!(at(Some(99_000), true), Some(30_000));
        assert_eq!(at(None, true), Some(30_000));
        assert_eq!(at(Some(20_000), false), None);
    }

    #[test]
    fn only_a_zone_with_other_rules_has_changed() {
        let zone = |name: &str, digest| ZoneDigest {
            name: name.to_owned(),
            digest,
        };
        let stored = [("A".to_owned(), 1), ("B".to_owned(), 2)];
        let now = [zone("A", 1), zone("B", 3), zone("C", 4)];
        let changed: Vec<String> = changed_zones(&stored, &now).into_iter().collect();
        assert_eq!(changed, ["B"]);
    }
}
