//! A small model of the routes. It knows all executors and all runs by heart, and says for each run which executor has to get
//! it. It has no caches, and none of the limits.

use std::collections::BTreeMap;

use cueline_model::{ExecutorId, ExecutorName};
use md5::{Digest, Md5};
use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::ReferenceStateMachine;

pub(super) const DEAD_AFTER_MS: i64 = 15_000;
pub(super) const EXECUTORS: usize = 5;
#[derive(Debug, Clone)]
pub(super) struct Announced {
    pub(super) weight: i64,
    pub(super) capacity: u32,
    pub(super) held: u64,
    pub(super) zone: &'static str,
    pub(super) can_run: bool,
    pub(super) takes_none: bool,
}

#[derive(Debug, Clone)]
pub(super) struct NewRun {
    /// The place of its route in [`ROUTES`]. Each route has a job of its own.
    pub(super) route: usize,
    pub(super) turn: u64,
    pub(super) attempt: u32,
    pub(super) shard: u32,
    pub(super) pinned: Option<usize>,
    pub(super) in_zone_a: bool,
    /// Whether its dispatch deadline is over.
    pub(super) is_late: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Event {
    Heartbeat(usize, Announced),
    Advance(i64),
    /// An executor has answered a ping, or has not.
    Answer(usize, bool),
    /// Runs of one batch.
    Batch(Vec<NewRun>),
    /// An attempt has ended.
    End(usize),
}

pub(super) const ROUTES: [&str; 14] = [
    "first",
    "last",
    "round",
    "random",
    "consistent_hash",
    "lfu",
    "lru",
    "failover",
    "busyover",
    "least_loaded",
    "weighted",
    "any",
    "executor",
    "sharded",
];

pub(super) fn name(index: usize) -> ExecutorName {
    format!("e{index}").parse().expect("a name")
}

pub(super) fn id(index: usize) -> ExecutorId {
    ExecutorId {
        group: "default".parse().expect("a name"),
        name: name(index),
    }
}

#[derive(Debug, Clone)]
struct Known {
    announced: Announced,
    given: i64,
    last_heartbeat_at: i64,
    last_sign_at: i64,
    unanswered_at: Option<i64>,
}

impl Known {
    fn load(&self) -> u64 {
        self.announced.held.saturating_add_signed(self.given)
    }
}

#[derive(Debug, Clone)]
struct Attempt {
    route: usize,
    executor: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expected {
    One(usize),
    Among(Vec<usize>),
    NoExecutor,
    AwaitAnswers,
    AwaitRoom,
}

#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) now: i64,
    alive: BTreeMap<usize, Known>,
    attempts: Vec<Attempt>,
    /// For `lfu`: how often each was used, and the candidates of the last choice.
    counts: [usize; EXECUTORS],
    before: Option<Vec<usize>>,
    /// For `lru`: who was used, in order.
    uses: Vec<usize>,
    /// What has to become of the last batch.
    pub(super) expected: Vec<Expected>,
}

/// XXL-JOB's ring, by looking at each of its points.
fn on_ring(candidates: &[usize], key: &str) -> usize {
    let hash = |text: &str| {
        let digest = Md5::digest(text.as_bytes());
        u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
    };
    let key = hash(key);
    let points = candidates.iter().flat_map(|index| {
        (0..100).map(move |i| (hash(&format!("SHARD-e{index}-NODE-{i}")), *index))
    });
    // Points before the key come after all others.
    let (_, index) = points
        .min_by_key(|(point, _)| (*point < key, *point))
        .expect("a candidate");
    index
}

impl Model {
    fn candidates(&self, run: &NewRun) -> Vec<usize> {
        let may_get_it = |known: &Known| {
            let of = &known.announced;
            of.can_run && !of.takes_none && (!run.in_zone_a || of.zone == "a")
        };
        let alive = self.alive.iter();
        let able = alive.filter(|(_, known)| may_get_it(known));
        able.map(|(index, _)| *index).collect()
    }

    pub(super) fn is_alive(&self, executor: usize) -> bool {
        self.alive.contains_key(&executor)
    }

    fn outstanding(&self, route: usize, executor: usize) -> u64 {
        let of = |a: &&Attempt| a.route == route && a.executor == executor;
        self.attempts.iter().filter(of).count() as u64
    }

    /// Of those with the least load for their capacity, the one whose turn it is.
    fn least_loaded(&self, of: &[usize], loads: &BTreeMap<usize, u64>, turn: u64) -> usize {
        // All capacities divide 60.
        let part = |n: &usize| loads[n] * 60 / u64::from(self.alive[n].announced.capacity.max(1));
        let least = of.iter().map(part).min().expect("a candidate");
        let equals: Vec<usize> = of.iter().copied().filter(|n| part(n) == least).collect();
        equals[usize::try_from(turn).expect("small") % equals.len()]
    }

    /// In turn, always the one that is furthest behind its weight.
    fn weighted(&self, candidates: &[usize], turn: u64) -> usize {
        let weight = |n: usize| u64::try_from(self.alive[&n].announced.weight).expect("positive");
        let total: u64 = candidates.iter().map(|n| weight(*n)).sum();
        let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
        let mut chosen = candidates[0];
        for _ in 0..=turn % total {
            // (2 × count + 1) / weight, over a common denominator.
            let common: u64 = candidates.iter().map(|n| weight(*n)).product();
            let place = |n: &&usize| {
                let count = counts.get(*n).copied().unwrap_or(0);
                (2 * count + 1) * (common / weight(**n))
            };
            chosen = *candidates.iter().min_by_key(place).expect("a candidate");
            *counts.entry(chosen).or_default() += 1;
        }
        chosen
    }

    fn lfu(&mut self, candidates: &[usize]) -> usize {
        let before = self.before.replace(candidates.to_vec());
        let counts = self.counts;
        let was_there = |n: &usize| match &before {
            Some(before) => before.contains(n),
            None => counts[*n] > 0,
        };
        let old = candidates.iter().filter(|n| was_there(n));
        let least = old.map(|n| counts[*n]).min().unwrap_or(0);
        for n in candidates.iter().filter(|n| !was_there(n)) {
            self.counts[*n] = self.counts[*n].max(least);
        }
        *candidates
            .iter()
            .min_by_key(|n| self.counts[**n])
            .expect("a candidate")
    }

    fn failover(&self, candidates: &[usize], may_wait: bool) -> Expected {
        for index in candidates {
            let known = &self.alive[index];
            if known
                .unanswered_at
                .is_some_and(|at| at > known.last_sign_at)
            {
                continue;
            }
            let last = known.last_sign_at.max(known.unanswered_at.unwrap_or(0));
            if may_wait && self.now - last > 3_000 {
                return Expected::AwaitAnswers;
            }
            return Expected::One(*index);
        }
        Expected::One(candidates[0])
    }

    fn expect(&mut self, run: &NewRun, any_loads: &BTreeMap<usize, u64>) -> Expected {
        let candidates = self.candidates(run);
        let named = |index: usize| {
            if candidates.contains(&index) {
                Expected::One(index)
            } else {
                Expected::NoExecutor
            }
        };
        if let Some(pinned) = run.pinned {
            return named(pinned);
        }
        if candidates.is_empty() {
            return Expected::NoExecutor;
        }
        let turn = run.turn + u64::from(run.attempt - 1);
        let nth = |n: u64| candidates[usize::try_from(n).expect("small") % candidates.len()];
        Expected::One(match ROUTES[run.route] {
            "first" => candidates[0],
            "last" => *candidates.last().expect("a candidate"),
            "round" => nth(turn),
            "random" => return Expected::Among(candidates),
            "executor" => return named(2),
            "sharded" => nth(u64::from(run.shard) + run.turn / 3 + u64::from(run.attempt - 1)),
            "weighted" => self.weighted(&candidates, turn),
            "consistent_hash" => on_ring(&candidates, &run.route.to_string()),
            "lfu" => self.lfu(&candidates),
            "lru" => {
                let last_use = |n: &&usize| self.uses.iter().rposition(|used| used == *n);
                *candidates.iter().min_by_key(last_use).expect("a candidate")
            }
            "failover" => return self.failover(&candidates, !run.is_late),
            "busyover" => {
                let busy = |n: &&usize| self.outstanding(run.route, **n);
                *candidates.iter().min_by_key(busy).expect("a candidate")
            }
            "least_loaded" => {
                let load = |n: &usize| (*n, self.alive[n].load());
                let loads = candidates.iter().map(load).collect();
                self.least_loaded(&candidates, &loads, turn)
            }
            "any" => {
                let has_room =
                    |n: &usize| any_loads[n] < u64::from(self.alive[n].announced.capacity);
                let free: Vec<usize> = candidates.into_iter().filter(has_room).collect();
                if free.is_empty() {
                    return Expected::AwaitRoom;
                }
                self.least_loaded(&free, any_loads, turn)
            }
            other => unreachable!("{other}"),
        })
    }

    fn batch(&mut self, runs: &[NewRun]) {
        let any = ROUTES
            .iter()
            .position(|route| *route == "any")
            .expect("it is there");
        // What an executor has of `any` jobs, it has, even if a heartbeat of before does not say so.
        let load = |(n, known): (&usize, &Known)| (*n, known.load().max(self.outstanding(any, *n)));
        let mut any_loads: BTreeMap<usize, u64> = self.alive.iter().map(load).collect();
        let mut given = Vec::new();
        for run in runs {
            let expected = self.expect(run, &any_loads);
            if let Expected::One(executor) = expected {
                match ROUTES[run.route] {
                    "lfu" => self.counts[executor] += 1,
                    "lru" => self.uses.push(executor),
                    "any" => {
                        *any_loads.get_mut(&executor).expect("alive") += 1;
                    }
                    _ => {}
                }
                self.attempts.push(Attempt {
                    route: run.route,
                    executor,
                });
                given.push(executor);
            }
            self.expected.push(expected);
        }
        for executor in given {
            self.alive.get_mut(&executor).expect("alive").given += 1;
        }
    }
}

fn announced() -> impl Strategy<Value = Announced> {
    let numbers = (1..=4_i64, select(vec![0, 1, 2, 3, 4]), 0..4_u64);
    let flags = (
        prop::bool::ANY,
        prop::bool::weighted(0.9),
        prop::bool::weighted(0.15),
    );
    (numbers, flags).prop_map(
        |((weight, capacity, held), (is_a, can_run, takes_none))| Announced {
            weight,
            capacity,
            held,
            zone: if is_a { "a" } else { "b" },
            can_run,
            takes_none,
        },
    )
}

fn new_run() -> impl Strategy<Value = NewRun> {
    let pinned = prop::option::weighted(0.05, 0..EXECUTORS);
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    (
        0..ROUTES.len(),
        0..30_u64,
        1..=2_u32,
        0..3_u32,
        pinned,
        flags,
    )
        .prop_map(
            |(route, turn, attempt, shard, pinned, (in_zone_a, is_late))| NewRun {
                route,
                turn,
                attempt,
                shard,
                // Only shards of a broadcast are pinned. A pinned run must not count as one that needs room.
                pinned: pinned.filter(|_| ROUTES[route] != "any"),
                in_zone_a,
                is_late,
            },
        )
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Event;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self {
            now: 1_000_000,
            alive: BTreeMap::new(),
            attempts: Vec::new(),
            counts: [0; EXECUTORS],
            before: None,
            uses: Vec::new(),
            expected: Vec::new(),
        })
        .boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Event> {
        let executor = 0..EXECUTORS;
        prop_oneof![
            4 => (executor.clone(), announced()).prop_map(|(n, what)| Event::Heartbeat(n, what)),
            2 => (0..6_000_i64).prop_map(Event::Advance),
            1 => (executor, prop::bool::ANY).prop_map(|(n, yes)| Event::Answer(n, yes)),
            8 => prop::collection::vec(new_run(), 1..4).prop_map(Event::Batch),
            2 => (0..model.attempts.len().max(1)).prop_map(Event::End),
        ]
        .boxed()
    }

    fn preconditions(model: &Self, event: &Event) -> bool {
        !matches!(event, Event::End(nth) if *nth >= model.attempts.len())
    }

    fn apply(mut model: Self, event: &Event) -> Self {
        model.expected.clear();
        match event {
            Event::Heartbeat(executor, announced) => {
                let known = Known {
                    announced: announced.clone(),
                    given: 0,
                    last_heartbeat_at: model.now,
                    last_sign_at: model.now,
                    unanswered_at: None,
                };
                model.alive.insert(*executor, known);
            }
            Event::Advance(ms) => {
                model.now += ms;
                let now = model.now;
                let is_heard = |known: &Known| now - known.last_heartbeat_at <= DEAD_AFTER_MS;
                model.alive.retain(|_, known| is_heard(known));
            }
            Event::Answer(executor, has_answered) => {
                if let Some(known) = model.alive.get_mut(executor) {
                    match has_answered {
                        true => known.last_sign_at = model.now,
                        false => known.unanswered_at = Some(model.now),
                    }
                }
            }
            Event::Batch(runs) => model.batch(runs),
            Event::End(nth) => {
                let ended = model.attempts.remove(*nth);
                if let Some(known) = model.alive.get_mut(&ended.executor) {
                    known.given -= 1;
                }
            }
        }
        model
    }
}
