//! Which attempts may be marked `dispatching` in a lane that all executors of a group share. Pure.
//!
//! A lane without places keeps one rule: its attempts that are `dispatching`, `queued` or `running` after they were
//! accepted are at one executor. The lane of that executor then keeps their order. A lane with n places has at most n
//! such attempts, at any executors.
//!
//! PostgreSQL marks without locks, so two nodes may mark attempts of one lane for two executors at the same time. Each
//! looks at the lane after its own mark became visible. The one whose mark became visible last sees the other and takes
//! its mark back. Both may do so. An accepted attempt therefore proves that no other one was accepted before it at
//! another executor and is still live ([`after_mark`]). `SQLite` has one writer and needs no second look.
//!
//! Both looks keep the order: an attempt waits while an older run of its lane is due and `scheduled`, or is being published
//! by another node. A run whose attempt was returned is `scheduled` again at its old place. The look before the mark
//! ([`before_mark`]) also spares nearly all marks that would be taken back. `PostgreSQL` looks and marks by one statement in
//! the lanes where no other run matters, and of which the batch has one run ([`marked_if_idle`]).
//!
//! A node may end between its mark and its second look. The mark then counts as maybe published, and it may or may not
//! have been accepted. If another executor has an attempt of the lane that is published, this one was not accepted, and
//! is certainly not published: it goes back to `scheduled`. If the job has moved to another group since then, both may be
//! at one executor of the earlier group, so it waits for the end of the published one. If the other one is `dispatching`
//! too, the older one is published again and the younger one waits. Decision 29 says when that is wrong.

use std::collections::{BTreeMap, BTreeSet};

use cueline_model::{AttemptId, ExecutorName, RunId, Timestamp};

use super::convert::parse_name;
use crate::{DispatchRequest, LaneKey, LanePlace, LaneWait, LaneWaitReason};

/// The place of a run in its lane: its time there, and its id.
pub type LanePosition = (i64, i64);

/// The requests of a batch that share a lane, and an executor if the lane has no places.
#[derive(Debug)]
pub struct LaneGroup<'a> {
    /// The lane.
    pub lane: LaneKey,
    /// The executor of the first request.
    pub executor: &'a ExecutorName,
    /// When the last of them is due.
    pub until: Timestamp,
    /// See [`LanePlace::slots`]. The least number, if definitions differ.
    slots: Option<u32>,
    /// Their indexes in the batch, in the order of the lane.
    members: Vec<usize>,
    /// The place of the first of them.
    pub first: LanePosition,
    /// The place of the last of them.
    pub last: LanePosition,
}

impl LaneGroup<'_> {
    /// Whether the lane has a number of places, at any executors, instead of one holder.
    pub fn has_places(&self) -> bool {
        self.slots.is_some()
    }

    /// The indexes of its requests in the batch, in the order of the lane.
    pub fn members(&self) -> &[usize] {
        &self.members
    }
}

/// What the store knows of the lane of a group, apart from the requests of the batch that are `scheduled`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneFacts {
    /// Attempts at executors: `dispatching`, `queued` or `running`.
    pub live: u64,
    /// The least run among them.
    pub first_live: Option<i64>,
    /// The least run among those at another executor than the group's.
    pub first_elsewhere: Option<i64>,
    /// Whether one of those is published.
    pub is_published_elsewhere: bool,
    /// Whether one of those belongs to another group of executors.
    pub is_moved: bool,
    /// The first and the last executor of those, by name.
    pub executors: Option<(String, String)>,
    /// The first of those that are `dispatching`.
    pub dispatching_elsewhere: Option<LanePosition>,
    /// The first attempt at the group's executor that another node is publishing.
    pub other_node: Option<LanePosition>,
    /// The first run that is due and `scheduled`.
    pub waiting: Option<LanePosition>,
    /// The number of such runs before the group's first request.
    pub ahead: u64,
}

impl LaneFacts {
    /// The only other executor with attempts of the lane.
    fn holder(&self) -> Option<ExecutorName> {
        let (first, last) = self.executors.as_ref().filter(|_| !self.is_moved)?;
        (first == last).then(|| parse_name(first).ok()).flatten()
    }
}

/// What to do with a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BeforeMark {
    /// Indexes of the requests to mark, ascending.
    pub proceed: Vec<usize>,
    /// Indexes of the requests that were marked before and certainly not published. They go back to `scheduled`.
    pub take_back: Vec<usize>,
    /// The requests that wait, with those that go back.
    pub waits: Vec<LaneWait>,
}

/// The groups of a batch. Requests without a lane belong to none.
pub fn lane_groups(requests: &[DispatchRequest]) -> Vec<LaneGroup<'_>> {
    let mut groups: BTreeMap<(LaneKey, Option<&str>), LaneGroup<'_>> = BTreeMap::new();
    for (index, request) in requests.iter().enumerate() {
        let Some(place) = &request.lane else { continue };
        let executor = place.slots.is_none().then(|| request.executor.as_str());
        let group = groups
            .entry((place.lane, executor))
            .or_insert_with(|| LaneGroup {
                lane: place.lane,
                executor: &request.executor,
                until: place.due_at,
                slots: place.slots,
                members: Vec::new(),
                first: position(request, place),
                last: position(request, place),
            });
        group.until = group.until.max(place.due_at);
        group.slots = group.slots.min(place.slots);
        group.members.push(index);
    }
    let mut groups: Vec<LaneGroup<'_>> = groups.into_values().collect();
    for group in &mut groups {
        let place_of = |index: &usize| requests.get(*index).map(member_position);
        group.members.sort_by_key(place_of);
        let places = (group.members.first(), group.members.last());
        if let (Some(first), Some(last)) =
            (places.0.and_then(place_of), places.1.and_then(place_of))
        {
            (group.first, group.last) = (first, last);
        }
    }
    groups
}

/// Indexes of the requests that need no look before their mark if the mark itself compares them with the other runs of
/// their lane.
///
/// Several runs of a lane are looked at first, which reads the lane once for all of them. Each mark would read it again:
/// with thousands of runs in a lane that takes many seconds, in which nothing of another job is marked. A lane with places
/// has to be counted for another reason: others of the batch do not count in a mark.
pub fn marked_if_idle(requests: &[DispatchRequest], groups: &[LaneGroup<'_>]) -> Vec<usize> {
    let counted: BTreeSet<usize> = groups
        .iter()
        .filter(|group| group.members.len() > 1)
        .flat_map(|group| group.members.iter().copied())
        .collect();
    let new = requests
        .iter()
        .enumerate()
        .filter(|(_, request)| !may_be_marked(request));
    new.map(|(index, _)| index)
        .filter(|index| !counted.contains(index))
        .collect()
}

/// Whether the attempt of a lane is `dispatching` already: it was marked by an ended node, or its trigger had no answer.
/// Such a request marks nothing.
pub fn may_be_marked(request: &DispatchRequest) -> bool {
    let place = request.lane.as_ref();
    place.is_some_and(|place| place.maybe_published)
}

fn position(request: &DispatchRequest, place: &LanePlace) -> LanePosition {
    (place.at.as_millis(), request.attempt.run.0)
}

fn member_position(request: &DispatchRequest) -> LanePosition {
    let at = request.lane.as_ref().map(|place| place.at.as_millis());
    (at.unwrap_or_default(), request.attempt.run.0)
}

/// Decides which requests are marked. `facts` has the facts of each group, in their order.
pub fn before_mark(
    requests: &[DispatchRequest],
    groups: &[LaneGroup<'_>],
    facts: &[LaneFacts],
) -> BeforeMark {
    let laneless = requests
        .iter()
        .enumerate()
        .filter(|(_, r)| r.lane.is_none());
    let mut decided = BeforeMark {
        proceed: laneless.map(|(index, _)| index).collect(),
        ..BeforeMark::default()
    };
    for (group, facts) in groups.iter().zip(facts) {
        let mut used = facts.live;
        let mut behind = facts.ahead;
        for index in &group.members {
            let Some(request) = requests.get(*index) else {
                continue;
            };
            let maybe_published = may_be_marked(request);
            let decision = if maybe_published {
                marked_before(request, group, facts)
            } else {
                not_marked(request, group, facts, used)
            };
            match decision {
                Decision::Proceed => {
                    used += u64::from(!maybe_published);
                    decided.proceed.push(*index);
                }
                Decision::Wait { reason, undecided } => {
                    if maybe_published && !undecided {
                        decided.take_back.push(*index);
                    }
                    decided.waits.push(LaneWait {
                        attempt: request.attempt,
                        holder: holder(group, facts, reason),
                        reason,
                        ahead: behind,
                        undecided,
                    });
                    behind += 1;
                }
            }
        }
    }
    decided.proceed.sort_unstable();
    decided
}

enum Decision {
    Proceed,
    Wait {
        reason: LaneWaitReason,
        undecided: bool,
    },
}

fn wait(reason: LaneWaitReason) -> Decision {
    Decision::Wait {
        reason,
        undecided: false,
    }
}

fn holder(
    group: &LaneGroup<'_>,
    facts: &LaneFacts,
    reason: LaneWaitReason,
) -> Option<ExecutorName> {
    let is_busy = matches!(reason, LaneWaitReason::Busy(_));
    let follows = is_busy && group.slots.is_none();
    follows.then(|| facts.holder()).flatten()
}

fn not_marked(
    request: &DispatchRequest,
    group: &LaneGroup<'_>,
    facts: &LaneFacts,
    used: u64,
) -> Decision {
    let own = member_position(request);
    let is_older = |other: &LanePosition| *other < own;
    if let Some((_, run)) = facts.waiting.filter(is_older) {
        return wait(LaneWaitReason::Behind(RunId(run)));
    }
    if let Some(slots) = group.slots {
        return if used < u64::from(slots) {
            Decision::Proceed
        } else {
            let one = facts.first_live.unwrap_or(request.attempt.run.0);
            wait(LaneWaitReason::Full(RunId(one)))
        };
    }
    if let Some(run) = facts.first_elsewhere {
        return wait(LaneWaitReason::Busy(RunId(run)));
    }
    match facts.other_node.filter(is_older) {
        Some((_, run)) => wait(LaneWaitReason::Behind(RunId(run))),
        None => Decision::Proceed,
    }
}

/// The attempt may be marked already, and published. A lane with places counts it as one of its attempts.
fn marked_before(request: &DispatchRequest, group: &LaneGroup<'_>, facts: &LaneFacts) -> Decision {
    let Some(run) = facts.first_elsewhere.filter(|_| group.slots.is_none()) else {
        return Decision::Proceed;
    };
    let reason = LaneWaitReason::Busy(RunId(run));
    if facts.is_published_elsewhere {
        // If the job has moved, both may be at one executor of the earlier group.
        return Decision::Wait {
            reason,
            undecided: facts.is_moved,
        };
    }
    let own = member_position(request);
    if facts.dispatching_elsewhere.is_some_and(|other| other < own) {
        return Decision::Wait {
            reason,
            undecided: true,
        };
    }
    Decision::Proceed
}

/// The marks that are taken back, after they became visible. `is_marked` tells whether this call has marked an attempt. `facts` has
/// what is visible since then, for each group in their order.
///
/// An older run may have become due, or may have been returned by its executor, since the first look. It goes first.
pub fn after_mark(
    requests: &[DispatchRequest],
    groups: &[LaneGroup<'_>],
    facts: &[LaneFacts],
    is_marked: impl Fn(AttemptId) -> bool,
) -> Vec<LaneWait> {
    let mut lost = Vec::new();
    for (group, facts) in groups.iter().zip(facts) {
        let of_group = group
            .members
            .iter()
            .filter_map(|index| requests.get(*index));
        let members: Vec<&DispatchRequest> = of_group
            .filter(|request| is_marked(request.attempt))
            .collect();
        let others = facts.live.saturating_sub(members.len() as u64);
        let mut free = group
            .slots
            .map(|slots| u64::from(slots).saturating_sub(others));
        for request in members {
            let place = member_position(request);
            let older = facts.waiting.filter(|other| *other < place);
            let reason = if let Some((_, run)) = older {
                LaneWaitReason::Behind(RunId(run))
            } else if free == Some(0) {
                LaneWaitReason::Full(RunId(facts.first_live.unwrap_or_default()))
            } else if let Some(run) = facts.first_elsewhere.filter(|_| free.is_none()) {
                LaneWaitReason::Busy(RunId(run))
            } else {
                free = free.map(|free| free - 1);
                continue;
            };
            lost.push(LaneWait {
                attempt: request.attempt,
                holder: holder(group, facts, reason),
                reason,
                ahead: facts.ahead,
                undecided: false,
            });
        }
    }
    lost
}

#[cfg(test)]
mod tests;
