use std::sync::Arc;

use cueline_model::{
    ExecutorId, ExecutorName, Heartbeat, Job, JobId, RunId, RunState, Session, Timestamp,
};
use cueline_store::{Executor, JobVersion, Run, TimelineEntry, waiting_run};
use serde_json::{Value, json};

use super::decide::{Snapshot, of_job, of_run};
use super::explanation;

/// 2027-01-01T12:00:00Z.
const NOW: i64 = 1_798_804_800_000;

fn at(offset_ms: i64) -> Timestamp {
    Timestamp::from_millis(NOW + offset_ms)
}

fn job(changes: &Value) -> Arc<Job> {
    let mut spec = json!({
        "name": "import", "group": "billing", "schedule": { "every": "5s" },
        "handler": { "native": "import" },
    });
    for (field, value) in changes.as_object().expect("an object") {
        spec[field] = value.clone();
    }
    Arc::new(Job {
        id: JobId(1),
        version: 3,
        spec: serde_json::from_value(spec).expect("a definition"),
    })
}

fn executor(name: &str) -> Executor {
    Executor {
        heartbeat: Heartbeat {
            executor: ExecutorId {
                group: "billing".parse().expect("a name"),
                name: name.parse().expect("a name"),
            },
            incarnation: "1".to_owned(),
            session: Session(1),
            capabilities: vec!["import".to_owned(), "native:import".to_owned()],
            capacity: 4,
            held: 0,
            running: 0,
            draining: false,
            gone: false,
            refusal: None,
            labels: cueline_model::ExecutorLabels::default(),
            weight: cueline_model::Weight::default(),
        },
        last_heartbeat_at: at(-1_000),
    }
}

fn run(id: i64, state: RunState) -> Run {
    let mut run: Run = serde_json::from_value(json!({
        "id": id, "job_id": 1, "job": "import", "group": "billing", "kind": "schedule",
        "state": state, "attempt": 1, "retries": 0, "fire_at": NOW - 5_000, "due_at": NOW - 5_000,
        "shard": { "index": 0, "total": 1 }, "created_at": NOW - 6_000, "cancel_requested": false,
    }))
    .expect("a run");
    if state != RunState::Scheduled {
        run.executor = Some(worker_1());
    }
    if state == RunState::Queued {
        run.queued_at = Some(at(-5_000));
    }
    if state == RunState::Running {
        run.started_at = Some(at(-7_000));
    }
    run
}

fn worker_1() -> ExecutorName {
    "worker-1".parse().expect("a name")
}

fn snapshot() -> Snapshot {
    Snapshot {
        now: at(0),
        job: Some(job(&json!({}))),
        next_fire: Some(at(5_000)),
        live: Vec::new(),
        executors: vec![executor("worker-1")],
        versions: Vec::new(),
        exclusions: cueline_model::Exclusions::default(),
        waiting_quota: None,
        backfill: None,
        limits: Vec::new(),
    }
}

fn with_window(time: &Value) -> cueline_model::Exclusions {
    let mut spec = time.clone();
    (spec["reason"], spec["owner"]) = (json!("upgrade"), json!("user bob"));
    let window = cueline_model::MaintenanceWindow {
        id: 4,
        spec: serde_json::from_value(spec).expect("a window"),
        ended_at: None,
    };
    cueline_model::Exclusions {
        calendars: Vec::new(),
        windows: vec![window.into()],
    }
}

/// The word and the sentence about the run.
fn about(snapshot: &Snapshot, run: &Run, timeline: &[TimelineEntry]) -> (String, String) {
    let reason = of_run(snapshot, run, timeline);
    let told = explanation(&run.job, Some(run), &reason);
    (told.reason, told.sentence)
}

/// Each case changes a snapshot and a run, and names the word of the reason and parts of its sentence.
type Case = (
    RunState,
    fn(&mut Snapshot, &mut Run),
    &'static str,
    &'static [&'static str],
);

const SERIAL: &[&str] = &[
    "is waiting",
    "lane busy on worker-1 for 7 s (serial)",
    "1 trigger ahead",
];

const RUNS: &[Case] = &[
    (
        RunState::Queued,
        |s, _| s.live = vec![run(7, RunState::Running), run(8, RunState::Queued)],
        "lane_busy",
        SERIAL,
    ),
    (
        RunState::Queued,
        |s, _| {
            s.job = Some(job(&json!({ "block": { "parallel": 2 } })));
            s.live = vec![run(7, RunState::Running), run(8, RunState::Running)];
        },
        "lane_busy",
        &["(parallel, 2 at work)", "0 triggers ahead"],
    ),
    (
        RunState::Queued,
        |s, _| {
            s.job = Some(job(&json!({ "block": { "parallel": 3 } })));
            s.live = vec![run(7, RunState::Running), run(8, RunState::Running)];
        },
        "queued",
        &["in the queue of worker-1 for 5 s", "no start was reported"],
    ),
    (
        RunState::Queued,
        |s, _| s.executors[0].heartbeat.running = 4,
        "executor_full",
        &["worker-1 runs 4 handlers", "4 at once"],
    ),
    (
        RunState::Queued,
        |s, _| s.executors[0].last_heartbeat_at = at(-20_000),
        "executor_unavailable",
        &["worker-1", "silent for 20 s"],
    ),
    (
        RunState::Queued,
        |s, _| s.executors[0].heartbeat.draining = true,
        "executor_unavailable",
        &["worker-1", "draining"],
    ),
    (
        RunState::Dispatching,
        |s, _| s.executors[0].heartbeat.refusal = Some("its name is taken".to_owned()),
        "executor_unavailable",
        &["gets no triggers: its name is taken"],
    ),
    (
        RunState::Dispatching,
        |_, _| {},
        "dispatching",
        &["being published to worker-1"],
    ),
    (
        RunState::Scheduled,
        |_, r| r.due_at = at(60_000),
        "not_due",
        &["due at 2027-01-01T12:01:00"],
    ),
    (
        RunState::Scheduled,
        |_, r| (r.attempt, r.due_at) = (2, at(60_000)),
        "retry",
        &[
            "attempt 2 starts at 2027-01-01T12:01:00",
            "after: exit status 3",
        ],
    ),
    (
        RunState::Scheduled,
        |s, _| s.executors.clear(),
        "no_executor",
        &[
            "group billing can run",
            "the group has no executor",
            "2027-01-01T12:59:55",
        ],
    ),
    (
        RunState::Scheduled,
        |s, _| {
            s.executors[0].heartbeat.capabilities.clear();
            let mut silent = executor("worker-2");
            silent.last_heartbeat_at = at(-90_000);
            let mut gone = executor("worker-3");
            gone.heartbeat.gone = true;
            let mut draining = executor("worker-4");
            draining.heartbeat.draining = true;
            s.executors.extend([silent, gone, draining]);
        },
        "no_executor",
        &[
            "worker-1 does not announce the handler",
            "worker-2 has been silent for 1 min 30 s",
            "worker-3 stopped 1 s ago",
            "1 more",
        ],
    ),
    (
        RunState::Scheduled,
        |s, _| {
            let job = s
                .job
                .as_mut()
                .and_then(Arc::get_mut)
                .expect("the only owner");
            job.spec.route = cueline_model::Route::Any;
        },
        "no_room",
        &["due for 5 s", "the 1 executors of group", "are full"],
    ),
    (
        RunState::Scheduled,
        |_, _| {},
        "not_dispatched",
        &["due for 5 s", "no scheduler has dispatched it"],
    ),
    (
        RunState::Scheduled,
        |s, _| {
            s.live = vec![
                run(6, RunState::Scheduled),
                run(7, RunState::Running),
                run(8, RunState::Queued),
            ];
        },
        "lane_of_group",
        &[
            "is waiting: behind run 7 at worker-1 and 1 more in the lane of its group (serial)",
            "1 older run waits before it",
        ],
    ),
    (
        RunState::Scheduled,
        |s, _| {
            let mut retry = run(6, RunState::Scheduled);
            (retry.retries, retry.due_at) = (1, at(-1_000));
            s.live = vec![retry, run(8, RunState::Scheduled)];
        },
        "lane_of_group",
        &["run 8 of its lane comes first (serial), 1 older due in all"],
    ),
    (
        RunState::Scheduled,
        |s, _| {
            s.job = Some(job(&json!({ "block": { "parallel": 2 } })));
            s.live = vec![run(7, RunState::Running)];
        },
        "not_dispatched",
        &["no scheduler has dispatched it"],
    ),
    (
        RunState::Scheduled,
        |s, _| {
            s.job = Some(job(&json!({ "block": { "parallel": 2 } })));
            s.live = vec![run(7, RunState::Running), run(8, RunState::Queued)];
        },
        "lane_of_group",
        &["(parallel)"],
    ),
    (
        RunState::Scheduled,
        |s, _| {
            s.job = Some(job(&json!({ "scope": "executor" })));
            s.live = vec![run(7, RunState::Running)];
        },
        "not_dispatched",
        &["no scheduler has dispatched it"],
    ),
    (
        RunState::Scheduled,
        |s, _| s.job = Some(job(&json!({ "selector": "zone=a" }))),
        "no_executor",
        &["worker-1 has not the labels zone=a"],
    ),
    (
        RunState::Scheduled,
        |s, _| s.job = Some(job(&json!({ "route": { "executor": "worker-9" } }))),
        "no_executor",
        &["worker-1 is not the executor that the job names"],
    ),
    (
        RunState::Running,
        |_, _| {},
        "running",
        &["running on worker-1 for 7 s"],
    ),
    (
        RunState::Running,
        |_, r| r.cancel_requested = true,
        "stopping",
        &["worker-1 has not confirmed it"],
    ),
    (
        RunState::Skipped,
        |_, r| r.message = Some("3 fire times were missed".to_owned()),
        "skipped",
        &["it was skipped", "3 fire times were missed"],
    ),
    (
        RunState::Discarded,
        |_, r| r.message = Some("the backlog of 2 is full".to_owned()),
        "discarded",
        &["discarded", "the backlog of 2 is full"],
    ),
    (
        RunState::Covered,
        |_, _| {},
        "covered",
        &["a newer trigger"],
    ),
    (
        RunState::Succeeded,
        |_, _| {},
        "succeeded",
        &["it succeeded"],
    ),
    (RunState::Failed, |_, _| {}, "failed", &["it failed"]),
    (RunState::TimedOut, |_, _| {}, "timed_out", &["time limit"]),
    (RunState::Lost, |_, _| {}, "lost", &["executor was lost"]),
    (
        RunState::Unroutable,
        |_, _| {},
        "unroutable",
        &["no executor took it"],
    ),
    (RunState::Cancelled, |_, _| {}, "cancelled", &["cancelled"]),
];

#[test]
fn each_reason_of_a_run_has_its_word_and_its_sentence() {
    for (index, (state, change, word, parts)) in RUNS.iter().enumerate() {
        let (mut snapshot, mut of) = (snapshot(), run(9, *state));
        change(&mut snapshot, &mut of);
        let timeline = [TimelineEntry {
            at: at(-4_000),
            attempt: 1,
            event: "retry".to_owned(),
            detail: "exit status 3".to_owned(),
        }];
        let (found, sentence) = about(&snapshot, &of, &timeline);
        assert_eq!(found, *word, "case {index}: {sentence}");
        for part in *parts {
            assert!(
                sentence.contains(part),
                "case {index}: {part:?} in {sentence:?}"
            );
        }
    }
}

fn version(number: u64, enabled: bool, by: &str) -> JobVersion {
    JobVersion {
        version: number,
        at: at(-60_000 * i64::try_from(10 - number).expect("small")),
        by: by.to_owned(),
        definition: None,
        enabled,
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn each_reason_of_a_job_has_its_word_and_its_sentence() {
    type Case = (
        Value,
        fn(&mut Snapshot),
        &'static str,
        &'static [&'static str],
    );
    let cases: [Case; 15] = [
        (
            json!({}),
            |_| {},
            "next_fire",
            &["job import: it fires next at 2027-01-01T12:00:05"],
        ),
        (
            json!({ "enabled": false }),
            |s| {
                s.versions = vec![
                    version(4, false, "user bob"),
                    version(3, false, "user alice"),
                    version(2, true, "user carol"),
                ];
            },
            "paused",
            &["paused by user alice since 2027-01-01T11:53:00"],
        ),
        (
            json!({ "enabled": false }),
            |_| {},
            "paused",
            &["its schedule is paused"],
        ),
        (
            json!({}),
            |s| {
                s.exclusions =
                    with_window(&json!({ "paused_at": NOW - 60_000, "until": NOW + 60_000 }));
            },
            "paused",
            &[
                "paused by user bob since 2027-01-01T11:59:00",
                "until 2027-01-01T12:01:00",
                "upgrade (pause 4)",
            ],
        ),
        (
            json!({}),
            |s| s.exclusions = with_window(&json!({ "paused_at": NOW - 60_000 })),
            "paused",
            &["until somebody resumes it"],
        ),
        (
            json!({}),
            |s| s.exclusions = with_window(&json!({ "start": NOW, "end": NOW + 7_000 })),
            "window",
            &[
                "its fire time 2027-01-01T12:00:05",
                "in maintenance window 4 of user bob: upgrade",
                "it fires next at",
            ],
        ),
        (
            json!({ "calendars": ["freeze"] }),
            |s| {
                let freeze =
                    json!({ "name": "freeze", "periods": [{ "start": NOW, "end": NOW + 7_000 }] });
                let freeze = serde_json::from_value(freeze).expect("a calendar");
                s.exclusions.calendars = vec![cueline_model::Calendar::new(freeze, 1).into()];
            },
            "calendar",
            &["is excluded by calendar \"freeze\""],
        ),
        (
            json!({}),
            |s| s.waiting_quota = Some((10, 12)),
            "quota",
            &[
                "12 runs of namespace default wait",
                "max_waiting_runs is 10",
            ],
        ),
        (
            json!({ "after": { "all": ["load"] }, "schedule": { "manual": true } }),
            |s| s.next_fire = None,
            "waits_for_parent",
            &["after job load has succeeded"],
        ),
        (
            json!({ "after": { "any": ["load", "extract"], "on": "failure" }, "schedule": { "manual": true } }),
            |s| s.next_fire = None,
            "waits_for_parent",
            &["after one of the jobs load, extract has failed"],
        ),
        (
            json!({ "schedule": { "manual": true } }),
            |s| s.next_fire = None,
            "manual",
            &["triggered"],
        ),
        (
            json!({ "start_at": "2027-02-01T00:00:00Z" }),
            |s| s.next_fire = Some(at(2_678_400_000)),
            "not_started",
            &["begins at 2027-02-01T00:00:00"],
        ),
        (
            json!({ "end_at": "2026-01-01T00:00:00Z" }),
            |s| s.next_fire = None,
            "never_again",
            &["never fires again", "2026-01-01"],
        ),
        (
            json!({ "schedule": { "after": "5s" } }),
            |s| (s.next_fire, s.live) = (None, vec![run(9, RunState::Running)]),
            "waits_for_end",
            &["end of the present run"],
        ),
        (
            json!({ "schedule": { "startup": true } }),
            |s| s.next_fire = None,
            "startup",
            &["when the scheduler starts"],
        ),
    ];
    for (changes, change, word, parts) in cases {
        let mut snapshot = snapshot();
        let job = job(&changes);
        snapshot.job = Some(job.clone());
        change(&mut snapshot);
        let told = explanation(&job.spec.name, None, &of_job(&snapshot, &job));
        assert_eq!(told.reason, word, "{}", told.sentence);
        for part in parts {
            assert!(
                told.sentence.contains(part),
                "{part:?} in {:?}",
                told.sentence
            );
        }
        assert!(told.look_at.is_some(), "{word}");
    }
}

#[test]
fn the_oldest_due_run_that_has_not_started_explains_its_job() {
    let mut snapshot = snapshot();
    let mut early = run(6, RunState::Scheduled);
    early.due_at = at(1_000);
    snapshot.live = vec![
        early,
        run(7, RunState::Running),
        run(8, RunState::Queued),
        run(9, RunState::Queued),
    ];
    let waits = waiting_run(&snapshot.live, snapshot.now);
    assert_eq!(waits.map(|run| run.id), Some(RunId(8)));
}

#[test]
fn a_run_of_a_deleted_job_is_explained_without_its_definition() {
    let mut snapshot = snapshot();
    (snapshot.job, snapshot.executors) = (None, Vec::new());
    snapshot.live = vec![run(7, RunState::Running)];
    let (word, _) = about(&snapshot, &run(9, RunState::Queued), &[]);
    assert_eq!(word, "lane_busy");
}
