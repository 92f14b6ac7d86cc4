//! Tests of single expressions; comparisons with other implementations are in `tests/cron_oracles.rs`.

use proptest::prelude::*;

use super::*;

fn cron(expression: &str, zone: &str, dst: Option<DstRule>) -> CronSchedule {
    CronSchedule::parse(expression, zone, None, dst).unwrap_or_else(|e| panic!("{expression}: {e}"))
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The fire times after `after` and up to `until`, to the minute.
fn fires(cron: &CronSchedule, after: &str, until: &str) -> Vec<String> {
    let next = |t: &Timestamp| cron.next_after(*t);
    std::iter::successors(next(&at(after)), next)
        // The loop is bounded, so that a search without progress fails instead of never ending.
        .take(10_000)
        .take_while(|t| *t <= at(until))
        .map(|t| t.to_string()[5..16].to_owned())
        .collect()
}

#[test]
fn each_dst_rule_follows_its_definition() {
    // New York, 2027: 14 March 02:00 EST (07:00Z) becomes 03:00; 7 November 02:00 EDT (06:00Z) becomes 01:00.
    let gap = |dst| {
        let cron = cron("30 2 * * *", "America/New_York", dst);
        fires(&cron, "2027-03-13T12:00:00Z", "2027-03-15T12:00:00Z")
    };
    let moved = ["03-14T07:00", "03-15T06:30"];
    assert_eq!(gap(Some(DstRule::Skip)), ["03-15T06:30"]);
    assert_eq!(gap(Some(DstRule::Once)), moved);
    assert_eq!(gap(Some(DstRule::Both)), moved);
    assert_eq!(gap(None), moved);
    let fold = |dst| {
        let cron = cron("30 1 * * *", "America/New_York", dst);
        fires(&cron, "2027-11-06T12:00:00Z", "2027-11-08T12:00:00Z")
    };
    let once = ["11-07T05:30", "11-08T06:30"];
    assert_eq!(fold(Some(DstRule::Skip)), once);
    assert_eq!(fold(Some(DstRule::Once)), once);
    assert_eq!(
        fold(Some(DstRule::Both)),
        ["11-07T05:30", "11-07T06:30", "11-08T06:30"]
    );
    assert_eq!(fold(None), once);
}

#[test]
fn wildcards_and_steps_follow_elapsed_time() {
    let hourly = cron("0 * * * *", "America/New_York", None);
    let gap = fires(&hourly, "2027-03-14T05:30:00Z", "2027-03-14T08:00:00Z");
    assert_eq!(gap, ["03-14T06:00", "03-14T07:00", "03-14T08:00"]);
    let fold = fires(&hourly, "2027-11-07T04:30:00Z", "2027-11-07T07:00:00Z");
    assert_eq!(fold, ["11-07T05:00", "11-07T06:00", "11-07T07:00"]);
    let stepped = cron("*/30 2 * * *", "America/New_York", None);
    let gap = fires(&stepped, "2027-03-13T12:00:00Z", "2027-03-14T12:00:00Z");
    assert_eq!(
        gap,
        Vec::<String>::new(),
        "no time of that night's 02:00–02:59 exists"
    );
    let once = cron("0 * * * *", "America/New_York", Some(DstRule::Once));
    let fold = fires(&once, "2027-11-07T04:30:00Z", "2027-11-07T07:00:00Z");
    assert_eq!(fold, ["11-07T05:00", "11-07T07:00"]);
    let gap = fires(&once, "2027-03-14T05:30:00Z", "2027-03-14T08:00:00Z");
    assert_eq!(
        gap,
        ["03-14T06:00", "03-14T07:00", "03-14T08:00"],
        "03:00 only once"
    );
}

#[test]
fn several_times_in_one_gap_fire_once() {
    let cron = cron("0,15,30,45 2 * * *", "America/New_York", None);
    let gap = fires(&cron, "2027-03-13T12:00:00Z", "2027-03-14T12:00:00Z");
    assert_eq!(gap, ["03-14T07:00"]);
}

#[test]
fn a_search_that_starts_within_repeated_times_does_not_repeat_them() {
    let cron = cron("30 1 * * *", "America/New_York", None);
    // The second 01:10 of that night.
    let next = cron.next_after(at("2027-11-07T06:10:00Z")).unwrap();
    assert_eq!(next, at("2027-11-08T06:30:00Z"));
}

#[test]
fn a_day_that_was_left_out_is_one_gap() {
    // Samoa had no 30 December 2011.
    let cron = cron("0 12 * * *", "Pacific/Apia", None);
    let fires = fires(&cron, "2011-12-29T00:00:00Z", "2011-12-31T00:00:00Z");
    assert_eq!(fires, ["12-29T22:00", "12-30T10:00", "12-30T22:00"]);
}

#[test]
fn quartz_s_days_are_found() {
    let days = |expression: &str, n: usize| -> Vec<String> {
        let cron = cron(expression, "UTC", None);
        let next = |t: &Timestamp| cron.next_after(*t);
        std::iter::successors(next(&at("2027-01-01T00:00:00Z")), next)
            .take(n)
            .map(|t| t.to_string()[..10].to_owned())
            .collect()
    };
    assert_eq!(
        days("0 0 12 L-3 * ?", 3),
        ["2027-01-28", "2027-02-25", "2027-03-28"]
    );
    assert_eq!(days("0 0 12 L-30 * ?", 2), ["2027-01-01", "2027-03-01"]);
    assert_eq!(
        days("0 0 12 LW * ?", 3),
        ["2027-01-29", "2027-02-26", "2027-03-31"]
    );
    // 28 January is a Thursday, 25 February too, 28 March a Sunday.
    assert_eq!(
        days("0 0 12 L-3W * ?", 3),
        ["2027-01-28", "2027-02-25", "2027-03-29"]
    );
    assert_eq!(
        days("0 0 12 1W 5 ?", 1),
        ["2027-05-03"],
        "a Saturday the 1st goes forward"
    );
    assert_eq!(
        days("0 0 12 31W * ?", 2),
        ["2027-01-29", "2027-03-31"],
        "not in short months"
    );
    assert_eq!(days("0 0 12 ? * FRIL", 2), ["2027-01-29", "2027-02-26"]);
    assert_eq!(days("0 0 12 ? * 6#5", 2), ["2027-01-29", "2027-04-30"]);
    assert_eq!(
        days("0 0 12 ? * L", 1),
        ["2027-01-02"],
        "alone, L is Saturday"
    );
    assert_eq!(
        days("0 0 12 ? * FRI-MON", 4),
        ["2027-01-01", "2027-01-02", "2027-01-03", "2027-01-04"]
    );
    assert_eq!(
        days("0 0 12 ? NOV-FEB 2", 6)[4..],
        ["2027-02-01", "2027-02-08"]
    );
    assert_eq!(days("0 0 0 1 1 ? 2030/2", 2), ["2030-01-01", "2032-01-01"]);
    assert_eq!(
        days("0 0 0 1 1 ? 2020", 1),
        Vec::<String>::new(),
        "years gone by"
    );
    assert_eq!(
        days("0 0 22-2 ? * *", 4)[0..3],
        ["2027-01-01", "2027-01-01", "2027-01-01"]
    );
}

#[test]
fn unix_s_days_are_found() {
    let count = |expression: &str| {
        let cron = cron(expression, "UTC", None);
        fires(&cron, "2027-01-31T23:59:00Z", "2027-02-28T23:59:00Z").len()
    };
    assert_eq!(count("0 0 13 * 5"), 5, "the 13th or a Friday");
    assert_eq!(
        count("0 0 */2 * 5"),
        2,
        "an odd day and a Friday: a leading star does not restrict"
    );
    assert_eq!(count("0 0 * * 7"), count("0 0 * * SUN"));
    assert_eq!(count("0 0 * * 0"), 4);
    assert_eq!(count("0 0 * * fri-sun"), 12);
    assert_eq!(count("@weekly"), 4);
    assert_eq!(count("@MIDNIGHT"), 28);
    assert_eq!(count("5/20 0 1 * *"), 3);
}

/// Invalid expressions and their errors.
const WRONG: &[(&str, &str)] = &[
    ("61 * * * *", "minute 61 is out of range 0–59"),
    ("* 24 * * *", "hour 24 is out of range 0–23"),
    ("* * 0 * *", "day-of-month 0 is out of range 1–31"),
    ("* * * 13 *", "month 13 is out of range 1–12"),
    ("* * * * 8", "day-of-week 8 is out of range 0–7"),
    (
        "* * * JANU *",
        "month \"JANU\" is not understood; 1–12 or JAN–DEC is expected; did you mean JAN?",
    ),
    (
        "* * * * mo",
        "day-of-week \"mo\" is not understood; 0–7 or SUN–SAT is expected; did you mean MON?",
    ),
    (
        "x * * * *",
        "minute \"x\" is not understood; 0–59 is expected",
    ),
    (
        "-1 * * * *",
        "minute \"\" is not understood; 0–59 is expected",
    ),
    (
        "? * * * *",
        "minute \"?\" is not understood; 0–59 is expected ('?' is quartz; write '*')",
    ),
    (
        "*/0 * * * *",
        "minute \"*/0\": step \"0\" is out of range 1–60",
    ),
    (
        "*/61 * * * *",
        "minute \"*/61\": step \"61\" is out of range 1–60",
    ),
    ("1,,2 * * * *", "minute \"1,,2\" has an empty place"),
    (
        "50-10 * * * *",
        "minute range \"50-10\" goes backwards; write 50-59,0-10",
    ),
    (
        "99999999999 * * * *",
        "minute 99999999999 is out of range 0–59",
    ),
    (
        "* * *",
        "3 fields given; unix cron has 5: minute hour day-of-month month day-of-week (quartz has 6 or 7: second minute hour day-of-month month day-of-week [year])",
    ),
    (
        "",
        "0 fields given; unix cron has 5: minute hour day-of-month month day-of-week (quartz has 6 or 7: second minute hour day-of-month month day-of-week [year])",
    ),
    ("@reboot", "@reboot is no time; use { startup = true }"),
    (
        "@dialy",
        "unknown name \"@dialy\"; did you mean @daily? (@yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly)",
    ),
    (
        "0 0 31 4,6 *",
        "no date ever matches day-of-month, month and day-of-week together; for a job that never fires by itself use { manual = true }",
    ),
    (
        "0 0 0 ? * ?",
        "'?' is given for day-of-month and for day-of-week; one of them must say a day",
    ),
    (
        "0 0 0 1 * 2",
        "day-of-month and day-of-week are both given; quartz expects '?' in one of them",
    ),
    ("0 0 0 ? * 0", "day-of-week 0 is out of range 1–7"),
    (
        "0 0 0 L-31 * ?",
        "day-of-month \"L-31\" is not understood; L, L-3, LW or L-3W is expected, with 0–30 after the '-'",
    ),
    ("0 0 0 32W * ?", "day-of-month 32 is out of range 1–31"),
    (
        "0 0 0 ? * 2#6",
        "day-of-week \"2#6\" is not understood; a number 1–5 is expected after '#'",
    ),
    (
        "0 0 ? * * *",
        "hour \"?\" is not understood; 0–23 is expected ('?' is for day-of-month and day-of-week only)",
    ),
    (
        "0 0 0 ?,1 * ?",
        "day-of-month \"?,1\" is not understood; '?' stands alone",
    ),
    (
        "0 0 0 ? * MON,?",
        "day-of-week \"MON,?\" is not understood; '?' stands alone",
    ),
    ("0 0 0 1 1 ? 1969", "year 1969 is out of range 1970–2099"),
    (
        "0 0 0 1 1 ? 2030-2020",
        "year range \"2030-2020\" goes backwards; write 2030-2099,1970-2020",
    ),
];

#[test]
fn wrong_expressions_get_their_error_message() {
    for (expression, message) in WRONG {
        let error = CronSchedule::parse(expression, "UTC", None, None).unwrap_err();
        assert_eq!(
            error,
            CronError::Expression((*message).to_owned()),
            "{expression}"
        );
    }
    let unix_in_quartz = CronSchedule::parse("0 0 * * *", "UTC", Some(Dialect::Quartz), None);
    assert!(
        unix_in_quartz
            .unwrap_err()
            .to_string()
            .starts_with("5 fields given; quartz has 6 or 7")
    );
}

/// In Berlin, the clocks go from 02:00 to 03:00 at 01:00 UTC.
#[test]
fn a_skipped_time_fires_after_any_moment_before_the_change() {
    let cron = cron("30 2 * * *", "Europe/Berlin", None);
    let change = at("2027-03-28T01:00:00Z");
    for before_ms in [1, 999, 1_000, 1_001] {
        let after = change.minus_ms(before_ms);
        assert_eq!(cron.next_after(after), Some(change), "{after}");
    }
    let next_day = at("2027-03-29T00:30:00Z");
    assert_eq!(cron.next_after(change), Some(next_day));
}

#[test]
fn time_zones_are_known_by_name_alone() {
    let berlin = cron("@daily", "europe/berlin", None);
    assert_eq!(berlin.timezone(), "Europe/Berlin");
    for wrong in [
        "",
        "Berlin/Europe",
        "+01:00",
        "Europe/Berln",
        "../etc/passwd",
    ] {
        let error = CronSchedule::parse("@daily", wrong, None, None).unwrap_err();
        assert!(matches!(error, CronError::TimeZone(_)), "{wrong}: {error}");
    }
}

#[test]
fn the_ends_of_time_are_no_trouble() {
    let cron = cron("* * * * *", "Europe/Berlin", None);
    for millis in [i64::MIN, i64::MIN + 1, i64::MAX, 253_402_300_799_000] {
        assert_eq!(cron.next_after(Timestamp::from_millis(millis)), None);
    }
    let before_1970 = at("1969-12-31T23:59:59.999Z");
    assert_eq!(
        cron.next_after(before_1970),
        Some(at("1970-01-01T00:00:00Z"))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Fire times strictly increase and are whole seconds. A search from any point between two of them finds the
    /// second.
    #[test]
    fn fire_times_follow_each_other(
        expression in prop_oneof![
            "[0-5]?[0-9],[0-5][0-9] [0-3],[0-9] (\\*|1?[1-9]) \\* \\*",
            "\\*/[1-5]?[1-9] (\\*|\\*/[1-9]|1-3) \\* \\* (\\*|[0-6])",
            "\\*/[1-9] [0-5]?[0-9] 1-3 \\? \\* (\\*|[1-7]L?)",
        ],
        zone in prop::sample::select(vec![
            "UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia",
        ]),
        dst in prop::sample::select(vec![None, Some(DstRule::Skip), Some(DstRule::Once), Some(DstRule::Both)]),
        // Around the clock changes of 2027 in spring and autumn, and anywhere.
        start in prop_oneof![1_804_500_000_000..1_807_000_000_000_i64, 1_822_000_000_000..1_826_000_000_000_i64, 0..4_000_000_000_000_i64],
        between in 0.0..1.0_f64,
    ) {
        let cron = cron(&expression, zone, dst);
        let mut last = Timestamp::from_millis(start);
        for _ in 0..20 {
            let Some(next) = cron.next_after(last) else { break };
            prop_assert!(next > last);
            prop_assert_eq!(next.as_millis() % 1_000, 0);
            #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "any point between will do")]
            let part = (next.since_ms(last) as f64 * between) as i64;
            let point = Timestamp::from_millis(last.as_millis() + part);
            if point < next {
                prop_assert_eq!(cron.next_after(point), Some(next), "{} from {}", expression, point);
            }
            last = next;
        }
    }
}
