//! The table of differences in `docs/from-quartz.md`: what each expression does here, and what the importer makes of it.

use cueline_model::import::Entry;
use cueline_model::import::quartz::{
    Data, QuartzJob, QuartzOptions, QuartzTrigger, TriggerKind, import,
};
use cueline_model::schedule::CronSchedule;
use cueline_model::{Dialect, Schedule, Timestamp};

const PAGE: &str = include_str!("../../../docs/from-quartz.md");

fn at(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

/// The first fire times after an instant, as they are written.
fn fires(expression: &str, zone: &str, after: &str, n: usize) -> Result<Vec<String>, String> {
    let cron = CronSchedule::parse(expression, zone, Some(Dialect::Quartz), None);
    let cron = cron.map_err(|error| error.to_string())?;
    let next = |t: &Timestamp| cron.next_after(*t);
    let times = std::iter::successors(next(&at(after)), next).take(n);
    Ok(times.map(|t| t.to_string()[..16].to_owned()).collect())
}

/// What the importer makes of a trigger with this expression.
fn imported(expression: &str) -> Entry {
    let job = QuartzJob {
        name: "j".to_owned(),
        group: "DEFAULT".to_owned(),
        class: "C".to_owned(),
        excludes_itself: Some(true),
        ..QuartzJob::default()
    };
    let trigger = QuartzTrigger {
        name: "t".to_owned(),
        group: "DEFAULT".to_owned(),
        job_name: "j".to_owned(),
        job_group: "DEFAULT".to_owned(),
        description: None,
        priority: None,
        calendar: None,
        start: None,
        end: None,
        misfire: 0,
        data: Data::None,
        kind: TriggerKind::Cron {
            expression: expression.to_owned(),
            timezone: None,
        },
        state: None,
        place: "t".to_owned(),
    };
    let options = QuartzOptions {
        timezone: "UTC".to_owned(),
        group: "default".parse().expect("a name"),
        handlers: std::collections::BTreeMap::new(),
        now: at("2027-01-01T00:00:00Z"),
    };
    import(&[job], &[trigger], &options).remove(0)
}

/// The expression that the importer writes; `None` if it refuses.
fn expression(entry: &Entry) -> Option<&str> {
    match &entry.job.as_ref().ok()?.schedule {
        Schedule::Cron(cron) => Some(cron.expression()),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn on_the_page(expression: &str) {
    assert!(
        PAGE.contains(&format!("`{expression}`")),
        "{expression} is not on the page"
    );
}

#[test]
fn a_step_after_a_name_counts_here_and_is_removed_by_the_import() {
    let step = "0 0 12 ? * MON-FRI/2";
    on_the_page(step);
    // 2027-01-04 is a Monday.
    let days = [
        "2027-01-04T12:00",
        "2027-01-06T12:00",
        "2027-01-08T12:00",
        "2027-01-11T12:00",
    ];
    assert_eq!(
        fires(step, "UTC", "2027-01-02T00:00:00Z", 4),
        Ok(days.map(str::to_owned).into())
    );
    let entry = imported(step);
    assert_eq!(expression(&entry), Some("0 0 12 ? * MON-FRI"));
    assert!(
        entry.notes[0]
            .message()
            .contains("Quartz ignores a step after a name")
    );
}

#[test]
fn a_list_with_a_number_sign_means_each_day_here_and_is_refused_by_the_import() {
    let list = "0 0 12 ? * MON#1,FRI";
    on_the_page(list);
    let days = [
        "2027-01-01T12:00",
        "2027-01-04T12:00",
        "2027-01-08T12:00",
        "2027-01-15T12:00",
    ];
    assert_eq!(
        fires(list, "UTC", "2027-01-01T00:00:00Z", 4),
        Ok(days.map(str::to_owned).into())
    );
    let entry = imported(list);
    let reason = entry.job.expect_err("is refused");
    assert!(
        reason.contains("Quartz takes the first day only"),
        "{reason}"
    );
}

#[test]
fn what_only_quartz_refuses_is_accepted_here() {
    on_the_page("0 0 12 ? * 2#1,6#2");
    for (days, first) in [
        ("2#1,6#2", "2027-01-04T12:00"),
        ("2L,6L", "2027-01-25T12:00"),
        ("SUN,L", "2027-01-02T12:00"),
    ] {
        assert!(PAGE.contains(days), "{days}");
        let found = fires(
            &format!("0 0 12 ? * {days}"),
            "UTC",
            "2027-01-01T00:00:00Z",
            1,
        );
        assert_eq!(found, Ok(vec![first.to_owned()]), "{days}");
    }
    for (star, first) in [
        ("0 0 12 * * *", "2027-01-01T12:00"),
        ("0 0 12 1 * *", "2027-01-01T12:00"),
        ("0 0 12 * * MON", "2027-01-04T12:00"),
    ] {
        on_the_page(star);
        let found = fires(star, "UTC", "2027-01-01T00:00:00Z", 1);
        assert_eq!(found, Ok(vec![first.to_owned()]), "{star}");
    }
    for (step, second) in [
        ("0 0/60 * * * ?", "2027-01-01T02:00"),
        ("0 0 0/24 * * ?", "2027-01-03T00:00"),
    ] {
        on_the_page(step);
        let found = fires(step, "UTC", "2027-01-01T00:00:00Z", 2).expect(step);
        assert_eq!(found[1], second, "{step}: the first value alone");
    }
}

#[test]
fn what_is_refused_here_is_refused_by_the_import() {
    for wrong in ["0 0-10/70 12 * * ?", "0 0 12 1-31W * ?"] {
        on_the_page(wrong);
        assert!(
            fires(wrong, "UTC", "2027-01-01T00:00:00Z", 1).is_err(),
            "{wrong}"
        );
        assert_eq!(expression(&imported(wrong)), None, "{wrong}");
    }
    assert!(PAGE.contains("1970–2099"));
    assert!(fires("0 0 0 1 1 ? 2099", "UTC", "2027-01-01T00:00:00Z", 1).is_ok());
    assert!(fires("0 0 0 1 1 ? 2100", "UTC", "2027-01-01T00:00:00Z", 1).is_err());
    assert_eq!(expression(&imported("0 0 0 1 1 ? 2100")), None);
    let over = imported("0 0 0 1 1 ? 2020").job.expect_err("is refused");
    assert!(over.contains("never fires again"), "{over}");
}

/// `?` stands alone in its field, and in one field only.
#[test]
fn a_question_mark_stands_alone() {
    assert!(PAGE.contains("`?` stands alone in its field in both"));
    for wrong in [
        "0 0 12 ?,1 * MON",
        "0 0 12 1/? * ?",
        "0 0 12 ? * ?,MON",
        "0 0 12 ?-5 * ?",
        "0 ? 12 1 * ?",
    ] {
        assert!(
            fires(wrong, "UTC", "2027-01-01T00:00:00Z", 1).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn changes_of_the_clocks_are_as_on_the_page() {
    assert!(PAGE.contains("fires once when the clocks have moved"));
    let spring = fires("0 30 2 * * ?", "Europe/Berlin", "2027-03-27T12:00:00Z", 1);
    assert_eq!(
        spring,
        Ok(vec!["2027-03-28T01:00".to_owned()]),
        "03:00 there"
    );
    assert!(PAGE.contains("fires in the first pass"));
    let autumn = fires("0 30 1 * * ?", "Europe/London", "2027-10-30T12:00:00Z", 2);
    let expected = ["2027-10-31T00:30", "2027-11-01T01:30"].map(str::to_owned);
    assert_eq!(autumn, Ok(expected.into()));
}
