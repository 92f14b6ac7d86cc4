//! Tests of the router as a whole. The strategies have their own beside them.

use cueline_model::{Job, JobId, RunId, RunKind, Shard, Timestamp};
use rand::SeedableRng;

use super::*;

/// Candidates with the weights 1, 2, …
fn names(n: usize) -> Candidates {
    let candidate = |i: usize| Candidate {
        name: format!("worker-{i}").parse().expect("a name"),
        weight: Weight::clamped(i64::try_from(i).expect("small")),
        capacity: 8,
    };
    Arc::new((1..=n).map(candidate).collect())
}

/// What a node knows of the candidates; those that it knows nothing of have no load and answer.
#[derive(Default)]
struct Facts {
    loads: Vec<u64>,
    answers: Vec<Answer>,
}

impl ExecutorFacts for Facts {
    fn loads(&self, _: &GroupName, _: &[Candidate]) -> Vec<u64> {
        self.loads.clone()
    }

    fn answers(&self, _: &GroupName, candidates: &[Candidate], _: Timestamp) -> Vec<Answer> {
        let answer = |n: usize| self.answers.get(n).copied().unwrap_or(Answer::Yes);
        (0..candidates.len()).map(answer).collect()
    }
}

impl Router {
    /// The name of the executor that gets the run.
    fn name(&mut self, run: &ClaimedRun, candidates: &Candidates) -> Option<String> {
        let choice = self.choose(run, candidates, &Facts::default(), Timestamp::default());
        let Choice::Executor(name) = choice else {
            assert_eq!(choice, Choice::NoExecutor);
            return None;
        };
        self.record(run, &name, Timestamp::default());
        Some(name.to_string())
    }
}

pub(crate) fn run(route: &serde_json::Value, turn: u64) -> ClaimedRun {
    let spec = serde_json::from_value(serde_json::json!({
        "name": "j", "group": "default", "schedule": { "manual": true },
        "route": route, "handler": { "native": "noop" },
    }))
    .expect("a valid definition");
    ClaimedRun {
        id: RunId(7),
        attempt: 1,
        job: Arc::new(Job {
            id: JobId(42),
            version: 1,
            spec,
        }),
        kind: RunKind::Manual,
        fire_at: Timestamp::default(),
        due_at: Timestamp::default(),
        shard: Shard::whole(),
        params: None,
        executor: None,
        sequence: turn,
        maybe_published: false,
        lane_at: Timestamp::default(),
    }
}

const ALL: [&str; 13] = [
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
    "broadcast",
];

fn router() -> Router {
    Router::new(StdRng::seed_from_u64(1), Arc::default())
}

#[test]
fn without_candidates_no_executor_is_chosen() {
    for route in ALL {
        assert_eq!(
            router().name(&run(&route.into(), 0), &names(0)),
            None,
            "{route}"
        );
    }
}

#[test]
fn round_visits_the_executors_in_turn() {
    let mut router = router();
    let chosen: Vec<_> = (0..6)
        .map(|turn| router.name(&run(&"round".into(), turn), &names(3)).unwrap())
        .collect();
    assert_eq!(
        chosen,
        [
            "worker-1", "worker-2", "worker-3", "worker-1", "worker-2", "worker-3"
        ]
    );
}

#[test]
fn random_reaches_every_executor() {
    let mut router = router();
    let chosen: std::collections::BTreeSet<_> = (0..200)
        .filter_map(|t| router.name(&run(&"random".into(), t), &names(4)))
        .collect();
    assert_eq!(chosen.len(), 4);
}

#[test]
fn shards_of_one_fire_are_spread_evenly() {
    let mut router = router();
    let items: Vec<String> = vec![String::new(); 6];
    let chosen: Vec<_> = (0..6)
        .map(|i| {
            let mut run = run(&serde_json::json!({ "sharded": items }), u64::from(i));
            run.shard = Shard {
                index: i,
                total: 6,
                item: None,
            };
            router.name(&run, &names(3)).unwrap()
        })
        .collect();
    for name in ["worker-1", "worker-2", "worker-3"] {
        assert_eq!(
            chosen.iter().filter(|c| *c == name).count(),
            2,
            "{chosen:?}"
        );
    }
}

/// Each shard has failed on its executor, whatever its number.
#[test]
fn a_retried_shard_goes_to_the_next_executor() {
    let mut router = router();
    let items = vec![String::new(); 6];
    for index in 0..6 {
        let mut run = run(&serde_json::json!({ "sharded": items }), u64::from(index));
        run.shard = Shard {
            index,
            total: 6,
            item: None,
        };
        let first = router.name(&run, &names(3));
        run.attempt = 2;
        assert_ne!(router.name(&run, &names(3)), first, "shard {index}");
    }
}

#[test]
fn a_pinned_run_waits_for_its_executor() {
    let mut pinned = run(&"broadcast".into(), 0);
    pinned.executor = Some("worker-3".parse().expect("a name"));
    assert_eq!(router().name(&pinned, &names(2)), None);
    assert_eq!(
        router().name(&pinned, &names(3)).as_deref(),
        Some("worker-3")
    );
}

#[test]
fn each_strategy_chooses_its_executor() {
    for (route, expected) in [
        ("first", "1 1 1 1 1 1"),
        ("last", "3 3 3 3 3 3"),
        ("round", "1 2 3 1 2 3"),
        ("lfu", "1 2 3 1 2 3"),
        ("lru", "1 2 3 1 2 3"),
        ("failover", "1 1 1 1 1 1"),
        ("busyover", "1 2 3 1 2 3"),
        ("least_loaded", "1 2 3 1 2 3"),
        ("weighted", "3 2 1 3 2 3"),
        ("consistent_hash", "1 1 1 1 1 1"),
    ] {
        let mut router = router();
        let chosen: Vec<String> = (0..6)
            .map(|turn| {
                let mut run = run(&route.into(), turn);
                run.id = RunId(i64::try_from(turn).expect("small"));
                let name = router.name(&run, &names(3)).expect("an executor");
                name.replace("worker-", "")
            })
            .collect();
        assert_eq!(chosen.join(" "), expected, "{route}");
    }
}

#[test]
fn a_retry_goes_to_the_next_executor() {
    for (route, next) in [
        ("round", "worker-2"),
        ("least_loaded", "worker-2"),
        ("weighted", "worker-2"),
    ] {
        let mut retry = run(&route.into(), 0);
        let first = router().name(&retry, &names(3));
        retry.attempt = 2;
        let second = router().name(&retry, &names(3));
        assert_ne!(first, second, "{route}");
        assert_eq!(second.as_deref(), Some(next), "{route}");
    }
}

#[test]
fn a_named_executor_is_the_only_one() {
    let to = |name: &str| run(&serde_json::json!({ "executor": name }), 0);
    assert_eq!(
        router().name(&to("worker-2"), &names(3)).as_deref(),
        Some("worker-2")
    );
    assert_eq!(router().name(&to("worker-4"), &names(3)), None);
}

#[test]
fn the_least_loaded_executor_gets_the_run() {
    let facts = Facts {
        loads: vec![4, 2, 3],
        answers: Vec::new(),
    };
    let run = run(&"least_loaded".into(), 0);
    let choice = router().choose(&run, &names(3), &facts, Timestamp::default());
    assert_eq!(
        choice,
        Choice::Executor("worker-2".parse().expect("a name"))
    );
}

#[test]
fn any_gives_an_executor_no_more_than_it_has_room_for() {
    let facts = Facts {
        loads: vec![1, 0, 1],
        answers: Vec::new(),
    };
    let candidates: Candidates = Arc::new(
        names(3)
            .iter()
            .map(|one| Candidate {
                capacity: 1,
                ..one.clone()
            })
            .collect(),
    );
    let (mut router, at) = (router(), Timestamp::default());
    let choose = |router: &mut Router, id| {
        let mut run = run(&"any".into(), 0);
        run.id = RunId(id);
        let choice = router.choose(&run, &candidates, &facts, at);
        if let Choice::Executor(name) = &choice {
            router.record(&run, name, at);
        }
        (run, choice)
    };
    let group = "default".parse().expect("a name");
    assert_eq!(router.room(&group, &candidates, &facts, at), 1);
    let second = Choice::Executor("worker-2".parse().expect("a name"));
    let (first_run, chosen) = choose(&mut router, 1);
    assert_eq!(chosen, second);
    assert_eq!(
        choose(&mut router, 2).1,
        Choice::AwaitRoom,
        "in the same batch"
    );
    // A heartbeat that was sent before does not hide what was given.
    router.begin_batch();
    assert_eq!(router.room(&group, &candidates, &facts, at), 0);
    assert_eq!(choose(&mut router, 2).1, Choice::AwaitRoom);
    router.forget(&first_run);
    router.begin_batch();
    assert_eq!(choose(&mut router, 2).1, second);
}

#[test]
fn a_failover_run_waits_for_answers_unless_its_deadline_is_short() {
    let facts = Facts {
        loads: Vec::new(),
        answers: vec![Answer::No, Answer::Unknown, Answer::Yes],
    };
    let choose_at =
        |run: &ClaimedRun, ms| router().choose(run, &names(3), &facts, Timestamp::from_millis(ms));
    let choose = |run: &ClaimedRun| choose_at(run, 0);
    let mut run = run(&"failover".into(), 0);
    assert_eq!(choose(&run), Choice::AwaitAnswers);
    let second = Choice::Executor("worker-2".parse().expect("a name"));
    assert_eq!(choose_at(&run, 3_595_000), Choice::AwaitAnswers);
    assert_eq!(choose_at(&run, 3_595_001), second, "it is late");
    let job = Arc::get_mut(&mut run.job).expect("the only owner");
    job.spec.dispatch_deadline = cueline_model::DurationMs::secs(1);
    assert_eq!(
        choose(&run),
        Choice::Executor("worker-2".parse().expect("a name"))
    );
}

#[test]
fn earlier_runs_are_read_once_for_each_job() {
    let mut router = router();
    let runs: Vec<ClaimedRun> = ["lfu", "round", "busyover", "lfu"]
        .into_iter()
        .map(|route| run(&route.into(), 0))
        .collect();
    let unread = Unread {
        history: vec![JobId(42)],
        outstanding: vec![JobId(42)],
    };
    assert_eq!(router.unread(&runs), unread);
    router.add_history(JobId(42), [], Timestamp::default());
    router
        .outstanding
        .replace(&[JobId(42)], Vec::new(), Timestamp::default());
    assert_eq!(router.unread(&runs), Unread::default());
}

#[test]
fn an_attempt_that_is_not_published_is_not_outstanding() {
    let mut router = router();
    let run = run(&"busyover".into(), 0);
    assert_eq!(router.name(&run, &names(2)).as_deref(), Some("worker-1"));
    router.forget(&run);
    assert_eq!(router.name(&run, &names(2)).as_deref(), Some("worker-1"));
}
