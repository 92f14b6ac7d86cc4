//! Rate limits and concurrency limits of dispatches.

use std::collections::BTreeSet;
use std::sync::Arc;

use cueline_model::{
    Block, Concurrency, JobSpec, OutcomeKind, Rate, RateLimit, RatePer, RunState, Timestamp,
};

use super::fixture::{Fixture, actor, attempt, by_hand, mark_in_lane};
use crate::{
    BegunDispatch, ClaimedRun, DispatchRequest, LimitPlace, LimitWaitReason, NodeId, Store, Subject,
};

/// Any number of its runs may be at work, apart from its limits.
fn parallel(job: &str) -> JobSpec {
    JobSpec {
        block: Block::Parallel(10_000),
        ..by_hand(job)
    }
}

fn with_key(job: &str, key: &str, limit: u32) -> JobSpec {
    JobSpec {
        concurrency: Some(Box::new(Concurrency {
            key: key.to_owned(),
            limit,
        })),
        ..parallel(job)
    }
}

fn with_rate(job: &str, count: u32, per: RatePer, key: Option<&str>) -> JobSpec {
    JobSpec {
        rate_limit: Some(Box::new(RateLimit {
            rate: Rate { count, per },
            key: key.map(str::to_owned),
        })),
        ..parallel(job)
    }
}

fn request(run: &ClaimedRun, executor: &str) -> DispatchRequest {
    DispatchRequest {
        limits: run.limits(None),
        ..mark_in_lane(run, executor)
    }
}

async fn begin(fixture: &Fixture, node: NodeId, runs: &[&ClaimedRun]) -> BegunDispatch {
    let requests: Vec<_> = runs.iter().map(|run| request(run, "e1")).collect();
    let begun = fixture.store.begin_dispatch_in_lanes(node, &requests).await;
    begun.expect("begins")
}

async fn triggered(fixture: &Fixture, node: NodeId, job: &str) -> ClaimedRun {
    fixture.clock.advance(1);
    fixture.trigger(job).await;
    fixture.claim(node).await.remove(0)
}

fn reasons(begun: &BegunDispatch) -> Vec<LimitWaitReason> {
    begun.limit_waits.iter().map(|wait| wait.reason).collect()
}

/// The jobs of one key share its places, at any executors and in any state until the end.
pub async fn jobs_share_the_places_of_a_key(fixture: &Fixture) {
    let node = fixture.node().await;
    let jobs = [
        with_key("a", "db", 2),
        with_key("b", "db", 2),
        with_key("c", "other", 2),
        with_key("team/d", "db", 2),
        parallel("e"),
    ];
    fixture.apply(&jobs).await;
    let mut runs = Vec::new();
    for job in ["a", "b", "a", "c", "team/d", "e"] {
        runs.push(triggered(fixture, node, job).await);
    }
    let all: Vec<&ClaimedRun> = runs.iter().collect();
    let begun = begin(fixture, node, &all).await;
    let accepted = [0, 1, 3, 4, 5].map(|at: usize| attempt(&runs[at]));
    assert_eq!(begun.accepted, accepted, "in the order of the requests");
    let [wait] = &begun.limit_waits[..] else {
        panic!("one waits: {begun:?}")
    };
    assert_eq!(wait.attempt, attempt(&runs[2]));
    assert_eq!(wait.key.to_string(), "the concurrency limit of key db");
    assert_eq!(wait.reason, LimitWaitReason::Full(runs[0].id));
    fixture.expect(runs[2].id, RunState::Scheduled).await;
    let published = fixture.store.confirm_dispatch(&[attempt(&runs[0])]).await;
    published.expect("confirms");
    let asked = fixture.store.cancel_run(runs[0].id, &actor("me")).await;
    asked.expect("is asked");
    let still = begin(fixture, node, &[&runs[2]]).await;
    assert_eq!(reasons(&still), [LimitWaitReason::Full(runs[0].id)]);
    fixture.end(attempt(&runs[0]), OutcomeKind::Cancelled).await;
    let begun = begin(fixture, node, &[&runs[2]]).await;
    assert_eq!(begun.accepted, [attempt(&runs[2])]);
}

/// A run that is scheduled again has no place, and needs a new one.
pub async fn a_run_that_is_scheduled_again_gives_its_place_back(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = with_key("a", "db", 1);
    spec.retry.max = 1;
    fixture.apply(&[spec, with_key("b", "db", 1)]).await;
    for kind in [OutcomeKind::Failed, OutcomeKind::Returned] {
        let first = triggered(fixture, node, "a").await;
        assert_eq!(begin(fixture, node, &[&first]).await.accepted.len(), 1);
        let other = triggered(fixture, node, "b").await;
        assert_eq!(begin(fixture, node, &[&other]).await.accepted, []);
        let confirmed = fixture.store.confirm_dispatch(&[attempt(&first)]).await;
        confirmed.expect("confirms");
        fixture.end(attempt(&first), kind).await;
        let begun = begin(fixture, node, &[&other]).await;
        assert_eq!(begun.accepted, [attempt(&other)], "after {kind:?}");
        fixture.clock.advance(60_000);
        let again = fixture.claim(node).await.remove(0);
        assert_eq!((again.id, again.attempt), (first.id, 2));
        let waits = begin(fixture, node, &[&again]).await;
        assert_eq!(reasons(&waits), [LimitWaitReason::Full(other.id)]);
        fixture.end(attempt(&other), OutcomeKind::Succeeded).await;
        let begun = begin(fixture, node, &[&again]).await;
        assert_eq!(begun.accepted, [attempt(&again)]);
        fixture.end(attempt(&again), OutcomeKind::Succeeded).await;
    }
}

/// A repeated call accepts what the call before has marked, and counts it once.
pub async fn a_repeated_call_takes_no_second_place(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = with_rate("a", 2, RatePer::Minute, None);
    spec.concurrency = Some(Box::new(Concurrency {
        key: "db".to_owned(),
        limit: 2,
    }));
    fixture.apply(&[spec]).await;
    let first = triggered(fixture, node, "a").await;
    for _ in 0..3 {
        let begun = begin(fixture, node, &[&first]).await;
        assert_eq!(begun.accepted, [attempt(&first)]);
    }
    let second = triggered(fixture, node, "a").await;
    let begun = begin(fixture, node, &[&first, &second]).await;
    assert_eq!(begun.accepted, [attempt(&first), attempt(&second)]);
}

/// No interval has more dispatches than the rate. Retries count, and ends free nothing.
pub async fn a_rate_holds_in_any_interval(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut first = with_rate("a", 2, RatePer::Minute, Some("mail"));
    first.retry.max = 1;
    fixture
        .apply(&[
            first,
            with_rate("b", 2, RatePer::Minute, Some("mail")),
            with_rate("c", 1, RatePer::Hour, None),
        ])
        .await;
    let begun_at = fixture.now();
    let one = triggered(fixture, node, "a").await;
    let own = triggered(fixture, node, "c").await;
    let begun = begin(fixture, node, &[&one, &own]).await;
    assert_eq!(begun.accepted.len(), 2);
    fixture.end(attempt(&one), OutcomeKind::Failed).await;
    fixture.clock.advance(40_000);
    let retry = fixture.claim(node).await.remove(0);
    assert_eq!(begin(fixture, node, &[&retry]).await.accepted.len(), 1);
    fixture.end(attempt(&retry), OutcomeKind::Succeeded).await;
    let two = triggered(fixture, node, "b").await;
    let begun = begin(fixture, node, &[&two]).await;
    assert_eq!(begun.accepted, []);
    let [LimitWaitReason::Rate(at)] = reasons(&begun)[..] else {
        panic!("a time is named: {begun:?}")
    };
    assert_eq!(at, begun_at.plus_ms(60_002));
    fixture.expect(two.id, RunState::Scheduled).await;
    let left = u64::try_from(at.since_ms(fixture.now())).expect("is later");
    fixture.clock.advance(left - 1);
    assert_eq!(begin(fixture, node, &[&two]).await.accepted, []);
    fixture.clock.advance(1);
    assert_eq!(begin(fixture, node, &[&two]).await.accepted.len(), 1);
    let hourly = triggered(fixture, node, "c").await;
    let begun = begin(fixture, node, &[&hourly]).await;
    assert_eq!(
        reasons(&begun).len(),
        1,
        "another job's own limit: {begun:?}"
    );
}

/// What is refused for another reason takes no place.
pub async fn only_dispatched_runs_take_places(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = with_rate("a", 1, RatePer::Hour, Some("mail"));
    spec.block = Block::Serial;
    let other = with_rate("b", 1, RatePer::Hour, Some("mail"));
    fixture.apply(&[by_hand("a"), other.clone()]).await;
    let holder = triggered(fixture, node, "a").await;
    fixture.publish(node, &holder).await;
    fixture.apply(&[spec]).await;
    // The lane is busy at another executor.
    let waits = triggered(fixture, node, "a").await;
    let begun = fixture
        .store
        .begin_dispatch_in_lanes(node, &[request(&waits, "e2")])
        .await;
    let begun = begun.expect("begins");
    assert_eq!((begun.waits.len(), begun.limit_waits.len()), (1, 0));
    // The run was cancelled.
    let cancelled = triggered(fixture, node, "b").await;
    let done = fixture.store.cancel_run(cancelled.id, &actor("me")).await;
    done.expect("cancels");
    let begun = begin(fixture, node, &[&cancelled]).await;
    assert_eq!(begun, BegunDispatch::default(), "no further call is needed");
    // The job was edited.
    let edited = triggered(fixture, node, "b").await;
    let mut changed = other;
    "changed".clone_into(&mut changed.description);
    fixture.apply(&[changed]).await;
    assert_eq!(
        begin(fixture, node, &[&edited]).await,
        BegunDispatch::default()
    );
    let again = fixture.claim(node).await.remove(0);
    let begun = begin(fixture, node, &[&again]).await;
    assert_eq!(
        begun.accepted,
        [attempt(&edited)],
        "the place is still free"
    );
}

/// An older run goes first, whichever node has it, and holds back nothing without its limit.
pub async fn older_runs_of_a_limit_go_first(fixture: &Fixture) {
    let (one, two) = (fixture.node().await, fixture.node().await);
    fixture
        .apply(&[
            with_key("a", "db", 1),
            with_key("b", "db", 1),
            parallel("c"),
        ])
        .await;
    let first = triggered(fixture, one, "a").await;
    assert_eq!(begin(fixture, one, &[&first]).await.accepted.len(), 1);
    let older = triggered(fixture, two, "b").await;
    let younger = triggered(fixture, one, "a").await;
    assert_eq!(begin(fixture, two, &[&older]).await.accepted, []);
    fixture.end(attempt(&first), OutcomeKind::Succeeded).await;
    let free = triggered(fixture, one, "c").await;
    let begun = begin(fixture, one, &[&younger, &free]).await;
    assert_eq!(begun.accepted, [attempt(&free)]);
    assert_eq!(reasons(&begun), [LimitWaitReason::Behind(older.id)]);
    assert_eq!(begin(fixture, two, &[&older]).await.accepted.len(), 1);
    fixture.end(attempt(&older), OutcomeKind::Succeeded).await;
    assert_eq!(begin(fixture, one, &[&younger]).await.accepted.len(), 1);
}

/// The turn of a node that has ended passes.
pub async fn a_turn_passes_with_its_node(fixture: &Fixture) {
    let (one, two) = (fixture.node().await, fixture.node().await);
    let jobs = [with_key("a", "db", 1), with_key("b", "db", 1)];
    fixture.apply(&jobs).await;
    let first = triggered(fixture, one, "a").await;
    begin(fixture, one, &[&first]).await;
    let older = triggered(fixture, two, "b").await;
    let younger = triggered(fixture, one, "a").await;
    begin(fixture, two, &[&older]).await;
    fixture.end(attempt(&first), OutcomeKind::Succeeded).await;
    assert_eq!(begin(fixture, one, &[&younger]).await.accepted, []);
    fixture.clock.advance(2_000);
    assert_eq!(begin(fixture, one, &[&younger]).await.accepted.len(), 1);
}

/// Attempts that a node has marked and not published count, and stay when another node takes them over.
pub async fn attempts_of_a_dead_node_keep_their_places(fixture: &Fixture) {
    let node = fixture.node().await;
    let dies = fixture.node_for(10_000).await;
    fixture.apply(&[with_key("a", "db", 1)]).await;
    let marked = triggered(fixture, dies, "a").await;
    assert_eq!(begin(fixture, dies, &[&marked]).await.accepted.len(), 1);
    fixture.clock.advance(10_000);
    let taken = fixture.claim(node).await.remove(0);
    assert!(taken.maybe_published && taken.limits(None).is_none());
    let next = triggered(fixture, node, "a").await;
    let begun = begin(fixture, node, &[&taken, &next]).await;
    assert_eq!(begun.accepted, [attempt(&taken)]);
    assert_eq!(reasons(&begun), [LimitWaitReason::Full(taken.id)]);
}

/// Nodes that ask at the same time never take more than there is.
pub async fn nodes_race_for_a_limit(fixture: &Fixture) {
    const NODES: usize = 4;
    const RUNS: usize = 6;
    let mut shared = with_key("a", "db", 3);
    shared.rate_limit = Some(Box::new(RateLimit {
        rate: Rate {
            count: 100,
            per: RatePer::Second,
        },
        key: Some("mail".to_owned()),
    }));
    fixture.apply(&[shared, with_key("b", "db", 3)]).await;
    let mut nodes: Vec<(NodeId, Arc<dyn Store>)> = Vec::new();
    for _ in 0..NODES {
        nodes.push((fixture.node().await, fixture.harness.open().await));
    }
    for round in 0..8 {
        let mut tasks = Vec::new();
        for (node, store) in &nodes {
            let mut requests = Vec::new();
            for at in 0..RUNS {
                fixture.trigger(["a", "b"][at % 2]).await;
                for run in fixture.claim(*node).await {
                    let mut request = request(&run, "e1");
                    // Each comes first, so that none waits for its lane or a turn.
                    request.lane = None;
                    if let Some(limits) = &mut request.limits {
                        limits.place = LimitPlace(0, 0, run.id);
                    }
                    requests.push((request, run));
                }
            }
            let (node, store) = (*node, store.clone());
            tasks.push(tokio::spawn(async move {
                let (asked, runs): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
                let begun = store.begin_dispatch_in_lanes(node, &asked).await;
                (begun.expect("begins"), runs)
            }));
        }
        let mut runs = Vec::new();
        let mut accepted = 0;
        for task in tasks {
            let (begun, of_node) = task.await.expect("no panic");
            assert_eq!(begun.accepted.len() + begun.limit_waits.len(), RUNS);
            accepted += begun.accepted.len();
            runs.extend(of_node);
        }
        assert_eq!(accepted, 3, "round {round}");
        let mut at_work = BTreeSet::new();
        for run in &runs {
            if fixture.run(run.id).await.state == RunState::Dispatching {
                at_work.insert(run.id);
                fixture.end(attempt(run), OutcomeKind::Succeeded).await;
            } else {
                let cancelled = fixture.store.cancel_run(run.id, &actor("me")).await;
                cancelled.expect("ends it");
            }
        }
        assert_eq!(at_work.len(), 3, "round {round}");
        fixture.clock.advance(2_000);
    }
}

/// An explanation shows the limits of the job and what uses them.
pub async fn a_situation_has_the_limits_of_its_job(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = with_key("a", "db", 2);
    spec.rate_limit = Some(Box::new(RateLimit {
        rate: Rate {
            count: 2,
            per: RatePer::Hour,
        },
        key: None,
    }));
    fixture.apply(&[spec]).await;
    let unused = fixture
        .store
        .situation(Subject::Job(&super::fixture::name("a")))
        .await;
    let unused = unused.expect("a situation").limits;
    assert_eq!(unused.len(), 2);
    assert!(
        unused
            .iter()
            .all(|usage| usage.state == crate::LimitState::default())
    );
    let (first, second) = (
        triggered(fixture, node, "a").await,
        triggered(fixture, node, "a").await,
    );
    begin(fixture, node, &[&first, &second]).await;
    let third = triggered(fixture, node, "a").await;
    begin(fixture, node, &[&third]).await;
    fixture.end(attempt(&first), OutcomeKind::Succeeded).await;
    let situation = fixture.store.situation(Subject::Run(third.id)).await;
    let limits = situation.expect("a situation").limits;
    let places: Vec<_> = limits
        .iter()
        .flat_map(|usage| usage.state.places.clone())
        .collect();
    assert_eq!(places, [second.id], "what has ended does not count");
    let windows: Vec<_> = limits
        .iter()
        .flat_map(|usage| usage.state.windows.iter())
        .collect();
    let [(RatePer::Hour, window)] = windows[..] else {
        panic!("one window: {limits:?}")
    };
    let rate = Rate {
        count: 2,
        per: RatePer::Hour,
    };
    assert_eq!(window.free(fixture.now(), rate), 0);
    assert!(window.next_place(fixture.now(), rate) > fixture.now().plus_ms(3_500_000));
}

/// A limit that was not used for two days is forgotten, unless one of its runs is still at work.
pub async fn unused_limits_are_forgotten(fixture: &Fixture) {
    const COUNT: &str = "SELECT CAST(count(*) AS text) FROM run_limit";
    let node = fixture.node().await;
    let jobs = [
        with_key("a", "old", 1),
        with_key("b", "long", 1),
        with_key("c", "new", 1),
    ];
    fixture.apply(&jobs).await;
    let old = triggered(fixture, node, "a").await;
    let long = triggered(fixture, node, "b").await;
    begin(fixture, node, &[&old, &long]).await;
    let confirmed = fixture.store.confirm_dispatch(&[attempt(&long)]).await;
    confirmed.expect("confirms");
    fixture.end(attempt(&old), OutcomeKind::Succeeded).await;
    assert_eq!(fixture.harness.sql(COUNT).await, "2");
    fixture.clock.advance(3 * 86_400_000);
    let node = fixture.node().await;
    let new = triggered(fixture, node, "c").await;
    begin(fixture, node, &[&new]).await;
    assert_eq!(fixture.harness.sql(COUNT).await, "2", "`old` is forgotten");
    let next = triggered(fixture, node, "b").await;
    let begun = begin(fixture, node, &[&next]).await;
    assert_eq!(reasons(&begun), [LimitWaitReason::Full(long.id)]);
    assert_eq!(
        next.limit_place(),
        LimitPlace(next.fire_at.as_millis(), 4, next.id)
    );
    assert!(next.fire_at > Timestamp::default());
}

/// The rates of groups are kept until they are removed, and each change is in the audit log.
pub async fn rates_of_groups_are_kept(fixture: &Fixture) {
    let (mail, other) = (
        super::fixture::name::<cueline_model::GroupName>("team/mail"),
        super::fixture::name::<cueline_model::GroupName>("a"),
    );
    let rate = |count| Rate {
        count,
        per: RatePer::Minute,
    };
    let set = async |group, rate| {
        let by = actor("me");
        let set = fixture.store.set_group_rate(group, rate, &by);
        set.await.expect("sets")
    };
    assert!(set(&mail, Some(rate(5))).await);
    assert!(!set(&mail, Some(rate(5))).await, "nothing changes");
    assert!(set(&other, Some(rate(7))).await);
    assert!(set(&mail, Some(rate(6))).await);
    let stored = fixture.store.group_rates().await.expect("lists");
    let stored: Vec<_> = stored
        .iter()
        .map(|one| (one.group.as_str(), one.rate.count))
        .collect();
    assert_eq!(stored, [("a", 7), ("team/mail", 6)]);
    assert!(set(&other, None).await);
    assert!(!set(&other, None).await, "there is none");
    assert_eq!(fixture.store.group_rates().await.expect("lists").len(), 1);
    let node = fixture.node().await;
    fixture.apply(&[parallel("team/j")]).await;
    let mut in_group = parallel("team/j");
    in_group.group = mail.clone();
    fixture.apply(&[in_group]).await;
    let run = triggered(fixture, node, "team/j").await;
    assert_eq!(run.job.spec.group, mail);
    let limits = fixture
        .store
        .situation(Subject::Run(run.id))
        .await
        .expect("reads")
        .limits;
    assert_eq!(limits.len(), 1);
    assert_eq!(limits[0].limit.key, crate::LimitKey::RateOfGroup(mail));
}
