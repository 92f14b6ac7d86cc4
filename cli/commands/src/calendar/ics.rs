//! Turns an iCalendar file (RFC 5545) into a calendar. Pure.
//!
//! The crate `icalendar` parses the file. Repeated events are computed up to a horizon. Whatever has no counterpart is left out
//! and said.

use std::collections::BTreeSet;

use chrono::{NaiveDate, NaiveDateTime, NaiveTime};
use cueline_model::exclusion::{DateRule, Period};
use cueline_model::schedule::Zone;
use cueline_model::{CalendarName, CalendarSpec, Timestamp};
use icalendar::{Calendar, CalendarComponent, CalendarDateTime, Component, DatePerhapsTime, Event};
use jiff::civil::DateTime;

use super::recurrence::{Rule, instant, on_the_wall_clock, wall_clock};

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
            let end = instant(
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
        let first = instant(start, &zone)?;
        let length_ms = match event.get_end() {
            Some(DatePerhapsTime::DateTime(end)) => {
                let (end, zone) = in_zone(end, options)?;
                instant(end, &zone)?.since_ms(first)
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
            let start = instant(start, &zone)?;
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
        let rule = Rule::parse(text, zone).map_err(|why| format!("its rule {text:?} {why}"))?;
        let horizon = wall_clock(options.to, zone)?;
        let mut found = rule.occurrences(start).take_while(|at| *at <= horizon);
        let first: Vec<DateTime> = found.by_ref().take(MAX_OCCURRENCES).collect();
        if found.next().is_some() {
            self.ignored.push(format!(
                "occurrences of the rule {text:?} after the first {MAX_OCCURRENCES}"
            ));
        }
        let excluded = self.exceptions(event, zone);
        let starts = first.into_iter();
        Ok(starts.filter(|at| !excluded.contains(at)).collect())
    }

    /// The occurrences that `EXDATE` takes out, on the wall clock of `zone`.
    fn exceptions(&mut self, event: &Event, zone: &Zone) -> BTreeSet<DateTime> {
        let single = event.properties().get("EXDATE").into_iter();
        let several = event.multi_properties().get("EXDATE").into_iter().flatten();
        let values = single
            .chain(several)
            .flat_map(|property| property.value().split(','));
        let mut found = BTreeSet::new();
        for text in values {
            match on_the_wall_clock(text, zone) {
                Ok(at) => {
                    found.insert(at);
                }
                Err(why) => self.ignored.push(format!("its exception {text:?} {why}")),
            }
        }
        found
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

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

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
        ])
        .expect("is read");
        assert_eq!((found.events, found.past), (1, 1));
        let ignored = found.ignored.join("\n");
        assert!(ignored.contains("after the first 5000"), "{ignored}");
    }

    /// What a rule does not say in a known way might exclude other days than those that are meant.
    #[test]
    fn a_rule_is_understood_as_a_whole_or_left_out() {
        let rules = [
            (
                "FREQ=YEARLY;BYEASTER=-2",
                "the part \"BYEASTER\" is unknown",
            ),
            (
                "FREQ=WEEKLY;BYMONTHDAY=1",
                "BYMONTHDAY may not be used with FREQ=WEEKLY",
            ),
            (
                "FREQ=WEEKLY;BYDAY=1MO",
                "a BYDAY ordinal may not be used with FREQ=WEEKLY",
            ),
            ("FREQ=YEARLY;BYSETPOS=1", "BYSETPOS needs another BY part"),
            ("FREQ=DAILY;COUNT", "the part \"COUNT\" has no value"),
            (
                "FREQ=DAILY;UNTIL=2027",
                "is not understood: Invalid recurrence date",
            ),
            (
                "INTERVAL=2",
                "is not understood: Missing recurrence frequency",
            ),
            (
                "RSCALE=CHINESE;FREQ=YEARLY",
                "it is of another calendar: CHINESE",
            ),
        ];
        for (rule, words) in rules {
            let event = format!("SUMMARY:it\nDTSTART;VALUE=DATE:20270101\nRRULE:{rule}");
            let found = read(&["SUMMARY:good\nDTSTART;VALUE=DATE:20270501", &event]);
            let found = found.expect("is read");
            assert_eq!(found.events, 1, "{rule}");
            let ignored = found.ignored.join("\n");
            assert!(ignored.contains(words), "{rule}: {ignored}");
        }
        let both =
            "SUMMARY:it\nDTSTART;VALUE=DATE:20270101\nRRULE:FREQ=DAILY;COUNT=3;UNTIL=20270102;";
        let found = read(&[both]).expect("is read");
        assert_eq!(dates(&found), ["2027-01-01", "2027-01-02"]);
    }

    #[test]
    fn an_exception_that_is_not_understood_is_said() {
        let found = read(&[
            "SUMMARY:it\nDTSTART;VALUE=DATE:20270101\nRRULE:FREQ=DAILY;COUNT=2\nEXDATE;VALUE=DATE:2027-01-02",
        ])
        .expect("is read");
        assert_eq!(dates(&found), ["2027-01-01", "2027-01-02"]);
        let ignored = found.ignored.join("\n");
        assert!(
            ignored.contains("its exception \"2027-01-02\" is not understood"),
            "{ignored}"
        );
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
}
