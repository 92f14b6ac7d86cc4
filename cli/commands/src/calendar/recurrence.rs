//! Recurrence rules of iCalendar (RFC 5545), on the wall clock. Pure.
//!
//! The crate `ical` computes occurrences. It ignores what it does not know or what the RFC forbids, and would compute other
//! days than those that are meant. So such rules are refused here.

use cueline_model::Timestamp;
use cueline_model::schedule::Zone;
use ical::recur::expand::IcalRecurExpand;
use ical::recur::validate::IcalRecurRuleProblem;
use ical::recur::{IcalRecurDateTime, IcalRecurRule};
use jiff::civil::DateTime;

/// The parts that a rule may have.
const PARTS: [&str; 16] = [
    "FREQ",
    "UNTIL",
    "COUNT",
    "INTERVAL",
    "BYSECOND",
    "BYMINUTE",
    "BYHOUR",
    "BYDAY",
    "BYMONTHDAY",
    "BYYEARDAY",
    "BYWEEKNO",
    "BYMONTH",
    "BYSETPOS",
    "WKST",
    "RSCALE",
    "SKIP",
];

/// A rule that is understood as a whole.
#[derive(Debug)]
pub(super) struct Rule(IcalRecurRule);

impl Rule {
    /// Parses a rule whose times are on the wall clock of `zone`, or end with `Z`.
    ///
    /// # Errors
    ///
    /// What is wrong, as the end of a sentence about the rule.
    pub(super) fn parse(text: &str, zone: &Zone) -> Result<Self, String> {
        let mut until = None;
        for part in text.split(';').filter(|part| !part.trim().is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = name.trim().to_ascii_uppercase();
            if !PARTS.contains(&name.as_str()) {
                return Err(format!("is not understood: the part {name:?} is unknown"));
            }
            if value.trim().is_empty() {
                return Err(format!("is not understood: the part {name:?} has no value"));
            }
            if name == "UNTIL" {
                until = Some(end(value, zone)?);
            }
        }
        let mut rule = IcalRecurRule::parse(text).map_err(|e| format!("is not understood: {e}"))?;
        if let Some(scale) = &rule.scale
            && scale != "GREGORIAN"
        {
            return Err(format!(
                "is not understood: it is of another calendar: {scale}"
            ));
        }
        // With both, the first end counts.
        let is_clear =
            |problem: &IcalRecurRuleProblem| *problem == IcalRecurRuleProblem::UntilWithCount;
        if let Some(problem) = rule
            .problems()
            .into_iter()
            .find(|problem| !is_clear(problem))
        {
            return Err(format!("is not understood: {problem}"));
        }
        rule.until = until;
        Ok(Self(rule))
    }

    /// The occurrences of an event that begins at `start`, in order. A rule without an end has endless ones.
    pub(super) fn occurrences(self, start: DateTime) -> impl Iterator<Item = DateTime> {
        IcalRecurExpand::new(self.0, recur(start)).map_while(|at| civil(at).ok())
    }
}

/// The last moment of a rule. A date counts to its end.
fn end(text: &str, zone: &Zone) -> Result<IcalRecurDateTime, String> {
    let mut until = recur(on_the_wall_clock(text, zone)?);
    if !text.contains(['T', 't']) {
        (until.hour, until.minute, until.second) = (23, 59, 59);
    }
    Ok(until)
}

/// A date or a time of the file, on the wall clock of `zone`. A time that ends with `Z` is one of UTC.
pub(super) fn on_the_wall_clock(text: &str, zone: &Zone) -> Result<DateTime, String> {
    let text = text.trim();
    let at = IcalRecurDateTime::parse(text).map_err(|e| format!("is not understood: {e}"))?;
    let at = civil(at)?;
    if text.ends_with(['Z', 'z']) {
        wall_clock(instant(at, &Zone::utc())?, zone)
    } else {
        Ok(at)
    }
}

fn civil(at: IcalRecurDateTime) -> Result<DateTime, String> {
    let text = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        at.year, at.month, at.day, at.hour, at.minute, at.second
    );
    text.parse().map_err(|_| format!("{text} is out of range"))
}

fn recur(at: DateTime) -> IcalRecurDateTime {
    // Months, days and times of the wall clock are small and positive.
    let part = i8::unsigned_abs;
    IcalRecurDateTime {
        year: at.year().into(),
        month: part(at.month()),
        day: part(at.day()),
        hour: part(at.hour()),
        minute: part(at.minute()),
        second: part(at.second()),
    }
}

/// The instant of a time on the wall clock of `zone`.
pub(super) fn instant(at: DateTime, zone: &Zone) -> Result<Timestamp, String> {
    let found = zone.rules().to_ambiguous_timestamp(at).compatible();
    let found = found.map_err(|_| format!("{at} is out of range"))?;
    Ok(Timestamp::from_millis(found.as_millisecond()))
}

/// The time that the wall clock of `zone` shows.
pub(super) fn wall_clock(at: Timestamp, zone: &Zone) -> Result<DateTime, String> {
    let at_utc = jiff::Timestamp::from_millisecond(at.as_millis());
    let at_utc = at_utc.map_err(|_| format!("{at} is out of range"))?;
    Ok(zone.rules().to_datetime(at_utc))
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;
    use proptest::prelude::*;
    use proptest::sample;

    use super::*;

    const WEEKDAYS: [&str; 7] = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"];

    /// Rules of the kinds that people write, with a part or none of each.
    fn any_rule() -> impl Strategy<Value = String> {
        let list = |values: Vec<String>| {
            let most = values.len().min(3);
            sample::subsequence(values, 0..=most).prop_map(|chosen| chosen.join(","))
        };
        let numbers = |range: std::ops::RangeInclusive<i32>| -> Vec<String> {
            range.filter(|n| *n != 0).map(|n| n.to_string()).collect()
        };
        let days: Vec<String> = WEEKDAYS.map(str::to_owned).to_vec();
        let counted: Vec<String> = (-2..=4)
            .filter(|n| *n != 0)
            .flat_map(|n| WEEKDAYS.map(|day| format!("{n}{day}")))
            .collect();
        let frequency = sample::select(vec!["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]);
        (
            frequency,
            1..5,
            list(days),
            list(counted),
            list(numbers(-31..=31)),
            list(numbers(1..=12)),
            (list(numbers(-3..=3)), sample::select(WEEKDAYS.to_vec())),
        )
            .prop_map(
                |(frequency, interval, days, counted, month_days, months, more)| {
                    let (positions, week_start) = more;
                    let mut parts = vec![format!(
                        "FREQ={frequency};INTERVAL={interval};WKST={week_start}"
                    )];
                    let monthly = frequency == "MONTHLY" || frequency == "YEARLY";
                    let days = if monthly && !counted.is_empty() {
                        counted
                    } else {
                        days
                    };
                    let chosen = !days.is_empty();
                    let mut add = |name: &str, values: String| {
                        if !values.is_empty() {
                            parts.push(format!("{name}={values}"));
                        }
                    };
                    add("BYDAY", days);
                    add("BYMONTH", months);
                    if frequency != "WEEKLY" {
                        add("BYMONTHDAY", month_days);
                    }
                    // In the week of the beginning, the other library leaves out earlier days before it counts.
                    if chosen && frequency != "WEEKLY" {
                        add("BYSETPOS", positions);
                    }
                    parts.join(";")
                },
            )
    }

    proptest! {
        // A rule without occurrences takes the other library long.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn another_library_computes_the_same_occurrences(
            text in any_rule(),
            day in 0..20_000_i32,
            hour in 0..24_i8,
        ) {
            let start = date(2000, 1, 1).at(hour, 30, 0, 0);
            let start = start.checked_add(jiff::Span::new().days(day)).expect("in range");
            let end = start.checked_add(jiff::Span::new().years(8)).expect("in range");
            let rule = Rule::parse(&text, &Zone::utc()).expect("a rule");
            let own = rule.occurrences(start).take_while(|at| *at <= end).take(100);
            let own: Vec<String> = own.map(|at| at.to_string()).collect();

            let compact = |at: DateTime| at.strftime("%Y%m%dT%H%M%SZ").to_string();
            let set = format!("DTSTART:{}\nRRULE:{text};UNTIL={}", compact(start), compact(end));
            let other: rrule::RRuleSet = set.parse().expect("a rule");
            let other = other.all(100).dates.into_iter();
            let other: Vec<String> = other.map(|at| at.format("%Y-%m-%dT%H:%M:%S").to_string()).collect();
            prop_assert_eq!(own, other, "{} from {}", text, start);
        }
    }
}
