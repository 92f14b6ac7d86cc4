//! Statements of alarms. Events and deliveries are kept for days, and only a few of them wait.

use super::{JOBS, START_MS, Statistics, assert_plan, filled};
use crate::{alarm_outbox as outbox, alarms};

const TABLES: [&str; 3] = ["alarm_event", "alarm_delivery", "alarm_streak"];

/// 20,000 events of 20 rules and 20,000 deliveries. Each tenth is of a second namespace, and the last 100 wait.
fn fill() -> String {
    format!(
        "INSERT INTO alarm_event (at, namespace, rule_id, rule, key, kind, job, facts, send_at, fate, reference)
            SELECT {START_MS} + n, space, 1 + n % 20, space || '/rule-' || n % 20, 'key-' || n, 'failed',
                space || '/job-' || n % 500, '{{}}', CASE WHEN n > 19900 THEN {START_MS} + n END,
                CASE WHEN n > 19900 THEN 0 ELSE 1 END, CASE WHEN n <= 19900 THEN n / 4 END
            FROM (SELECT n, CASE WHEN n % 10 = 0 THEN 'rare' ELSE 'often' END AS space FROM generate_series(1, 20000) n) e;
        INSERT INTO alarm_delivery (batch, namespace, rule, channel, events, created_at, state, next_at, ended_at)
            SELECT n / 4, space, space || '/rule-' || n % 20, space || '/channel-' || n % 10, 4, {START_MS} + n,
                CASE WHEN n > 19900 THEN 0 ELSE 1 END, CASE WHEN n > 19900 THEN {START_MS} + n END,
                CASE WHEN n <= 19900 THEN {START_MS} + n END
            FROM (SELECT n, CASE WHEN n % 10 = 0 THEN 'rare' ELSE 'often' END AS space FROM generate_series(1, 20000) n) d;
        INSERT INTO alarm_streak SELECT n, 3, n, {START_MS} FROM generate_series(1, 5000) n;"
    )
}

const SCAN: [&str; 1] = ["Seq Scan"];
const SCAN_AND_SORT: [&str; 2] = ["Seq Scan", "Sort"];

/// The ends of a batch find the streaks of its jobs, and the events of a rule that wait.
#[tokio::test]
async fn ends_raise_alarms_by_indexes() {
    for statistics in Statistics::ALL {
        let s = filled(JOBS, &fill(), &TABLES, statistics).await;
        let about = format!("{statistics:?}");
        let ids: Vec<i64> = (1..=50).collect();
        let text = s.plan(alarms::STREAKS, |q| q.bind(&ids)).await;
        assert_plan(&text, &["alarm_streak_pkey"], &SCAN_AND_SORT, &about);
        let text = s
            .plan(alarms::WRITE_STREAKS, |q| {
                q.bind(&ids).bind(&ids).bind(&ids).bind(&ids)
            })
            .await;
        assert_plan(&text, &["alarm_streak_pkey"], &SCAN, &about);
        let text = s.plan(alarms::DELETE_STREAKS, |q| q.bind(&ids)).await;
        assert_plan(&text, &["alarm_streak_pkey"], &SCAN, &about);
        let text = s
            .plan(alarms::SET_FAILING, |q| q.bind(&ids).bind(true))
            .await;
        assert_plan(&text, &["job_due_pkey"], &SCAN, &about);
        let words = vec!["x"; ids.len()];
        let text = s
            .plan(alarms::INSERT_EVENTS, |q| {
                q.bind(&ids)
                    .bind(&words)
                    .bind(&ids)
                    .bind(&words)
                    .bind(&words)
                    .bind(&words)
                    .bind(&words)
                    .bind(&words)
                    .bind(&ids)
                    .bind(1_000_i64)
            })
            .await;
        let parts = ["alarm_event_waiting", "Index Cond: (rule_id = e.rule_id)"];
        assert_plan(&text, &parts, &SCAN_AND_SORT, &about);
    }
}

/// A scheduler takes a few of the deliveries that are due.
#[tokio::test]
async fn claims_of_deliveries_use_their_indexes() {
    for statistics in Statistics::USUAL {
        let s = filled(JOBS, &fill(), &TABLES, statistics).await;
        let about = format!("{statistics:?}");
        let (ids, now) = (vec![1_i64, 2, 3], START_MS + 19_950);
        let text = s
            .plan(outbox::DUE, |q| {
                q.bind(now)
                    .bind(vec!["often/channel-1"])
                    .bind(4_i64)
                    .bind(1_000_i64)
            })
            .await;
        // All its indexes of what waits are small, because that is bounded.
        assert_plan(&text, &["alarm_delivery_"], &SCAN, &about);
        let text = s
            .plan(outbox::CLAIM, |q| q.bind(&ids).bind(now).bind(now))
            .await;
        assert_plan(&text, &["alarm_delivery_pkey"], &SCAN, &about);
        let text = s
            .plan(outbox::GIVE_UP_OLD, |q| {
                q.bind(now).bind(now).bind("old").bind(1_000_i64)
            })
            .await;
        let parts = ["alarm_delivery_", "alarm_delivery_pkey"];
        assert_plan(&text, &parts, &SCAN, &about);
        let text = s
            .plan(outbox::WAITING_OF_CHANNELS, |q| {
                q.bind(vec!["often/channel-1"])
            })
            .await;
        assert_plan(&text, &["alarm_delivery_"], &SCAN, &about);
    }
}

/// Events that wait and deliveries that are due are found among many old ones.
#[tokio::test]
async fn the_outbox_of_alarms_uses_its_indexes() {
    for statistics in Statistics::USUAL {
        let s = filled(JOBS, &fill(), &TABLES, statistics).await;
        let about = format!("{statistics:?}");
        let (ids, now) = (vec![1_i64, 2, 3], START_MS + 19_950);
        let text = s
            .plan(outbox::WAITING, |q| q.bind(now).bind(1_000_i64))
            .await;
        let parts = ["InitPlan", "alarm_event_due", "(rule_id = ANY ("];
        assert_plan(&text, &parts, &["Seq Scan", "Join", "Nested Loop"], &about);
        let text = s
            .plan(outbox::DECIDE, |q| {
                q.bind(&ids).bind(vec![1_i16; 3]).bind(&ids)
            })
            .await;
        assert_plan(&text, &["alarm_event_pkey"], &SCAN_AND_SORT, &about);
        let text = s
            .plan(outbox::OF_BATCHES, |q| q.bind(&ids).bind(20_i64))
            .await;
        let parts = ["alarm_event_batch", "Index Cond: (reference = b.id)"];
        assert_plan(&text, &parts, &SCAN, &about);
        let text = s
            .plan(outbox::SETTLE, |q| {
                q.bind(1_i64)
                    .bind(1_i64)
                    .bind(1_i64)
                    .bind(None::<i64>)
                    .bind(now)
                    .bind("")
            })
            .await;
        assert_plan(&text, &["alarm_delivery_pkey"], &SCAN, &about);
        let text = s.plan(outbox::NEXT, |q| q).await;
        let parts = ["alarm_event_due", "alarm_delivery_due"];
        assert_plan(&text, &parts, &["Seq Scan", "Sort", "Aggregate"], &about);
        let text = s
            .plan(outbox::LOADS, |q| {
                q.bind(&ids).bind(now).bind(10_001_i64).bind(&ids)
            })
            .await;
        let parts = ["run_live_job", "job_id = j.id"];
        assert_plan(&text, &parts, &SCAN, &about);
        for sql in [outbox::FORGET_LEVELS, outbox::NOTE_LEVELS] {
            let text = s
                .plan(sql, |q| {
                    let q = q.bind(vec!["a"]);
                    if sql == outbox::NOTE_LEVELS {
                        q.bind(now)
                    } else {
                        q
                    }
                })
                .await;
            assert_plan(&text, &[], &SCAN, &about);
        }
    }
}

/// What was raised long ago is deleted from the old end of an index. An event is kept while one of its deliveries is pending.
#[tokio::test]
async fn old_alarms_are_found_by_indexes() {
    for statistics in Statistics::USUAL {
        let s = filled(1, &fill(), &TABLES, statistics).await;
        let about = format!("{statistics:?}");
        let before = START_MS + 10_000;
        let text = s
            .plan(outbox::PRUNE_EVENTS, |q| q.bind(before).bind(1_000_i64))
            .await;
        let parts = ["alarm_event_at", "Index Cond: (batch = e.reference)"];
        assert_plan(&text, &parts, &SCAN, &about);
        let text = s
            .plan(outbox::PRUNE_DELIVERIES, |q| q.bind(before).bind(1_000_i64))
            .await;
        let parts = ["alarm_delivery_ended", "alarm_delivery_pkey"];
        assert_plan(&text, &parts, &["Seq Scan", "Join Filter"], &about);
        let text = s.plan(outbox::PRUNE_STREAKS, |q| q).await;
        let parts = ["job_due_pkey", "Index Cond: (job_id = s.job_id)"];
        assert_plan(&text, &parts, &[], &about);
    }
}

/// A page of events or deliveries is found by an index if the namespace, the rule or the job has few.
#[tokio::test]
async fn lists_of_alarms_use_their_indexes() {
    for statistics in Statistics::USUAL {
        let s = filled(1, &fill(), &TABLES, statistics).await;
        for space in ["often", "rare", "unknown"] {
            let about = format!("{statistics:?}, namespace {space}");
            // Of a namespace that has most rows, each row of the table may be read as well.
            let of_namespace = if space == "often" {
                ""
            } else {
                "_of_namespace"
            };
            let of = |index| if space == "unknown" { "_of_" } else { index };
            let (rule, job) = (format!("{space}/rule-10"), format!("{space}/job-10"));
            for (rule, job, index) in [
                (None, None, of_namespace),
                (Some(&rule), None, of("_of_rule")),
                (None, Some(&job), of("_of_job")),
            ] {
                let text = s
                    .plan_of_list(outbox::EVENTS, |q| {
                        q.bind(space)
                            .bind(rule)
                            .bind(job)
                            .bind(i64::MAX)
                            .bind(50_i64)
                    })
                    .await;
                assert_plan(&text, &[index], &SCAN, &about);
            }
            for (rule, index) in [(None, of_namespace), (Some(&rule), of("_of_rule"))] {
                let text = s
                    .plan_of_list(outbox::DELIVERIES, |q| {
                        q.bind(space).bind(rule).bind(i64::MAX).bind(50_i64)
                    })
                    .await;
                assert_plan(&text, &[index], &SCAN, &about);
            }
        }
    }
}
