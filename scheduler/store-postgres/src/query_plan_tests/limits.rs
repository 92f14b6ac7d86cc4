//! Statements of limits and of the rates of groups.

use super::{JOBS, START_MS, Statistics, assert_plan, filled};
use crate::group_rates;
use crate::marks::limits;

const TABLES: [&str; 2] = ["run_limit", "group_rate"];

/// 5,000 limits and 5,000 groups with a rate.
fn fill() -> String {
    format!(
        "INSERT INTO run_limit SELECT 'rate:job:' || n, '{{}}', {START_MS} + n FROM generate_series(1, 5000) n;
        INSERT INTO group_rate SELECT 'group-' || n, 5, 'minute' FROM generate_series(1, 5000) n;"
    )
}

/// They are planned once, so their plans must be right for all values and without statistics.
#[tokio::test]
async fn marks_within_limits_use_primary_keys() {
    for statistics in Statistics::ALL {
        let s = filled(JOBS, &fill(), &TABLES, statistics).await;
        let about = format!("{statistics:?}");
        for (sql, parameters, part) in [
            (limits::LOCK, 1, "run_limit_pkey"),
            (limits::AT_WORK, 2, "run_live_pkey"),
            (limits::WRITE, 3, "run_limit_pkey"),
        ] {
            let text = s.plan_of_all(sql, parameters).await;
            let bad = ["Seq Scan", "Join", "Nested Loop"];
            assert_plan(&text, &[part], &bad, &about);
        }
        let names = vec!["rate:job:1", "rate:job:2"];
        let text = s.plan(limits::DELETE_UNUSED, |q| q.bind(START_MS)).await;
        let parts = ["run_limit_pkey", "run_live_pkey"];
        assert_plan(&text, &parts, &["Seq Scan"], &about);
        let text = s.plan_of_list(limits::READ, |q| q.bind(&names)).await;
        assert_plan(&text, &["run_limit_pkey"], &["Seq Scan"], &about);
    }
}

/// The rate of one group is found among many. All of them are read in the order of their names.
#[tokio::test]
async fn rates_of_groups_use_the_primary_key() {
    for statistics in Statistics::ALL {
        let s = filled(1, &fill(), &TABLES, statistics).await;
        let about = format!("{statistics:?}");
        let text = s
            .plan_of_list(group_rates::READ, |q| q.bind(Some("group-1")))
            .await;
        let parts = ["group_rate_pkey", "= 'group-1'"];
        assert_plan(&text, &parts, &["Seq Scan", "Sort"], &about);
        let text = s.plan(group_rates::READ, |q| q.bind(Some("group-1"))).await;
        assert_plan(&text, &parts, &["Seq Scan", "Sort"], &about);
        let text = s.plan(group_rates::DELETE, |q| q.bind("group-1")).await;
        assert_plan(&text, &["group_rate_pkey"], &["Seq Scan"], &about);
        let text = s
            .plan(group_rates::WRITE, |q| {
                q.bind("group-1").bind(5_i64).bind("minute")
            })
            .await;
        assert_plan(&text, &["group_rate_pkey"], &["Seq Scan"], &about);
    }
}
