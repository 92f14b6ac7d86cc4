//! The fire times of backfills against a slow model.

use cueline_model::backfill::{count_fires, has_past_fire_times, next_fires};
use cueline_model::decode::{self, Node};
use cueline_model::exclusion::Exclusions;
use cueline_model::{Calendar, JobSpec, Namespace, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

fn job(schedule: &Value) -> JobSpec {
    let whole = json!({ "name": "j", "handler": { "native": "x" }, "schedule": schedule });
    decode::job(&Node::from(whole)).expect("a valid job")
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
}

fn without(periods: &[(i64, i64)]) -> Exclusions {
    if periods.is_empty() {
        return Exclusions::default();
    }
    let periods: Vec<Value> = periods
        .iter()
        .map(|(from, length)| {
            json!({ "start": at(*from).to_string(), "end": at(from + length).to_string() })
        })
        .collect();
    let calendar = json!({ "name": "c", "periods": periods });
    let spec = decode::calendar(&Node::from(calendar), &Namespace::default());
    Exclusions {
        calendars: vec![Calendar::new(spec.expect("a calendar"), 1).into()],
        windows: Vec::new(),
    }
}

proptest! {
    /// Whatever the size of the steps, and wherever a scheduler stops: each fire time of the window comes once, in order, and
    /// the excluded ones are counted once.
    #[test]
    fn steps_cover_the_window_once(
        period in 1_i64..40,
        from in -1_000_i64..1_000,
        length in 1_i64..2_000,
        periods in prop::collection::vec((-1_000_i64..1_500, 1_i64..400), 0..4),
        steps in prop::collection::vec(0_usize..9, 1..20),
    ) {
        let spec = job(&json!({ "every": format!("{period}s"), "anchor": at(0).to_string() }));
        let exclusions = without(&periods);
        let to = at(from + length);
        let is_excluded = |s: i64| periods.iter().any(|(start, length)| *start <= s && s < start + length);
        let (out, expected): (Vec<i64>, Vec<i64>) = (from..from + length)
            .filter(|s| s.rem_euclid(period) == 0)
            .partition(|s| is_excluded(*s));
        let count = count_fires(&spec, &exclusions, at(from), to);
        prop_assert_eq!((count.fires, count.excluded), (expected.len() as u64, out.len() as u64));
        prop_assert!(!count.is_too_many);
        let (mut cursor, mut found, mut excluded) = (at(from).minus_ms(1), Vec::new(), 0);
        for step in steps.iter().cycle().take(10_000) {
            let next = next_fires(&spec, &exclusions, cursor, to, *step);
            prop_assert!(next.times.len() <= *step);
            found.extend(next.times);
            excluded += next.excluded;
            cursor = next.cursor.unwrap_or(cursor);
            if next.is_end { break; }
            if steps.iter().all(|step| *step == 0) { break; }
        }
        if steps.iter().any(|step| *step > 0) {
            prop_assert_eq!(found, expected.into_iter().map(at).collect::<Vec<_>>());
            prop_assert_eq!(excluded, out.len() as u64);
        }
    }
}

#[test]
fn a_window_with_too_many_fire_times_is_noticed() {
    let spec = job(&json!({ "every": "100ms" }));
    let none = Exclusions::default();
    let day = count_fires(&spec, &none, at(0), at(86_400));
    assert!(day.is_too_many && day.fires == 100_000, "{day:?}");
    let most = count_fires(&spec, &none, at(0), at(10_000));
    assert!(!most.is_too_many && most.fires == 100_000, "{most:?}");
    let all_excluded = count_fires(&spec, &without(&[(0, 86_400)]), at(0), at(86_400));
    assert!(all_excluded.is_too_many, "{all_excluded:?}");
    // A step through excluded ones is bounded, and gets further.
    let step = next_fires(&spec, &without(&[(0, 86_400)]), at(0), at(86_400), 1);
    assert!(
        step.times.is_empty() && !step.is_end && step.cursor > Some(at(0)),
        "{step:?}"
    );
}

#[test]
fn only_schedules_with_fire_times_of_their_own_have_a_past() {
    let has = |schedule: Value| has_past_fire_times(&job(&schedule).schedule);
    assert!(has(json!({ "cron": "0 7 * * *" })));
    assert!(has(json!({ "every": "1m" })));
    assert!(has(json!({ "at": "2027-01-01T00:00:00Z" })));
    assert!(!has(json!({ "after": "1m" })));
    assert!(!has(json!({ "manual": true })));
    assert!(!has(json!({ "startup": true })));
}
