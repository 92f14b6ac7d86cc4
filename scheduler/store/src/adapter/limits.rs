//! Which attempts the limits of their jobs let pass. Pure.
//!
//! An adapter locks the rows of the limits that a batch names, reads which of their runs are at work, asks [`LimitBook::admit`], marks
//! the admitted attempts, and writes what [`LimitBook::settle`] has made of the states, all in one transaction. So no limit
//! is exceeded, whatever nodes ask at the same time.
//!
//! Attempts pass in the order of their places. One that is refused holds back all later ones with that limit, and no
//! others. It has a turn until its node asks again: later batches, of any node, leave a place for each older run that has
//! one. A run with several limits keeps a place of those that let it pass, or younger ones would always take it while it
//! waits for the other limit.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use cueline_model::{Rate, RatePer, RunId, Timestamp};

use super::convert::{parse_name, to_u64};
use crate::{
    DispatchLimits, DispatchRequest, ErrorKind, GroupRate, LIMIT_ASKED_WITHIN_MS, LimitKey,
    LimitPlace, LimitRule, LimitState, LimitTurn, LimitUsage, LimitUse, LimitWait, LimitWaitReason,
    MAX_GROUP_RATES, NodeId, StoreError,
};

/// A turn lasts this long after its node was to ask again.
const TURN_MS: u64 = 1_000;

/// The limits of a batch.
#[derive(Debug, Default)]
pub struct LimitBook {
    /// What the store knows of each.
    pub states: BTreeMap<LimitKey, LimitState>,
    /// Those runs of [`LimitState::places`] and of the batch that are `dispatching`, `queued` or `running`.
    pub at_work: HashSet<RunId>,
}

/// What to do with a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Indexes of the requests to mark, ascending.
    pub proceed: Vec<usize>,
    /// The requests that wait, in the order of their places.
    pub waits: Vec<LimitWait>,
    /// The places that they keep, in the same order.
    pub kept: Vec<KeptPlace>,
}

/// A place that a waiting run keeps.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptPlace {
    key: LimitKey,
    place: LimitPlace,
    /// When its node asks again.
    asks_at: Timestamp,
}

/// A row of the rate of a group: its name, the number, and the word for the interval.
pub type GroupRateRow = (String, i64, String);

/// The rate of a group from its row.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for a row that this program cannot read.
pub fn group_rate((group, count, per): GroupRateRow) -> Result<GroupRate, StoreError> {
    let mut known = RatePer::ALL.into_iter();
    let per = known.find(|(word, _)| *word == per).map(|(_, per)| per);
    let per = per.ok_or_else(|| {
        let message = format!("the rate limit of group {group} has an unknown interval");
        StoreError::new(ErrorKind::Broken, message)
    })?;
    Ok(GroupRate {
        group: parse_name(&group)?,
        rate: Rate {
            count: u32::try_from(count).unwrap_or(u32::MAX),
            per,
        },
    })
}

/// Refuses a further group with a rate.
///
/// # Errors
///
/// [`ErrorKind::Conflict`].
pub fn room_for_rate(others: i64) -> Result<(), StoreError> {
    if to_u64(others) < MAX_GROUP_RATES as u64 {
        return Ok(());
    }
    let message = format!(
        "failed to set the rate limit of a group: {MAX_GROUP_RATES} groups have one already; delete one that is not needed"
    );
    Err(StoreError::new(ErrorKind::Conflict, message))
}

/// The limits that these requests name.
pub fn limit_keys(requests: &[DispatchRequest]) -> BTreeSet<LimitKey> {
    let limits = requests.iter().filter_map(|r| r.limits.as_ref());
    let uses = limits.flat_map(|limits| limits.uses.iter());
    uses.map(|one| one.key.clone()).collect()
}

impl LimitBook {
    /// The limits of a job, for an explanation.
    pub fn usage(self, limits: Vec<LimitUse>) -> Vec<LimitUsage> {
        let Self {
            mut states,
            at_work,
        } = self;
        let usage = limits.into_iter().map(|limit| {
            let mut state = states.remove(&limit.key).unwrap_or_default();
            state.places.retain(|run| at_work.contains(run));
            LimitUsage { limit, state }
        });
        usage.collect()
    }

    /// The runs of which the adapter finds out whether they are at work, ascending.
    pub fn runs_to_look_at(&self, requests: &[DispatchRequest]) -> Vec<i64> {
        let places = self.states.values().flat_map(|state| state.places.iter());
        let asked = requests.iter().map(|r| r.attempt.run);
        let runs: BTreeSet<i64> = places.copied().chain(asked).map(|run| run.0).collect();
        runs.into_iter().collect()
    }

    /// Removes what does not count any more.
    fn forget(&mut self, now: Timestamp) {
        for state in self.states.values_mut() {
            for (per, window) in &mut state.windows {
                window.forget_before(now, *per);
            }
            state.windows.retain(|_, window| !window.is_empty());
            state.places.retain(|run| self.at_work.contains(run));
            state.turns.retain(|turn| turn.until > now);
        }
    }

    /// Decides which requests are marked. An attempt that is at work already passes.
    pub fn admit(&mut self, requests: &[DispatchRequest], now: Timestamp) -> Admission {
        self.forget(now);
        let in_batch: HashSet<RunId> = requests.iter().map(|r| r.attempt.run).collect();
        let mut batch = Batch {
            now,
            states: self.states.clone(),
            runs: &in_batch,
            refused: BTreeMap::new(),
        };
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|index| {
            let request = requests.get(*index).and_then(|r| r.limits.as_ref());
            request.map(|limits| limits.place)
        });
        let mut admission = Admission::default();
        for index in order {
            let Some(request) = requests.get(index) else {
                continue;
            };
            let is_at_work = self.at_work.contains(&request.attempt.run);
            let wait = match &request.limits {
                Some(limits) if !is_at_work => batch.take(limits),
                _ => None,
            };
            let Some(refusal) = wait else {
                admission.proceed.push(index);
                continue;
            };
            admission.kept.extend(refusal.kept);
            admission.waits.push(LimitWait {
                attempt: request.attempt,
                key: refusal.key,
                reason: refusal.reason,
            });
        }
        admission.proceed.sort_unstable();
        admission
    }

    /// Counts the attempts that were marked, and notes the turns of those that wait: the oldest of the node at each limit.
    /// `is_marked` tells which ones this transaction has marked.
    pub fn settle(
        &mut self,
        node: NodeId,
        requests: &[DispatchRequest],
        kept: &[KeptPlace],
        is_marked: impl Fn(RunId) -> bool,
        now: Timestamp,
    ) {
        let in_batch: HashSet<RunId> = requests.iter().map(|r| r.attempt.run).collect();
        for state in self.states.values_mut() {
            let turns = &mut state.turns;
            turns.retain(|turn| turn.node != node || !in_batch.contains(&turn.place.2));
        }
        for request in requests {
            if let Some(limits) = &request.limits
                && is_marked(request.attempt.run)
            {
                count(&mut self.states, limits, now);
            }
        }
        for kept in kept {
            let Some(state) = self.states.get_mut(&kept.key) else {
                continue;
            };
            let has_older =
                |turn: &LimitTurn| turn.node == node && turn.until > now && turn.place < kept.place;
            if !state.turns.iter().any(has_older) {
                state.turns.retain(|turn| turn.node != node);
                state.turns.push(LimitTurn {
                    node,
                    place: kept.place,
                    until: kept.asks_at.plus_ms(TURN_MS),
                });
            }
        }
    }
}

/// The decisions of one batch.
struct Batch<'a> {
    now: Timestamp,
    /// With the requests that were let pass.
    states: BTreeMap<LimitKey, LimitState>,
    runs: &'a HashSet<RunId>,
    /// The first run that each limit has refused.
    refused: BTreeMap<LimitKey, RunId>,
}

impl Batch<'_> {
    /// Takes a place of each limit, or says which one has none.
    fn take(&mut self, limits: &DispatchLimits) -> Option<Refusal> {
        let mut uses = limits.uses.iter();
        let refusing = uses.find_map(|one| Some((&one.key, self.refuse(limits, one)?)));
        let Some((key, reason)) = refusing else {
            count(&mut self.states, limits, self.now);
            return None;
        };
        self.refused.entry(key.clone()).or_insert(limits.place.2);
        let soon = self.now.plus_ms(LIMIT_ASKED_WITHIN_MS);
        let asks_at = match reason {
            // A node whose definition has changed asks earlier than the rate allows.
            LimitWaitReason::Rate(at) => at.clamp(self.now, soon),
            LimitWaitReason::Full(_) | LimitWaitReason::Behind(_) | LimitWaitReason::Contested => {
                self.now
            }
        };
        // While it waits for a rate, it keeps no place of a concurrency limit, which others need for as long as they work.
        let keeps = |one: &&LimitUse| match reason {
            LimitWaitReason::Full(_) => true,
            LimitWaitReason::Rate(at) => at <= soon && matches!(one.rule, LimitRule::Rate(_)),
            LimitWaitReason::Behind(_) | LimitWaitReason::Contested => false,
        };
        let others = limits.uses.iter().filter(|one| one.key != *key);
        let free = others
            .filter(keeps)
            .filter(|one| self.refuse(limits, one).is_none());
        let free: Vec<&LimitUse> = free.collect();
        for one in &free {
            count_one(&mut self.states, one, limits, self.now);
        }
        let keys = std::iter::once(key).chain(free.iter().map(|one| &one.key));
        let kept = keys.map(|key| KeptPlace {
            key: key.clone(),
            place: limits.place,
            asks_at,
        });
        Some(Refusal {
            key: key.clone(),
            reason,
            kept: kept.collect(),
        })
    }

    fn refuse(&self, limits: &DispatchLimits, one: &LimitUse) -> Option<LimitWaitReason> {
        if let Some(run) = self.refused.get(&one.key) {
            return Some(LimitWaitReason::Behind(*run));
        }
        let state = self.states.get(&one.key)?;
        let (free, reason) = match one.rule {
            LimitRule::Concurrency(limit) => {
                let run = state.places.first().copied();
                let free = u64::from(limit).saturating_sub(state.places.len() as u64);
                (free, LimitWaitReason::Full(run.unwrap_or(limits.place.2)))
            }
            LimitRule::Rate(rate) => {
                let at = limits.due_at.max(self.now);
                let window = state.windows.get(&rate.per);
                let free = window.map_or(u64::from(rate.count), |window| window.free(at, rate));
                let next = window.map_or(at, |window| window.next_place(at, rate));
                (free, LimitWaitReason::Rate(next))
            }
        };
        if free == 0 {
            return Some(reason);
        }
        let older = self.older_turns(state, limits.place);
        let first = older.iter().min().filter(|_| older.len() as u64 >= free);
        first.map(|place| LimitWaitReason::Behind(place.2))
    }

    /// The older runs that have a turn and are not decided on here.
    fn older_turns(&self, state: &LimitState, place: LimitPlace) -> Vec<LimitPlace> {
        let turns = state.turns.iter().filter(|turn| {
            turn.place < place && !self.runs.contains(&turn.place.2) && turn.until > self.now
        });
        turns.map(|turn| turn.place).collect()
    }
}

/// Why an attempt waits, and what it keeps meanwhile.
struct Refusal {
    key: LimitKey,
    reason: LimitWaitReason,
    kept: Vec<KeptPlace>,
}

/// Counts an attempt in each of its limits.
fn count(states: &mut BTreeMap<LimitKey, LimitState>, limits: &DispatchLimits, now: Timestamp) {
    for one in &limits.uses {
        count_one(states, one, limits, now);
    }
}

fn count_one(
    states: &mut BTreeMap<LimitKey, LimitState>,
    one: &LimitUse,
    limits: &DispatchLimits,
    now: Timestamp,
) {
    let state = states.entry(one.key.clone()).or_default();
    match one.rule {
        LimitRule::Rate(rate) => {
            let at = limits.due_at.max(now);
            state.windows.entry(rate.per).or_default();
            for (per, window) in &mut state.windows {
                window.add(at, *per);
            }
        }
        LimitRule::Concurrency(_) => {
            let run = limits.place.2;
            if !state.places.contains(&run) {
                state.places.push(run);
            }
        }
    }
}

#[cfg(test)]
mod tests;
