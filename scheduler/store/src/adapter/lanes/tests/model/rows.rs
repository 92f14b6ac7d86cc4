//! The rows of the live runs, and what a statement sees of them.

use cueline_model::{AttemptId, ExecutorName, JobId, RunId, Timestamp};

use super::super::{DispatchRequest, LaneFacts, LaneGroup, LaneKey, LanePlace, LanePosition};

pub(super) const LANES: usize = 2;
/// Nodes ask for runs that are due within this time.
pub(super) const AHEAD_MS: i64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Scheduled,
    Dispatching,
    Queued,
    Running,
    Ended,
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "columns of a row")]
pub(super) struct Run {
    pub(super) id: i64,
    pub(super) lane: usize,
    /// Its time in the lane.
    pub(super) at: i64,
    pub(super) due_at: i64,
    pub(super) attempt: u32,
    pub(super) state: State,
    pub(super) executor: u64,
    /// The group that the attempt was marked for, if the job has moved to another one since then.
    pub(super) published_group: Option<u32>,
    pub(super) claimed_by: Option<u32>,
    pub(super) maybe_published: bool,
    pub(super) cancel_requested: bool,
    /// What no store knows: a node may publish the attempt, or has done so.
    pub(super) is_accepted: bool,
    /// What no store knows: the trigger is at the executor.
    pub(super) is_published: bool,
}

impl Run {
    pub(super) fn place(&self) -> LanePosition {
        (self.at, self.id)
    }

    pub(super) fn attempt_id(&self) -> AttemptId {
        AttemptId {
            run: RunId(self.id),
            attempt: self.attempt,
        }
    }

    /// Whether the attempt counts in its lane.
    pub(super) fn is_live(&self) -> bool {
        (State::Dispatching..=State::Running).contains(&self.state)
    }

    pub(super) fn is_dispatching(&self) -> bool {
        self.state == State::Dispatching
    }

    pub(super) fn end(&mut self) {
        self.state = State::Ended;
        self.is_accepted = false;
    }

    /// The next attempt waits, at the same place if `at` is that of before. Any node may claim it.
    pub(super) fn schedule_again(&mut self, at: i64, due_at: i64) {
        if self.cancel_requested {
            return self.end();
        }
        self.attempt += 1;
        (self.at, self.due_at) = (at, due_at);
        self.unmark();
        self.claimed_by = None;
    }

    fn unmark(&mut self) {
        self.state = State::Scheduled;
        self.maybe_published = false;
        self.is_accepted = false;
        self.is_published = false;
    }

    /// Returns a marked attempt to `scheduled`, or ends it.
    pub(super) fn take_back(&mut self, claimed_by: Option<u32>) {
        assert!(!self.is_accepted, "it may be published: {self:?}");
        if self.cancel_requested {
            return self.end();
        }
        self.unmark();
        self.claimed_by = claimed_by;
    }
}

#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) slots: Option<u32>,
    /// The group of the job. It is also the job's version: each change moves the job.
    pub(super) group: u32,
}

impl Lane {
    /// The group and the name of the executor of an attempt.
    pub(super) fn executor(&self, run: &Run) -> (u32, u64) {
        (run.published_group.unwrap_or(self.group), run.executor)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Rows {
    pub(super) runs: Vec<Run>,
    pub(super) lanes: [Lane; LANES],
    pub(super) now: i64,
}

/// Who asks about a lane, and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) node: u32,
    /// The requests of the statement.
    pub(super) batch: &'a [DispatchRequest],
    /// Whether they are marked.
    pub(super) is_after_marks: bool,
}

impl Look<'_> {
    pub(super) fn has(&self, run: &Run) -> bool {
        let mut runs = self.batch.iter().map(|request| request.attempt.run.0);
        runs.any(|id| id == run.id)
    }
}

pub(super) fn name(executor: u64) -> ExecutorName {
    format!("e{executor}").parse().expect("a name")
}

fn index(run: RunId) -> usize {
    usize::try_from(run.0).expect("an index")
}

pub(super) fn lane_of(request: &DispatchRequest) -> usize {
    let place = request.lane.as_ref().expect("a lane");
    usize::try_from(place.lane.job.0).expect("an index")
}

impl Rows {
    /// The run, if it is still at that attempt.
    pub(super) fn at_attempt(&mut self, id: AttemptId) -> Option<&mut Run> {
        let run = &mut self.runs[index(id.run)];
        (run.attempt == id.attempt).then_some(run)
    }

    pub(super) fn of_lane(&self, lane: usize) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.lane == lane)
    }

    /// `asks_again` if the node has published the attempt without an answer.
    pub(super) fn request(&self, run: &Run, executor: u64, asks_again: bool) -> DispatchRequest {
        let lane = &self.lanes[run.lane];
        DispatchRequest {
            attempt: run.attempt_id(),
            job_version: i64::from(lane.group),
            executor: name(executor),
            lane: Some(LanePlace {
                lane: LaneKey {
                    job: JobId(i64::try_from(run.lane).expect("small")),
                    shard: 0,
                },
                slots: lane.slots,
                at: Timestamp::from_millis(run.at),
                due_at: Timestamp::from_millis(run.due_at),
                maybe_published: asks_again || run.maybe_published,
            }),
            limits: None,
        }
    }

    pub(super) fn has_version(&self, request: &DispatchRequest) -> bool {
        i64::from(self.lanes[lane_of(request)].group) == request.job_version
    }

    /// Whether a run is due and waits, for an attempt that is due at `until`.
    pub(super) fn waits(&self, run: &Run, until: i64) -> bool {
        let is_open = run.state == State::Scheduled && !run.cancel_requested;
        is_open && run.due_at <= until.max(self.now)
    }

    /// What a full look at the lane of a group finds.
    fn full_facts(&self, group: &LaneGroup<'_>, look: Look<'_>) -> LaneFacts {
        let lane = usize::try_from(group.lane.job.0).expect("an index");
        let live = || self.of_lane(lane).filter(|run| run.is_live());
        let is_elsewhere =
            |run: &&Run| name(run.executor) != *group.executor || run.published_group.is_some();
        let elsewhere = || live().filter(is_elsewhere);
        let here = live().filter(|run| !is_elsewhere(run));
        let of_other_node =
            here.filter(|run| run.is_dispatching() && run.claimed_by != Some(look.node));
        let until = group.until.as_millis();
        let waiting = || {
            let waiting = self.of_lane(lane).filter(|run| self.waits(run, until));
            waiting.filter(|run| look.is_after_marks || !look.has(run))
        };
        let names = || elsewhere().map(|run| name(run.executor).to_string());
        LaneFacts {
            live: live().count() as u64,
            first_live: live().map(|run| run.id).min(),
            first_elsewhere: elsewhere().map(|run| run.id).min(),
            is_published_elsewhere: elsewhere().any(|run| !run.is_dispatching()),
            is_moved: elsewhere().any(|run| run.published_group.is_some()),
            executors: names().min().zip(names().max()),
            dispatching_elsewhere: elsewhere()
                .filter(|run| run.is_dispatching())
                .map(Run::place)
                .min(),
            other_node: of_other_node.map(Run::place).min(),
            waiting: waiting().map(Run::place).min(),
            ahead: waiting().filter(|run| run.place() < group.first).count() as u64,
        }
    }

    /// Whether a run of the lane matters for a group. Without one there is no full look.
    pub(super) fn is_contested(&self, group: &LaneGroup<'_>, look: Look<'_>) -> bool {
        let lane = usize::try_from(group.lane.job.0).expect("an index");
        self.of_lane(lane).any(|run| {
            if run.state == State::Scheduled {
                let is_older = run.place() < group.last;
                let is_asked_for = !look.is_after_marks && look.has(run);
                return is_older && !is_asked_for && self.waits(run, group.until.as_millis());
            }
            if !run.is_live() {
                return false;
            }
            if group.has_places() {
                return !look.is_after_marks || !look.has(run);
            }
            let is_of_other_node = run.is_dispatching() && run.claimed_by != Some(look.node);
            name(run.executor) != *group.executor
                || run.published_group.is_some()
                || (!look.is_after_marks && is_of_other_node)
        })
    }

    /// What a look at the lanes of a batch finds.
    pub(super) fn facts(&self, groups: &[LaneGroup<'_>], look: Look<'_>) -> Vec<LaneFacts> {
        let of_group = |group| {
            if self.is_contested(group, look) {
                self.full_facts(group, look)
            } else {
                LaneFacts::default()
            }
        };
        groups.iter().map(of_group).collect()
    }
}
