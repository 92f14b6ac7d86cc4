//! The runs whose changes are announced. Pure.

use std::collections::HashMap;

use cueline_model::RunId;
use cueline_store::{ChangedRuns, KnownRun, RunBrief};

use crate::view::{RunChange, RunEvent};

/// The live runs that are watched at most, some 8 MB. Of further ones only the creation is announced.
pub(super) const MAX_WATCHED: usize = 20_000;

/// Live runs as they were announced.
#[derive(Debug)]
pub(super) struct WatchedRuns {
    live: HashMap<RunId, RunBrief>,
    most: usize,
    /// Whether there were live runs that are not watched.
    overflowed: bool,
}

impl WatchedRuns {
    /// Watches these live runs. They are not announced. If there are more than `most`, the first ones are taken.
    pub(super) fn new(live: Vec<RunBrief>, most: usize) -> Self {
        Self {
            overflowed: live.len() > most,
            live: live
                .into_iter()
                .take(most)
                .map(|run| (run.id, run))
                .collect(),
            most,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) const fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// What to ask the store about.
    pub(super) fn known(&self) -> impl Iterator<Item = KnownRun> {
        self.live.values().map(KnownRun::from)
    }

    /// Runs that were written. Those that are watched already are no news.
    pub(super) fn add(&mut self, runs: Vec<RunBrief>) -> Vec<RunEvent> {
        let mut events = Vec::with_capacity(runs.len());
        for run in runs {
            if self.live.contains_key(&run.id) {
                continue;
            }
            if run.state.is_terminal() {
                events.push(event(RunChange::Ended, &run));
                continue;
            }
            events.push(event(RunChange::Created, &run));
            if self.live.len() < self.most {
                self.live.insert(run.id, run);
            } else {
                self.overflowed = true;
            }
        }
        events
    }

    /// What the store says about watched runs. Runs that are not watched have ended, and nothing follows an end.
    pub(super) fn update(&mut self, read: ChangedRuns) -> Vec<RunEvent> {
        let mut events = Vec::with_capacity(read.changed.len() + read.deleted.len());
        for run in read.changed {
            let Some(known) = self.live.get_mut(&run.id) else {
                continue;
            };
            if run.attempt < known.attempt || KnownRun::from(&run) == KnownRun::from(&*known) {
                continue;
            }
            if run.state.is_terminal() {
                events.push(event(RunChange::Ended, &run));
                self.live.remove(&run.id);
            } else {
                events.push(event(RunChange::Changed, &run));
                *known = run;
            }
        }
        for id in read.deleted {
            if let Some(run) = self.live.remove(&id) {
                events.push(event(RunChange::Deleted, &run));
            }
        }
        events
    }
}

fn event(change: RunChange, run: &RunBrief) -> RunEvent {
    RunEvent {
        change,
        id: run.id,
        job_id: run.job_id,
        job: run.job.clone(),
        group: run.group.clone(),
        kind: run.kind,
        state: run.state,
        attempt: run.attempt,
        fire_at: run.fire_at,
        executor: run.executor.clone(),
        ended_at: run.ended_at,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cueline_model::{JobId, RunKind, RunState, Timestamp};

    use super::*;

    fn brief(id: i64, state: RunState, attempt: u32) -> RunBrief {
        RunBrief {
            id: RunId(id),
            job_id: JobId(1),
            job: "a".parse().expect("a name"),
            group: "g".parse().expect("a name"),
            kind: RunKind::Manual,
            state,
            attempt,
            executor: None,
            fire_at: Timestamp::from_millis(0),
            ended_at: None,
        }
    }

    fn changes(events: &[RunEvent]) -> Vec<(i64, RunChange)> {
        let changes = events.iter().map(|event| (event.id.0, event.change));
        changes.collect()
    }

    fn changed(runs: Vec<RunBrief>) -> ChangedRuns {
        ChangedRuns {
            changed: runs,
            deleted: Vec::new(),
        }
    }

    #[test]
    fn a_run_that_ended_before_it_was_read_is_announced_once() {
        let mut watched = WatchedRuns::new(Vec::new(), 10);
        let events = watched.add(vec![brief(1, RunState::Succeeded, 1)]);
        assert_eq!(changes(&events), [(1, RunChange::Ended)]);
        let again = changed(vec![brief(1, RunState::Succeeded, 1)]);
        assert_eq!(watched.update(again), []);
        assert_eq!(watched.len(), 0);
    }

    #[test]
    fn runs_from_before_are_not_announced_and_their_ends_are() {
        let mut watched = WatchedRuns::new(vec![brief(1, RunState::Running, 1)], 10);
        assert_eq!(watched.add(vec![brief(1, RunState::Running, 1)]), []);
        let events = watched.update(changed(vec![brief(1, RunState::Lost, 1)]));
        assert_eq!(changes(&events), [(1, RunChange::Ended)]);
        assert_eq!(events[0].state, RunState::Lost);
    }

    #[test]
    fn an_older_attempt_and_a_known_state_are_no_news() {
        let mut watched = WatchedRuns::new(vec![brief(1, RunState::Scheduled, 2)], 10);
        let old = vec![
            brief(1, RunState::Running, 1),
            brief(1, RunState::Scheduled, 2),
        ];
        assert_eq!(watched.update(changed(old)), []);
    }

    #[test]
    fn a_deleted_run_is_announced_once() {
        let mut watched = WatchedRuns::new(vec![brief(1, RunState::Scheduled, 1)], 10);
        let deleted = ChangedRuns {
            changed: Vec::new(),
            deleted: vec![RunId(1), RunId(1), RunId(2)],
        };
        assert_eq!(changes(&watched.update(deleted)), [(1, RunChange::Deleted)]);
    }

    #[test]
    fn beyond_the_bound_only_creations_are_announced() {
        let mut watched = WatchedRuns::new(Vec::new(), 2);
        let runs = (1..=3).map(|id| brief(id, RunState::Scheduled, 1));
        let events = watched.add(runs.collect());
        assert_eq!(events.len(), 3);
        assert!(watched.has_overflowed());
        assert_eq!(watched.len(), 2);
        let ended = (1..=3).map(|id| brief(id, RunState::Succeeded, 1));
        let events = watched.update(changed(ended.collect()));
        assert_eq!(
            changes(&events),
            [(1, RunChange::Ended), (2, RunChange::Ended)]
        );
        let live = (1..=3).map(|id| brief(id, RunState::Queued, 1)).collect();
        assert!(WatchedRuns::new(live, 2).has_overflowed());
    }

    /// The runs that were not announced.
    fn unseen(world: &BTreeMap<i64, RunBrief>, events: &[RunEvent]) -> Vec<RunBrief> {
        let is_seen = |run: &RunBrief| events.iter().any(|event| event.id == run.id);
        let unseen = world.values().filter(|run| !is_seen(run));
        unseen.cloned().collect()
    }

    /// A world of runs that go on at random, read as the poller does. Each run is created once and ended once, nothing
    /// comes after an end, attempts never decrease, and no state is announced twice in a row.
    #[test]
    fn every_run_is_announced_once_and_its_end_exactly_once() {
        for seed in 1..100_u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let mut world: BTreeMap<i64, RunBrief> = BTreeMap::new();
            let mut watched = WatchedRuns::new(Vec::new(), 1_000);
            let (mut created, mut all) = (0, Vec::<RunEvent>::new());
            for turn in 0..60 {
                for run in world.values_mut() {
                    if run.state.is_terminal() || next(3) > 0 {
                        continue;
                    }
                    let states = RunState::ALL.into_iter();
                    let states: Vec<_> = states.filter(|s| run.state.may_become(*s)).collect();
                    let picked = usize::try_from(next(states.len() as u64)).expect("small");
                    if states[picked] == RunState::Scheduled {
                        run.attempt += 1;
                    }
                    run.state = states[picked];
                }
                if turn < 40 {
                    created += 1;
                    world.insert(created, brief(created, RunState::Scheduled, 1));
                }
                if next(2) > 0 {
                    let new = unseen(&world, &all);
                    all.extend(watched.add(new));
                    let known: Vec<KnownRun> = watched.known().collect();
                    let now = known.iter().map(|known| world[&known.id.0].clone());
                    // A store leaves out what has not changed. Some of it is sent here all the same.
                    let read = now.filter(|run| !known.contains(&run.into()) || next(4) == 0);
                    let read = changed(read.collect());
                    all.extend(watched.update(read));
                }
            }
            for run in world.values_mut() {
                if !run.state.is_terminal() {
                    run.state = RunState::Cancelled;
                }
            }
            let new = unseen(&world, &all);
            all.extend(watched.add(new));
            all.extend(watched.update(changed(world.values().cloned().collect())));
            for id in 1..=created {
                check_history(id, all.iter().filter(|event| event.id.0 == id), seed);
            }
        }
    }

    fn check_history<'a>(id: i64, events: impl Iterator<Item = &'a RunEvent>, seed: u64) {
        let events: Vec<&RunEvent> = events.collect();
        let count = |change| events.iter().filter(|e| e.change == change).count();
        assert_eq!(count(RunChange::Ended), 1, "run {id}, seed {seed}");
        assert!(count(RunChange::Created) <= 1, "run {id}, seed {seed}");
        let last = events.last().map(|event| event.change);
        assert_eq!(last, Some(RunChange::Ended), "run {id}, seed {seed}");
        for two in events.windows(2) {
            assert!(two[0].attempt <= two[1].attempt, "run {id}, seed {seed}");
            let values = |event: &RunEvent| (event.state, event.attempt);
            assert_ne!(values(two[0]), values(two[1]), "run {id}, seed {seed}");
        }
    }
}
