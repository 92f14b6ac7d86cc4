//! The plans of one job against a small model: the clock jumps, the job is edited, paused and resumed, its calendar, a
//! maintenance window and a pause of several jobs come and go, and schedulers plan it now or later.
//!
//! The model knows which instants are fire times, and which of them are excluded. After each plan, every fire time that has
//! passed is accounted for exactly once, or waits as an excluded one (G1). What runs is not excluded, belongs to the present
//! definition (G3), and is what the misfire policy says.
//!
//! The schedule of the job is stored as the stores do it, with their own pure functions. `CUELINE_TEST_MODEL_CASES` sets the
//! number of cases (150).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{Calendar, FireRules, MaintenanceWindow};
use cueline_store::adapter::fire_rules::{DueColumns, account_excluded, replan};
use proptest::sample::select;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::*;

const GRACE_MS: i64 = 5_000;
const LOOKAHEAD_MS: i64 = 1_500;
const START_MS: i64 = 10_000_000;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Definition {
    period: i64,
    policy: &'static str,
    limit: u32,
}

/// A stretch of time, from its beginning to the first instant after it.
type Stretch = (i64, i64);

#[derive(Debug, Clone)]
enum Event {
    /// Time passes, or the clock is set back.
    Clock(i64),
    Plan,
    Edit(Definition),
    Enable(bool),
    Calendar(Vec<Stretch>),
    Window(Option<Stretch>),
    /// A pause of several jobs, for this time or until a person ends it.
    Pause(Option<i64>),
    EndPause,
}

/// What excludes fire times.
#[derive(Debug, Clone, Default, PartialEq)]
struct Excluded {
    calendar: Vec<Stretch>,
    window: Option<Stretch>,
    /// When it began, and when it ends if it does.
    pause: Option<(i64, Option<i64>)>,
}

impl Excluded {
    fn has(&self, at: i64) -> bool {
        let is_in = |(from, to): &Stretch| *from <= at && at < *to;
        // A pause is about all that has not run yet, so also about what was due before it.
        self.calendar.iter().any(is_in)
            || self.window.iter().any(is_in)
            || self
                .pause
                .is_some_and(|(_, until)| until.is_none_or(|until| at < until))
    }
}

#[derive(Debug, Clone)]
struct Model {
    now: i64,
    latest: i64,
    definition: Definition,
    is_enabled: bool,
    excluded: Excluded,
    /// The present definition fires after this instant.
    since: i64,
    /// Fire times of definitions that are over.
    earlier: BTreeSet<i64>,
}

fn grid(period: i64, after: i64, up_to: i64) -> impl Iterator<Item = i64> {
    let first = (after.div_euclid(period) + 1) * period;
    (first..=up_to).step_by(usize::try_from(period).expect("positive"))
}

impl Model {
    /// All fire times that have passed.
    fn passed(&self) -> BTreeSet<i64> {
        let mut all = self.earlier.clone();
        if self.is_enabled {
            all.extend(grid(self.definition.period, self.since, self.now));
        }
        all
    }

    fn begin_anew(&mut self) {
        self.earlier = self.passed();
        self.since = self.now;
    }
}

fn definition() -> impl Strategy<Value = Definition> {
    let policies = select(vec!["skip", "fire_once", "catch_up"]);
    let periods = select(vec![500_i64, 700, 1_000, 3_000]);
    (periods, policies, 1..6_u32).prop_map(|(period, policy, limit)| Definition {
        period,
        policy,
        limit,
    })
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Event;

    fn init_state() -> BoxedStrategy<Self> {
        definition()
            .prop_map(|definition| Self {
                now: START_MS,
                latest: START_MS,
                definition,
                is_enabled: true,
                excluded: Excluded::default(),
                since: START_MS,
                earlier: BTreeSet::new(),
            })
            .boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Event> {
        let now = model.now;
        let stretch = (-3_000..20_000_i64, 1..30_000_i64);
        let stretch = stretch.prop_map(move |(from, length)| (now + from, now + from + length));
        prop_oneof![
            6 => (0..4_000_i64).prop_map(Event::Clock),
            2 => (4_000..40_000_i64).prop_map(Event::Clock),
            1 => (-4_000..0_i64).prop_map(Event::Clock),
            8 => Just(Event::Plan),
            1 => definition().prop_map(Event::Edit),
            1 => prop::bool::ANY.prop_map(Event::Enable),
            1 => prop::collection::vec(stretch.clone(), 0..3).prop_map(Event::Calendar),
            1 => prop::option::of(stretch).prop_map(Event::Window),
            1 => prop::option::of(1..20_000_i64).prop_map(Event::Pause),
            1 => Just(Event::EndPause),
        ]
        .boxed()
    }

    /// What changes a plan has happened after all that was planned, whatever the clock does.
    fn preconditions(model: &Self, event: &Event) -> bool {
        match event {
            Event::Clock(_) | Event::Plan => true,
            Event::Pause(_) => model.now == model.latest && model.excluded.pause.is_none(),
            Event::EndPause => model.now == model.latest && model.excluded.pause.is_some(),
            _ => model.now == model.latest,
        }
    }

    fn apply(mut model: Self, event: &Event) -> Self {
        match event {
            Event::Clock(by) => {
                model.now += by;
                model.latest = model.latest.max(model.now);
            }
            Event::Plan => {}
            Event::Edit(definition) => {
                if *definition != model.definition {
                    model.begin_anew();
                    model.definition = *definition;
                }
            }
            Event::Enable(enable) => {
                if *enable != model.is_enabled {
                    model.begin_anew();
                    model.is_enabled = *enable;
                }
            }
            Event::Calendar(stretches) => model.excluded.calendar.clone_from(stretches),
            Event::Window(stretch) => model.excluded.window = *stretch,
            Event::Pause(length) => {
                let until = length.map(|length| model.now + length);
                model.excluded.pause = Some((model.now, until));
            }
            Event::EndPause => model.excluded.pause = None,
        }
        model
    }
}

/// A job as a store has it.
struct Stored {
    planner: SchedulePlanner,
    job: Arc<Job>,
    is_enabled: bool,
    due: DueColumns,
    excluded: Excluded,
    now: i64,
    /// Fire times with a run, and those that share a skipped one.
    runs: BTreeSet<i64>,
    accounted: BTreeSet<i64>,
}

fn spec_of(definition: Definition) -> JobSpec {
    let period = format!("{}ms", definition.period);
    let mut spec = job(definition.policy, definition.limit, &period).spec;
    spec.calendars = vec!["c".to_owned()];
    spec
}

fn rules_of(excluded: &Excluded, ended_at: Option<i64>) -> FireRules {
    let stretches = excluded.calendar.iter();
    let periods: Vec<_> = stretches
        .map(|(from, to)| serde_json::json!({ "start": from, "end": to }))
        .collect();
    let calendar = serde_json::json!({ "name": "c", "periods": periods });
    let calendar = serde_json::from_value(calendar).expect("a calendar");
    let window = |id, spec: serde_json::Value, ended_at: Option<i64>| {
        Arc::new(MaintenanceWindow {
            id,
            spec: serde_json::from_value(spec).expect("a window"),
            ended_at: ended_at.map(at),
        })
    };
    let mut windows = Vec::new();
    if let Some((start, end)) = excluded.window {
        windows.push(window(
            1,
            serde_json::json!({ "start": start, "end": end }),
            None,
        ));
    }
    if let Some((paused_at, until)) = excluded.pause {
        let mut pause = serde_json::json!({ "paused_at": paused_at, "reason": "x" });
        if let Some(until) = until {
            pause["until"] = at(until).to_string().into();
        }
        windows.push(window(2, pause, ended_at));
    }
    FireRules {
        revision: 1,
        calendars: HashMap::from([(
            "c".parse().expect("a name"),
            Arc::new(Calendar::new(calendar, 1)),
        )]),
        windows,
    }
}

impl Stored {
    fn period(&self) -> i64 {
        let Schedule::FixedRate { every, .. } = &self.job.spec.schedule else {
            unreachable!("a rate")
        };
        i64::try_from(every.as_millis()).expect("small")
    }

    fn jobs(&self) -> HashMap<i64, Arc<Job>> {
        HashMap::from([(self.job.id.0, self.job.clone())])
    }

    /// Notes fire times that share a skipped run: those between its first and its last that are of its kind.
    fn skip(&mut self, skipped: &SkippedFires, last: Timestamp, is_excluded: bool) {
        let (since, last) = (skipped.since.as_millis(), last.as_millis());
        let of_kind: Vec<i64> = grid(self.period(), since - 1, last)
            .filter(|at| self.excluded.has(*at) == is_excluded && !self.accounted.contains(at))
            .collect();
        assert_eq!(of_kind.len() as u64, skipped.count, "{skipped:?} to {last}");
        assert_eq!(
            (of_kind[0], of_kind.last()),
            (since, Some(&last)),
            "{skipped:?}"
        );
        self.accounted.extend(of_kind);
    }

    fn due(&self) -> Option<Due> {
        let stored = self.due.next_fire_at?;
        (stored <= self.now + LOOKAHEAD_MS).then(|| Due {
            at: at(stored),
            excluded_from: self.due.excluded_from.map(at),
        })
    }

    /// Plans until nothing is due.
    fn plan(&mut self) {
        let exclusions = rules_of(&self.excluded, None).of(&self.job.spec);
        let oldest = self.due.next_fire_at.unwrap_or(self.now);
        let missed: Vec<i64> = grid(self.period(), oldest - 1, self.now - GRACE_MS - 1)
            .filter(|at| !self.excluded.has(*at) && !self.accounted.contains(at))
            .collect();
        let mut late = Vec::new();
        for calls in 0.. {
            assert!(
                calls < 10_000,
                "the plan does not get further: {:?}",
                self.due
            );
            let Some(due) = self.due() else { break };
            let (plan, excluded_from) =
                self.planner
                    .plan_excluding(&self.job, due, &exclusions, at(self.now), &[]);
            for run in &plan.runs {
                if let Some(skipped) = &run.skipped {
                    let is_excluded = !skipped.reason.starts_with("skipped by misfire");
                    assert!(run.fire_at <= at(self.now), "{run:?} has not passed");
                    self.skip(skipped, run.fire_at, is_excluded);
                    continue;
                }
                let fire_at = run.fire_at.as_millis();
                assert!(!self.excluded.has(fire_at), "{fire_at} is excluded");
                assert_eq!(fire_at % self.period(), 0, "not a fire time");
                assert!(self.accounted.insert(fire_at), "{fire_at} twice");
                self.runs.insert(fire_at);
                if fire_at < self.now - GRACE_MS {
                    late.push(fire_at);
                }
            }
            self.due.next_fire_at = plan.next_fire.map(Timestamp::as_millis);
            self.due.excluded_from = excluded_from.map(Timestamp::as_millis);
        }
        // With a limit for each call, several calls may each run some.
        if self.planner.max_fire_times > 1_000 {
            let most = max_missed_to_run(&self.job);
            let newest = missed.len().saturating_sub(most);
            assert_eq!(late, missed[newest..], "{missed:?}");
        }
    }

    /// Accounts for excluded fire times before a change.
    fn account(&mut self, rules: &FireRules) {
        let (Some(from), id) = (self.due.excluded_from, self.job.id.0) else {
            return;
        };
        let row = (id, self.job.version, from, self.due.next_fire_at, 0);
        for run in account_excluded(&[row], &self.jobs(), rules, at(self.now)) {
            let skipped = run.skipped.expect("it only records");
            self.skip(&skipped, run.fire_at, true);
        }
    }

    /// Withdraws the runs that were written ahead of their fire time.
    fn withdraw(&mut self) {
        let ahead = self.runs.split_off(&(self.now + 1));
        self.accounted.retain(|at| !ahead.contains(at));
    }

    /// The rules have changed.
    fn replan(&mut self, before: &FireRules, after: &FireRules) {
        self.account(before);
        let row = (
            self.job.id.0,
            self.due.next_fire_at,
            self.due.excluded_from,
            self.is_enabled,
        );
        let now = at(self.now);
        let replanned = replan(&[row], &self.jobs(), (before, after), (now, now));
        self.due = replanned[0].columns;
        self.withdraw();
    }

    /// The job itself has changed, or begins or ends.
    fn change(&mut self, definition: Definition, is_enabled: bool) {
        let rules = rules_of(&self.excluded, None);
        self.account(&rules);
        self.withdraw();
        self.is_enabled = is_enabled;
        self.job = Arc::new(Job {
            id: JobId(1),
            version: self.job.version + 1,
            spec: spec_of(definition),
        });
        self.due = DueColumns::default();
        if is_enabled {
            let next = self.job.spec.next_fire(at(self.now));
            self.due = DueColumns::new(&self.job.spec, &rules, next);
        }
    }
}

struct Plans;

impl StateMachineTest for Plans {
    type SystemUnderTest = Stored;
    type Reference = Model;

    fn init_test(model: &Model) -> Stored {
        let spec = spec_of(model.definition);
        let rules = rules_of(&model.excluded, None);
        let due = DueColumns::new(&spec, &rules, spec.next_fire(at(model.now)));
        // Half of the cases have small limits for each call.
        let planner = if model.definition.limit.is_multiple_of(2) {
            SchedulePlanner::default()
        } else {
            SchedulePlanner {
                max_fire_times: 3,
                max_on_time: 2,
                ..SchedulePlanner::default()
            }
        };
        Stored {
            planner,
            job: Arc::new(Job {
                id: JobId(1),
                version: 1,
                spec,
            }),
            is_enabled: true,
            due,
            excluded: Excluded::default(),
            now: model.now,
            runs: BTreeSet::new(),
            accounted: BTreeSet::new(),
        }
    }

    fn apply(mut stored: Stored, model: &Model, event: Event) -> Stored {
        match event {
            Event::Clock(_) => stored.now = model.now,
            Event::Plan => {
                stored.plan();
                check(&stored, model);
            }
            // What is due and not planned yet would be forgotten: its definition is over.
            Event::Edit(_) | Event::Enable(_) => {
                stored.plan();
                stored.change(model.definition, model.is_enabled);
                check(&stored, model);
            }
            Event::Calendar(_) | Event::Window(_) | Event::Pause(_) => {
                let before = rules_of(&stored.excluded, None);
                let after = rules_of(&model.excluded, None);
                // Excluded ones of before are skipped by the rules of before.
                stored.replan(&before, &after);
                stored.excluded = model.excluded.clone();
            }
            Event::EndPause => {
                // The pause is kept until its jobs have new plans.
                let rules = rules_of(&stored.excluded, Some(model.now));
                if let Some((_, until)) = &mut stored.excluded.pause {
                    *until = Some(until.unwrap_or(i64::MAX).min(model.now));
                }
                stored.replan(&rules, &rules);
                stored.excluded = model.excluded.clone();
            }
        }
        stored
    }
}

/// Each fire time that has passed is accounted for, or is an excluded one that waits for that.
fn check(stored: &Stored, model: &Model) {
    let waiting: BTreeSet<i64> = match (stored.due.excluded_from, stored.due.next_fire_at) {
        (Some(from), Some(until)) => grid(stored.period(), from - 1, until - 1)
            .filter(|at| stored.excluded.has(*at))
            .collect(),
        _ => BTreeSet::new(),
    };
    let passed = model.passed();
    let missing: Vec<&i64> = passed
        .iter()
        .filter(|at| !stored.accounted.contains(at) && !waiting.contains(at))
        .collect();
    assert!(missing.is_empty(), "not accounted for: {missing:?}");
    let foreign: Vec<&i64> = stored
        .accounted
        .range(..=model.now)
        .filter(|at| !passed.contains(at))
        .collect();
    assert!(foreign.is_empty(), "not fire times: {foreign:?}");
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("CUELINE_TEST_MODEL_CASES").map(|n| n.parse().expect("a number"));
    ProptestConfig::with_cases(cases.unwrap_or(150))
}

prop_state_machine! {
    #![proptest_config(cases())]
    #[test]
    fn the_plans_account_for_each_fire_time_once(sequential 1..50 => Plans);
}
