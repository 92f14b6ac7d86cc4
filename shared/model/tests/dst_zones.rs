//! The DST rules at changes of the clocks in eleven zones that do it in unusual ways, in both directions.
//!
//! The table has the instants and offsets of the IANA time-zone database, read with Python's `zoneinfo`. So the expected
//! fire times depend neither on the library that reads the database nor on a search over time: each minute that a clock
//! could show is looked at once.

use std::collections::BTreeSet;

use cueline_model::schedule::CronSchedule;
use cueline_model::{Dialect, DstRule, Timestamp};

/// A change of the clocks: the zone, the instant in Unix seconds, and the minutes ahead of UTC before and after it.
type Change = (&'static str, i64, i64, i64);

const CHANGES: [Change; 24] = [
    // By half an hour.
    ("Australia/Lord_Howe", 1_712_415_600, 660, 630),
    ("Australia/Lord_Howe", 1_728_142_200, 630, 660),
    // It left out 30 December 2011, and changed twice a year until 2021.
    ("Pacific/Apia", 1_325_239_200, -600, 840),
    ("Pacific/Apia", 1_601_128_800, 780, 840),
    ("Pacific/Apia", 1_617_458_400, 840, 780),
    // Back for the month of Ramadan only.
    ("Africa/Casablanca", 1_710_036_000, 60, 0),
    ("Africa/Casablanca", 1_713_060_000, 0, 60),
    // By two hours.
    ("Antarctica/Troll", 1_711_846_800, 0, 120),
    ("Antarctica/Troll", 1_729_990_800, 120, 0),
    // At midnight.
    ("Africa/Cairo", 1_714_082_400, 120, 180),
    ("Africa/Cairo", 1_730_408_400, 180, 120),
    // From and to offsets with 45 minutes.
    ("Pacific/Chatham", 1_712_412_000, 825, 765),
    ("Pacific/Chatham", 1_727_532_000, 765, 825),
    // The winter has the negative DST, the summer is the standard time.
    ("Europe/Dublin", 1_711_846_800, 0, 60),
    ("Europe/Dublin", 1_729_990_800, 60, 0),
    // On days that the government announces.
    ("Asia/Gaza", 1_648_332_000, 120, 180),
    ("Asia/Gaza", 1_666_998_000, 180, 120),
    // On the day before, because Europe's hour is late in the evening there.
    ("America/Nuuk", 1_711_846_800, -120, -60),
    ("America/Nuuk", 1_729_990_800, -60, -120),
    // A new standard time by half an hour.
    ("America/Caracas", 1_197_183_600, -240, -270),
    ("America/Caracas", 1_462_086_000, -270, -240),
    ("Asia/Pyongyang", 1_439_564_400, 540, 510),
    ("Asia/Pyongyang", 1_525_446_000, 510, 540),
    // The usual change, for comparison.
    ("America/New_York", 1_710_054_000, -300, -240),
];

const RULES: [Option<DstRule>; 4] = [
    None,
    Some(DstRule::Skip),
    Some(DstRule::Once),
    Some(DstRule::Both),
];

/// What is compared before and after a change, in minutes.
const AROUND: i64 = 20 * 60;

/// The instants, in minutes, at which clocks show a local minute.
fn shown((_, at, before, after): Change, local: i64) -> Vec<i64> {
    let at = at / 60;
    let by_old = Some(local - before).filter(|instant| *instant < at);
    let by_new = Some(local - after).filter(|instant| *instant >= at);
    by_old.into_iter().chain(by_new).collect()
}

/// When an expression fires that matches some local minutes.
fn expected(
    change: Change,
    rule: Option<DstRule>,
    is_elapsed_time: bool,
    matches: impl Fn(i64) -> bool,
) -> BTreeSet<i64> {
    let (_, at, before, after) = change;
    let at = at / 60;
    let (first, last) = (at - AROUND, at + AROUND);
    let locals = first + before.min(after)..=last + before.max(after);
    let mut fires = BTreeSet::new();
    for local in locals.filter(|local| matches(*local)) {
        let instants = shown(change, local);
        match (&instants[..], rule) {
            // Left out: at the end of the gap, or not at all.
            ([], Some(DstRule::Skip)) => {}
            ([], None) if is_elapsed_time => {}
            ([], _) => {
                fires.insert(at);
            }
            // Shown twice: the second time too, or not.
            ([once, again], _)
                if rule == Some(DstRule::Both) || rule.is_none() && is_elapsed_time =>
            {
                fires.extend([*once, *again]);
            }
            ([once, ..], _) => {
                fires.insert(*once);
            }
        }
    }
    fires.retain(|instant| (first..=last).contains(instant));
    fires
}

fn fires(cron: &CronSchedule, at: i64) -> BTreeSet<i64> {
    let at_minute = |minute: i64| Timestamp::from_millis(minute * 60_000);
    let (first, last) = (at / 60 - AROUND, at / 60 + AROUND);
    let next = |t: &Timestamp| cron.next_after(*t);
    let from = at_minute(first).minus_ms(1);
    std::iter::successors(next(&from), next)
        .take_while(|fire| *fire <= at_minute(last))
        .map(|fire| {
            assert_eq!(fire.as_millis() % 60_000, 0);
            fire.as_millis() / 60_000
        })
        .collect()
}

fn compare(
    change: Change,
    expression: &str,
    is_elapsed_time: bool,
    matches: impl Fn(i64) -> bool,
) -> usize {
    let mut count = 0;
    for rule in RULES {
        let (zone, at, ..) = change;
        let cron = CronSchedule::parse(expression, zone, Some(Dialect::Unix), rule);
        let cron = cron.unwrap_or_else(|e| panic!("{expression}: {e}"));
        let expected = expected(change, rule, is_elapsed_time, &matches);
        assert_eq!(
            fires(&cron, at),
            expected,
            "{expression}, {rule:?}, {change:?}"
        );
        count += expected.len();
    }
    count
}

/// The local minutes around a change: those that are left out or shown twice, with some before and after.
fn minutes_around((_, at, before, after): Change) -> impl Iterator<Item = i64> {
    let (low, high) = (at / 60 + before.min(after), at / 60 + before.max(after));
    let is_edge = move |local: i64| (local - low).abs() <= 1 || (local - high).abs() <= 1;
    (low - 90..=high + 90).filter(move |local| local % 7 == 0 || is_edge(*local))
}

#[test]
fn both_directions_are_in_the_table() {
    let zones: BTreeSet<&str> = CHANGES.iter().map(|(zone, ..)| *zone).collect();
    for zone in zones.into_iter().filter(|zone| *zone != "America/New_York") {
        let of_zone = || CHANGES.iter().filter(|change| change.0 == zone);
        assert!(
            of_zone().any(|(_, _, before, after)| before < after),
            "{zone}"
        );
        assert!(
            of_zone().any(|(_, _, before, after)| before > after),
            "{zone}"
        );
    }
}

#[test]
fn each_minute_around_a_change_fires_by_its_rule() {
    for change in CHANGES {
        let mut count = 0;
        for local in minutes_around(change) {
            let time = local.rem_euclid(1_440);
            let expression = format!("{} {} * * *", time % 60, time / 60);
            count += compare(change, &expression, false, |local| {
                local.rem_euclid(1_440) == time
            });
        }
        assert!(count > 100, "{change:?}: {count} fires");
    }
}

#[test]
fn wildcards_and_steps_around_a_change_follow_elapsed_time() {
    for change in CHANGES {
        for minute in [0, 15, 29, 30, 45, 59] {
            let expression = format!("{minute} * * * *");
            compare(change, &expression, true, |local| {
                local.rem_euclid(60) == minute
            });
        }
        for step in [7, 20, 30] {
            let expression = format!("*/{step} * * * *");
            compare(change, &expression, true, |local| {
                local.rem_euclid(60) % step == 0
            });
        }
        // A list of times of one night, some of which do not exist or exist twice.
        for hour in 0..4 {
            let expression = format!("0,20,40 {hour},{} * * *", hour + 1);
            let matches = |local: i64| {
                let time = local.rem_euclid(1_440);
                time % 20 == 0 && (hour..=hour + 1).contains(&(time / 60))
            };
            compare(change, &expression, false, matches);
        }
    }
}
