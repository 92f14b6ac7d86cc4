//! Retention: for how long, and how many, runs of a job are kept with their logs and outputs.
//!
//! A job and its group may each have a rule. Each field comes from the job, or else from the group, or else from the
//! server. So a job can change one field and leave the others to its group.

use serde::{Deserialize, Serialize};

use crate::duration::DurationMs;

/// The shortest time for which anything is kept. Reports about a run may come some time after its end.
pub const MIN_KEPT: DurationMs = DurationMs::secs(60);

/// The most runs of a job that a rule may keep.
pub const MAX_KEPT_RUNS: u32 = 1_000_000;

/// A rule of a job or of a group. What it leaves open is decided elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Retention {
    /// The time from the end of a run to its deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<DurationMs>,
    /// The number of the job's newest runs that are kept. Older ones are deleted once they have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<u32>,
    /// The time from the end of a run to the deletion of its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<DurationMs>,
    /// The time from the end of a run to the deletion of its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<DurationMs>,
}

impl Retention {
    /// Whether it leaves everything open.
    pub const fn is_empty(&self) -> bool {
        self.age.is_none() && self.runs.is_none() && self.logs.is_none() && self.outputs.is_none()
    }
}

/// Where a value of a [`RetentionOfJob`] comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetentionSource {
    /// The definition of the job.
    Job,
    /// The rule of its group.
    Group,
    /// The settings of the server.
    Server,
}

/// A value, and where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub from: RetentionSource,
}

/// What applies to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionOfJob {
    /// The time from the end of a run to its deletion.
    pub age: Kept<DurationMs>,
    /// The number of its newest runs that are kept; `None` for no such limit.
    pub runs: Option<Kept<u32>>,
    /// The time from the end of a run to the deletion of its log, no longer than `age`.
    pub logs: Kept<DurationMs>,
    /// The time from the end of a run to the deletion of its output, no longer than `age`.
    pub outputs: Kept<DurationMs>,
}

/// What applies to a job with this rule, in a group with that one, on a server that keeps runs for `server_age`.
pub fn retention_of_job(
    job: &Retention,
    group: &Retention,
    server_age: DurationMs,
) -> RetentionOfJob {
    let server = Kept {
        value: server_age,
        from: RetentionSource::Server,
    };
    let age = first(job.age, group.age).unwrap_or(server);
    // Nothing outlives its run.
    let within_age =
        |own: Option<Kept<DurationMs>>| own.filter(|own| own.value < age.value).unwrap_or(age);
    RetentionOfJob {
        age,
        runs: first(job.runs, group.runs),
        logs: within_age(first(job.logs, group.logs)),
        outputs: within_age(first(job.outputs, group.outputs)),
    }
}

fn first<T>(job: Option<T>, group: Option<T>) -> Option<Kept<T>> {
    let of_job = job.map(|value| Kept {
        value,
        from: RetentionSource::Job,
    });
    let of_group = group.map(|value| Kept {
        value,
        from: RetentionSource::Group,
    });
    of_job.or(of_group)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: DurationMs = DurationMs::secs(86_400);

    fn days(n: u64) -> DurationMs {
        DurationMs::millis(n * DAY.as_millis())
    }

    #[test]
    fn each_field_comes_from_the_job_or_the_group_or_the_server() {
        let job = Retention {
            logs: Some(days(3)),
            ..Retention::default()
        };
        let group = Retention {
            age: Some(days(30)),
            logs: Some(days(10)),
            runs: Some(100),
            ..Retention::default()
        };
        let of = retention_of_job(&job, &group, days(7));
        assert_eq!(
            (of.age.value, of.age.from),
            (days(30), RetentionSource::Group)
        );
        assert_eq!(
            (of.logs.value, of.logs.from),
            (days(3), RetentionSource::Job)
        );
        assert_eq!(
            (of.outputs.value, of.outputs.from),
            (days(30), RetentionSource::Group)
        );
        assert_eq!(
            of.runs.map(|runs| (runs.value, runs.from)),
            Some((100, RetentionSource::Group))
        );

        let none = Retention::default();
        let of = retention_of_job(&none, &none, days(7));
        assert_eq!(
            (of.age.value, of.age.from),
            (days(7), RetentionSource::Server)
        );
        assert_eq!(of.runs, None);
        assert_eq!(of.logs, of.age);
    }

    #[test]
    fn a_log_goes_with_its_run_at_the_latest() {
        let job = Retention {
            age: Some(days(1)),
            ..Retention::default()
        };
        let group = Retention {
            logs: Some(days(5)),
            ..Retention::default()
        };
        let of = retention_of_job(&job, &group, days(7));
        assert_eq!(
            (of.logs.value, of.logs.from),
            (days(1), RetentionSource::Job)
        );
    }
}
