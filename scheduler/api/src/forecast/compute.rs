//! Counts the fires of a day. Pure, and bounded in its steps.
//!
//! Jobs with the same schedule have the same fire times, so these are computed once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cueline_model::{GroupName, Job, JobName, JobSpec, Schedule, Timestamp};

use crate::view::{Collision, Forecast, ForecastMinute, GroupForecast};

const MINUTES: usize = 1_440;
const SECONDS: usize = 86_400;
const DAY_MS: u64 = 86_400_000;

/// The most fire times that are computed, and the most that are counted one by one. Some seconds of one processor.
const MAX_STEPS: usize = 20_000_000;

/// The most groups, minutes, collisions and names of a collision in the answer.
const MAX_GROUPS: usize = 100;
const MOST: usize = 10;

/// The most fire times before a second that may be due in it because of their jitter.
const MAX_JITTERED: usize = 1_000;

/// Several fires at one time: a schedule below a second has one time for each second.
struct Fires {
    at: Timestamp,
    count: u64,
}

/// Jobs with the same fire times.
struct SameTimes<'a> {
    jobs: Vec<&'a Arc<Job>>,
}

struct Counts {
    from: Timestamp,
    groups: BTreeMap<GroupName, Vec<u64>>,
    /// The jobs that are due in each second.
    due: Vec<u32>,
}

/// The fires of the 24 hours from `from` on, which is the start of a minute.
pub(super) fn forecast(jobs: &[Arc<Job>], from: Timestamp) -> Forecast {
    forecast_within(jobs, from, MAX_STEPS)
}

pub(super) fn forecast_within(jobs: &[Arc<Job>], from: Timestamp, steps: usize) -> Forecast {
    let sets = sets(jobs);
    let mut counts = Counts {
        from,
        groups: BTreeMap::new(),
        due: vec![0; SECONDS],
    };
    let (mut steps, mut left_out) = (steps, 0);
    for set in &sets {
        if steps == 0 {
            left_out += set.jobs.len() as u64;
            continue;
        }
        let Some(times) = set.jobs.first().map(|job| times(&job.spec, from, steps)) else {
            continue;
        };
        steps = steps.saturating_sub(times.len());
        left_out += count(&mut counts, set, &times, &mut steps);
    }
    answer(jobs, &sets, counts, left_out)
}

fn sets(jobs: &[Arc<Job>]) -> Vec<SameTimes<'_>> {
    let mut index: HashMap<String, usize> = HashMap::new();
    let mut sets: Vec<SameTimes<'_>> = Vec::new();
    for job in jobs {
        let key = key(&job.spec);
        let at = *index.entry(key).or_insert_with(|| {
            sets.push(SameTimes { jobs: Vec::new() });
            sets.len() - 1
        });
        if let Some(set) = sets.get_mut(at) {
            set.jobs.push(job);
        }
    }
    // The sets of the most jobs come first, in case the steps do not suffice.
    sets.sort_by_key(|set| std::cmp::Reverse(set.jobs.len()));
    sets
}

/// What the fire times of a definition depend on: all of it but what is known to have no effect.
fn key(spec: &JobSpec) -> String {
    let mut value = serde_json::to_value(spec).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        for field in [
            "name",
            "namespace",
            "group",
            "description",
            "jitter",
            "misfire",
            "route",
            "block",
            "scope",
            "backlog",
            "timeout",
            "kill_grace",
            "retry",
            "on_lost",
            "fence",
            "dispatch_deadline",
            "priority",
            "handler",
            "params",
            "labels",
            "enabled",
        ] {
            fields.remove(field);
        }
    }
    value.to_string()
}

fn times(spec: &JobSpec, from: Timestamp, most: usize) -> Vec<Fires> {
    let to = from.plus_ms(DAY_MS);
    let every = match &spec.schedule {
        Schedule::FixedRate { every, .. } => every.as_millis(),
        Schedule::FixedDelay { after } => after.as_millis(),
        _ => 1_000,
    };
    let mut times = Vec::new();
    let mut next = spec.next_fire(from.minus_ms(1));
    while let Some(at) = next.filter(|at| *at < to) {
        if times.len() >= most {
            break;
        }
        let count = 1_000_u64.checked_div(every).unwrap_or(1).max(1);
        times.push(Fires { at, count });
        // One time stands for the fires of a whole second.
        let after = at.plus_ms((count - 1) * every);
        next = spec.next_fire(after);
    }
    times
}

/// Counts the fires of a set. Returns the number of jobs for which the steps did not suffice.
fn count(counts: &mut Counts, set: &SameTimes<'_>, times: &[Fires], steps: &mut usize) -> u64 {
    let mut together: BTreeMap<&GroupName, u32> = BTreeMap::new();
    let mut left_out = 0;
    for job in &set.jobs {
        if job.spec.jitter.as_millis() == 0 {
            *together.entry(&job.spec.group).or_default() += 1;
        } else if *steps < times.len() {
            left_out += 1;
        } else {
            *steps -= times.len();
            counts.add(&job.spec.group, 1, times, |at| job.spec.due_at(job.id, at));
        }
    }
    for (group, jobs) in together {
        if *steps < times.len() {
            left_out += u64::from(jobs);
        } else {
            *steps -= times.len();
            counts.add(group, jobs, times, |at| at);
        }
    }
    left_out
}

impl Counts {
    fn add(
        &mut self,
        group: &GroupName,
        jobs: u32,
        times: &[Fires],
        due_at: impl Fn(Timestamp) -> Timestamp,
    ) {
        let minutes = self.groups.entry(group.clone());
        let minutes = minutes.or_insert_with(|| vec![0; MINUTES]);
        for fires in times {
            let second = due_at(fires.at).since_ms(self.from) / 1_000;
            let Ok(second) = usize::try_from(second) else {
                continue;
            };
            // What jitter moves behind the last minute is not in the forecast.
            if let Some(minute) = minutes.get_mut(second / 60) {
                *minute += fires.count * u64::from(jobs);
            }
            if let Some(due) = self.due.get_mut(second) {
                *due += jobs;
            }
        }
    }
}

fn answer(jobs: &[Arc<Job>], sets: &[SameTimes<'_>], counts: Counts, left_out: u64) -> Forecast {
    let from = counts.from;
    let mut minutes = vec![0_u64; MINUTES];
    let mut groups = Vec::new();
    for (group, of_group) in counts.groups {
        for (total, fires) in minutes.iter_mut().zip(&of_group) {
            *total += fires;
        }
        groups.push(GroupForecast {
            group,
            fires: of_group.iter().sum(),
            minutes: of_group,
        });
    }
    groups.retain(|group| group.fires > 0);
    groups.sort_by_key(|group| std::cmp::Reverse(group.fires));
    groups.truncate(MAX_GROUPS);
    let busiest = highest(minutes.iter().copied(), 1);
    let collisions = highest(counts.due.iter().map(|due| u64::from(*due)), 2);
    let collisions = collisions.into_iter().map(|(second, due)| {
        let at = from.plus_ms(second as u64 * 1_000);
        Collision {
            at,
            jobs: due,
            names: names(sets, at),
        }
    });
    Forecast {
        from,
        to: from.plus_ms(DAY_MS),
        jobs: jobs.len() as u64,
        left_out,
        fires: minutes.iter().sum(),
        groups,
        busiest: busiest
            .into_iter()
            .map(|(minute, fires)| ForecastMinute {
                at: from.plus_ms(minute as u64 * 60_000),
                fires,
            })
            .collect(),
        collisions: collisions.collect(),
        minutes,
    }
}

/// The highest values that are at least `least`, with their positions; of equal ones the first.
fn highest(values: impl Iterator<Item = u64>, least: u64) -> Vec<(usize, u64)> {
    let mut found: Vec<(usize, u64)> = values
        .enumerate()
        .filter(|(_, value)| *value >= least)
        .collect();
    found.sort_by_key(|(at, value)| (std::cmp::Reverse(*value), *at));
    found.truncate(MOST);
    found
}

/// The first jobs by name that are due in the second that begins at `at`.
fn names(sets: &[SameTimes<'_>], at: Timestamp) -> Vec<JobName> {
    let mut names = Vec::new();
    for set in sets {
        let (jittered, others): (Vec<&Arc<Job>>, Vec<&Arc<Job>>) = set
            .jobs
            .iter()
            .partition(|job| job.spec.jitter.as_millis() > 0);
        // The others have the same answer.
        if others.first().is_some_and(|job| is_due(job, at)) {
            names.extend(others.iter().map(|job| &job.spec.name));
        }
        let due = jittered.iter().filter(|job| is_due(job, at));
        names.extend(due.map(|job| &job.spec.name));
    }
    names.sort_unstable();
    names.into_iter().take(MOST).cloned().collect()
}

fn is_due(job: &Job, at: Timestamp) -> bool {
    let (spec, end) = (&job.spec, at.plus_ms(1_000));
    let first = spec.next_fire(at.minus_ms(spec.jitter.as_millis() + 1));
    std::iter::successors(first, |last| spec.next_fire(*last))
        .take_while(|fire| *fire < end)
        .take(MAX_JITTERED)
        .map(|fire| spec.due_at(job.id, fire))
        .any(|due| due >= at && due < end)
}
