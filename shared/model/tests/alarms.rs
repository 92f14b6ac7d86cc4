//! Alarm rules: what they accept, and which events follow from what happened.

use std::collections::BTreeMap;

use cueline_model::alarm::{
    AlarmFacts, ConditionKind, JobEnd, JobLoad, Stored, Streak, evaluate_ends, groups_to_watch,
    levels, missed,
};
use cueline_model::{
    AlarmBook, AlarmSilence, GroupName, Job, JobId, Namespace, RunId, RunState, Timestamp, decode,
};
use serde_json::{Value, json};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn job(id: i64, definition: &Value) -> Job {
    let mut whole = json!({ "schedule": { "manual": true }, "handler": { "native": "noop" }, "group": "default" });
    let fields = definition.as_object().expect("fields").clone();
    whole.as_object_mut().expect("fields").extend(fields);
    Job {
        id: JobId(id),
        version: 1,
        spec: serde_json::from_value(whole).expect("a job"),
    }
}

fn book(rules: &[Value]) -> AlarmBook {
    let rules = rules.iter().zip(1..).map(|(rule, id)| {
        let node = decode::Node::from(rule.clone());
        let spec = decode::alarm_rule(&node, &Namespace::default()).expect("a rule");
        // What is stored is read again.
        let text = serde_json::to_string(&spec).expect("written");
        assert_eq!(
            serde_json::from_str::<cueline_model::AlarmRule>(&text).expect("read"),
            spec
        );
        Stored {
            id,
            version: 1,
            spec,
        }
    });
    AlarmBook {
        revision: 1,
        rules: rules.collect(),
        ..AlarmBook::default()
    }
}

/// Ends runs of one job one after the other, in calls of their own. Returns the kinds and keys of the events.
fn end_all(book: &AlarmBook, job: &Job, states: &[RunState]) -> Vec<Vec<(ConditionKind, String)>> {
    let mut streaks: BTreeMap<JobId, Streak> = BTreeMap::new();
    let mut all = Vec::new();
    for (run, state) in (1..).zip(states) {
        let end = JobEnd {
            run: RunId(run),
            job,
            state: *state,
            at: at(run * 1_000),
            message: Some("it broke"),
        };
        let evaluated = evaluate_ends(book, &[end], &streaks, at(run * 1_000));
        for (job, streak) in evaluated.streaks {
            match streak {
                Some(streak) => streaks.insert(job, streak),
                None => streaks.remove(&job),
            };
        }
        let events = evaluated.events.into_iter();
        all.push(events.map(|event| (event.kind, event.key)).collect());
    }
    all
}

const FAILED: RunState = RunState::Failed;
const OK: RunState = RunState::Succeeded;

#[test]
fn failures_in_a_row_raise_one_alarm_until_a_success() {
    let book = book(&[
        json!({ "name": "r", "on": [{ "failed_in_a_row": 3 }, "recovered"], "channels": ["ops"] }),
    ]);
    let job = job(1, &json!({ "name": "a" }));
    let skipped = RunState::Skipped;
    let events = end_all(
        &book,
        &job,
        &[
            FAILED,
            FAILED,
            skipped,
            RunState::TimedOut,
            FAILED,
            OK,
            FAILED,
            OK,
            OK,
        ],
    );
    let kinds: Vec<Vec<ConditionKind>> = events
        .iter()
        .map(|of_end| of_end.iter().map(|(kind, _)| *kind).collect())
        .collect();
    let (row, recovered) = (ConditionKind::FailedInARow, ConditionKind::Recovered);
    let none = Vec::new;
    let expected = vec![
        none(),
        none(),
        none(),
        vec![row],
        vec![row],
        vec![recovered],
        none(),
        vec![recovered],
        none(),
    ];
    assert_eq!(kinds, expected);
    // The fourth and the fifth failure are the same alarm.
    assert_eq!(events[3], events[4]);
    assert_eq!(events[3][0].1, "failed_in_a_row:3:1");
}

#[test]
fn each_failure_is_an_alarm_of_its_own_once_for_each_rule() {
    let book = book(&[
        json!({ "name": "each", "on": ["failed", "timed_out"], "channels": ["ops"] }),
        json!({ "name": "lost", "on": ["lost", "unroutable"], "channels": ["ops"] }),
        json!({ "name": "off", "on": ["failed"], "channels": ["ops"], "enabled": false }),
        json!({ "name": "elsewhere", "namespace": "team", "on": ["failed"], "channels": ["ops"] }),
    ]);
    let job = job(1, &json!({ "name": "a" }));
    let states = [
        FAILED,
        RunState::TimedOut,
        RunState::Lost,
        RunState::Unroutable,
        RunState::Cancelled,
        OK,
    ];
    let keys: Vec<Vec<String>> = end_all(&book, &job, &states)
        .into_iter()
        .map(|events| events.into_iter().map(|(_, key)| key).collect())
        .collect();
    let expected: [&[&str]; 6] = [
        &["failed:run:1"],
        &["timed_out:run:2"],
        &["failed:run:3", "lost:run:3"],
        &["failed:run:4", "unroutable:run:4"],
        &[],
        &[],
    ];
    assert_eq!(keys, expected);
}

#[test]
fn ends_of_one_call_follow_each_other() {
    let book = book(&[
        json!({ "name": "r", "on": [{ "failed_in_a_row": 2 }, "recovered"], "channels": ["ops"] }),
    ]);
    let job = job(7, &json!({ "name": "a" }));
    let end = |run, state| JobEnd {
        run: RunId(run),
        job: &job,
        state,
        at: at(run),
        message: None,
    };
    let ends = [end(1, FAILED), end(2, FAILED), end(3, OK), end(4, FAILED)];
    let evaluated = evaluate_ends(&book, &ends, &BTreeMap::new(), at(9));
    assert_eq!(evaluated.events.len(), 2);
    let streak = Streak {
        failures: 1,
        first_run: RunId(4),
        since: at(4),
    };
    assert_eq!(
        evaluated.streaks,
        BTreeMap::from([(JobId(7), Some(streak))])
    );
    assert_eq!(evaluated.events[0].send_at, at(30_009));
}

#[test]
fn a_job_without_a_rule_has_no_streak() {
    let book = book(&[
        json!({ "name": "r", "on": [{ "failed_in_a_row": 2 }], "jobs": ["b"], "channels": ["ops"] }),
    ]);
    let job = job(1, &json!({ "name": "a" }));
    assert_eq!(end_all(&book, &job, &[FAILED, FAILED, OK]), vec![vec![]; 3]);
}

#[test]
fn rules_are_about_jobs_groups_and_labels() {
    let on = json!(["failed"]);
    let book = book(&[
        json!({ "name": "jobs", "on": on, "jobs": ["a", "b"], "channels": ["ops"] }),
        json!({ "name": "groups", "on": on, "groups": ["etl"], "channels": ["ops"] }),
        json!({ "name": "labels", "on": on, "labels": { "team": "x" }, "groups": ["default"], "channels": ["ops"] }),
        json!({ "name": "all", "on": on, "channels": ["ops"] }),
    ]);
    let rules = |job: Job| {
        let about = book.about(&job.spec).map(|rule| rule.spec.name.to_string());
        about.collect::<Vec<_>>()
    };
    assert_eq!(rules(job(1, &json!({ "name": "a" }))), ["jobs", "all"]);
    assert_eq!(
        rules(job(
            1,
            &json!({ "name": "c", "group": "etl", "labels": { "team": "x" } })
        )),
        ["groups", "all"]
    );
    assert_eq!(
        rules(job(1, &json!({ "name": "c", "labels": { "team": "x" } }))),
        ["labels", "all"]
    );
    assert_eq!(
        rules(job(1, &json!({ "name": "c", "namespace": "team" }))),
        [""; 0]
    );
}

#[test]
fn missed_fire_times_are_one_alarm() {
    let book = book(&[
        json!({ "name": "m", "on": ["missed"], "channels": ["ops"] }),
        json!({ "name": "f", "on": ["failed"], "channels": ["ops"] }),
    ]);
    let job = job(3, &json!({ "name": "a" }));
    let events: Vec<_> = missed(&book, &job, (5, at(1), at(9)), "too late", at(20)).collect();
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].key.as_str(), events[0].facts.count),
        ("missed:3:9", Some(5))
    );
    assert_eq!(events[0].facts.message, "too late");
}

#[test]
fn a_skipped_run_is_a_missed_fire_time() {
    let book = book(&[
        json!({ "name": "m", "on": ["missed", "failed", "recovered"], "channels": ["ops"] }),
    ]);
    let job = job(3, &json!({ "name": "a" }));
    let keys: Vec<Vec<String>> = end_all(&book, &job, &[FAILED, RunState::Skipped, OK])
        .into_iter()
        .map(|events| events.into_iter().map(|(_, key)| key).collect())
        .collect();
    let expected: [&[&str]; 3] = [&["failed:run:1"], &["missed:run:2"], &["recovered:1"]];
    assert_eq!(keys, expected, "it does not end the row of failures");
}

#[test]
fn levels_hold_while_their_limit_is_passed() {
    let book = book(&[json!({
        "name": "r", "channels": ["ops"],
        "on": [{ "late": "10s" }, { "backlog": 5 }, { "no_executor": "1m" }],
    })]);
    let jobs = [
        job(1, &json!({ "name": "a" })),
        job(2, &json!({ "name": "b" })),
    ];
    let group: GroupName = "default".parse().expect("a name");
    assert_eq!(
        groups_to_watch(&book, &jobs)
            .into_iter()
            .collect::<Vec<_>>(),
        std::slice::from_ref(&group)
    );
    let load = |waiting, due| JobLoad {
        waiting,
        oldest_run: RunId(4),
        oldest_due_at: at(due),
    };
    let found = |load: JobLoad, absent_since: i64, now: i64| {
        let absent = BTreeMap::from([(group.clone(), at(absent_since))]);
        let found = levels(&book, &jobs, &BTreeMap::from([(1, load)]), &absent, at(now));
        found
            .into_iter()
            .map(|level| level.subject)
            .collect::<Vec<_>>()
    };
    assert_eq!(found(load(5, 0), 0, 10_000), [""; 0]);
    assert_eq!(found(load(5, 0), 0, 10_001), ["1:late:10000:job:1"]);
    assert_eq!(
        found(load(6, 0), 0, 60_000),
        [
            "1:backlog:5:job:1",
            "1:late:10000:job:1",
            "1:no_executor:60000:group:default"
        ]
    );
}

#[test]
fn each_value_of_a_condition_holds_by_itself() {
    let book = book(&[json!({
        "name": "r", "channels": ["ops"],
        "on": [{ "late": "10s" }, { "late": "1m" }, { "backlog": 5 }, { "backlog": 50 }, { "no_executor": "1m" }, { "no_executor": "2m" }],
    })]);
    let jobs = [job(1, &json!({ "name": "a" }))];
    let group: GroupName = "default".parse().expect("a name");
    let found = |waiting, now| {
        let load = JobLoad {
            waiting,
            oldest_run: RunId(4),
            oldest_due_at: at(0),
        };
        let absent = BTreeMap::from([(group.clone(), at(0))]);
        let found = levels(&book, &jobs, &BTreeMap::from([(1, load)]), &absent, at(now));
        let subjects: std::collections::BTreeSet<_> =
            found.iter().map(|level| &level.subject).collect();
        let keys: std::collections::BTreeSet<_> =
            found.iter().map(|level| &level.event.key).collect();
        assert_eq!(subjects.len(), keys.len());
        subjects.len()
    };
    assert_eq!(found(5, 10_001), 1);
    assert_eq!(found(6, 10_001), 2);
    assert_eq!(found(51, 60_001), 5);
    assert_eq!(found(51, 120_001), 6);
}

#[test]
fn facts_keep_few_labels() {
    let long = "x".repeat(3_000);
    let spec = job(
        1,
        &json!({ "name": "a", "labels": { "a": long, "b": long, "team": "x" } }),
    );
    let labels = AlarmFacts::of_job(&spec).labels;
    let names: Vec<&str> = labels.keys().map(String::as_str).collect();
    assert_eq!(names, ["a", "team"]);
}

#[test]
fn a_silence_covers_what_happened_within_it_and_what_would_be_sent_within_it() {
    let decoded = |json: Value| {
        decode::alarm_silence(&decode::Node::from(json), &Namespace::default(), at(1_000))
    };
    let silence: AlarmSilence =
        decoded(json!({ "for": "10s", "reason": "work", "jobs": ["a"] })).expect("a silence");
    let rule = "r".parse().expect("a name");
    let facts = AlarmFacts::of_job(&job(1, &json!({ "name": "a" })));
    let other = AlarmFacts::of_job(&job(1, &json!({ "name": "b" })));
    for (happened, now, is_silent) in [
        (500, 900, false),
        (500, 1_000, true),
        (5_000, 20_000, true),
        (11_000, 20_000, false),
    ] {
        assert_eq!(
            silence.covers(&rule, at(happened), &facts, at(now)),
            is_silent,
            "{happened}"
        );
        assert!(!silence.covers(&rule, at(happened), &other, at(now)));
    }
    let elsewhere = "team/r".parse().expect("a name");
    assert!(!silence.covers(&elsewhere, at(2_000), &facts, at(2_000)));
    for (given, field) in [
        (json!({ "for": "10s" }), "reason: missing"),
        (json!({ "reason": "x" }), "until or for is expected"),
        (
            json!({ "reason": "x", "for": "10s", "until": 5_000 }),
            "one of both",
        ),
        (
            json!({ "reason": "x", "until": 1_000 }),
            "until: 1000 given; an instant after now",
        ),
        (json!({ "reason": "x", "for": "400d" }), "for: \"400d\""),
    ] {
        let problems = decoded(given).expect_err("is refused");
        assert!(problems[0].to_string().contains(field), "{}", problems[0]);
    }
}

#[test]
fn mistakes_in_rules_name_their_field() {
    for (field, value, message) in [
        ("on", json!([]), "on: an empty list"),
        (
            "on",
            json!(["faild"]),
            "on[0]: \"faild\" given; one of failed, timed_out",
        ),
        (
            "on",
            json!([{ "late": 5 }]),
            "on[0].late: 5 given; a duration",
        ),
        (
            "on",
            json!([{ "failed_in_a_row": 0 }]),
            "on[0].failed_in_a_row: 0 is out of range",
        ),
        (
            "on",
            json!([{ "slow": 1 }]),
            "on[0].slow: unknown condition",
        ),
        ("on", json!(["lost", "lost"]), "on[1]: given twice"),
        ("channels", json!("ops"), "channels: \"ops\" given; a list"),
        (
            "channels",
            json!(["a/b"]),
            "channels[0]: \"a/b\" given; a name without '/'",
        ),
        (
            "group_interval",
            json!("2d"),
            "group_interval: 2d given; at most",
        ),
        ("jobs", json!([1]), "jobs[0]: 1 given; a name"),
        ("job", json!("a"), "job: unknown key; did you mean \"jobs\""),
        ("name", json!(null), "name: missing"),
    ] {
        let mut rule = json!({ "name": "r", "on": ["failed"], "channels": ["ops"] });
        rule[field] = value;
        let problems = decode::alarm_rule(&decode::Node::from(rule), &Namespace::default())
            .expect_err("is refused");
        let said = problems[0].to_string();
        assert!(said.starts_with(message), "{said}\nexpected {message}");
    }
}

#[test]
fn mistakes_in_channels_name_their_field() {
    let email = |field: &str, value: Value| {
        let mut email = json!({ "server": "mail.example.com", "from": "a@b.c", "to": ["d@e.f"] });
        email[field] = value;
        json!({ "name": "ops", "email": email })
    };
    for (channel, message) in [
        (
            json!({ "name": "ops" }),
            "0 kinds given; one of email, webhook",
        ),
        (
            json!({ "name": "ops", "slack": { "url": "https://a.b" }, "wecom": { "url": "https://a.b" } }),
            "2 kinds given",
        ),
        (
            json!({ "name": "ops", "slack": { "url": "hooks" } }),
            "slack.url: \"hooks\" given; an absolute",
        ),
        (
            json!({ "name": "ops", "slack": { "url": "https://a.b", "secret": { "secret": "x" } } }),
            "slack.secret: unknown key",
        ),
        (
            json!({ "name": "ops", "webhook": { "url": "https://a.b", "secret": "hunter2" } }),
            "webhook.secret: a text given",
        ),
        (
            json!({ "name": "ops", "webhook": { "url": "https://a.b" }, "title": "{jbo}" }),
            "title: \"{jbo}\": unknown placeholder {jbo}",
        ),
        (
            json!({ "name": "ops", "webhook": { "url": "https://a.b" }, "language": "fr" }),
            "language: unknown language",
        ),
        (
            email("server", json!("mail:25")),
            "email.server: \"mail:25\" given; a host",
        ),
        (email("to", json!([])), "email.to: an empty list"),
        (
            email("to", json!(["nobody"])),
            "email.to[0]: \"nobody\" given; an address",
        ),
        (email("from", json!("a@b\nc")), "email.from: "),
        (
            email("user", json!("u")),
            "email.password: missing beside user",
        ),
        (
            email("password", json!("hunter2")),
            "email.password: a text given",
        ),
        (email("port", json!(0)), "email.port: 0 is out of range"),
        (
            json!({ "name": "ops", "email": { "server": "m", "from": "a@b.c", "to": ["a@b.c"], "tls": "none", "user": "u", "password": { "secret": "p" } } }),
            "email.tls: a password is not sent",
        ),
    ] {
        let problems = decode::alarm_channel(&decode::Node::from(channel), &Namespace::default())
            .expect_err("is refused");
        let said = problems[0].to_string();
        assert!(said.starts_with(message), "{said}\nexpected {message}");
    }
}

#[test]
fn channels_are_kept_as_they_were_written() {
    for channel in [
        json!({ "name": "mail", "email": { "server": "::1", "from": "a@b.c", "to": ["d@e.f"], "user": "u", "password": { "secret": "smtp" } }, "language": "zh" }),
        json!({ "name": "hook", "webhook": { "url": "https://a.b/c", "secret": { "secret": "hook" } }, "title": "{job}", "body": "{events}" }),
        json!({ "name": "slack", "slack": { "url": { "secret": "slack" } } }),
    ] {
        let decoded = decode::alarm_channel(&decode::Node::from(channel), &Namespace::default());
        let spec = decoded.expect("a channel");
        let text = serde_json::to_string(&spec).expect("written");
        let read: cueline_model::AlarmChannel = serde_json::from_str(&text).expect("read");
        assert_eq!(read, spec, "{text}");
        let again = decode::alarm_channel(
            &decode::Node::from(serde_json::from_str::<Value>(&text).expect("JSON")),
            &Namespace::default(),
        );
        assert_eq!(again.expect("a channel"), spec);
    }
}
