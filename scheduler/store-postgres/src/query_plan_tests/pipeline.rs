//! Statements that fire, dispatch and end runs, and delete them at last.

use super::{DAY_MS, Explained, Fixture, JOBS, START_MS, assert_plan, fixture, loaded};
use crate::partitions::Day;
use crate::{
    cancel, children, claim, definitions, dispatch, drop_day, fire_due, flows, follow_ups, ingest,
    job_writes, jobs, lanes, log_lines, marks, new_runs, plain_ends, retention, runs, trigger,
    waiting_runs,
};

#[tokio::test]
async fn claims_use_their_indexes() {
    let s = fixture().await;
    let far = START_MS + 100 * DAY_MS;
    s.check(fire_due::DUE, "job_due_next", |q| q.bind(far).bind(10_i64))
        .await;
    s.check(fire_due::ADVANCE, "job_due_pkey", |q| {
        q.bind(vec![1_i64; 50])
            .bind(vec![2_i64; 50])
            .bind(vec![3_i64; 50])
            .bind(vec![None::<i64>; 50])
    })
    .await;
    s.check(claim::CLAIM, "run_live_waiting", |q| {
        q.bind(far).bind(10_i64).bind(s.node.0)
    })
    .await;
    s.check(claim::ANY_WAITING, "run_live_waiting", |q| {
        q.bind(Some(START_MS)).bind(1_000_i64).bind(s.node.0)
    })
    .await;
    // With a test's clock, and with that of the server.
    for now in [Some(START_MS), None] {
        let text = s.plan(claim::NEXT_DUE, |q| q.bind(now)).await;
        for part in ["job_due_next", "run_live_waiting", "SubPlan"] {
            assert!(text.contains(part), "no {part} in {text}");
        }
    }
    let (ids, low, high) = s.some();
    s.check(claim::READ, "run_270305_pkey", |q| {
        q.bind(&ids).bind(low).bind(high)
    })
    .await;
    let text = s.plan(fire_due::DUE, |q| q.bind(far).bind(10_i64)).await;
    assert!(!text.contains("Sort"), "{text}");
    let text = s
        .plan(claim::CLAIM, |q| q.bind(far).bind(10_i64).bind(1_i64))
        .await;
    assert!(!text.contains("Sort"), "{text}");
}

#[tokio::test]
async fn dispatch_uses_the_primary_key() {
    let s = fixture().await;
    let (ids, low, high) = s.some();
    let ones = vec![1_i32; ids.len()];
    let names = vec!["e1"; ids.len()];
    s.check(marks::BEGIN, "run_live_pkey", |q| {
        q.bind(&ids)
            .bind(&ones)
            .bind(vec![1_i64; ids.len()])
            .bind(&ones)
            .bind(vec!["e1"])
            .bind(s.node.0)
            .bind(1_i64)
    })
    .await;
    s.check(marks::ACCEPTED, "run_live_pkey", |q| {
        q.bind(&ids).bind(&ones).bind(&names).bind(s.node.0)
    })
    .await;
    s.check(dispatch::CONFIRM, "run_live_pkey", |q| {
        q.bind(&ids).bind(1_i32).bind(1_i64)
    })
    .await;
    s.check(dispatch::RELEASE, "run_live_pkey", |q| {
        q.bind(&ids).bind(1_i32).bind(s.node.0).bind(Some(1_i64))
    })
    .await;
    s.check(dispatch::JOBS_OF_RELEASED, "run_live_pkey", |q| {
        q.bind(&ids).bind(s.node.0)
    })
    .await;
    s.check(dispatch::END_RELEASED, "run_270305_pkey", |q| {
        q.bind(&ids)
            .bind(&ones)
            .bind(s.node.0)
            .bind(1_i64)
            .bind("x")
            .bind(low)
            .bind(high)
    })
    .await;
    s.check(dispatch::END_STOPPED, "run_270305_pkey", |q| {
        q.bind(&ids)
            .bind(&ones)
            .bind(1_i64)
            .bind("x")
            .bind(low)
            .bind(high)
    })
    .await;
    s.check(dispatch::RECLAIM, "run_live_pkey", |q| {
        q.bind(&ids).bind(&ones).bind(s.node.0)
    })
    .await;
}

/// These plans must be right for all values, and without statistics.
#[tokio::test]
async fn generic_plans_use_their_indexes() {
    let analyzed = fixture().await;
    let (new, ..) = loaded(JOBS).await;
    // A plan that was made for a table of one row is also used when there are many.
    let (one, server, name) = loaded(1).await;
    server.sql(&name, "VACUUM ANALYZE").expect("analyzes");
    for s in [analyzed, new, one] {
        for (sql, index, parameters) in [
            (marks::BEGIN, "using run_live_pkey", 7),
            (marks::BEGIN_IDLE, "using run_live_pkey", 8),
            (dispatch::CONFIRM, "using run_live_pkey", 3),
            (trigger::LOCK_JOB, "Index Cond: (name = $1)", 3),
            (trigger::LOCK_JOB, "using job_due_pkey", 3),
            (trigger::FIND_KEY, "using trigger_key_pkey", 2),
            (definitions::LOAD, "Index Cond: (id = ANY ($1))", 1),
            (definitions::LOAD_DUE, "Index Cond: (id = ANY ($1))", 1),
            (trigger::WRITE, "using job_due_pkey", 23),
            (trigger::WRITE_PLAIN, "using job_due_pkey", 19),
        ] {
            let text = s.plan_of_all(sql, parameters).await;
            assert!(
                text.contains(index),
                "no {index} in the plan of {sql}\n{text}"
            );
            for bad in ["Seq Scan", "Join", "Nested Loop"] {
                assert!(!text.contains(bad), "{bad} in the plan of {sql}\n{text}");
            }
        }
    }
}

/// A lane costs one look at the live runs of its job, whatever the statistics say.
#[tokio::test]
async fn lanes_use_the_index_of_live_runs_by_job() {
    let analyzed = fixture().await;
    let (new, ..) = loaded(JOBS).await;
    for s in [analyzed, new] {
        for (sql, parameters) in [
            (lanes::CONTESTED, 11),
            (lanes::LOST, 13),
            (lanes::FACTS, 9),
            (marks::BEGIN_IDLE, 8),
        ] {
            let text = s.plan_of_all(sql, parameters).await;
            for part in ["run_live_job", "Index Cond: (job_id = "] {
                assert!(text.contains(part), "no {part} in {text}");
            }
            if sql == lanes::LOST {
                assert!(text.contains("using run_live_pkey"), "{text}");
            }
            for bad in ["Seq Scan", "Hash Join", "Merge Join"] {
                assert!(!text.contains(bad), "{bad} in {text}");
            }
        }
        let (ids, ..) = s.some();
        let ones = vec![1_i32; ids.len()];
        s.check(lanes::TAKE_BACK, "run_live_pkey", |q| {
            q.bind(&ids)
                .bind(&ones)
                .bind(vec![1_i64; ids.len()])
                .bind(s.node.0)
        })
        .await;
    }
}

fn bind_plain_ends(q: Explained<'_>, ids: Vec<i64>, (low, high): (i64, i64)) -> Explained<'_> {
    let n = ids.len();
    let (ones, times) = (vec![1_i32; n], vec![1_i64; n]);
    q.bind(ids)
        .bind(ones.clone())
        .bind(ones.clone())
        .bind(vec!["default"])
        .bind(vec!["e1"])
        .bind(10_i16)
        .bind(times.clone())
        .bind(times)
        .bind(ones.clone())
        .bind(ones.clone())
        .bind(ones.clone())
        .bind(vec!["x"])
        .bind(ones)
        .bind(vec!["x"])
        .bind(low)
        .bind(high)
}

#[tokio::test]
async fn reports_use_the_primary_key() {
    let s = fixture().await;
    let (ids, low, high) = s.some();
    let n = ids.len();
    let ones = vec![1_i32; n];
    for facts in [ingest::SNAPSHOTS, ingest::SNAPSHOTS_LOCKED] {
        s.check(facts, "run_live_pkey", |q| q.bind(&ids)).await;
    }
    s.check(ingest::SNAPSHOTS_OF_ENDED, "run_270305_pkey", |q| {
        q.bind(&ids)
    })
    .await;
    s.check(ingest::START, "run_live_pkey", |q| {
        q.bind(&ids).bind(&ones).bind(vec![1_i64; n]).bind(1_i64)
    })
    .await;
    s.check(ingest::NEXT_ATTEMPT, "run_live_pkey", |q| {
        q.bind(&ids)
            .bind(&ones)
            .bind(&ones)
            .bind(&ones)
            .bind(&ones)
            .bind(vec![1_i64; n])
            .bind(vec![1_i64; n])
            .bind(&ones)
            .bind(vec!["x"; n])
    })
    .await;
    for index in ["run_live_pkey", "run_270305_pkey"] {
        s.check(ingest::END, index, |q| {
            q.bind(&ids)
                .bind(&ones)
                .bind(vec![10_i16; n])
                .bind(vec![1_i64; n])
                .bind(vec![1_i64; n])
                .bind(&ones)
                .bind(&ones)
                .bind(&ones)
                .bind(vec!["x"])
                .bind(&ones)
                .bind(vec!["x"])
                .bind(low)
                .bind(high)
        })
        .await;
    }
    for index in ["run_live_pkey", "job_due_pkey", "run_270305_pkey"] {
        s.check(plain_ends::END_PLAIN, index, |q| {
            bind_plain_ends(q, ids.clone(), (low, high))
        })
        .await;
    }
    s.check(ingest::INSERT_EVENTS, "run_event_270305_pkey", |q| {
        q.bind(&ids)
            .bind(&ones)
            .bind(vec!["x"; n])
            .bind(vec!["x"; n])
            .bind(1_i64)
            .bind(low)
            .bind(high)
            .bind(vec!["x"; n])
            .bind(vec!["x"; n])
    })
    .await;
    s.check(ingest::EXECUTORS_OF_EARLIER, "run_event_270305_pkey", |q| {
        q.bind(&ids).bind(&ones).bind(low).bind(high)
    })
    .await;
    s.check(log_lines::READ, "run_log_270305_pkey", |q| {
        q.bind(low).bind(0_i64).bind(9_i64)
    })
    .await;
}

/// Runs of a batch lie close together. While a day has no statistics, the planner expects hardly any row within their
/// bounds. It would then compare each run with each of these rows.
#[tokio::test]
async fn on_a_day_without_statistics_runs_are_not_compared_with_each_other() {
    let (new, ..) = loaded(2_000).await;
    // An analysis between two rounds finds the pages of ended runs, and no run.
    let (idle, server, name) = loaded(2_000).await;
    let analyzed = "UPDATE pg_class SET reltuples = 0, relpages = 20 WHERE relname = 'run_live'";
    server.sql(&name, analyzed).expect("changes statistics");
    for s in [new, idle] {
        Box::pin(no_run_is_compared_with_another(&s)).await;
    }
}

async fn no_run_is_compared_with_another(s: &Fixture) {
    let ids = &s.live;
    let (low, high) = crate::columns::id_range(ids.iter().copied());
    let n = ids.len();
    let ones = vec![1_i32; n];
    let end = s.plan(ingest::END, |q| {
        q.bind(ids)
            .bind(&ones)
            .bind(vec![10_i16; n])
            .bind(vec![1_i64; n])
            .bind(vec![1_i64; n])
            .bind(&ones)
            .bind(&ones)
            .bind(&ones)
            .bind(vec!["x"])
            .bind(&ones)
            .bind(vec!["x"])
            .bind(low)
            .bind(high)
    });
    let end_plain = s.plan(plain_ends::END_PLAIN, |q| {
        bind_plain_ends(q, ids.clone(), (low, high))
    });
    let read = s.plan(claim::READ, |q| q.bind(ids).bind(low).bind(high));
    let runs = s.plan(runs::BY_ID, |q| q.bind(ids));
    let ended = s.plan(ingest::SNAPSHOTS_OF_ENDED, |q| q.bind(ids));
    for text in [
        end.await,
        end_plain.await,
        read.await,
        runs.await,
        ended.await,
    ] {
        assert!(!text.contains("Join Filter"), "{text}");
    }
}

#[tokio::test]
async fn follow_ups_use_their_indexes() {
    let s = fixture().await;
    let (ids, _, high) = s.some();
    let (first, end) = Day::of_run(high).ids();
    s.check(follow_ups::LOCK_JOBS, "job_due_pkey", |q| {
        q.bind(vec![1_i64, 2])
    })
    .await;
    s.check(follow_ups::IDLE, "run_live_delays_next_fire", |q| {
        q.bind(vec![1_i64, 2])
    })
    .await;
    s.check(follow_ups::SET_NEXT_FIRE, "job_due_pkey", |q| {
        q.bind(vec![1_i64]).bind(vec![1_i64])
    })
    .await;
    s.check(children::ENDED_FIRES, "run_270305_fire", |q| {
        q.bind(&ids).bind(first).bind(end - 1)
    })
    .await;
    s.check(children::LOCK_WITH_CHILDREN, "job_due_pkey", |q| {
        q.bind(vec![1_i64, 2])
    })
    .await;
    s.check(children::CHILDREN, "job_due_pkey", |q| {
        q.bind(vec![1_i64, 2]).bind(START_MS)
    })
    .await;
    for statement in [children::PARENTS, children::AHEAD, children::OUTPUTS] {
        s.check(statement, "run_270305_fire", |q| {
            q.bind(vec![high])
                .bind(vec![1_i64])
                .bind(first)
                .bind(end - 1)
        })
        .await;
    }
    s.check(trigger::RUNS_OF_REQUEST, "run_270305_fire", |q| {
        q.bind(high).bind(1_i64).bind(first).bind(end)
    })
    .await;
    s.check(new_runs::WITH_IDS, "run_270305_pkey", |q| {
        q.bind(&ids).bind(first).bind(end - 1)
    })
    .await;
    let with_ids = s
        .plan(new_runs::WITH_IDS, |q| {
            q.bind(&ids).bind(first).bind(end - 1)
        })
        .await;
    for join in ["Nested Loop", "Hash Join", "Merge Join"] {
        assert!(
            !with_ids.contains(join),
            "with the statistics of a nearly empty partition, it may compare each pair of rows\n{with_ids}"
        );
    }
    s.check(jobs::DISPATCHING, "run_live_job", |q| q.bind(vec![1_i64]))
        .await;
    let now = START_MS;
    s.check(cancel::END, "run_live_pkey", |q| {
        q.bind(high).bind(now).bind("x")
    })
    .await;
    let text = s
        .plan(waiting_runs::END, |q| {
            q.bind(vec![1_i64]).bind(now).bind("x").bind(i64::MAX)
        })
        .await;
    assert!(
        text.contains("run_live_job") && !text.contains("Seq Scan on run"),
        "{text}"
    );
    let text = s
        .plan(waiting_runs::DELETE_AHEAD, |q| {
            q.bind(vec![1_i64]).bind(now)
        })
        .await;
    assert!(
        text.contains("run_live_job") && !text.contains("Seq Scan on run"),
        "{text}"
    );
}

/// When the tables were analyzed, nearly all runs were at executors. Meanwhile many wait, of many jobs.
#[tokio::test]
async fn a_change_of_many_jobs_does_not_compare_each_of_them_with_each_waiting_run() {
    let (s, server, name) = loaded(JOBS).await;
    for sql in [
        "UPDATE run_live SET state = 2",
        "VACUUM ANALYZE",
        "UPDATE run_live SET state = 0",
    ] {
        server.sql(&name, sql).expect("runs");
    }
    let jobs: Vec<i64> = (1..=6_000).collect();
    let now = START_MS;
    let plans = [
        s.plan(waiting_runs::UNCLAIM, |q| q.bind(&jobs)).await,
        s.plan(waiting_runs::DELETE_AHEAD, |q| q.bind(&jobs).bind(now))
            .await,
        s.plan(waiting_runs::END, |q| {
            q.bind(&jobs).bind(now).bind("x").bind(i64::MAX)
        })
        .await,
        s.plan(jobs::DISPATCHING, |q| q.bind(&jobs)).await,
        s.plan(job_writes::DELAY_NEXT_FIRES, |q| q.bind(&jobs))
            .await,
    ];
    for plan in plans {
        assert_plan(&plan, &["run_live"], &["Join Filter"], "");
    }
    // The reverse: nearly all runs waited.
    for sql in ["VACUUM ANALYZE", "UPDATE run_live SET state = 2"] {
        server.sql(&name, sql).expect("runs");
    }
    let positions = vec![1_i32; jobs.len()];
    let plan = s
        .plan(job_writes::KEEP_GROUPS, |q| {
            q.bind(&jobs).bind(&positions).bind(vec!["default"])
        })
        .await;
    assert_plan(&plan, &["run_live"], &["Join Filter"], "");
}

#[tokio::test]
async fn retention_uses_indexes() {
    let s = fixture().await;
    let (_, _, high) = s.some();
    let (first, end) = Day::of_run(high).ids();
    s.check(retention::EXPIRED, "run_270305_pkey", |q| {
        q.bind(first).bind(end).bind(50_i64).bind(1_i64).bind(first)
    })
    .await;
    for index in ["run_270305_pkey", "job_pkey", "run_log_270305_pkey"] {
        s.check(retention::EXPIRED_BY_RULES, index, |q| {
            q.bind(first)
                .bind(end)
                .bind(50_i64)
                .bind(1_i64)
                .bind(first)
                .bind(START_MS)
        })
        .await;
    }
    for index in ["run_270305_pkey", "job_pkey"] {
        s.check(drop_day::CHECK_WINDOW_BY_RULES, index, |q| {
            q.bind(first)
                .bind(end)
                .bind(1_i64)
                .bind(50_i64)
                .bind(START_MS)
        })
        .await;
    }
    s.check(retention::TO_PRUNE, "run_270305_pkey", |q| {
        q.bind(vec![high])
            .bind(high)
            .bind(high)
            .bind(first)
            .bind(end)
    })
    .await;
    s.check(drop_day::CHECK_WINDOW, "run_270305_pkey", |q| {
        q.bind(first).bind(end).bind(1_i64).bind(50_i64)
    })
    .await;
    for index in ["run_270305_pkey", "run_live_pkey"] {
        s.check(drop_day::NEWEST, index, |q| q.bind(first).bind(end))
            .await;
    }
    s.check(drop_day::DELETE_KEYS, "trigger_key_run", |q| {
        q.bind(first).bind(end).bind(50_i64)
    })
    .await;
}

#[tokio::test]
async fn flow_runs_use_the_index_of_fires() {
    let s = fixture().await;
    let (ids, _, high) = s.some();
    let (first, end) = Day::of_run(high).ids();
    s.check(flows::FLOW_OF, "run_270305_fire", |q| {
        q.bind(high).bind(first).bind(end - 1)
    })
    .await;
    s.check(flows::COUNTS, "run_270305_fire", |q| {
        q.bind(&ids).bind(first).bind(end - 1)
    })
    .await;
    s.check(flows::MEMBERS, "run_270305_fire", |q| {
        q.bind(vec![high]).bind(first).bind(end - 1).bind(10_i64)
    })
    .await;
    s.check(flows::RETRY, "run_270305_pkey", |q| {
        q.bind(&ids)
            .bind(vec![false; ids.len()])
            .bind(START_MS)
            .bind(first)
            .bind(end - 1)
    })
    .await;
}
