//! Calendars, maintenance windows and previews against slow models.

use cueline_model::decode::{self, Node};
use cueline_model::exclusion::{Exclusions, FireRules, next_free, passed};
use cueline_model::preview::preview;
use cueline_model::{Calendar, JobSpec, MaintenanceWindow, Namespace, Timestamp};
use jiff::tz::TimeZone;
use proptest::prelude::*;
use serde_json::{Value, json};

fn at(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

fn job(fields: &Value) -> JobSpec {
    let mut whole = json!({ "name": "j", "handler": { "native": "x" } });
    if fields.get("schedules").is_none() {
        whole["schedule"] = json!({ "every": "1m" });
    }
    for (key, value) in fields.as_object().expect("a table") {
        whole[key] = value.clone();
    }
    decode::job(&Node::from(whole)).expect("a valid job")
}

fn calendar(fields: &Value) -> Calendar {
    let mut whole = fields.clone();
    whole["name"] = json!("c");
    let spec = decode::calendar(&Node::from(whole), &Namespace::default());
    Calendar::new(spec.expect("a valid calendar"), 1)
}

fn window(fields: Value) -> MaintenanceWindow {
    let spec = decode::window(&Node::from(fields), &Namespace::default());
    let spec = spec.expect("a valid window");
    MaintenanceWindow {
        id: 7,
        spec,
        ended_at: None,
    }
}

fn rules(calendars: Vec<Calendar>, windows: Vec<MaintenanceWindow>) -> FireRules {
    FireRules {
        revision: 1,
        calendars: calendars
            .into_iter()
            .map(|c| (c.spec.name.clone(), c.into()))
            .collect(),
        windows: windows.into_iter().map(Into::into).collect(),
    }
}

fn with_calendar(fields: &Value) -> (JobSpec, Exclusions) {
    let job = job(&json!({ "calendars": ["c"] }));
    let exclusions = rules(vec![calendar(fields)], Vec::new()).of(&job);
    (job, exclusions)
}

/// Whether the calendar excludes the instant, by the local time alone.
fn slow_model(fields: &Value, at: Timestamp) -> bool {
    let zone = TimeZone::get(fields["timezone"].as_str().unwrap_or("UTC")).expect("a zone");
    let instant = jiff::Timestamp::from_millisecond(at.as_millis()).expect("in range");
    let local = zone.to_datetime(instant);
    let texts = |key: &str| -> Vec<String> {
        let list = fields[key].as_array().cloned().unwrap_or_default();
        list.iter()
            .map(|v| v.as_str().expect("a text").to_owned())
            .collect()
    };
    let day = local.date().to_string();
    let in_dates = texts("dates")
        .iter()
        .any(|rule| match rule.split_once('/') {
            Some((first, last)) => first <= day.as_str() && day.as_str() <= last,
            None => *rule == day || (rule.len() == 5 && day.ends_with(rule.as_str())),
        });
    let names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    let name_of = |date: jiff::civil::Date| {
        names[usize::try_from(date.weekday().to_monday_zero_offset()).expect("a day")]
    };
    let weekday = texts("weekdays").iter().any(|d| d == name_of(local.date()));
    let times = fields["times"].as_array().cloned().unwrap_or_default();
    let time = format!("{:02}:{:02}", local.hour(), local.minute());
    let in_times = times.iter().any(|entry| {
        let (from, to) = (
            entry["from"].as_str().expect("a text"),
            entry["to"].as_str().expect("a text"),
        );
        let begins_on = |date: jiff::civil::Date| {
            let days = entry["weekdays"].as_array().cloned().unwrap_or_default();
            days.is_empty() || days.iter().any(|d| *d == name_of(date))
        };
        let today = begins_on(local.date());
        let yesterday = begins_on(local.date().yesterday().expect("a day"));
        if from < to {
            today && from <= time.as_str() && time.as_str() < to
        } else {
            (today && from <= time.as_str()) || (yesterday && time.as_str() < to)
        }
    });
    let periods = fields["periods"].as_array().cloned().unwrap_or_default();
    let in_periods = periods.iter().any(|p| {
        let bound = |key: &str| {
            p[key]
                .as_str()
                .expect("a text")
                .parse::<Timestamp>()
                .expect("an instant")
        };
        bound("start") <= at && at < bound("end")
    });
    in_dates || weekday || in_times || in_periods
}

fn any_calendar() -> impl Strategy<Value = Value> {
    let date = prop_oneof![
        (1_u8..13, 1_u8..29).prop_map(|(m, d)| format!("2027-{m:02}-{d:02}")),
        (1_u8..13, 1_u8..29).prop_map(|(m, d)| format!("{m:02}-{d:02}")),
        (1_u8..13, 1_u8..20, 0_u8..9)
            .prop_map(|(m, d, n)| format!("2027-{m:02}-{d:02}/2027-{m:02}-{:02}", d + n)),
    ];
    let weekday = prop::sample::select(vec!["mon", "tue", "wed", "thu", "fri", "sat", "sun"]);
    // Hours that no clock change of these zones touches: the model compares wall clocks.
    let hour = prop::sample::select(vec![0_u8, 5, 6, 9, 12, 18, 22]);
    let time = (hour.clone(), hour, 0_u8..60, prop::collection::vec(weekday.clone(), 0..3))
        .prop_filter_map("from is to", |(from, to, minute, weekdays)| {
            (from != to).then(|| json!({ "from": format!("{from:02}:{minute:02}"), "to": format!("{to:02}:{minute:02}"), "weekdays": weekdays }))
        });
    let period = (0_i64..31_000_000, 1_i64..1_000_000).prop_map(|(start, length)| {
        let start = at("2027-01-01T00:00:00Z").plus_ms(start.unsigned_abs() * 1_000);
        json!({ "start": start.to_string(), "end": start.plus_ms(length.unsigned_abs() * 1_000).to_string() })
    });
    let zone = prop::sample::select(vec![
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Asia/Tokyo",
    ]);
    (
        zone,
        prop::collection::vec(date, 0..6),
        prop::collection::vec(weekday, 0..3),
        prop::collection::vec(time, 0..3),
        prop::collection::vec(period, 0..4),
    )
        .prop_filter("excludes something", |(_, d, w, t, p)| d.len() + w.len() + t.len() + p.len() > 0)
        .prop_map(|(timezone, dates, weekdays, times, periods)| {
            json!({ "timezone": timezone, "dates": dates, "weekdays": weekdays, "times": times, "periods": periods })
        })
}

proptest! {
    #[test]
    fn a_calendar_excludes_what_the_slow_model_says(fields in any_calendar(), minute in 0_u64..525_600) {
        let calendar = calendar(&fields);
        let instant = at("2027-01-01T00:00:00Z").plus_ms(minute * 60_000);
        let until = calendar.excludes_until(instant);
        prop_assert_eq!(until.is_some(), slow_model(&fields, instant), "{} in {}", instant, fields);
        if let Some(until) = until {
            prop_assert!(until > instant);
            // Each minute until then is excluded too.
            let minutes = until.since_ms(instant).unsigned_abs() / 60_000;
            for part in 0..=10 {
                let inside = instant.plus_ms(minutes * part / 11 * 60_000);
                prop_assert!(slow_model(&fields, inside), "{} of {}", inside, fields);
            }
        }
    }

    #[test]
    fn the_next_free_fire_time_is_the_first_that_no_rule_excludes(
        fields in any_calendar(),
        minute in 0_u64..525_600,
        every in prop::sample::select(vec!["17m", "1h", "6h"]),
    ) {
        let job = job(&json!({ "calendars": ["c"], "schedule": { "every": every } }));
        let exclusions = rules(vec![calendar(&fields)], Vec::new()).of(&job);
        let from = at("2027-01-01T00:00:00Z").plus_ms(minute * 60_000);
        // Some calendars exclude everything.
        let first = job.next_fire(from).expect("a rate");
        let slow = std::iter::successors(Some(first), |t| job.next_fire(*t))
            .take(10_000)
            .find(|t| !slow_model(&fields, *t));
        prop_assume!(slow.is_some());
        let slow = slow.expect("is some");
        prop_assert_eq!(next_free(&job, &exclusions, from), Some(slow));
        let skipped = passed(&job, &exclusions, first, slow).map_or(0, |p| p.count);
        let expected = std::iter::successors(Some(first), |t| job.next_fire(*t)).take_while(|t| *t < slow).count();
        prop_assert_eq!(skipped, expected as u64);
    }
}

#[test]
fn a_day_without_midnight_ends_where_the_next_one_begins() {
    // In Beirut the clocks skip the first hour of 2027-03-28.
    let (_, exclusions) =
        with_calendar(&json!({ "timezone": "Asia/Beirut", "dates": ["2027-03-27"] }));
    let (_, until) = exclusions
        .at(at("2027-03-27T10:00:00Z"))
        .expect("is excluded");
    assert_eq!(until, at("2027-03-27T22:00:00Z"));
}

#[test]
fn a_night_across_midnight_belongs_to_the_day_on_which_it_begins() {
    let times = json!({ "times": [{ "from": "22:00", "to": "06:00", "weekdays": ["fri"] }] });
    let (_, exclusions) = with_calendar(&times);
    // 2027-01-01 is a Friday.
    for (text, excluded) in [
        ("2027-01-01T21:59:59Z", false),
        ("2027-01-01T22:00:00Z", true),
        ("2027-01-02T05:59:59Z", true),
        ("2027-01-02T06:00:00Z", false),
        ("2027-01-02T22:00:00Z", false),
        ("2027-01-01T05:00:00Z", false),
    ] {
        assert_eq!(exclusions.exclude(at(text)), excluded, "{text}");
    }
}

#[test]
fn a_window_is_about_the_jobs_in_its_scope() {
    let once = |fields: &Value| {
        let mut whole = json!({ "start": "2027-01-01T00:00:00Z", "end": "2027-01-01T01:00:00Z" });
        for (key, value) in fields.as_object().expect("a table") {
            whole[key] = value.clone();
        }
        window(whole)
    };
    let billing = job(&json!({ "group": "billing", "labels": { "tier": "1", "db": "a" } }));
    let mut elsewhere = json!({ "name": "j", "namespace": "team-a", "group": "billing" });
    elsewhere["handler"] = json!({ "native": "x" });
    elsewhere["schedule"] = json!({ "every": "1m" });
    let elsewhere = decode::job(&Node::from(elsewhere)).expect("a valid job");
    for (fields, in_default, in_team) in [
        (json!({}), true, false),
        (json!({ "all_namespaces": true }), true, true),
        (json!({ "group": "billing" }), true, false),
        (json!({ "group": "other" }), false, false),
        (json!({ "labels": { "tier": "1" } }), true, false),
        (
            json!({ "labels": { "tier": "1", "db": "b" } }),
            false,
            false,
        ),
        (
            json!({ "all_namespaces": true, "labels": { "tier": "1" } }),
            true,
            false,
        ),
    ] {
        let rules = rules(Vec::new(), vec![once(&fields)]);
        let has = |spec: &JobSpec| !rules.of(spec).is_empty();
        assert_eq!(
            (has(&billing), has(&elsewhere)),
            (in_default, in_team),
            "{fields}"
        );
    }
}

#[test]
fn a_recurring_window_opens_at_each_of_its_times() {
    let night = window(
        json!({ "cron": "0 22 * * SAT", "timezone": "Europe/Berlin", "duration": "4h", "reason": "patches", "owner": "ann" }),
    );
    let rules = rules(Vec::new(), vec![night]);
    let exclusions = rules.of(&job(&json!({})));
    // Saturday 2027-01-02, 22:00 in Berlin.
    for (text, until) in [
        ("2027-01-02T20:59:59Z", None),
        ("2027-01-02T21:00:00Z", Some("2027-01-03T01:00:00Z")),
        ("2027-01-03T00:59:59Z", Some("2027-01-03T01:00:00Z")),
        ("2027-01-03T01:00:00Z", None),
    ] {
        let found = exclusions.at(at(text));
        assert_eq!(found.map(|(_, until)| until), until.map(at), "{text}");
        if let Some((cause, _)) = found {
            assert_eq!(cause.to_string(), "in maintenance window 7 of ann: patches");
        }
    }
}

#[test]
fn several_schedules_fire_at_the_union_of_their_times() {
    let union = job(
        &json!({ "schedules": [{ "cron": "0 6 * * *" }, { "cron": "0 */6 * * *" }, { "at": "2027-01-01T07:00:00Z" }] }),
    );
    let times = union.upcoming(at("2027-01-01T00:00:00Z"), 6);
    let texts: Vec<String> = times
        .iter()
        .map(|t| t.to_string()[5..16].to_owned())
        .collect();
    assert_eq!(
        texts,
        [
            "01-01T06:00",
            "01-01T07:00",
            "01-01T12:00",
            "01-01T18:00",
            "01-02T00:00",
            "01-02T06:00"
        ]
    );
    // The stored form is read back, and a list of one is that schedule.
    let text = serde_json::to_string(&union).expect("JSON");
    assert_eq!(
        serde_json::from_str::<JobSpec>(&text).expect("a job"),
        union
    );
    let one = job(&json!({ "schedules": [{ "every": "1m" }] }));
    assert_eq!(one, job(&json!({ "schedule": { "every": "1m" } })));
}

#[test]
fn a_preview_says_what_is_left_out_and_why() {
    let spec = job(&json!({
        "schedule": { "cron": "30 2 * * *", "timezone": "Europe/Berlin", "dst": "skip" },
        "calendars": ["c"], "end_at": "2027-04-02T00:00:00Z",
    }));
    let rules = rules(
        vec![calendar(
            &json!({ "timezone": "Europe/Berlin", "dates": ["2027-03-26/2027-03-27"] }),
        )],
        vec![window(
            json!({ "start": "2027-03-30T00:00:00Z", "end": "2027-03-31T00:00:00Z", "reason": "move" }),
        )],
    );
    let shown = preview(&spec, &rules.of(&spec), at("2027-03-25T00:00:00Z"), 9);
    let days: Vec<String> = shown
        .times
        .iter()
        .map(|t| t.to_string()[..10].to_owned())
        .collect();
    assert_eq!(
        days,
        ["2027-03-25", "2027-03-29", "2027-03-31", "2027-04-01"]
    );
    let left_out: Vec<String> = shown
        .left_out
        .iter()
        .map(|entry| {
            format!(
                "{} {} {}",
                &entry.first.to_string()[..10],
                entry.count,
                entry.reason
            )
        })
        .collect();
    assert_eq!(
        left_out,
        [
            "2027-03-26 2 excluded by calendar \"c\"",
            "2027-03-28 1 the clocks of Europe/Berlin skip a time that matches \"30 2 * * *\"",
            "2027-03-30 1 in maintenance window 7: move",
            "2027-04-02 1 end_at is 2027-04-02T00:00:00.000Z",
        ]
    );
}

#[test]
fn a_preview_of_a_second_job_over_a_long_exclusion_is_bounded() {
    let spec = job(&json!({ "schedule": { "every": "1s" }, "calendars": ["c"] }));
    let rules = rules(
        vec![calendar(&json!({ "dates": ["2027-01-01/2027-12-31"] }))],
        Vec::new(),
    );
    let shown = preview(&spec, &rules.of(&spec), at("2027-01-01T00:00:00Z"), 2);
    assert_eq!(shown.times[0], at("2028-01-01T00:00:00Z"));
    assert_eq!((shown.left_out.len(), shown.left_out[0].more), (1, true));
}

/// Each bad value, with the field and a part of the message.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn bad_values_name_the_field_and_what_is_accepted() {
    let jobs: [(Value, &str, &str); 9] = [
        (
            json!({ "calendars": "a" }),
            "calendars",
            "a list of names of calendars is expected",
        ),
        (
            json!({ "calendars": ["a", "a"] }),
            "calendars",
            "\"a\" is given twice",
        ),
        (
            json!({ "calendars": ["x/a"] }),
            "calendars[0]",
            "a name without '/' is expected",
        ),
        (
            json!({ "calendars": vec!["a"; 17] }),
            "calendars",
            "at most 16 names of calendars",
        ),
        (
            json!({ "schedules": [] }),
            "schedules",
            "1–20 schedules are expected",
        ),
        (
            json!({ "schedules": { "every": "1m" } }),
            "schedules",
            "a list of schedules is expected",
        ),
        (
            json!({ "schedules": [{ "every": "1m" }, { "after": "1m" }] }),
            "schedules[1]",
            "\"after\" cannot be combined",
        ),
        (
            json!({ "schedules": [{ "every": "1m" }, { "manual": true }] }),
            "schedules[1]",
            "cron, every or at is expected",
        ),
        (
            json!({ "schedules": [{ "every": "1m" }], "schedule": { "every": "1m" } }),
            "schedules",
            "given beside schedule",
        ),
    ];
    for (fields, field, message) in jobs {
        let mut whole = json!({ "name": "j", "handler": { "native": "x" } });
        if fields.get("schedules").is_none() {
            whole["schedule"] = json!({ "every": "1m" });
        }
        for (key, value) in fields.as_object().expect("a table") {
            whole[key] = value.clone();
        }
        refused(decode::job(&Node::from(whole)), &fields, field, message);
    }
    let calendars: [(Value, &str, &str); 13] = [
        (json!({}), "", "nothing to exclude given"),
        (
            json!({ "dates": ["2027-02-30"] }),
            "dates[0]",
            "a day such as 2026-12-25",
        ),
        (
            json!({ "dates": ["2027-01-02/2027-01-01"] }),
            "dates[0]",
            "the last day is before the first",
        ),
        (json!({ "dates": [1] }), "dates[0]", "a text is expected"),
        (
            json!({ "weekdays": ["saturday"] }),
            "weekdays[0]",
            "did you mean \"sat\"?",
        ),
        (
            json!({ "weekdays": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"] }),
            "weekdays",
            "lets no job fire",
        ),
        (
            json!({ "times": [{ "from": "25:00", "to": "06:00" }] }),
            "times[0].from",
            "from 00:00 to 24:00",
        ),
        (
            json!({ "times": [{ "from": "06:00" }] }),
            "times[0].to",
            "missing",
        ),
        (
            json!({ "times": [{ "from": "06:00", "to": "06:00" }] }),
            "times[0].to",
            "also the value of from",
        ),
        (
            json!({ "periods": [{ "start": "2027-01-02T00:00:00Z", "end": "2027-01-01T00:00:00Z" }] }),
            "periods[0].end",
            "is not after start",
        ),
        (
            json!({ "periods": [{ "start": "x", "end": "2027-01-01T00:00:00Z" }] }),
            "periods[0].start",
            "an instant such as",
        ),
        (
            json!({ "timezone": "Europe/Berln", "weekdays": ["sat"] }),
            "timezone",
            "did you mean \"Europe/Berlin\"?",
        ),
        (
            json!({ "weekday": ["sat"] }),
            "weekday",
            "did you mean \"weekdays\"?",
        ),
    ];
    for (fields, field, message) in calendars {
        let mut whole = fields.clone();
        whole["name"] = json!("c");
        refused(
            decode::calendar(&Node::from(whole), &Namespace::default()),
            &fields,
            field,
            message,
        );
    }
    let windows: [(Value, &str, &str); 9] = [
        (json!({}), "start", "missing"),
        (json!({ "start": "2027-01-01T00:00:00Z" }), "end", "missing"),
        (
            json!({ "start": "2027-01-01T00:00:00Z", "end": "2027-01-01T00:00:00Z" }),
            "end",
            "is not after start",
        ),
        (json!({ "cron": "0 1 * * *" }), "duration", "missing"),
        (
            json!({ "cron": "0 1 * * *", "duration": "10" }),
            "duration",
            "write a number with a unit",
        ),
        (
            json!({ "cron": "0 1 * *", "duration": "1h" }),
            "cron",
            "0 1 * *",
        ),
        (
            json!({ "cron": "0 1 * * *", "duration": "1h", "end": "2027-01-01T00:00:00Z" }),
            "end",
            "does not go with cron",
        ),
        (
            json!({ "start": "2027-01-01T00:00:00Z", "end": "2027-01-02T00:00:00Z", "duration": "1h" }),
            "duration",
            "does not go with start and end",
        ),
        (
            json!({ "all_namespaces": true, "group": "a", "start": "2027-01-01T00:00:00Z", "end": "2027-01-02T00:00:00Z" }),
            "group",
            "a group belongs to one namespace",
        ),
    ];
    for (fields, field, message) in windows {
        let read = decode::window(&Node::from(fields.clone()), &Namespace::default());
        refused(read, &fields, field, message);
    }
}

fn refused<T>(read: Result<T, Vec<decode::Problem>>, fields: &Value, field: &str, message: &str) {
    let Err(problems) = read else {
        panic!("{fields} is accepted")
    };
    let found = problems
        .iter()
        .any(|p| p.field == field && p.message.contains(message));
    assert!(found, "{fields}: {problems:?}");
}

#[test]
fn a_job_file_has_jobs_and_calendars() {
    let file = json!({
        "calendar": [{ "name": "holidays", "dates": ["12-25"] }],
        "job": [{ "name": "j", "schedule": { "every": "1m" }, "calendars": ["holidays"], "handler": { "native": "x" } }],
    });
    let team: Namespace = "team-a".parse().expect("a namespace");
    let found = decode::file(&Node::from(file), &team).expect("a valid file");
    assert_eq!(found.calendars[0].name.as_str(), "team-a/holidays");
    assert_eq!(
        found.jobs[0].calendar_names().next().as_ref(),
        Some(&found.calendars[0].name)
    );
    let wrong = json!({ "calendar": [{ "name": "a" }, 3], "job": [{ "name": "j" }] });
    let problems = decode::file(&Node::from(wrong), &team).expect_err("is refused");
    let fields: Vec<&str> = problems.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(
        fields,
        ["calendar[0]", "calendar[1]", "schedule", "handler"]
    );
}

fn pause(fields: Value, now: &str) -> Result<MaintenanceWindow, Vec<String>> {
    let decoded = decode::pause(&Node::from(fields), &Namespace::default(), at(now));
    match decoded {
        Ok(spec) => Ok(MaintenanceWindow {
            id: 8,
            spec,
            ended_at: None,
        }),
        Err(problems) => Err(problems
            .into_iter()
            .map(|problem| format!("{}: {}", problem.field, problem.message))
            .collect()),
    }
}

#[test]
fn a_pause_lasts_until_its_end_or_until_a_person_ends_it() {
    let now = "2027-03-01T10:00:00Z";
    let paused = |fields| pause(fields, now).expect("a valid pause");
    let job = job(&json!({ "schedule": { "cron": "0 * * * *" } }));
    let next = |window: &MaintenanceWindow| {
        let exclusions = rules(Vec::new(), vec![window.clone()]).of(&job);
        let next = next_free(&job, &exclusions, at(now)).map(|at| at.to_string());
        (next, exclusions.pause(at(now)).map(|pause| pause.id))
    };
    let bounded = paused(json!({ "all": true, "reason": "x", "for": "2h" }));
    assert_eq!(bounded.pauses_until(), Some(at("2027-03-01T12:00:00Z")));
    assert_eq!(
        next(&bounded),
        (Some("2027-03-01T12:00:00.000Z".to_owned()), Some(8))
    );
    let mut endless = paused(json!({ "all": true, "reason": "x" }));
    assert_eq!(next(&endless), (None, Some(8)));
    let exclusions = rules(Vec::new(), vec![endless.clone()]).of(&job);
    let shown = preview(&job, &exclusions, at(now), 3);
    assert!(shown.times.is_empty(), "{shown:?}");
    assert_eq!(shown.left_out[0].reason, "in pause 8: x");
    // What was due before and has not started does not start either.
    assert!(exclusions.exclude(at("2027-03-01T09:00:00Z")));
    assert!(!endless.is_over(at("2099-01-01T00:00:00Z")));
    endless.ended_at = Some(at("2027-03-01T10:30:00Z"));
    assert_eq!(
        next(&endless).0.as_deref(),
        Some("2027-03-01T11:00:00.000Z")
    );
    assert!(endless.is_over(at("2027-03-01T10:30:00Z")));
    let elsewhere = paused(json!({ "group": "billing", "reason": "x" }));
    assert_eq!(
        next(&elsewhere),
        (Some("2027-03-01T11:00:00.000Z".to_owned()), None)
    );
}

#[test]
fn a_pause_says_what_is_wrong_with_it() {
    let now = "2027-03-01T10:00:00Z";
    let cases = [
        (
            json!({ "reason": "x" }),
            "all, all_namespaces, group, labels is expected",
        ),
        (
            json!({ "all": false, "reason": "x" }),
            "all, all_namespaces, group, labels is expected",
        ),
        (json!({ "all": true }), "reason: "),
        (
            json!({ "all": true, "reason": " " }),
            "a reason for people is expected",
        ),
        (json!({ "all": true, "reason": "x", "for": "0s" }), "for: "),
        (
            json!({ "all": true, "reason": "x", "until": now }),
            "an instant after now",
        ),
        (
            json!({ "all": true, "reason": "x", "for": "1h", "until": "2027-03-01T11:00:00Z" }),
            "one of both is expected",
        ),
        (
            json!({ "all_namespaces": true, "group": "g", "reason": "x" }),
            "a group belongs to one namespace",
        ),
        (
            json!({ "all": true, "reason": "x", "owner": "me" }),
            "owner",
        ),
    ];
    for (fields, says) in cases {
        let problems = pause(fields.clone(), now).expect_err("is refused");
        assert!(
            problems.iter().any(|text| text.contains(says)),
            "{fields}: {problems:?}"
        );
    }
}
