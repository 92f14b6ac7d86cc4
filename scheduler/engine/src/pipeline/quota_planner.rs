//! Plans with the quotas of waiting runs. It is used only while a namespace has such a quota.

use std::collections::HashMap;

use cueline_model::exclusion::Due;
use cueline_model::{Exclusions, ExecutorName, Job, Namespace, Timestamp};
use cueline_store::{Plan, Planner, WaitingQuota};

use super::plan::SchedulePlanner;

/// The schedule planner, with the quotas of some namespaces.
pub(super) struct QuotaPlanner<'a> {
    pub(super) schedule: SchedulePlanner,
    pub(super) waiting: &'a HashMap<Namespace, WaitingQuota>,
}

impl Planner for QuotaPlanner<'_> {
    fn plan(&self, job: &Job, due: Timestamp, now: Timestamp, live: &[ExecutorName]) -> Plan {
        self.schedule.plan(job, due, now, live)
    }

    fn plan_excluding(
        &self,
        job: &Job,
        due: Due,
        exclusions: &Exclusions,
        now: Timestamp,
        live: &[ExecutorName],
    ) -> (Plan, Option<Timestamp>) {
        self.schedule
            .plan_excluding(job, due, exclusions, now, live)
    }

    fn holds(&self, job: &Job, silent: &[ExecutorName]) -> bool {
        self.schedule.holds(job, silent)
    }

    fn waiting_quota(&self, job: &Job) -> Option<WaitingQuota> {
        self.waiting.get(&job.spec.name.namespace()).copied()
    }
}
