//! Cron schedules against a slow model: a walk over days, hours, minutes and seconds, and over the minutes around changes
//! of the clocks. The model computes the values of each field while it makes the text, and shares no code with the
//! schedules.
//!
//! `CUELINE_TEST_CRON_EXPRESSIONS` sets the number of expressions (5,000), `CUELINE_TEST_SEED` the seed.

use std::collections::HashSet;

use cueline_model::policy::spread;
use cueline_model::schedule::CronSchedule;
use cueline_model::{Dialect, DstRule, Timestamp};
use jiff::tz::TimeZone;

/// Evenly spread numbers of a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        spread(self.0) % n
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

fn seed() -> u64 {
    let seed = number("CUELINE_TEST_SEED", 20_261_124);
    println!("CUELINE_TEST_SEED={seed}");
    seed
}

/// The text of a field and the values that it means.
struct Field {
    text: String,
    values: HashSet<u64>,
}

const MONTHS: [&str; 12] = [
    "JAN", "feb", "Mar", "APR", "may", "JUN", "jul", "AUG", "SEP", "oct", "NOV", "DEC",
];
const WEEKDAYS: [&str; 7] = ["SUN", "mon", "Tue", "WED", "thu", "FRI", "sat"];

/// A field of 1–3 items. `wraps` allows ranges past the end of the field.
fn field(random: &mut Random, min: u64, max: u64, names: &[&str], wraps: bool) -> Field {
    if random.below(4) == 0 {
        return Field {
            text: "*".to_owned(),
            values: (min..=max).collect(),
        };
    }
    let mut texts = Vec::new();
    let mut values = HashSet::new();
    for _ in 0..random.between(1, 3) {
        let (mut low, mut high) = (random.between(min, max), random.between(min, max));
        if low > high && !(wraps && random.below(3) == 0) {
            (low, high) = (high, low);
        }
        let step = random.between(1, max - min);
        // Counts around the end of the field.
        let around = |low: u64, high: u64, step: u64| {
            let size = max - min + 1;
            let length = if low <= high {
                high - low
            } else {
                high + size - low
            };
            (0..=length)
                .step_by(usize::try_from(step).unwrap())
                .map(move |n| min + (low - min + n) % size)
        };
        let name = |random: &mut Random, value: u64| {
            let index = usize::try_from(value - min).unwrap();
            match names.get(index) {
                Some(name) if random.below(2) == 0 => (*name).to_owned(),
                _ => value.to_string(),
            }
        };
        match random.below(5) {
            0 | 1 => {
                texts.push(name(random, low));
                values.insert(low);
            }
            2 => {
                texts.push(format!("{}-{}", name(random, low), name(random, high)));
                values.extend(around(low, high, 1));
            }
            3 => {
                texts.push(format!("{low}-{high}/{step}"));
                values.extend(around(low, high, step));
            }
            _ if random.below(2) == 0 => {
                texts.push(format!("*/{step}"));
                values.extend(around(min, max, step));
            }
            _ => {
                texts.push(format!("{low}/{step}"));
                values.extend(around(low, max, step));
            }
        }
    }
    Field {
        text: texts.join(","),
        values,
    }
}

/// A date of the model.
#[derive(Clone, Copy)]
struct Date {
    year: u64,
    month: u64,
    day: u64,
    /// 0 is Sunday.
    weekday: u64,
    /// Days since 1970.
    number: i64,
}

impl Date {
    fn length(self) -> u64 {
        match self.month {
            4 | 6 | 9 | 11 => 30,
            2 if self.year.is_multiple_of(4)
                && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400)) =>
            {
                29
            }
            2 => 28,
            _ => 31,
        }
    }

    fn next(self) -> Self {
        let (mut year, mut month, mut day) = (self.year, self.month, self.day + 1);
        if day > self.length() {
            (month, day) = (month + 1, 1);
        }
        if month > 12 {
            (year, month) = (year + 1, 1);
        }
        Self {
            year,
            month,
            day,
            weekday: (self.weekday + 1) % 7,
            number: self.number + 1,
        }
    }

    /// The weekday of another day of this month.
    fn weekday_of(self, day: u64) -> u64 {
        (self.weekday + 35 + day - self.day) % 7
    }

    /// The day from Monday to Friday of this month that is nearest to `day`.
    fn nearest(self, day: u64) -> u64 {
        let working = |day: &u64| (1..=5).contains(&self.weekday_of(*day));
        (1..=self.length())
            .filter(working)
            .min_by_key(|other| other.abs_diff(day))
            .unwrap()
    }
}

type Test = Box<dyn Fn(Date) -> bool>;

/// The two day fields, and whether a date matches them.
fn unix_days(random: &mut Random) -> (String, String, Test) {
    let of_month = field(random, 1, 31, &[], false);
    let of_week = field(random, 0, 6, &WEEKDAYS, false);
    let either = !of_month.text.starts_with('*') && !of_week.text.starts_with('*');
    let test = move |date: Date| {
        let by_month = of_month.values.contains(&date.day);
        let by_week = of_week.values.contains(&date.weekday);
        if either {
            by_month || by_week
        } else {
            by_month && by_week
        }
    };
    (of_month.text, of_week.text, Box::new(test))
}

fn quartz_days(random: &mut Random) -> (String, String, Test) {
    let n = random.between(0, 6);
    let day = random.between(1, 31);
    let weekday = random.between(0, 6);
    let nth = random.between(1, 5);
    let of_month = |text: String, test: Test| (text, "?".to_owned(), test);
    let of_week = |text: String, test: Test| ("?".to_owned(), text, test);
    match random.below(10) {
        0 => of_month(
            "L".to_owned(),
            Box::new(|date: Date| date.day == date.length()),
        ),
        1 => of_month(
            format!("L-{n}"),
            Box::new(move |date: Date| date.day + n == date.length()),
        ),
        2 => of_month(
            format!("{day}W"),
            Box::new(move |date: Date| day <= date.length() && date.day == date.nearest(day)),
        ),
        3 => of_month(
            "LW".to_owned(),
            Box::new(|date: Date| date.day == date.nearest(date.length())),
        ),
        4 => of_month(
            format!("L-{n}W,{day}"),
            Box::new(move |date: Date| {
                date.day == day || date.day == date.nearest(date.length() - n)
            }),
        ),
        5 => of_week(
            format!("{}L", weekday + 1),
            Box::new(move |date: Date| date.weekday == weekday && date.day + 7 > date.length()),
        ),
        6 => of_week(
            format!("{}#{nth}", WEEKDAYS[usize::try_from(weekday).unwrap()]),
            Box::new(move |date: Date| date.weekday == weekday && (date.day - 1) / 7 + 1 == nth),
        ),
        7 | 8 => {
            let days = field(random, 1, 31, &[], true);
            of_month(
                days.text,
                Box::new(move |date: Date| days.values.contains(&date.day)),
            )
        }
        _ => {
            let days = field(random, 1, 7, &WEEKDAYS, true);
            of_week(
                days.text,
                Box::new(move |date: Date| days.values.contains(&(date.weekday + 1))),
            )
        }
    }
}

/// An expression, and when it fires.
struct Model {
    expression: String,
    seconds: HashSet<u64>,
    minutes: HashSet<u64>,
    hours: HashSet<u64>,
    months: HashSet<u64>,
    years: Option<HashSet<u64>>,
    day: Test,
}

impl Model {
    fn unix(random: &mut Random) -> Self {
        let minute = field(random, 0, 59, &[], false);
        let hour = field(random, 0, 23, &[], false);
        let (month_day, week_day, day) = unix_days(random);
        let month = field(random, 1, 12, &MONTHS, false);
        Self {
            expression: format!(
                "{} {} {month_day} {} {week_day}",
                minute.text, hour.text, month.text
            ),
            seconds: HashSet::from([0]),
            minutes: minute.values,
            hours: hour.values,
            months: month.values,
            years: None,
            day,
        }
    }

    fn quartz(random: &mut Random) -> Self {
        let [second, minute] = [0; 2].map(|_| field(random, 0, 59, &[], true));
        let hour = field(random, 0, 23, &[], true);
        let (month_day, week_day, day) = quartz_days(random);
        let month = field(random, 1, 12, &MONTHS, true);
        let years = (random.below(3) == 0).then(|| {
            let (from, step) = (random.between(2_000, 2_040), random.between(1, 5));
            let to = from + random.between(0, 30);
            let years: HashSet<u64> = (from..=to)
                .step_by(usize::try_from(step).unwrap())
                .collect();
            (format!(" {from}-{to}/{step}"), years)
        });
        let (year, years) =
            years.map_or((String::new(), None), |(text, years)| (text, Some(years)));
        let fields = [
            &second.text,
            &minute.text,
            &hour.text,
            &month_day,
            &month.text,
            &week_day,
        ];
        Self {
            expression: format!("{}{year}", fields.map(String::as_str).join(" ")),
            seconds: second.values,
            minutes: minute.values,
            hours: hour.values,
            months: month.values,
            years,
            day,
        }
    }

    fn has_date(&self, date: Date) -> bool {
        let year = self
            .years
            .as_ref()
            .is_none_or(|years| years.contains(&date.year));
        year && self.months.contains(&date.month) && (self.day)(date)
    }

    /// The first time of a day at or after `from`, in seconds.
    fn time(&self, from: u64) -> Option<u64> {
        for hour in 0..24 {
            if !self.hours.contains(&hour) || hour * 3_600 + 3_599 < from {
                continue;
            }
            for minute in 0..60 {
                if !self.minutes.contains(&minute) {
                    continue;
                }
                for second in 0..60 {
                    let time = hour * 3_600 + minute * 60 + second;
                    if time >= from && self.seconds.contains(&second) {
                        return Some(time);
                    }
                }
            }
        }
        None
    }

    /// The first three fires after `after` within `days` days of the calendar.
    fn fires(&self, calendar: &[Date], after: i64, days: usize) -> Vec<i64> {
        let mut found = Vec::new();
        let mut from = after + 1;
        let today = usize::try_from(from.div_euclid(86_400)).unwrap();
        for date in &calendar[today..today + days] {
            let midnight = date.number * 86_400;
            if self.has_date(*date) {
                while found.len() < 3
                    && let Ok(start) = u64::try_from((from - midnight).max(0))
                    && let Some(time) = self.time(start)
                {
                    let fire = midnight + i64::try_from(time).unwrap();
                    found.push(fire);
                    from = fire + 1;
                }
            }
            if found.len() == 3 {
                break;
            }
        }
        found
    }
}

fn next_fires(cron: &CronSchedule, after: i64) -> Vec<i64> {
    let next = |t: &Timestamp| cron.next_after(*t);
    std::iter::successors(next(&Timestamp::from_millis(after * 1_000)), next)
        .take(3)
        .map(|t| t.as_millis() / 1_000)
        .collect()
}

#[test]
fn random_expressions_fire_when_a_slow_model_says() {
    /// How far the model looks.
    const DAYS: usize = 2_000;
    let count = number("CUELINE_TEST_CRON_EXPRESSIONS", 5_000);
    let mut random = Random(seed());
    let (mut refused, mut rare) = (0, 0);
    let epoch = Date {
        year: 1970,
        month: 1,
        day: 1,
        weekday: 4,
        number: 0,
    };
    let calendar: Vec<Date> = std::iter::successors(Some(epoch), |date| Some(date.next()))
        .take(60 * 366)
        .collect();
    for index in 0..count {
        let (model, dialect) = match index % 2 {
            0 => (Model::unix(&mut random), Dialect::Unix),
            _ => (Model::quartz(&mut random), Dialect::Quartz),
        };
        // Between 1999 and 2020.
        let after = i64::try_from(random.between(915_148_800, 1_577_836_800)).unwrap();
        let expected = model.fires(&calendar, after, DAYS);
        let expression = &model.expression;
        let cron = match CronSchedule::parse(expression, "UTC", Some(dialect), None) {
            Ok(cron) => cron,
            Err(error) => {
                assert!(
                    error.to_string().starts_with("no date ever matches"),
                    "{expression}: {error}"
                );
                assert!(expected.is_empty(), "{expression} is refused");
                refused += 1;
                continue;
            }
        };
        let ours = next_fires(&cron, after);
        if expected.len() < 3 {
            rare += 1;
        }
        let end = after + i64::try_from(DAYS - 1).unwrap() * 86_400;
        let seen: Vec<i64> = ours.into_iter().filter(|fire| *fire < end).collect();
        let expected: Vec<i64> = expected.into_iter().filter(|fire| *fire < end).collect();
        assert_eq!(seen, expected, "{expression} after {after}");
    }
    println!("{count} expressions: {refused} without any date, {rare} with fewer than three fires");
    assert!(refused + rare < count / 2, "most expressions fire");
}

/// Zones whose clocks change by half an hour, by two hours, at midnight, four times a year, or left out a day.
const ZONES: [&str; 14] = [
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "Africa/Cairo",
    "America/St_Johns",
    "Asia/Kathmandu",
    "America/Havana",
    "Asia/Tehran",
    "Pacific/Chatham",
    "Europe/Dublin",
    "Asia/Beirut",
    "America/Scoresbysund",
    "America/New_York",
];

/// Changes of the clocks of a zone: those that are not by an hour, and up to ten others.
fn changes(zone: &TimeZone) -> Vec<i64> {
    let from = jiff::Timestamp::from_second(173_000_000).unwrap();
    let offset = |second: i64| {
        i64::from(
            zone.to_offset(jiff::Timestamp::from_second(second).unwrap())
                .seconds(),
        )
    };
    let all: Vec<i64> = zone
        .following(from)
        .map(|change| change.timestamp().as_second())
        .take_while(|second| *second < 1_830_000_000)
        .filter(|second| second % 60 == 0)
        .collect();
    let every = all.len() / 10 + 1;
    all.iter()
        .enumerate()
        .filter(|(index, at)| {
            index % every == 0 || (offset(**at) - offset(**at - 1)).abs() != 3_600
        })
        .map(|(_, at)| *at)
        .take(16)
        .collect()
}

/// When an expression fires in the minutes from `start` to `end`, by looking at the clock each minute.
fn by_the_clock(
    model: &Model,
    zone: &TimeZone,
    gap_fires: bool,
    repeats: bool,
    start: i64,
    end: i64,
) -> Vec<i64> {
    let local = |second: i64| {
        let instant = jiff::Timestamp::from_second(second).unwrap();
        second + i64::from(zone.to_offset(instant).seconds())
    };
    let matches = |local: i64| {
        let date = jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::from_second(local).unwrap());
        let [month, day, weekday, hour, minute] = [
            date.month(),
            date.day(),
            date.weekday().to_sunday_zero_offset(),
            date.hour(),
            date.minute(),
        ]
        .map(|n| u64::try_from(n).unwrap());
        let date = Date {
            year: 0,
            month,
            day,
            weekday,
            number: 0,
        };
        model.has_date(date) && model.hours.contains(&hour) && model.minutes.contains(&minute)
    };
    // Clocks that go back by a day have shown each time by then.
    let mut second = start - 26 * 3_600;
    let mut shown = HashSet::new();
    let mut before = local(second - 60);
    let mut fires = Vec::new();
    while second <= end {
        let now = local(second);
        let left_out = (before + 60..now).step_by(60).any(matches);
        let is_new = shown.insert(now);
        if second >= start && (matches(now) && (is_new || repeats) || left_out && gap_fires) {
            fires.push(second);
        }
        before = now;
        second += 60;
    }
    fires
}

#[test]
fn changes_of_the_clocks_are_followed_as_by_a_look_at_the_clock() {
    const HOURS: i64 = 3_600;
    let mut random = Random(seed());
    let mut compared = 0_u32;
    for name in ZONES {
        let zone = TimeZone::get(name).unwrap();
        let changes = changes(&zone);
        assert!(!changes.is_empty(), "{name}");
        for change in changes {
            for rule in [
                None,
                Some(DstRule::Skip),
                Some(DstRule::Once),
                Some(DstRule::Both),
            ] {
                let model = Model::unix(&mut random);
                let expression = &model.expression;
                let Ok(cron) = CronSchedule::parse(expression, name, Some(Dialect::Unix), rule)
                else {
                    continue;
                };
                let mut first_fields = expression.split(' ').take(2);
                let (gap_fires, repeats) = match rule {
                    Some(DstRule::Skip) => (false, false),
                    Some(DstRule::Both) => (true, true),
                    None if first_fields.any(|field| field.contains(['*', '/'])) => (false, true),
                    Some(DstRule::Once) | None => (true, false),
                };
                let (start, end) = (change - 25 * HOURS, change + 25 * HOURS);
                let expected = by_the_clock(&model, &zone, gap_fires, repeats, start, end);
                let next = |t: &Timestamp| cron.next_after(*t);
                let before = Timestamp::from_millis((start - 1) * 1_000);
                let ours: Vec<i64> = std::iter::successors(next(&before), next)
                    .map(|t| t.as_millis() / 1_000)
                    .take_while(|second| *second <= end)
                    .collect();
                assert_eq!(
                    ours, expected,
                    "{expression} in {name}, {rule:?}, around {change}"
                );
                compared += u32::from(!expected.is_empty());
            }
        }
    }
    println!("{compared} expressions fired around a change");
    assert!(compared > 100, "{compared}");
}

#[test]
fn the_day_that_samoa_left_out_is_a_gap_of_its_own() {
    // There was no 30 December 2011: each minute of it fires, if at all, when the 31st begins.
    let zone = TimeZone::get("Pacific/Apia").unwrap();
    let change = 1_325_239_200;
    for (rule, expected) in [
        (Some(DstRule::Skip), 0),
        (Some(DstRule::Once), 1),
        (None, 1),
    ] {
        let cron = CronSchedule::parse("15 7 30 12 *", "Pacific/Apia", None, rule).unwrap();
        let from = Timestamp::from_millis((change - 86_400) * 1_000);
        let fires = next_fires(&cron, from.as_millis() / 1_000);
        let at_change = fires.iter().filter(|fire| **fire == change).count();
        assert_eq!(at_change, expected, "{rule:?}: {fires:?}");
    }
    assert_eq!(
        zone.to_offset(jiff::Timestamp::from_second(change).unwrap())
            .seconds(),
        14 * 3_600
    );
}
