//! Cron schedules against independent implementations: two crates over random expressions, and cronsim's recorded fire
//! times for real crontabs and around changes of the clocks.

use std::str::FromStr;

use cueline_model::schedule::CronSchedule;
use cueline_model::{Dialect, DstRule, Timestamp};
use proptest::prelude::*;
use serde_json::Value;

fn fires(cron: &CronSchedule, after_second: i64, n: usize) -> Vec<i64> {
    let next = |t: &Timestamp| cron.next_after(*t);
    std::iter::successors(next(&Timestamp::from_millis(after_second * 1_000)), next)
        .take(n)
        .map(|t| t.as_millis() / 1_000)
        .collect()
}

fn golden(list: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("oracle/golden.json")).unwrap();
    all[list].as_array().unwrap().clone()
}

fn seconds(entry: &Value) -> Vec<i64> {
    let list = entry["fires"].as_array().unwrap();
    list.iter().map(|t| t.as_i64().unwrap()).collect()
}

#[test]
fn the_crontabs_expressions_fire_when_cronsim_says() {
    let entries = golden("crontabs");
    assert!(entries.len() >= 40, "{} expressions", entries.len());
    for entry in entries {
        let expression = entry["cron"].as_str().unwrap();
        let cron = CronSchedule::parse(expression, "UTC", None, None).unwrap();
        let after = entry["after"].as_i64().unwrap();
        assert_eq!(fires(&cron, after, 20), seconds(&entry), "{expression}");
    }
}

/// Known differences: cronsim walks in whole hours, and Lord Howe changes its clocks by half an hour. cronsim misses
/// these times, which the island's clocks do show.
const PASSED_OVER: [(&str, std::ops::Range<i64>); 4] = [
    // 02:00–02:29 standard time, after the clocks went back from 02:00 to 01:30.
    ("* 2 * * *", 1_806_766_200..1_806_768_000),
    ("0 */2 * * *", 1_806_766_200..1_806_766_201),
    // The second 01:30 of that night.
    ("30 * * * *", 1_806_764_400..1_806_764_401),
    // 02:30, to which the clocks went forward from 02:00.
    ("30 * * * *", 1_822_491_000..1_822_491_001),
];

/// An intended difference: for Debian's cron only a field that starts with `*` is a wildcard. Here a step is one too.
const STEP_WITHOUT_STAR: &str = "0-59/20 2 * * *";

#[test]
fn changes_of_the_clocks_are_followed_as_by_cronsim() {
    let entries = golden("changes");
    assert_eq!(entries.len(), 96);
    for entry in entries {
        let expression = entry["cron"].as_str().unwrap();
        let zone = entry["timezone"].as_str().unwrap();
        let dst = (expression == STEP_WITHOUT_STAR).then_some(DstRule::Once);
        let cron = CronSchedule::parse(expression, zone, None, dst).unwrap();
        let until = entry["until"].as_i64().unwrap();
        let mut ours = fires(&cron, entry["after"].as_i64().unwrap(), 10_000);
        ours.retain(|second| *second < until);
        if zone == "Australia/Lord_Howe" {
            let passed_over = |second: &i64| {
                PASSED_OVER
                    .iter()
                    .any(|(e, times)| *e == expression && times.contains(second))
            };
            ours.retain(|second| !passed_over(second));
        }
        assert_eq!(ours, seconds(&entry), "{expression} in {zone}");
    }
}

/// One field of the syntax that all implementations share.
fn field(min: u32, max: u32) -> impl Strategy<Value = String> {
    let item = prop_oneof![
        3 => (min..=max).prop_map(|n| n.to_string()),
        2 => (min..=max, min..=max).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
        1 => (min..max, 1..=(max - min) / 2).prop_map(move |(a, n)| format!("{a}-{max}/{n}")),
        1 => (1..=(max - min) / 2).prop_map(|n| format!("*/{n}")),
    ];
    prop_oneof![
        2 => Just("*".to_owned()),
        5 => prop::collection::vec(item, 1..4).prop_map(|items| items.join(",")),
    ]
}

/// The first second of 2101.
const YEAR_2101: i64 = 4_133_980_800;

/// The two day fields of an expression. Days end at 28, so that each expression fires soon.
fn day_fields() -> impl Strategy<Value = (String, String)> {
    prop_oneof![
        (field(1, 28), Just("?".to_owned())),
        (Just("?".to_owned()), field(1, 7)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn quartz_agrees_with_the_cron_crate(
        second in field(0, 59), minute in field(0, 59), hour in field(0, 23),
        (month_day, week_day) in day_fields(), month in field(1, 12),
        after in 946_684_800_i64..4_000_000_000,
    ) {
        let expression = format!("{second} {minute} {hour} {month_day} {month} {week_day}");
        let ours = CronSchedule::parse(&expression, "UTC", Some(Dialect::Quartz), None).unwrap();
        let theirs = cron::Schedule::from_str(&expression).unwrap();
        let start = chrono::DateTime::from_timestamp(after, 0).unwrap();
        let expected: Vec<i64> = theirs.after(&start).take(20).map(|t| t.timestamp()).collect();
        // The crate's last year is 2100.
        let mut found = fires(&ours, after, 20);
        found.retain(|at| *at < YEAR_2101);
        prop_assert_eq!(found, expected, "{}", expression);
    }

    #[test]
    fn unix_agrees_with_croner(
        minute in field(0, 59), hour in field(0, 23), month_day in field(1, 31), month in field(1, 12),
        week_day in field(0, 7), after in 946_684_800_i64..4_000_000_000,
    ) {
        let expression = format!("{minute} {hour} {month_day} {month} {week_day}");
        // croner treats a field as unrestricted only if it is `*`; Vixie cron does so for any field that starts with
        // `*`.
        let starts_wild = |field: &str| field.starts_with('*') && field != "*";
        prop_assume!(!starts_wild(&month_day) && !starts_wild(&week_day));
        // Dates such as 31 June: this crate refuses them, croner searches until the year 5000.
        let Ok(ours) = CronSchedule::parse(&expression, "UTC", None, None) else {
            return Ok(());
        };
        let theirs = croner::Cron::from_str(&expression).unwrap();
        prop_assert_eq!(fires(&ours, after, 10), by_croner(&theirs, after, 10), "{}", expression);
    }

    #[test]
    fn quartz_days_agree_with_croner(
        days in prop_oneof![
            Just("L ? *".to_owned()),
            Just("LW ? *".to_owned()),
            (1..=31).prop_map(|n| format!("{n}W ? *")),
            (1..=28, 1..=28).prop_map(|(a, b)| format!("{a}W,{b} ? *")),
            (1..=7).prop_map(|n| format!("? {n}L *")),
            (1..=7, 1..=5).prop_map(|(day, n)| format!("? {day}#{n} *")),
            (1..=7, 1..=7, 1..=4).prop_map(|(a, b, n)| format!("? {a}L,{b}#{n} *")),
            (2030..2060).prop_map(|year| format!("L ? {year}")),
        ],
        month in field(1, 12), after in 946_684_800_i64..1_800_000_000,
    ) {
        let (month_day, rest) = days.split_once(' ').unwrap();
        let expression = format!("30 15 12 {month_day} {month} {rest}");
        let Ok(ours) = CronSchedule::parse(&expression, "UTC", None, None) else {
            return Ok(());
        };
        let theirs = croner::parser::CronParser::builder()
            .seconds(croner::parser::Seconds::Required)
            .alternative_weekdays(true)
            .sloppy_ranges(true)
            .build()
            .parse(&expression)
            .unwrap();
        prop_assert_eq!(fires(&ours, after, 10), by_croner(&theirs, after, 10), "{}", expression);
    }
}

fn by_croner(cron: &croner::Cron, after: i64, n: usize) -> Vec<i64> {
    let utc = jiff::tz::Offset::UTC;
    let start = utc.to_datetime(jiff::Timestamp::from_second(after).unwrap());
    let next = |t: &jiff::civil::DateTime| cron.find_next_occurrence(t, false).ok();
    std::iter::successors(next(&start), next)
        .take(n)
        .map(|t| utc.to_timestamp(t).unwrap().as_second())
        .collect()
}
