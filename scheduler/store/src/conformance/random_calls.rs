//! Random sequences of calls. Runs change only as [`RunState::may_become`] allows, terminal states do not change, fire
//! times are unique, and no committed run disappears.

use std::collections::{BTreeMap, BTreeSet};

use cueline_model::{
    AttemptEvent, AttemptId, DurationMs, JobSpec, OnLost, Outcome, OutcomeKind, Route, RunId,
    RunKind, RunState, Schedule, policy::spread,
};

use super::fixture::{
    Fixture, actor, ask, attempt, child, each_second, job_with, mark, name, report,
};
use crate::{ClaimedRun, NodeId, Run, RunFilter};

/// Steps in one sequence.
const STEPS: u64 = 250;

const KINDS: [OutcomeKind; 9] = [
    OutcomeKind::Succeeded,
    OutcomeKind::Failed,
    OutcomeKind::TimedOut,
    OutcomeKind::Cancelled,
    OutcomeKind::Discarded,
    OutcomeKind::Covered,
    OutcomeKind::Lost,
    OutcomeKind::Returned,
    OutcomeKind::Unroutable,
];

/// Pseudo-random numbers from a fixed seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        usize::try_from(spread(self.0) % sides as u64).expect("a small number")
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        (!list.is_empty()).then(|| &list[self.roll(list.len())])
    }
}

fn jobs() -> Vec<JobSpec> {
    let mut sharded = each_second("sharded");
    sharded.route = Route::Sharded(vec![String::new(); 3]);
    let mut retried = each_second("retried");
    retried.retry.max = 2;
    retried.retry.first = DurationMs::millis(500);
    retried.on_lost = OnLost::Rerun;
    let after = DurationMs::secs(2);
    let delayed = job_with("delayed", Schedule::FixedDelay { after });
    let mut child = child("child", "sharded");
    if let Some(after) = &mut child.after {
        after.pass_output = true;
    }
    vec![sharded, retried, delayed, child]
}

struct Player {
    dice: Dice,
    nodes: Vec<NodeId>,
    waiting: Vec<(NodeId, ClaimedRun)>,
    known: Vec<AttemptId>,
    seen: BTreeMap<RunId, Run>,
}

/// Runs sequences of random calls; a failure names its seed.
pub async fn any_sequence_of_calls_keeps_the_invariants(fixture: &Fixture) {
    fixture.apply(&jobs()).await;
    for seed in 1..=3_u64 {
        let mut player = Player {
            dice: Dice(seed << 32),
            nodes: vec![fixture.node_for(3_000).await, fixture.node_for(3_000).await],
            waiting: Vec::new(),
            known: Vec::new(),
            seen: BTreeMap::new(),
        };
        for step in 0..STEPS {
            player.step(fixture).await;
            player.check(fixture, seed, step).await;
        }
    }
}

impl Player {
    async fn step(&mut self, fixture: &Fixture) {
        let node = *self.dice.pick(&self.nodes).expect("two nodes");
        match self.dice.roll(14) {
            0 => fixture.clock.advance(700),
            1 => {
                let runs = fixture.fire_ahead(node, 500).await.runs;
                self.take(node, runs);
            }
            2 => {
                let runs = fixture.claim(node).await;
                self.take(node, runs);
            }
            3..=5 => self.publish(fixture).await,
            6..=9 => self.report(fixture).await,
            10 => {
                if let Some(id) = self.dice.pick(&self.known) {
                    fixture.store.cancel_run(id.run, &actor("dice")).await.ok();
                }
            }
            11 => self.give_up(fixture).await,
            12 => self.change(fixture).await,
            _ => {
                let renewed = fixture
                    .store
                    .renew_lease(node, 3_000, None)
                    .await
                    .expect("answers");
                if renewed.is_none() {
                    let new = fixture.node_for(3_000).await;
                    self.nodes.retain(|n| *n != node);
                    self.nodes.push(new);
                }
            }
        }
    }

    fn take(&mut self, node: NodeId, runs: Vec<ClaimedRun>) {
        self.known.extend(runs.iter().map(attempt));
        self.waiting.extend(runs.into_iter().map(|r| (node, r)));
    }

    async fn publish(&mut self, fixture: &Fixture) {
        let Some((node, run)) = self.dice.pick(&self.waiting) else {
            return;
        };
        let to = run.executor.as_ref().map_or("e1", |e| e.as_str());
        let taken = fixture.store.begin_dispatch(*node, &[mark(run, to)]).await;
        let taken = taken.expect("answers");
        if self.dice.roll(4) > 0 {
            fixture
                .store
                .confirm_dispatch(&taken)
                .await
                .expect("confirms");
        }
    }

    async fn report(&mut self, fixture: &Fixture) {
        let mut reports = Vec::new();
        for _ in 0..=self.dice.roll(6) {
            let Some(id) = self.dice.pick(&self.known).copied() else {
                return;
            };
            let kind = KINDS[self.dice.roll(KINDS.len())];
            let body = match self.dice.roll(4) {
                0 => AttemptEvent::Started { at: fixture.now() },
                1 => AttemptEvent::Progress { fraction: 0.5 },
                _ => AttemptEvent::Ended {
                    outcome: Outcome::new(kind, fixture.now()),
                },
            };
            let mut report = report(id, body);
            if self.dice.roll(2) == 0 {
                // The scheduler reports too, also about attempts that no executor has.
                report.executor = None;
            }
            reports.push(report);
        }
        fixture.ingest(&reports).await;
    }

    async fn give_up(&mut self, fixture: &Fixture) {
        if let Some((node, run)) = self.dice.pick(&self.waiting) {
            let ids = [attempt(run)];
            fixture
                .store
                .release_claims(*node, &ids, None)
                .await
                .expect("releases");
        }
        let node = self.nodes[0];
        if let Some(id) = self.dice.pick(&self.known) {
            let back = fixture.store.reclaim_attempts(node, &[*id], "dice").await;
            let back = back.expect("answers");
            self.take(node, back);
        }
    }

    async fn change(&mut self, fixture: &Fixture) {
        let job = ["sharded", "retried", "delayed", "child"][self.dice.roll(4)];
        match self.dice.roll(4) {
            0 => {
                let enabled = self.dice.roll(3) > 0;
                let switched = fixture
                    .store
                    .set_job_enabled(&name(job), enabled, &actor("dice"))
                    .await;
                switched.expect("switches");
            }
            1 => {
                let mut specs = jobs();
                specs[1].priority = u8::try_from(self.dice.roll(10)).expect("small");
                fixture.apply(&specs).await;
            }
            _ => {
                fixture.store.trigger(&ask(job)).await.expect("triggers");
            }
        }
    }

    async fn check(&mut self, fixture: &Fixture, seed: u64, step: u64) {
        let all = RunFilter {
            limit: 10_000,
            ..RunFilter::default()
        };
        let runs = fixture.store.runs(&all).await.expect("lists");
        let mut fires = BTreeSet::new();
        let mut live: BTreeMap<RunState, u64> = BTreeMap::new();
        for run in &runs {
            let place = format!("seed {seed}, step {step}, run {}", run.id);
            if run.kind == RunKind::Schedule {
                let fire = (run.job_id, run.fire_at, run.shard.index);
                assert!(fires.insert(fire), "{place}: fire time twice");
            }
            assert_eq!(run.state.is_terminal(), run.ended_at.is_some(), "{place}");
            if !run.state.is_terminal() {
                *live.entry(run.state).or_default() += 1;
            }
            if let Some(old) = self.seen.get(&run.id) {
                assert_moved(old, run, &place);
            }
        }
        for (id, old) in &self.seen {
            let gone = !runs.iter().any(|r| r.id == *id);
            let withdrawn = old.state == RunState::Scheduled && old.kind == RunKind::Schedule;
            assert!(
                !gone || withdrawn,
                "seed {seed}, step {step}: run {id} vanished"
            );
        }
        let counted: Vec<_> = live.into_iter().collect();
        let stats = fixture.store.stats().await.expect("counts");
        assert_eq!(stats.live, counted, "seed {seed}, step {step}");
        let delayed = fixture.store.job(&name("delayed")).await.expect("exists");
        let resting = runs
            .iter()
            .all(|r| r.job.as_str() != "delayed" || r.state.is_terminal());
        let due = delayed.next_fire.is_some();
        assert!(
            !delayed.job.spec.is_enabled() || due || !resting,
            "seed {seed}, step {step}: the fixed-delay job rests for ever"
        );
        self.seen = runs.into_iter().map(|r| (r.id, r)).collect();
    }
}

/// One call may make several transitions of a run: each has to be allowed.
fn assert_moved(old: &Run, new: &Run, place: &str) {
    assert!(old.attempt <= new.attempt, "{place}: attempts count up");
    if old.attempt == new.attempt && old.state != new.state {
        let over = RunState::ALL
            .into_iter()
            .any(|by| old.state.may_become(by) && by.may_become(new.state));
        // Reclaimed: the same attempt is published again.
        let taken_back = old.state == RunState::Queued && new.state == RunState::Dispatching;
        assert!(
            old.state.may_become(new.state) || over || taken_back,
            "{place}: {} became {}",
            old.state,
            new.state
        );
    }
    if old.state.is_terminal() {
        assert_eq!(old, new, "{place}: the end is the end");
    }
}
