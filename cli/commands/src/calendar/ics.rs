//! Turns an iCalendar file (RFC 5545) into a calendar. Pure.
//!
//! The crate `icalendar` parses the file, and `ical` computes repeated events, up to a horizon. Whatever has no counterpart is
//! left out and said.

use std::collections::BTreeSet;

use chrono::{NaiveDate, NaiveDateTime, NaiveTime};
use cueline_model::exclusion::{DateRule, Period};
use cueline_model::schedule::Zone;
use cueline_model::{CalendarName, CalendarSpec, Timestamp};
use ical::recur::expand::IcalRecurExpand;
use ical::recur::{IcalRecurDateTime, IcalRecurRule};
use icalendar::{Calendar, CalendarComponent, CalendarDateTime, Component, DatePerhapsTime, Event};
use jiff::civil::DateTime;

/// The most occurrences of one repeated event.
const MAX_OCCURRENCES: usize = 5_000;

/// How to read a file.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) name: CalendarName,
    /// The zone of whole days, and of times without one.
    pub(super) zone: Zone,
    /// Events that end before this are left out.
    pub(super) from: Timestamp,
    /// Repeated events are computed up to this.
    pub(super) to: Timestamp,
}

/// A calendar that was read.
#[derive(Debug)]
pub(super) struct Imported {
    pub(super) spec: CalendarSpec,
    /// The events that are in it.
    pub(super) events: usize,
    /// The events that ended before the beginning.
    pub(super) past: usize,
    /// What was left out, a line each.
    pub(super) ignored: Vec<String>,
}

/// Reads a file.
///
/// # Errors
///
/// If the text is no iCalendar file, or has nothing to exclude.
pub(super) fn import(text: &str, options: &Options) -> Result<Imported, String> {
    let calendar: Calendar = text
        .parse()
        .map_err(|error: String| format!("is no iCalendar file: {}", first_line(&error)))?;
    let mut imported = Imported {
        spec: CalendarSpec {
            name: options.name.clone(),
            description: String::new(),
            timezone: options.zone.clone(),
            dates: Vec::new(),
            weekdays: Vec::new(),
            times: Vec::new(),
            periods: Vec::new(),
        },
        events: 0,
        past: 0,
        ignored: Vec::new(),
    };
    let mut others = BTreeSet::new();
    for component in &calendar.components {
        match component {
            CalendarComponent::Event(event) => imported.add(event, options),
            CalendarComponent::Todo(_) => {
                others.insert("VTODO");
            }
            CalendarComponent::Venue(_) => {
                others.insert("VVENUE");
            }
            _ => {}
        }
    }
    for other in others {
        imported
            .ignored
            .push(format!("entries of the kind {other}: only events exclude"));
    }
    let spec = &mut imported.spec;
    spec.dates.sort_unstable();
    spec.dates.dedup();
    spec.periods.sort_unstable();
    spec.periods.dedup();
    if imported.events == 0 {
        let ignored = imported.ignored.join("; ");
        return Err(format!(
            "has no event to import ({} are past){}{ignored}",
            imported.past,
            if ignored.is_empty() { "" } else { ": " }
        ));
    }
    Ok(imported)
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(200).collect()
}

impl Imported {
    fn add(&mut self, event: &Event, options: &Options) {
        let title = event.get_summary().unwrap_or("without a summary");
        let title: String = title.chars().filter(|c| !c.is_control()).take(60).collect();
        if event.property_value("STATUS") == Some("CANCELLED") {
            self.ignored
                .push(format!("event {title:?}: it is cancelled"));
            return;
        }
        if event.property_value("RECURRENCE-ID").is_some() {
            self.ignored.push(format!("event {title:?}: a moved occurrence of another event; that event keeps all its times"));
            return;
        }
        if event.property_value("RDATE").is_some() || event.multi_properties().contains_key("RDATE")
        {
            self.ignored
                .push(format!("event {title:?}: its further dates (RDATE)"));
        }
        let added = match event.get_start() {
            Some(DatePerhapsTime::Date(start)) => self.add_days(event, start, options),
            Some(DatePerhapsTime::DateTime(start)) => self.add_time(event, start, options),
            None => Err("it has no DTSTART".to_owned()),
        };
        match added {
            Ok(0) => self.past += 1,
            Ok(_) => self.events += 1,
            Err(reason) => self.ignored.push(format!("event {title:?}: {reason}")),
        }
    }

    /// Adds an event of whole days. Returns how many occurrences were added.
    fn add_days(
        &mut self,
        event: &Event,
        start: NaiveDate,
        options: &Options,
    ) -> Result<usize, String> {
        let days = match event.get_end() {
            // The end is the first day after it.
            Some(DatePerhapsTime::Date(end)) => (end - start).num_days().max(1),
            _ => 1,
        };
        let midnight = civil(start.and_time(NaiveTime::MIN))?;
        let mut added = 0;
        for first in self.occurrences(event, midnight, &options.zone, options)? {
            let first = first.date();
            let last = first
                .checked_add(jiff::Span::new().days(days - 1))
                .map_err(|_| "its date is out of range".to_owned())?;
            let end = local(
                last.to_datetime(jiff::civil::Time::midnight()),
                &options.zone,
            )?;
            if end.plus_ms(86_400_000) <= options.from {
                continue;
            }
            let rule = if first == last {
                DateRule::Day(first)
            } else {
                DateRule::Days(first, last)
            };
            self.spec.dates.push(rule);
            added += 1;
        }
        Ok(added)
    }

    /// Adds an event with times. Returns how many occurrences were added.
    fn add_time(
        &mut self,
        event: &Event,
        start: CalendarDateTime,
        options: &Options,
    ) -> Result<usize, String> {
        let (start, zone) = in_zone(start, options)?;
        let first = local(start, &zone)?;
        let length_ms = match event.get_end() {
            Some(DatePerhapsTime::DateTime(end)) => {
                let (end, zone) = in_zone(end, options)?;
                local(end, &zone)?.since_ms(first)
            }
            _ => match event.property_value("DURATION") {
                Some(text) => {
                    let length: jiff::SignedDuration = text.parse().map_err(|_| {
                        format!("its DURATION {text:?} is not of hours, minutes and seconds")
                    })?;
                    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
                }
                None => 0,
            },
        };
        let length_ms = u64::try_from(length_ms).unwrap_or(0);
        if length_ms == 0 {
            return Err("it has no end after its beginning".to_owned());
        }
        let mut added = 0;
        for start in self.occurrences(event, start, &zone, options)? {
            let start = local(start, &zone)?;
            let end = start.plus_ms(length_ms);
            if end > options.from {
                self.spec.periods.push(Period { start, end });
                added += 1;
            }
        }
        Ok(added)
    }

    /// The beginnings of an event on the wall clock of `zone`: one, or those of its rule up to the horizon.
    fn occurrences(
        &mut self,
        event: &Event,
        start: DateTime,
        zone: &Zone,
        options: &Options,
    ) -> Result<Vec<DateTime>, String> {
        let Some(text) = event.property_value("RRULE") else {
            return Ok(vec![start]);
        };
        let rule = rule(text, zone).map_err(|why| format!("its rule {text:?} {why}"))?;
        let horizon = wall_clock(options.to, zone)?;
        let mut found = occurrences_of(rule, start).take_while(|at| *at <= horizon);
        let first: Vec<DateTime> = found.by_ref().take(MAX_OCCURRENCES).collect();
        if found.next().is_some() {
            self.ignored.push(format!(
                "occurrences of the rule {text:?} after the first {MAX_OCCURRENCES}"
            ));
        }
        let excluded = excluded_starts(event, zone);
        let starts = first.into_iter();
        Ok(starts.filter(|at| !excluded.contains(at)).collect())
    }
}

/// Parses a rule. Its end is a time on the wall clock of `zone`.
fn rule(text: &str, zone: &Zone) -> Result<IcalRecurRule, String> {
    let mut rule = IcalRecurRule::parse(text).map_err(|e| format!("is not understood: {e}"))?;
    if let Some(scale) = &rule.scale
        && scale != "GREGORIAN"
    {
        return Err(format!("is of another calendar: {scale}"));
    }
    let parts = text.split(';').filter_map(|part| part.split_once('='));
    let mut ends = parts.filter(|(name, _)| name.trim().eq_ignore_ascii_case("UNTIL"));
    if let Some((_, end)) = ends.next_back() {
        let mut until = recur(on_the_wall_clock(end, zone)?);
        if !end.contains(['T', 't']) {
            // To the end of that day.
            (until.hour, until.minute, until.second) = (23, 59, 59);
        }
        rule.until = Some(until);
    }
    Ok(rule)
}

/// The occurrences of a rule, in order.
fn occurrences_of(rule: IcalRecurRule, start: DateTime) -> impl Iterator<Item = DateTime> {
    IcalRecurExpand::new(rule, recur(start)).map_while(|at| civil_of(at).ok())
}

/// The occurrences that `EXDATE` takes out, on the wall clock of `zone`.
fn excluded_starts(event: &Event, zone: &Zone) -> BTreeSet<DateTime> {
    let single = event.properties().get("EXDATE").into_iter();
    let several = event.multi_properties().get("EXDATE").into_iter().flatten();
    let values = single
        .chain(several)
        .flat_map(|property| property.value().split(','));
    values
        .filter_map(|text| on_the_wall_clock(text, zone).ok())
        .collect()
}

/// A date or a time of the file, on the wall clock of `zone`. A time that ends with `Z` is one of UTC.
fn on_the_wall_clock(text: &str, zone: &Zone) -> Result<DateTime, String> {
    let text = text.trim();
    let at = IcalRecurDateTime::parse(text).map_err(|e| format!("is not understood: {e}"))?;
    let at = civil_of(at)?;
    if text.ends_with(['Z', 'z']) {
        wall_clock(local(at, &Zone::utc())?, zone)
    } else {
        Ok(at)
    }
}

/// The local time of an event, and its zone.
fn in_zone(at: CalendarDateTime, options: &Options) -> Result<(DateTime, Zone), String> {
    match at {
        CalendarDateTime::Floating(local) => Ok((civil(local)?, options.zone.clone())),
        CalendarDateTime::Utc(at) => Ok((civil(at.naive_utc())?, Zone::utc())),
        CalendarDateTime::WithTimezone { date_time, tzid } => {
            let zone = Zone::get(&tzid);
            let zone = zone.map_err(|_| {
                format!("its time zone {tzid:?} is unknown; an IANA name is expected")
            })?;
            Ok((civil(date_time)?, zone))
        }
    }
}

fn civil(at: NaiveDateTime) -> Result<DateTime, String> {
    let text = at.format("%Y-%m-%dT%H:%M:%S").to_string();
    text.parse().map_err(|_| format!("{text} is out of range"))
}

fn civil_of(at: IcalRecurDateTime) -> Result<DateTime, String> {
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

fn local(at: DateTime, zone: &Zone) -> Result<Timestamp, String> {
    let found = zone.rules().to_ambiguous_timestamp(at).compatible();
    let found = found.map_err(|_| format!("{at} is out of range"))?;
    Ok(Timestamp::from_millis(found.as_millisecond()))
}

fn wall_clock(at: Timestamp, zone: &Zone) -> Result<DateTime, String> {
    let instant = jiff::Timestamp::from_millisecond(at.as_millis());
    let instant = instant.map_err(|_| format!("{at} is out of range"))?;
    Ok(zone.rules().to_datetime(instant))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use jiff::civil::date;
    use proptest::prelude::*;
    use proptest::sample;

    use super::*;

    fn file(events: &[&str]) -> String {
        let mut text = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test//EN\r\n".to_owned();
        for (number, event) in events.iter().enumerate() {
            let _ = write!(
                text,
                "BEGIN:VEVENT\r\nUID:{number}\r\nDTSTAMP:20260101T000000Z\r\n"
            );
            text += &event.replace('\n', "\r\n");
            text += "\r\nEND:VEVENT\r\n";
        }
        text + "END:VCALENDAR\r\n"
    }

    fn read(events: &[&str]) -> Result<Imported, String> {
        let options = Options {
            name: "c".parse().expect("a name"),
            zone: Zone::get("Europe/Berlin").expect("a zone"),
            from: "2027-01-01T00:00:00Z".parse().expect("an instant"),
            to: "2030-01-01T00:00:00Z".parse().expect("an instant"),
        };
        import(&file(events), &options)
    }

    fn dates(imported: &Imported) -> Vec<String> {
        imported
            .spec
            .dates
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    fn periods(imported: &Imported) -> Vec<String> {
        let periods = imported.spec.periods.iter();
        periods
            .map(|p| {
                format!(
                    "{}/{}",
                    &p.start.to_string()[..16],
                    &p.end.to_string()[..16]
                )
            })
            .collect()
    }

    #[test]
    fn whole_days_end_before_their_end() {
        let found = read(&[
            "SUMMARY:Christmas\nDTSTART;VALUE=DATE:20271225\nDTEND;VALUE=DATE:20271227",
            "SUMMARY:New Year\nDTSTART;VALUE=DATE:20280101",
            "SUMMARY:Old\nDTSTART;VALUE=DATE:20200101",
        ])
        .expect("is read");
        assert_eq!(dates(&found), ["2028-01-01", "2027-12-25/2027-12-26"]);
        assert_eq!((found.events, found.past, found.ignored.len()), (2, 1, 0));
    }

    #[test]
    fn times_are_in_their_zone() {
        let found = read(&[
            "SUMMARY:a\nDTSTART;TZID=America/New_York:20270601T220000\nDTEND;TZID=America/New_York:20270602T020000",
            "SUMMARY:b\nDTSTART:20270701T100000Z\nDURATION:PT90M",
            "SUMMARY:c\nDTSTART:20270801T100000\nDTEND:20270801T110000",
        ])
        .expect("is read");
        assert_eq!(
            periods(&found),
            [
                "2027-06-02T02:00/2027-06-02T06:00",
                "2027-07-01T10:00/2027-07-01T11:30",
                "2027-08-01T08:00/2027-08-01T09:00",
            ]
        );
    }

    #[test]
    fn repeated_events_follow_the_wall_clock_up_to_the_horizon() {
        let found = read(&[
            "SUMMARY:yearly\nDTSTART;VALUE=DATE:20200501\nRRULE:FREQ=YEARLY",
            "SUMMARY:monthly\nDTSTART;TZID=Europe/Berlin:20270214T220000\nDTEND;TZID=Europe/Berlin:20270214T230000\nRRULE:FREQ=MONTHLY;COUNT=3\nEXDATE;TZID=Europe/Berlin:20270314T220000",
            "SUMMARY:until\nDTSTART;VALUE=DATE:20270102\nRRULE:FREQ=WEEKLY;UNTIL=20270116",
        ])
        .expect("is read");
        assert_eq!(
            dates(&found),
            [
                "2027-01-02",
                "2027-01-09",
                "2027-01-16",
                "2027-05-01",
                "2028-05-01",
                "2029-05-01"
            ]
        );
        assert_eq!(
            periods(&found),
            [
                "2027-02-14T21:00/2027-02-14T22:00",
                "2027-04-14T20:00/2027-04-14T21:00"
            ]
        );
    }

    /// 07:30 in Berlin in summer is 05:30 in UTC.
    #[test]
    fn ends_and_exceptions_in_utc_count_on_the_wall_clock_of_the_event() {
        let found = read(&[
            "SUMMARY:daily\nDTSTART;TZID=Europe/Berlin:20270701T073000\nDURATION:PT1H\nRRULE:FREQ=DAILY;UNTIL=20270704T053000Z\nEXDATE:20270702T053000Z",
        ])
        .expect("is read");
        assert_eq!(
            periods(&found),
            [
                "2027-07-01T05:30/2027-07-01T06:30",
                "2027-07-03T05:30/2027-07-03T06:30",
                "2027-07-04T05:30/2027-07-04T06:30",
            ]
        );
    }

    #[test]
    fn rules_without_an_occurrence_end() {
        let found = read(&[
            "SUMMARY:never\nDTSTART;VALUE=DATE:20270101\nRRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
            "SUMMARY:often\nDTSTART:20270101T000000Z\nDURATION:PT1S\nRRULE:FREQ=SECONDLY",
            "SUMMARY:other\nDTSTART;VALUE=DATE:20270101\nRRULE:RSCALE=CHINESE;FREQ=YEARLY",
        ])
        .expect("is read");
        assert_eq!((found.events, found.past), (1, 1));
        let ignored = found.ignored.join("\n");
        for words in [
            "after the first 5000",
            "\"other\": its rule \"RSCALE=CHINESE;FREQ=YEARLY\" is of another calendar",
        ] {
            assert!(ignored.contains(words), "{words}: {ignored}");
        }
    }

    #[test]
    fn what_is_left_out_is_said() {
        let found = read(&[
            "SUMMARY:good\nDTSTART;VALUE=DATE:20270501",
            "SUMMARY:gone\nSTATUS:CANCELLED\nDTSTART;VALUE=DATE:20270502",
            "SUMMARY:moved\nRECURRENCE-ID:20270101T000000Z\nDTSTART;VALUE=DATE:20270503",
            "SUMMARY:zone\nDTSTART;TZID=W. Europe Standard Time:20270504T100000\nDTEND:20270504T110000Z",
            "SUMMARY:instant\nDTSTART:20270505T100000Z",
            "SUMMARY:rule\nDTSTART;VALUE=DATE:20270506\nRRULE:FREQ=SOMETIMES",
            "SUMMARY:nothing",
        ])
        .expect("is read");
        assert_eq!(found.events, 1);
        let ignored = found.ignored.join("\n");
        for words in [
            "\"gone\": it is cancelled",
            "\"moved\": a moved occurrence",
            "\"zone\": its time zone \"W. Europe Standard Time\" is unknown",
            "\"instant\": it has no end",
            "\"rule\": its rule",
            "\"nothing\": it has no DTSTART",
        ] {
            assert!(ignored.contains(words), "{words}: {ignored}");
        }
        assert!(read(&[]).expect_err("nothing").contains("has no event"));
    }
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
            let rule = rule(&text, &Zone::utc()).expect("a rule");
            let own = occurrences_of(rule, start).take_while(|at| *at <= end).take(100);
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
