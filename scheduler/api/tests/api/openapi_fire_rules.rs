//! Calendars and maintenance windows are accepted as by their schemas.

use cueline_model::{Namespace, decode};
use serde_json::{Value, json};

use crate::openapi_requests::schema;

fn is_calendar(body: &Value) -> bool {
    decode::calendar(&decode::Node::from(body.clone()), &Namespace::default()).is_ok()
}

fn is_window(body: &Value) -> bool {
    decode::window(&decode::Node::from(body.clone()), &Namespace::default()).is_ok()
}

#[test]
fn dates_are_accepted_as_by_the_schema() {
    let schema = schema("CalendarDefinition");
    for (date, is_good) in [
        ("2027-03-26", true),
        ("2028-02-29", true),
        ("0000-01-01", true),
        ("9999-12-31", true),
        ("2027-12-24/2028-01-01", true),
        ("12-25", true),
        ("02-29", true),
        ("2027-13-01", false),
        ("2027-00-01", false),
        ("2027-04-31", false),
        ("2027-02-30", false),
        ("11-31", false),
        ("02-30", false),
        ("00-01", false),
        ("12-24/2028-01-01", false),
        ("2027-12-24/01-01", false),
        ("2027-3-26", false),
        ("+2027-03-26", false),
        ("2027-03-26T00:00:00Z", false),
        (" 12-25", false),
        ("", false),
    ] {
        let calendar = json!({ "name": "c", "dates": [date] });
        assert_eq!(schema.is_valid(&calendar), is_good, "{date:?}");
        assert_eq!(is_calendar(&calendar), is_good, "{date:?}");
    }
    // Only the server knows leap years, and which of two dates is later.
    for date in ["2027-02-29", "2028-01-01/2027-12-24"] {
        let calendar = json!({ "name": "c", "dates": [date] });
        assert!(schema.is_valid(&calendar), "{date}");
        assert!(!is_calendar(&calendar), "{date}");
    }
}

#[test]
fn times_of_day_are_accepted_as_by_the_schema() {
    let schema = schema("CalendarDefinition");
    for (time, is_good) in [
        ("00:00", true),
        ("09:30", true),
        ("23:59", true),
        ("24:00", true),
        ("24:01", false),
        ("25:00", false),
        ("12:60", false),
        ("9:30", false),
        ("09:30:00", false),
        ("", false),
    ] {
        let calendar = json!({ "name": "c", "times": [{ "from": "01:23", "to": time }] });
        assert_eq!(schema.is_valid(&calendar), is_good, "{time:?}");
        assert_eq!(is_calendar(&calendar), is_good, "{time:?}");
    }
}

#[test]
fn windows_are_accepted_as_by_the_schema() {
    let schema = schema("NewWindow");
    let (start, end) = ("2027-01-01T00:00:00Z", 1_893_456_000_000_i64);
    let once = json!({ "start": start, "end": end });
    let recurring = json!({ "cron": "0 22 * * SAT", "duration": "4h", "timezone": "Europe/Berlin", "dst": "once" });
    let with = |base: &Value, name: &str, value: Value| {
        let mut body = base.clone();
        body[name] = value;
        body
    };
    for (body, is_good) in [
        (once.clone(), true),
        (recurring.clone(), true),
        (with(&once, "cron", Value::Null), true),
        (with(&recurring, "start", Value::Null), true),
        (with(&once, "duration", json!("1h")), false),
        (with(&once, "timezone", json!("UTC")), false),
        (with(&once, "cron", json!("0 1 * * *")), false),
        (with(&once, "end", Value::Null), false),
        (with(&recurring, "start", json!(start)), false),
        (with(&recurring, "duration", Value::Null), false),
        (with(&recurring, "duration", json!("1s")), true),
        (with(&recurring, "duration", json!("999ms")), false),
        (with(&recurring, "duration", json!("3650d")), true),
        (with(&recurring, "duration", json!("3651d")), false),
        (with(&once, "group", json!("billing")), true),
        (with(&once, "group", json!("a/b")), false),
        (with(&once, "all_namespaces", json!(true)), true),
        (
            json!({ "start": start, "end": end, "all_namespaces": true, "group": "a" }),
            false,
        ),
        (
            json!({ "start": start, "end": end, "all_namespaces": false, "group": "a" }),
            true,
        ),
        (with(&once, "reason", json!("x".repeat(1_024))), true),
        (with(&once, "reason", json!("x".repeat(1_025))), false),
        (with(&once, "owner", json!("\u{20ac}".repeat(256))), true),
        (with(&once, "owner", json!("\u{20ac}".repeat(342))), false),
        (with(&once, "owner", json!("a\0b")), false),
        (with(&once, "unknown", json!(1)), false),
        (json!({ "start": start }), false),
        (json!({}), false),
    ] {
        assert_eq!(schema.is_valid(&body), is_good, "{body}");
        assert_eq!(is_window(&body), is_good, "{body}");
    }
}
