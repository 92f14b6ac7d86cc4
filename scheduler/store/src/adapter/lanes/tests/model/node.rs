//! A scheduler node: the statements of its call, each of which sees what is visible then, and the triggers that it holds.

use std::collections::BTreeSet;

use cueline_model::AttemptId;

use super::super::{
    DispatchRequest, LaneGroup, LaneWait, after_mark, before_mark, lane_groups, marked_if_idle,
    may_be_marked,
};
use super::rows::{AHEAD_MS, LANES, Look, Rows, Run, State, lane_of, name};

const EXECUTORS: u64 = 3;

/// What a node asks for when it begins a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    /// Of the runs that it may ask for, those whose bits are set.
    pub(super) picks: u8,
    /// What the route chooses.
    pub(super) executor: u64,
    /// Whether the executor that has a lane takes triggers.
    pub(super) follows: bool,
}

/// The marked attempts, and what a node does after it has handled them.
#[derive(Debug, Clone)]
struct Marks {
    batch: Vec<DispatchRequest>,
    marked: BTreeSet<AttemptId>,
    then: Then,
}

#[derive(Debug, Clone)]
enum Then {
    /// The marks have looked themselves. These requests were asked for, with the batch.
    LookForOthers(Vec<DispatchRequest>),
    End,
}

/// The next statement.
#[derive(Debug, Clone, Default)]
enum Call {
    #[default]
    None,
    Look(Vec<DispatchRequest>),
    /// Attempts that are certainly not published, and the requests that proceed.
    TakeBackUnpublished(Vec<DispatchRequest>, Vec<DispatchRequest>),
    /// The requests that may be marked, as the statement has seen the rows.
    Mark(BTreeSet<AttemptId>, Marks),
    LookAgain(Marks),
    TakeBack(Marks, BTreeSet<AttemptId>),
    /// Asks which attempts of a batch are its own.
    FindAccepted(Vec<DispatchRequest>),
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) id: u32,
    call: Call,
    /// Triggers without an answer and new runs are asked for by two stages. In the model they take turns.
    is_turn_of_unanswered: bool,
    /// Accepted attempts that are not published yet.
    pub(super) pending: Vec<AttemptId>,
    /// Attempts whose trigger had no answer.
    pub(super) unanswered: BTreeSet<AttemptId>,
    /// Published attempts.
    pub(super) unconfirmed: Vec<AttemptId>,
    /// The executors of busy lanes.
    following: [Option<u64>; LANES],
}

fn ids(requests: &[DispatchRequest]) -> BTreeSet<AttemptId> {
    requests.iter().map(|request| request.attempt).collect()
}

fn number(request: &DispatchRequest) -> u64 {
    request.executor.as_str()[1..].parse().expect("a number")
}

impl Node {
    pub(super) fn new(id: u32) -> Self {
        Self {
            id,
            call: Call::None,
            is_turn_of_unanswered: false,
            pending: Vec::new(),
            unanswered: BTreeSet::new(),
            unconfirmed: Vec::new(),
            following: [None; LANES],
        }
    }

    /// Claims what no live node has claimed.
    pub(super) fn claim(&self, rows: &mut Rows) {
        let until = rows.now + AHEAD_MS;
        for run in &mut rows.runs {
            let is_open = run.state <= State::Dispatching && run.claimed_by.is_none();
            if is_open && run.due_at <= until {
                run.claimed_by = Some(self.id);
                run.maybe_published = run.is_dispatching();
            }
        }
    }

    /// Executes the next statement, and decides what follows. Begins a call with `ask` if there is none.
    pub(super) fn advance(&mut self, rows: &mut Rows, ask: Ask) {
        self.call = match std::mem::take(&mut self.call) {
            Call::None => self.begin(rows, ask),
            Call::Look(requests) => self.look(rows, &requests),
            Call::TakeBackUnpublished(unpublished, proceed) => {
                self.take_back(rows, &unpublished);
                Self::mark_after_look(proceed)
            }
            Call::Mark(may_mark, marks) => self.mark(rows, &may_mark, marks),
            Call::LookAgain(marks) => self.look_again(rows, marks),
            Call::TakeBack(marks, lost) => self.keep(rows, marks, &lost),
            Call::FindAccepted(batch) => {
                let accepted = batch.iter().filter(|request| {
                    let run = rows.at_attempt(request.attempt);
                    run.is_some_and(|run| {
                        let is_own = run.is_dispatching() && run.claimed_by == Some(self.id);
                        is_own && run.executor == number(request)
                    })
                });
                let accepted: Vec<AttemptId> = accepted.map(|request| request.attempt).collect();
                self.accept(rows, accepted);
                Call::None
            }
        };
    }

    fn may_ask_for(&self, rows: &Rows, run: &Run) -> bool {
        let is_due = run.state == State::Scheduled && run.due_at <= rows.now + AHEAD_MS;
        let is_maybe_published = run.is_dispatching() && run.maybe_published;
        let is_held = self.pending.contains(&run.attempt_id())
            || self.unanswered.contains(&run.attempt_id())
            || self.unconfirmed.contains(&run.attempt_id());
        run.claimed_by == Some(self.id) && !is_held && (is_due || is_maybe_published)
    }

    /// The requests of a batch. Those of a lane without places name one executor, unless an attempt that may be published
    /// is at one that takes no triggers.
    fn requests(&mut self, rows: &Rows, ask: Ask) -> Vec<DispatchRequest> {
        let runs = rows.runs.iter().filter(|run| self.may_ask_for(rows, run));
        let picked = runs.enumerate();
        let picked = picked.filter(|(nth, _)| ask.picks & (1 << (nth % 8)) != 0);
        let picked: Vec<&Run> = picked.map(|(_, run)| run).collect();
        let mut requests = Vec::new();
        for (nth, run) in picked.iter().enumerate() {
            let published = picked
                .iter()
                .find(|o| o.lane == run.lane && o.maybe_published);
            let busy = published
                .map(|run| run.executor)
                .or(self.following[run.lane]);
            let executor = if run.maybe_published {
                run.executor
            } else if rows.lanes[run.lane].slots.is_some() {
                (ask.executor + nth as u64) % EXECUTORS
            } else {
                busy.filter(|_| ask.follows).unwrap_or(ask.executor)
            };
            requests.push(rows.request(run, executor, false));
        }
        self.following = [None; LANES];
        requests
    }

    /// The mark of lanes with one run looks itself. It sees the rows as they are at its begin, and its marks become visible
    /// at its end.
    fn begin(&mut self, rows: &mut Rows, ask: Ask) -> Call {
        self.unanswered.retain(|id| {
            let run = rows.at_attempt(*id);
            run.is_some_and(|run| run.is_dispatching() && run.claimed_by == Some(self.id))
        });
        self.is_turn_of_unanswered = !self.is_turn_of_unanswered && !self.unanswered.is_empty();
        if self.is_turn_of_unanswered {
            let runs = rows.runs.iter();
            let runs = runs.filter(|run| self.unanswered.contains(&run.attempt_id()));
            let again = runs.map(|run| rows.request(run, run.executor, true));
            return Call::Look(again.collect());
        }
        let requests = self.requests(rows, ask);
        let first = marked_if_idle(&requests, &lane_groups(&requests));
        let batch: Vec<_> = first.iter().map(|nth| requests[*nth].clone()).collect();
        let groups = lane_groups(&batch);
        let look = Look {
            node: self.id,
            batch: &batch,
            is_after_marks: false,
        };
        let idle = groups
            .iter()
            .filter(|group| !rows.is_contested(group, look));
        let of_idle = idle.flat_map(LaneGroup::members);
        let may_mark: BTreeSet<AttemptId> = of_idle.map(|nth| batch[*nth].attempt).collect();
        if may_mark.is_empty() {
            return Self::look_for(requests);
        }
        let marks = Marks {
            batch,
            marked: BTreeSet::new(),
            then: Then::LookForOthers(requests),
        };
        Call::Mark(may_mark, marks)
    }

    fn look_for(requests: Vec<DispatchRequest>) -> Call {
        if requests.is_empty() {
            return Call::None;
        }
        Call::Look(requests)
    }

    fn look(&mut self, rows: &Rows, requests: &[DispatchRequest]) -> Call {
        let groups = lane_groups(requests);
        let look = Look {
            node: self.id,
            batch: requests,
            is_after_marks: false,
        };
        let before = before_mark(requests, &groups, &rows.facts(&groups, look));
        self.note(requests, &before.waits);
        let chosen = |of: &[usize]| of.iter().map(|nth| requests[*nth].clone()).collect();
        let (unpublished, proceed): (Vec<_>, Vec<_>) =
            (chosen(&before.take_back), chosen(&before.proceed));
        if unpublished.is_empty() {
            return Self::mark_after_look(proceed);
        }
        Call::TakeBackUnpublished(unpublished, proceed)
    }

    /// Follows to the executor that has a lane.
    fn note(&mut self, requests: &[DispatchRequest], waits: &[LaneWait]) {
        for wait in waits {
            let request = requests.iter().find(|r| r.attempt == wait.attempt);
            let lane = lane_of(request.expect("a request of the batch"));
            let holder = wait.holder.as_ref();
            let holder = holder.and_then(|holder| (0..EXECUTORS).find(|n| name(*n) == *holder));
            self.following[lane] = self.following[lane].or(holder);
        }
    }

    fn mark_after_look(batch: Vec<DispatchRequest>) -> Call {
        if batch.is_empty() {
            return Call::None;
        }
        let new = batch.iter().filter(|request| !may_be_marked(request));
        let may_mark = new.map(|request| request.attempt).collect();
        let marks = Marks {
            batch,
            marked: BTreeSet::new(),
            then: Then::End,
        };
        Call::Mark(may_mark, marks)
    }

    fn mark(&self, rows: &mut Rows, may_mark: &BTreeSet<AttemptId>, mut marks: Marks) -> Call {
        let may_mark = marks.batch.iter().filter(|r| may_mark.contains(&r.attempt));
        for request in may_mark
            .filter(|request| rows.has_version(request))
            .cloned()
            .collect::<Vec<_>>()
        {
            let Some(run) = rows.at_attempt(request.attempt) else {
                continue;
            };
            if run.state == State::Scheduled && run.claimed_by == Some(self.id) {
                run.state = State::Dispatching;
                run.executor = number(&request);
                run.published_group = None;
                run.maybe_published = false;
                marks.marked.insert(request.attempt);
            }
        }
        if !marks.marked.is_empty() {
            return Call::LookAgain(marks);
        }
        match marks.then {
            Then::LookForOthers(requests) => Self::look_for(requests),
            Then::End => Call::FindAccepted(marks.batch),
        }
    }

    fn look_again(&mut self, rows: &mut Rows, marks: Marks) -> Call {
        let groups = lane_groups(&marks.batch);
        let look = Look {
            node: self.id,
            batch: &marks.batch,
            is_after_marks: true,
        };
        let facts = rows.facts(&groups, look);
        let waits = after_mark(&marks.batch, &groups, &facts, |id| {
            marks.marked.contains(&id)
        });
        self.note(&marks.batch, &waits);
        let mut lost: BTreeSet<AttemptId> = waits.iter().map(|wait| wait.attempt).collect();
        let changed = marks.batch.iter().filter(|r| !rows.has_version(r));
        let changed = changed.filter(|r| marks.marked.contains(&r.attempt));
        lost.extend(changed.map(|request| request.attempt));
        let kept = marks.marked.difference(&lost);
        for id in kept {
            check_order(rows, *id);
            if let Some(run) = rows.at_attempt(*id) {
                run.is_accepted = true;
            }
        }
        Call::TakeBack(marks, lost)
    }

    /// The claims of runs whose job has changed end.
    fn take_back(&self, rows: &mut Rows, requests: &[DispatchRequest]) {
        for request in requests {
            let claimed_by = rows.has_version(request).then_some(self.id);
            if let Some(run) = rows.at_attempt(request.attempt)
                && run.is_dispatching()
                && run.claimed_by == Some(self.id)
            {
                run.take_back(claimed_by);
            }
        }
    }

    fn keep(&mut self, rows: &mut Rows, marks: Marks, lost: &BTreeSet<AttemptId>) -> Call {
        let lost_ones = marks.batch.iter().filter(|r| lost.contains(&r.attempt));
        self.take_back(rows, &lost_ones.cloned().collect::<Vec<_>>());
        let kept = marks.marked.difference(lost).copied().collect();
        match marks.then {
            Then::LookForOthers(mut requests) => {
                self.accept(rows, kept);
                requests.retain(|request| !marks.marked.contains(&request.attempt));
                Self::look_for(requests)
            }
            Then::End if marks.marked == ids(&marks.batch) => {
                self.accept(rows, kept);
                Call::None
            }
            Then::End => Call::FindAccepted(marks.batch),
        }
    }

    fn accept(&mut self, rows: &mut Rows, attempts: Vec<AttemptId>) {
        for id in attempts {
            self.unanswered.remove(&id);
            // An attempt that was published before may have ended meanwhile.
            if let Some(run) = rows.at_attempt(id).filter(|run| run.is_live()) {
                run.is_accepted = true;
                self.pending.push(id);
            }
        }
    }
}

/// No accepted attempt overtakes an older run of its lane that is due and `scheduled`.
fn check_order(rows: &Rows, id: AttemptId) {
    let run = rows.runs.iter().find(|run| run.attempt_id() == id);
    let run = run.expect("a run of the batch");
    let waiting = rows.of_lane(run.lane);
    let mut waiting = waiting.filter(|other| rows.waits(other, run.due_at));
    let older = waiting.find(|other| other.place() < run.place());
    assert!(older.is_none(), "{run:?} overtakes {older:?}");
}
