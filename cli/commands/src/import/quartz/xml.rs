//! Quartz's job files: `job_scheduling_data`, versions 1.8 and 2.0.

use std::collections::BTreeMap;

use cueline_model::Timestamp;
use cueline_model::import::quartz::{DEFAULT_GROUP, Data, QuartzJob, QuartzTrigger, TriggerKind};
use roxmltree::{Document, Node};

use super::Source;

/// Reads a file into `source`.
pub(super) fn read(
    text: &str,
    place: &str,
    timezone: &str,
    now: Timestamp,
    source: &mut Source,
) -> Result<(), String> {
    // A DTD is refused, so that no entity grows.
    let document = Document::parse(text).map_err(|error| format!("is no XML: {error}"))?;
    let root = document.root_element();
    if root.tag_name().name() != "job-scheduling-data" {
        return Err(format!(
            "<{}> is given; <job-scheduling-data> is expected, the job file of Quartz 1.8 and 2",
            root.tag_name().name()
        ));
    }
    let at = |node: &Node<'_, '_>| {
        let position = document.text_pos_at(node.range().start);
        format!("{place}:{}", position.row)
    };
    for part in elements(root) {
        match part.tag_name().name() {
            "schedule" => {
                for node in elements(part) {
                    let place = at(&node);
                    match node.tag_name().name() {
                        "job" => match job(node, place.clone()) {
                            Ok(job) => source.jobs.push(job),
                            Err(reason) => source.refused.push((place, reason)),
                        },
                        "trigger" => match trigger(node, place.clone(), timezone, now) {
                            Ok(trigger) => source.triggers.push(trigger),
                            Err(reason) => source.refused.push((place, reason)),
                        },
                        other => source
                            .left_out
                            .push((place, format!("the element <{other}>"))),
                    }
                }
            }
            "pre-processing-commands" => source.left_out.push((
                at(&part),
                "<pre-processing-commands>: an import deletes nothing".to_owned(),
            )),
            // An import always replaces jobs of the same name.
            "processing-directives" => {}
            other => source
                .left_out
                .push((at(&part), format!("the element <{other}>"))),
        }
    }
    Ok(())
}

fn elements<'a, 'i>(node: Node<'a, 'i>) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(Node::is_element)
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    elements(node).find(|child| child.tag_name().name() == name)
}

fn optional(node: Node<'_, '_>, name: &str) -> Option<String> {
    let text = child(node, name)?.text().unwrap_or_default().trim();
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

fn required(node: Node<'_, '_>, name: &str) -> Result<String, String> {
    optional(node, name).ok_or_else(|| {
        format!(
            "<{}> has no <{name}>; a text is expected there",
            node.tag_name().name()
        )
    })
}

fn number(node: Node<'_, '_>, name: &str) -> Result<Option<i64>, String> {
    optional(node, name)
        .map(|text| {
            text.parse::<i64>()
                .map_err(|_| format!("<{name}>{text}</{name}>: a whole number is expected"))
        })
        .transpose()
}

fn group(node: Node<'_, '_>, name: &str) -> String {
    optional(node, name).unwrap_or_else(|| DEFAULT_GROUP.to_owned())
}

fn job(node: Node<'_, '_>, place: String) -> Result<QuartzJob, String> {
    let recovers = optional(node, "recover");
    Ok(QuartzJob {
        name: required(node, "name")?,
        group: group(node, "group"),
        description: optional(node, "description"),
        class: required(node, "job-class")?,
        recovers: matches!(recovers.as_deref(), Some("true" | "1")),
        excludes_itself: None,
        keeps_data: false,
        data: data(node)?,
        place,
    })
}

fn data(node: Node<'_, '_>) -> Result<Data, String> {
    let Some(map) = child(node, "job-data-map") else {
        return Ok(Data::None);
    };
    let mut entries = BTreeMap::new();
    for entry in elements(map) {
        let value = child(entry, "value").and_then(|value| value.text());
        entries.insert(
            required(entry, "key")?,
            value.unwrap_or_default().to_owned(),
        );
    }
    Ok(if entries.is_empty() {
        Data::None
    } else {
        Data::Entries(entries)
    })
}

fn trigger(
    node: Node<'_, '_>,
    place: String,
    timezone: &str,
    now: Timestamp,
) -> Result<QuartzTrigger, String> {
    let node = elements(node)
        .next()
        .ok_or("<trigger> is empty; <cron>, <simple> or <calendar-interval> is expected in it")?;
    let kind = kind(node)?;
    let time = |name: &str| {
        optional(node, name)
            .map(|text| instant(&text, timezone).map_err(|error| format!("<{name}>: {error}")))
            .transpose()
    };
    let mut start = time("start-time")?;
    if let Some(seconds) = number(node, "start-time-seconds-in-future")? {
        let ms = u64::try_from(seconds)
            .ok()
            .and_then(|s| s.checked_mul(1_000));
        let ms = ms.ok_or("<start-time-seconds-in-future>: 0 or more is expected")?;
        start = Some(now.plus_ms(ms));
    }
    Ok(QuartzTrigger {
        name: required(node, "name")?,
        group: group(node, "group"),
        job_name: required(node, "job-name")?,
        job_group: group(node, "job-group"),
        description: optional(node, "description"),
        priority: number(node, "priority")?,
        calendar: optional(node, "calendar-name"),
        start,
        end: time("end-time")?,
        misfire: misfire(optional(node, "misfire-instruction").as_deref())?,
        data: data(node)?,
        kind,
        state: None,
        place,
    })
}

fn kind(node: Node<'_, '_>) -> Result<TriggerKind, String> {
    Ok(match node.tag_name().name() {
        "cron" => TriggerKind::Cron {
            expression: required(node, "cron-expression")?,
            timezone: optional(node, "time-zone"),
        },
        "simple" => TriggerKind::Simple {
            repeats: number(node, "repeat-count")?.unwrap_or_default(),
            interval_ms: number(node, "repeat-interval")?.unwrap_or_default(),
        },
        "calendar-interval" => TriggerKind::CalendarInterval {
            interval: number(node, "repeat-interval")?.ok_or(
                "<calendar-interval> has no <repeat-interval>; a number is expected there",
            )?,
            unit: required(node, "repeat-interval-unit")?,
            timezone: None,
        },
        other => {
            return Err(format!(
                "<{other}> in <trigger>; <cron>, <simple> or <calendar-interval> is expected"
            ));
        }
    })
}

/// Quartz's number of a misfire instruction.
fn misfire(name: Option<&str>) -> Result<i64, String> {
    let Some(name) = name else {
        return Ok(0);
    };
    let short = name.strip_prefix("MISFIRE_INSTRUCTION_").unwrap_or(name);
    Ok(match short {
        "SMART_POLICY" => 0,
        "IGNORE_MISFIRE_POLICY" => -1,
        "FIRE_ONCE_NOW" | "FIRE_NOW" => 1,
        "DO_NOTHING" | "RESCHEDULE_NOW_WITH_EXISTING_REPEAT_COUNT" => 2,
        "RESCHEDULE_NOW_WITH_REMAINING_REPEAT_COUNT" => 3,
        "RESCHEDULE_NEXT_WITH_REMAINING_COUNT" => 4,
        "RESCHEDULE_NEXT_WITH_EXISTING_COUNT" => 5,
        _ => {
            return Err(format!(
                "<misfire-instruction>{name}: an instruction of Quartz such as MISFIRE_INSTRUCTION_DO_NOTHING is expected"
            ));
        }
    })
}

/// An `xs:dateTime`. Without an offset it is local time.
fn instant(text: &str, timezone: &str) -> Result<Timestamp, String> {
    let expected =
        || format!("{text:?} is no instant; one such as 2027-01-01T12:00:00 is expected");
    let instant = match text.parse::<jiff::Timestamp>() {
        Ok(instant) => instant,
        Err(_) => text
            .parse::<jiff::civil::DateTime>()
            .ok()
            .and_then(|local| local.in_tz(timezone).ok())
            .ok_or_else(expected)?
            .timestamp(),
    };
    Ok(Timestamp::from_millis(instant.as_millisecond()))
}
