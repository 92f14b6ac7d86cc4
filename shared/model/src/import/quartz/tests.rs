//! Triggers as jobs, and what is refused.

use super::*;
use crate::handler::HandlerSpec;
use crate::policy::{Block, MisfirePolicy, OnLost};
use crate::schedule::Schedule;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn options() -> QuartzOptions {
    QuartzOptions {
        timezone: "Europe/Berlin".to_owned(),
        group: "default".parse().unwrap(),
        handlers: BTreeMap::from([("com.acme.Report".to_owned(), "report".to_owned())]),
        now: at("2027-01-01T00:00:00Z"),
    }
}

fn job() -> QuartzJob {
    QuartzJob {
        name: "Nightly report".to_owned(),
        group: "billing".to_owned(),
        class: "com.acme.Report".to_owned(),
        excludes_itself: Some(true),
        place: "job billing.Nightly report".to_owned(),
        ..QuartzJob::default()
    }
}

fn trigger(kind: TriggerKind) -> QuartzTrigger {
    QuartzTrigger {
        name: "t".to_owned(),
        group: DEFAULT_GROUP.to_owned(),
        job_name: "Nightly report".to_owned(),
        job_group: "billing".to_owned(),
        description: None,
        priority: None,
        calendar: None,
        start: Some(at("2026-12-01T09:30:05Z")),
        end: None,
        misfire: 0,
        data: Data::None,
        kind,
        state: None,
        place: "trigger t".to_owned(),
    }
}

fn cron(expression: &str) -> TriggerKind {
    TriggerKind::Cron {
        expression: expression.to_owned(),
        timezone: None,
    }
}

fn interval(interval: i64, unit: &str) -> TriggerKind {
    TriggerKind::CalendarInterval {
        interval,
        unit: unit.to_owned(),
        timezone: None,
    }
}

fn daily(interval: i64, unit: &str, from: [u8; 3], to: [u8; 3]) -> TriggerKind {
    TriggerKind::DailyTime {
        interval,
        unit: unit.to_owned(),
        days: vec![2, 3, 4, 5, 6],
        from,
        to,
        repeats: -1,
    }
}

fn found(job: &QuartzJob, trigger: QuartzTrigger) -> Entry {
    let mut entries = import(std::slice::from_ref(job), &[trigger], &options());
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

fn taken(trigger: QuartzTrigger) -> JobSpec {
    found(&job(), trigger).job.unwrap()
}

fn refusal(trigger: QuartzTrigger) -> String {
    found(&job(), trigger).job.unwrap_err()
}

fn expression(job: &JobSpec) -> &str {
    match &job.schedule {
        Schedule::Cron(cron) => cron.expression(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cron_trigger_becomes_a_job_that_does_the_same() {
    let job = QuartzJob {
        recovers: true,
        data: Data::Entries(
            [("a", "1"), ("b", "2")]
                .map(|(k, v)| (k.into(), v.into()))
                .into(),
        ),
        ..job()
    };
    let trigger = QuartzTrigger {
        priority: Some(12),
        end: Some(at("2028-01-01T00:00:00Z")),
        data: Data::Entries([("b".to_owned(), "3".to_owned())].into()),
        misfire: 2,
        ..trigger(cron("0 15 10 ? * MON-FRI"))
    };
    let entry = found(&job, trigger);
    let job = entry.job.unwrap();
    assert_eq!(job.name.as_str(), "billing.Nightly-report");
    assert_eq!(expression(&job), "0 15 10 ? * MON-FRI");
    assert_eq!(job.handler, HandlerSpec::Native("report".to_owned()));
    assert_eq!((job.block, job.on_lost), (Block::Serial, OnLost::Rerun));
    assert_eq!(job.misfire.policy, MisfirePolicy::Skip);
    assert_eq!(job.params.as_deref(), Some(r#"{"a":"1","b":"3"}"#));
    assert_eq!(job.priority, 9);
    assert_eq!(job.start_at, None, "the start is over");
    assert_eq!(job.end_at, Some(at("2028-01-01T00:00:00.001Z")));
    let notes: Vec<&str> = entry.notes.iter().map(Note::message).collect();
    assert_eq!(
        notes,
        [
            "the priority 12 becomes 9; jobs have 0–9",
            "the name \"billing.Nightly report\" becomes \"billing.Nightly-report\"",
        ]
    );
}

#[test]
fn intervals_and_counts_keep_their_fire_times() {
    let simple = |repeats, interval_ms| {
        trigger(TriggerKind::Simple {
            repeats,
            interval_ms,
        })
    };
    let job = taken(simple(-1, 60_000));
    assert_eq!(
        job.next_fire(at("2027-01-01T00:00:00Z")),
        Some(at("2027-01-01T00:00:05Z"))
    );
    // Forty days from 1 December on.
    let job = taken(simple(40, 86_400_000));
    assert_eq!(
        job.upcoming(at("2027-01-08T12:00:00Z"), 5),
        [at("2027-01-09T09:30:05Z"), at("2027-01-10T09:30:05Z")]
    );
    let mut once = simple(0, 0);
    once.start = Some(at("2027-02-01T00:00:00Z"));
    assert_eq!(
        taken(once).schedule,
        Schedule::Once {
            at: at("2027-02-01T00:00:00Z")
        }
    );
    // 09:30:05 in UTC is 10:30:05 in Berlin.
    let cases = [
        (interval(1, "DAY"), "5 30 10 * * ?"),
        (interval(1, "WEEK"), "5 30 10 ? * 3"),
        (interval(3, "MONTH"), "5 30 10 1 3/3 ?"),
        (interval(1, "MONTH"), "5 30 10 1 1/1 ?"),
        (interval(2, "YEAR"), "5 30 10 1 12 ? 2026/2"),
        (
            daily(15, "MINUTE", [8, 0, 0], [17, 45, 0]),
            "0 0,15,30,45 8-17 ? * 2-6",
        ),
        (
            daily(2, "HOUR", [8, 30, 0], [17, 0, 0]),
            "0 30 8,10,12,14,16 ? * 2-6",
        ),
    ];
    for (kind, expected) in cases {
        assert_eq!(
            expression(&taken(trigger(kind.clone()))),
            expected,
            "{kind:?}"
        );
    }
    let job = taken(trigger(interval(36, "HOUR")));
    assert!(
        matches!(job.schedule, Schedule::FixedRate { every, .. } if every.as_millis() == 129_600_000)
    );
}

#[test]
fn misfire_instructions_are_mapped() {
    let policy = |kind, misfire| {
        let job = taken(QuartzTrigger {
            misfire,
            ..trigger(kind)
        });
        assert_eq!(job.misfire.grace.as_millis(), 60_000);
        job.misfire.policy
    };
    let simple = || TriggerKind::Simple {
        repeats: -1,
        interval_ms: 1_000,
    };
    let (skip, once, all) = (
        MisfirePolicy::Skip,
        MisfirePolicy::FireOnce,
        MisfirePolicy::CatchUp,
    );
    for (misfire, expected) in [(-1, all), (0, once), (1, once), (2, skip)] {
        assert_eq!(
            policy(cron("0 0 12 * * ?"), misfire),
            expected,
            "cron {misfire}"
        );
        assert_eq!(
            policy(interval(1, "DAY"), misfire),
            expected,
            "interval {misfire}"
        );
    }
    for (misfire, expected) in [
        (-1, all),
        (0, skip),
        (1, once),
        (2, once),
        (3, once),
        (4, skip),
        (5, skip),
    ] {
        assert_eq!(policy(simple(), misfire), expected, "simple {misfire}");
    }
}

#[test]
fn what_cannot_be_read_is_said_and_never_guessed() {
    let mut with_calendar = trigger(cron("0 0 12 * * ?"));
    with_calendar.calendar = Some("holidays".to_owned());
    with_calendar.data = Data::from_column(Some(&[0xac, 0xed, 0, 5]));
    let entry = found(&job(), with_calendar);
    let spec = entry.job.unwrap();
    assert_eq!((spec.enabled, spec.params), (Some(false), None));
    let kinds: Vec<&str> = entry.notes.iter().map(Note::kind).collect();
    assert_eq!(kinds, ["left out", "paused", "changed"]);
    assert!(
        entry.notes[0]
            .message()
            .contains("a serialised Java object of 4 bytes")
    );
    let paused = taken(QuartzTrigger {
        state: Some("PAUSED".to_owned()),
        ..trigger(cron("0 0 12 * * ?"))
    });
    assert_eq!(paused.enabled, Some(false));
    let read = found(&job(), trigger(cron("0 0 12 ? * MON-FRI/2")));
    assert_eq!(expression(read.job.as_ref().unwrap()), "0 0 12 ? * MON-FRI");
    assert!(
        read.notes[0]
            .message()
            .contains("Quartz ignores a step after a name")
    );
}

#[test]
fn wrong_triggers_are_refused_with_what_to_do() {
    let with = |state: &str| QuartzTrigger {
        state: Some(state.to_owned()),
        ..trigger(cron("0 0 12 * * ?"))
    };
    let of = |kind| trigger(kind);
    let no_start = |kind| QuartzTrigger {
        start: None,
        ..trigger(kind)
    };
    let simple = |repeats, interval_ms| TriggerKind::Simple {
        repeats,
        interval_ms,
    };
    let late = |kind| QuartzTrigger {
        start: Some(at("2026-12-31T00:00:00Z")),
        ..trigger(kind)
    };
    let cases = [
        (
            of(cron("0 0 12 ? * MON#1,FRI")),
            "Quartz takes the first day only",
        ),
        (of(cron("0 0 12 1 1 ? 2020")), "it never fires again"),
        (
            of(cron("0 0 12 1 1 ? 2150")),
            "year 2150 is out of range 1970–2099",
        ),
        (
            of(cron("0 61 12 * * ?")),
            "schedule.cron: \"0 61 12 * * ?\": minute 61",
        ),
        (with("COMPLETE"), "fired for the last time"),
        (of(simple(0, 0)), "it never fires again"),
        (of(simple(3, 1_000)), "it never fires again"),
        (of(simple(-1, 10)), "schedule.every"),
        (of(simple(-1, -5)), "a positive one is expected"),
        (no_start(simple(3, 1_000)), "give the trigger a start-time"),
        (
            no_start(interval(1, "DAY")),
            "give the trigger a start-time",
        ),
        (of(interval(0, "DAY")), "1 or more is expected"),
        (of(interval(5, "MONTH")), "has no schedule"),
        (late(interval(1, "MONTH")), "not every month has that day"),
        (of(interval(1, "FORTNIGHT")), "has no schedule"),
        (
            of(daily(50, "MINUTE", [8, 0, 0], [17, 0, 0])),
            "has no cron expression",
        ),
        (
            of(daily(1, "HOUR", [9, 0, 0], [8, 0, 0])),
            "has no cron expression",
        ),
        (
            of(daily(1, "DAY", [8, 0, 0], [9, 0, 0])),
            "SECOND, MINUTE or HOUR is expected",
        ),
        (
            of(TriggerKind::Other("BLOB".to_owned())),
            "a trigger of the type BLOB",
        ),
    ];
    for (trigger, reason) in cases {
        let error = refusal(trigger.clone());
        assert!(error.contains(reason), "{trigger:?}: {error}");
    }
    let lonely = import(&[], &[trigger(cron("0 0 12 * * ?"))], &options());
    let error = lonely[0].job.clone().unwrap_err();
    assert!(
        error.contains("its job billing.Nightly report is missing"),
        "{error}"
    );
}

#[test]
fn jobs_without_triggers_and_with_several_are_kept() {
    let entries = import(&[job()], &[], &options());
    assert_eq!(entries[0].job.as_ref().unwrap().schedule, Schedule::Manual);
    let triggers = [
        trigger(cron("0 0 12 * * ?")),
        QuartzTrigger {
            name: "u".to_owned(),
            ..trigger(cron("0 0 13 * * ?"))
        },
    ];
    let entries = import(&[job()], &triggers, &options());
    let names: Vec<&str> = entries
        .iter()
        .map(|e| e.job.as_ref().unwrap().name.as_str())
        .collect();
    assert_eq!(
        names,
        ["billing.Nightly-report.t", "billing.Nightly-report.u"]
    );
    assert!(
        entries[0]
            .notes
            .iter()
            .any(|note| note.message().contains("their runs may overlap"))
    );
}

#[test]
fn properties_are_read_as_java_writes_them() {
    let text = b"#\n#Tue Nov 24 12:00:00 UTC 2026\na=1\nb\\ c=two \\\\ \\u00fc\\uD83D\\uDE00\nlong=one\\\n   two\nd\\=e=f\\:g\nempty=\nh : i\n";
    let Data::Entries(found) = Data::from_column(Some(text)) else {
        panic!("no entries")
    };
    let expected = [
        ("a", "1"),
        ("b c", "two \\ ü😀"),
        ("d=e", "f:g"),
        ("empty", ""),
        ("h", "i"),
        ("long", "onetwo"),
    ];
    let expected: BTreeMap<String, String> =
        expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    assert_eq!(found, expected);
    assert_eq!(Data::from_column(Some(b"#\n#date\n")), Data::None);
    assert_eq!(Data::from_column(None), Data::None);
    assert!(matches!(
        Data::from_column(Some(b"a=\\uD83D")),
        Data::Unreadable(_)
    ));
}
