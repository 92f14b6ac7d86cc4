//! Looks at what raises an alarm without the end of a run: late runs, backlogs, and groups without a live executor.
//!
//! One scheduler does it. It looks at the jobs of such rules only, and finds them again when jobs or rules have changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cueline_model::alarm::{LevelFound, groups_to_watch, levels};
use cueline_model::{AlarmBook, GroupName, Job, JobId, Timestamp};
use cueline_runtime::{Duty, Next};
use cueline_store::{CountedJob, JobBrief, JobsFingerprint, NotedLevels, Store, StoreError};

use crate::database_clock::DatabaseClock;
use crate::liveness::broker_reach::BrokerReach;
use crate::liveness::registry::Registry;
use crate::liveness::self_check::SelfCheck;

/// Checks the conditions of alarm rules.
pub(crate) struct CheckAlarms {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) self_check: Arc<SelfCheck>,
    pub(crate) broker_reach: Arc<BrokerReach>,
    /// The name of this node, which it keeps across restarts. So a node that starts again goes on at once.
    pub(crate) holder: String,
    pub(crate) watched: Watched,
    /// Whether the store may have conditions that are noted as holding.
    pub(crate) has_levels: bool,
    /// Since when this node has seen no live executor of a group.
    pub(crate) absent: BTreeMap<GroupName, Timestamp>,
}

/// The jobs that rules ask about.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    of: Option<(i64, JobsFingerprint)>,
    found_at: Option<Timestamp>,
    jobs: Vec<Arc<Job>>,
}

const EVERY: Duration = Duration::from_secs(5);
/// A scheduler that is gone is followed by another one after this time.
const LEASE_MS: u64 = 20_000;
/// Jobs read in one statement.
const PAGE: usize = 1_000;
/// The most jobs that are looked at. Further ones are not, and a warning says so.
const MAX_WATCHED: usize = 50_000;
/// Jobs may change all the time. They are found again at most this often.
const FOUND_EVERY_MS: i64 = 30_000;

impl Duty for CheckAlarms {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "alarm checks"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        let book = self.store.alarm_book().await?;
        let asks = book.has_levels();
        if !asks && !self.has_levels {
            self.absent.clear();
            return Ok(Next::After(EVERY));
        }
        // A node without heartbeats cannot tell which groups have an executor. Its lease ends, and another one checks.
        let is_cut_off = self.broker_reach.is_cut_off(self.clock.now());
        if is_cut_off || !self.store.hold_alarm_checks(&self.holder, LEASE_MS).await? {
            // The scheduler with the lease may note conditions, and be lost before it has ended them.
            self.has_levels |= asks;
            self.absent.clear();
            return Ok(Next::After(EVERY));
        }
        let now = self.clock.now();
        self.find_jobs(&book, now).await?;
        let found = self.levels(&book, now).await?;
        let NotedLevels { raised, noted } = self.store.note_alarm_levels(&found).await?;
        if raised > 0 {
            tracing::info!(raised, "conditions of alarm rules began to hold");
        }
        self.has_levels = noted > 0;
        Ok(Next::After(EVERY))
    }
}

impl CheckAlarms {
    async fn levels(
        &mut self,
        book: &AlarmBook,
        now: Timestamp,
    ) -> Result<Vec<LevelFound>, StoreError> {
        let fire_rules = self.store.fire_rules().await?;
        let watched = self.watched.jobs.iter().map(AsRef::as_ref);
        let jobs: Vec<&Job> = watched
            .filter(|job: &&Job| !fire_rules.pauses(&job.spec, now))
            .collect();
        let groups = groups_to_watch(book, jobs.iter().copied());
        if self.self_check.has_all_heartbeats(now) {
            let live = self.registry.live_groups();
            self.absent
                .retain(|group, _| groups.contains(group) && !live.contains(group));
            for group in groups.difference(&live) {
                self.absent.entry(group.clone()).or_insert(now);
            }
        } else {
            // No group counts as without an executor for a time in which this node may have missed heartbeats.
            self.absent.clear();
        }
        let mut loads = BTreeMap::new();
        for part in jobs.chunks(PAGE) {
            let counted = part.iter().map(|job| CountedJob {
                id: job.id,
                jitter: job.spec.jitter,
            });
            let counted: Vec<CountedJob> = counted.collect();
            loads.extend(self.store.job_loads(&counted).await?);
        }
        Ok(levels(book, jobs, &loads, &self.absent, now))
    }

    /// Finds the jobs that rules ask about, if rules or jobs have changed. Reads no job if no rule asks: a scheduler starts
    /// with a look for conditions that an ended one has noted, just when the most runs are due.
    async fn find_jobs(&mut self, book: &AlarmBook, now: Timestamp) -> Result<(), StoreError> {
        if !book.has_levels() {
            self.watched = Watched::default();
            return Ok(());
        }
        let fingerprint = self.store.jobs_fingerprint().await?;
        let of = Some((book.revision, fingerprint));
        let rules_are_known = self.watched.of.as_ref().map(|of| of.0) == Some(book.revision);
        let is_recent = self
            .watched
            .found_at
            .is_some_and(|at| (0..FOUND_EVERY_MS).contains(&now.since_ms(at)));
        if self.watched.of == of || (rules_are_known && is_recent) {
            return Ok(());
        }
        let mut jobs = Vec::new();
        let mut after = None;
        loop {
            let briefs = self.store.job_briefs(after, PAGE).await?;
            let Some(last) = briefs.last().map(|brief| brief.id) else {
                break;
            };
            after = Some(last);
            let may_be_watched = |brief: &&JobBrief| {
                brief.enabled && book.may_ask_for_levels(&brief.name, &brief.group)
            };
            let briefs = briefs.iter().filter(may_be_watched);
            let ids: Vec<JobId> = briefs.map(|brief| brief.id).collect();
            if ids.is_empty() {
                continue;
            }
            let definitions = self.store.definitions(&ids).await?;
            jobs.extend(definitions.into_iter().filter(|job| {
                book.about(&job.spec)
                    .any(|rule| rule.spec.asks_for_levels())
            }));
            if jobs.len() > MAX_WATCHED {
                tracing::warn!(
                    most = MAX_WATCHED,
                    "alarm rules ask about too many jobs; late, backlog and no_executor look at the oldest ones only. Give the rules jobs, groups or labels"
                );
                jobs.truncate(MAX_WATCHED);
                break;
            }
        }
        self.watched = Watched {
            of,
            found_at: Some(now),
            jobs,
        };
        Ok(())
    }
}
