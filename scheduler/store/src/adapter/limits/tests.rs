use std::collections::BTreeMap;

use cueline_model::{AttemptId, Namespace, Rate, RatePer};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn concurrency(limit: u32) -> LimitUse {
    LimitUse {
        key: LimitKey::Concurrency(Namespace::default(), "db".to_owned()),
        rule: LimitRule::Concurrency(limit),
    }
}

fn rate(count: u32) -> LimitUse {
    LimitUse {
        key: LimitKey::RateOfKey(Namespace::default(), "mail".to_owned()),
        rule: LimitRule::Rate(Rate {
            count,
            per: RatePer::Second,
        }),
    }
}

/// A run whose id is also its fire time in ms.
fn request(run: i64, uses: &[LimitUse]) -> DispatchRequest {
    DispatchRequest {
        attempt: AttemptId {
            run: RunId(run),
            attempt: 1,
        },
        job_version: 1,
        executor: "e1".parse().expect("a name"),
        lane: None,
        limits: Some(Box::new(DispatchLimits {
            uses: uses.to_vec(),
            place: LimitPlace(run, 4, RunId(run)),
            due_at: at(run),
        })),
    }
}

fn rate_of_group(count: u32) -> LimitUse {
    LimitUse {
        key: LimitKey::RateOfGroup("g".parse().expect("a name")),
        ..rate(count)
    }
}

/// A store with one row for each limit.
#[derive(Default)]
struct Model {
    states: BTreeMap<LimitKey, LimitState>,
    at_work: HashSet<RunId>,
}

impl Model {
    /// Runs that are let pass and marked, and the waits.
    fn begin(
        &mut self,
        node: i64,
        requests: &[DispatchRequest],
        now: i64,
    ) -> (Vec<i64>, Vec<LimitWait>) {
        let mut book = LimitBook {
            states: std::mem::take(&mut self.states),
            at_work: self.at_work.clone(),
        };
        let admission = book.admit(requests, at(now));
        let passed: Vec<RunId> = admission
            .proceed
            .iter()
            .map(|i| requests[*i].attempt.run)
            .collect();
        let new: HashSet<RunId> = passed
            .iter()
            .copied()
            .filter(|run| !self.at_work.contains(run))
            .collect();
        book.settle(
            NodeId(node),
            requests,
            &admission.kept,
            |run| new.contains(&run),
            at(now),
        );
        self.states = book.states;
        self.at_work.extend(new);
        (passed.iter().map(|run| run.0).collect(), admission.waits)
    }

    fn end(&mut self, run: i64) {
        self.at_work.remove(&RunId(run));
    }
}

fn reasons(waits: &[LimitWait]) -> Vec<(i64, LimitWaitReason)> {
    waits
        .iter()
        .map(|wait| (wait.attempt.run.0, wait.reason))
        .collect()
}

#[test]
fn no_more_than_the_limit_are_at_work() {
    let mut model = Model::default();
    let uses = [concurrency(2)];
    let all: Vec<_> = [3, 1, 2].map(|run| request(run, &uses)).into();
    let (passed, waits) = model.begin(1, &all, 10);
    assert_eq!(passed, [1, 2], "the oldest first");
    assert_eq!(reasons(&waits), [(3, LimitWaitReason::Full(RunId(1)))]);
    let again = model.begin(1, &all, 10);
    assert_eq!(
        again,
        (passed, waits),
        "a repeated call has the same answer"
    );
    model.end(1);
    assert_eq!(model.begin(1, &[request(3, &uses)], 20).0, [3]);
}

#[test]
fn a_run_that_was_refused_holds_back_the_later_ones_of_its_limit_only() {
    let mut model = Model::default();
    model.begin(1, &[request(1, &[concurrency(1)])], 10);
    let both = request(2, &[concurrency(1), rate(5)]);
    let (passed, waits) = model.begin(
        1,
        &[both, request(3, &[rate(5)]), request(4, &[concurrency(9)])],
        10,
    );
    assert_eq!(passed, [3], "the other limit has places");
    let expected = [
        (2, LimitWaitReason::Full(RunId(1))),
        (4, LimitWaitReason::Behind(RunId(2))),
    ];
    assert_eq!(reasons(&waits), expected);
}

#[test]
fn a_rate_says_when_the_next_place_is_free() {
    let mut model = Model::default();
    let uses = [rate(2)];
    let all: Vec<_> = (1..=3).map(|run| request(run, &uses)).collect();
    let (passed, waits) = model.begin(1, &all, 100);
    assert_eq!(passed, [1, 2]);
    assert_eq!(reasons(&waits), [(3, LimitWaitReason::Rate(at(1_100)))]);
    for run in [1, 2] {
        model.end(run);
    }
    assert_eq!(
        model.begin(1, &[request(3, &uses)], 1_099).0,
        [0; 0],
        "an end frees no rate"
    );
    assert_eq!(model.begin(1, &[request(3, &uses)], 1_100).0, [3]);
}

#[test]
fn an_attempt_counts_when_it_is_due() {
    let mut model = Model::default();
    // Marked 400 ms ahead.
    assert_eq!(model.begin(1, &[request(500, &[rate(1)])], 100).0, [500]);
    let (_, waits) = model.begin(1, &[request(600, &[rate(1)])], 1_200);
    assert_eq!(reasons(&waits), [(600, LimitWaitReason::Rate(at(1_500)))]);
}

#[test]
fn other_nodes_leave_a_place_for_an_older_run_that_has_a_turn() {
    let mut model = Model::default();
    let uses = [concurrency(1)];
    model.begin(1, &[request(1, &uses)], 10);
    model.begin(2, &[request(2, &uses)], 10);
    model.end(1);
    let (passed, waits) = model.begin(1, &[request(3, &uses)], 20);
    assert_eq!(passed, [0; 0]);
    assert_eq!(reasons(&waits), [(3, LimitWaitReason::Behind(RunId(2)))]);
    assert_eq!(model.begin(2, &[request(2, &uses)], 30).0, [2]);
    model.end(2);
    assert_eq!(
        model.begin(1, &[request(3, &uses)], 40).0,
        [3],
        "its turn is over"
    );
}

#[test]
fn a_node_that_does_not_ask_again_loses_its_turn() {
    let mut model = Model::default();
    let uses = [concurrency(1)];
    model.begin(1, &[request(1, &uses)], 10);
    model.begin(2, &[request(2, &uses)], 10);
    model.end(1);
    let asked = |model: &mut Model, now| model.begin(1, &[request(3, &uses)], now).0;
    assert_eq!(asked(&mut model, 1_009), [0; 0]);
    assert_eq!(asked(&mut model, 1_010), [3]);
}

#[test]
fn a_state_is_kept_as_json() {
    let mut model = Model::default();
    model.begin(1, &[request(1, &[concurrency(1), rate(3)])], 10);
    model.begin(2, &[request(2, &[concurrency(1)])], 10);
    for state in model.states.values() {
        let text = serde_json::to_string(state).expect("is written");
        let read: LimitState = serde_json::from_str(&text).expect("is read");
        assert_eq!(read, *state, "{text}");
    }
    assert_eq!(
        serde_json::to_string(&LimitState::default()).expect("is written"),
        "{}"
    );
}

/// What one node does: begins with some of its runs, or one run ends.
#[derive(Debug, Clone)]
enum Step {
    Begin { node: i64, runs: Vec<i64> },
    End(usize),
    Wait(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let begin = (1..=3_i64, vec(1..60_i64, 1..6)).prop_map(|(node, runs)| {
        // Each run belongs to one node.
        let runs: BTreeSet<i64> = runs.into_iter().map(|run| run * 3 + node - 1).collect();
        Step::Begin {
            node,
            runs: runs.into_iter().collect(),
        }
    });
    vec(
        prop_oneof![
            3 => begin,
            2 => (0..20_usize).prop_map(Step::End),
            1 => (1..700_i64).prop_map(Step::Wait),
        ],
        1..120,
    )
}

proptest! {
    #[test]
    fn no_limit_is_ever_exceeded(steps in steps(), places in 1..4_u32, count in 1..5_u32) {
        let mut model = Model::default();
        let (mut now, mut admitted) = (200, Vec::new());
        let mut ended = HashSet::new();
        for step in steps {
            match step {
                Step::Begin { node, runs } => {
                    let runs = runs.into_iter().filter(|run| !ended.contains(run));
                    let requests: Vec<_> = runs.map(|run| request(run, &[concurrency(places), rate(count)])).collect();
                    let before = model.at_work.clone();
                    let (passed, _) = model.begin(node, &requests, now);
                    admitted.extend(passed.iter().filter(|run| !before.contains(&RunId(**run))).map(|_| now));
                }
                Step::End(which) => {
                    let mut at_work: Vec<i64> = model.at_work.iter().map(|run| run.0).collect();
                    at_work.sort_unstable();
                    if let Some(run) = at_work.get(which) {
                        model.end(*run);
                        ended.insert(*run);
                    }
                }
                Step::Wait(ms) => now += ms,
            }
            prop_assert!(model.at_work.len() <= places as usize);
        }
        for start in &admitted {
            let within = admitted.iter().filter(|one| (*start..start + 1_000).contains(*one)).count();
            prop_assert!(within <= count as usize, "{admitted:?}");
        }
    }
}

/// Two busy limits, whose places become free at different times. Younger runs use one of them each.
#[test]
fn a_run_with_two_busy_limits_passes() {
    let both = [rate(1), concurrency(1)];
    let mut model = Model::default();
    assert_eq!(model.begin(1, &[request(1, &[concurrency(1)])], 1).0, [1]);
    assert_eq!(model.begin(1, &[request(2, &[rate(1)])], 500).0, [2]);
    let old = request(3, &both);
    let wait = |model: &mut Model, now| model.begin(1, std::slice::from_ref(&old), now).1;
    assert_eq!(
        reasons(&wait(&mut model, 600)),
        [(3, LimitWaitReason::Rate(at(1_500)))]
    );
    // It keeps no place of the concurrency limit while the rate makes it wait.
    model.end(1);
    let younger = request(4, &[concurrency(1)]);
    assert_eq!(model.begin(2, &[younger], 700).0, [4]);
    // But it keeps that of the rate while it waits for the other one, also when its node asks about younger runs alone.
    let full = [(3, LimitWaitReason::Full(RunId(4)))];
    assert_eq!(reasons(&wait(&mut model, 1_500)), full);
    let younger = [request(5, &[rate(1)])];
    for node in [1, 2] {
        let behind = [(5, LimitWaitReason::Behind(RunId(3)))];
        assert_eq!(reasons(&model.begin(node, &younger, 1_550).1), behind);
    }
    model.end(4);
    assert_eq!(wait(&mut model, 1_600), []);

    let mut model = Model::default();
    let (first, second) = (rate(1), rate_of_group(1));
    let begin = |model: &mut Model, run, uses: &[LimitUse], now| {
        model.begin(1, &[request(run, uses)], now).0.len()
    };
    assert_eq!(begin(&mut model, 1, std::slice::from_ref(&first), 1), 1);
    assert_eq!(begin(&mut model, 2, std::slice::from_ref(&second), 500), 1);
    let old = [first.clone(), second];
    assert_eq!(begin(&mut model, 3, &old, 1_001), 0, "the second rate");
    assert_eq!(begin(&mut model, 4, &[first], 1_002), 0, "it is kept");
    assert_eq!(begin(&mut model, 3, &old, 1_500), 1);
}

/// A node asks for a limit again within two seconds, so a turn ends soon after them.
#[test]
fn no_turn_lasts_much_longer_than_until_its_node_asks_again() {
    let hourly = |count| LimitUse {
        rule: LimitRule::Rate(Rate {
            count,
            per: RatePer::Hour,
        }),
        ..rate(count)
    };
    let mut model = Model::default();
    let all = [request(1, &[hourly(1)]), request(2, &[hourly(1)])];
    assert_eq!(model.begin(1, &all, 10).0, [1]);
    // Run 2 was cancelled, its node has ended, and the number was raised.
    let next = [request(3, &[hourly(2)])];
    let behind = [(3, LimitWaitReason::Behind(RunId(2)))];
    assert_eq!(reasons(&model.begin(2, &next, 2_000).1), behind);
    assert_eq!(model.begin(2, &next, 3_011).0, [3]);
}
