//! The next fire time of fixed-delay jobs, an effect of the end of their runs.

use std::collections::BTreeMap;

use cueline_model::Timestamp;

use super::definitions::JobsById;

/// The latest end time of any ended run, per job.
pub fn latest_ends(ended: &[(i64, Timestamp)]) -> BTreeMap<i64, Timestamp> {
    let mut latest: BTreeMap<i64, Timestamp> = BTreeMap::new();
    for &(job, at) in ended {
        let last = latest.entry(job).or_insert(at);
        *last = at.max(*last);
    }
    latest
}

/// Next fire times of idle fixed-delay jobs, counted from the end of their last run. `None` if the schedule is
/// exhausted. `idle` are job ids with versions. Jobs whose definition cannot be read are left out.
pub fn next_fires_after(
    ends: &BTreeMap<i64, Timestamp>,
    idle: &[(i64, i64)],
    jobs: &JobsById,
) -> Vec<(i64, Option<Timestamp>)> {
    idle.iter()
        .filter_map(|(id, _)| Some((*id, jobs.get(id)?.spec.next_fire(*ends.get(id)?))))
        .collect()
}
