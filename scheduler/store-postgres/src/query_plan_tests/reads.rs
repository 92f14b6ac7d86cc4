//! Statements of lists and of other reads.

use cueline_model::Timestamp;
use cueline_store::adapter::audit_query::{AuditQuery, Bound};
use cueline_store::adapter::dead_letter_query::DeadLetterQuery;
use cueline_store::{AuditFilter, AuditResult, DeadLetterFilter, NewDeadLetter, Order, RunFilter};

use super::{Explained, JOBS, START_MS, assert_plan, fixture, loaded};
use crate::partitions::Day;
use crate::{
    accounts, audit, changes, dead_letters, executors, job_list, ledger, oldest_queued, run_list,
    runs, summaries,
};

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of statements")]
async fn reads_use_their_indexes() {
    let s = fixture().await;
    let (ids, low, high) = s.some();
    let (first, end) = Day::of_run(high).ids();
    for executor in [None, Some("e1")] {
        s.check(executors::OUTSTANDING, "run_live_pkey", |q| {
            q.bind(1_i64)
                .bind(low)
                .bind(5_i64)
                .bind(executor)
                .bind(executor)
        })
        .await;
    }
    let text = s
        .plan(executors::OF_JOBS, |q| q.bind(&ids).bind(5_i64))
        .await;
    assert!(
        text.contains("run_live") && !text.contains("Sort"),
        "{text}"
    );
    let text = s
        .plan(executors::OVERDUE, |q| q.bind(START_MS).bind(5_i64))
        .await;
    assert!(
        text.contains("run_live_overdue") && !text.contains("Sort"),
        "{text}"
    );
    s.check(runs::BY_ID, "run_270305_pkey", |q| q.bind(&ids))
        .await;
    s.check(runs::OF_JOBS, "run_270305_expr_job_id_idx", |q| {
        q.bind(vec![high >> runs::BLOCK_BITS])
            .bind(vec![1_i64])
            .bind(first)
            .bind(end - 1)
            .bind(true)
            .bind(Vec::<i16>::new())
            .bind(false)
            .bind(5_i64)
    })
    .await;
    let text = s
        .plan(summaries::NEWEST_BLOCKS, |q| {
            q.bind(first).bind(end - 1).bind(1_024_i64)
        })
        .await;
    assert!(
        text.contains("run_270305_pkey") && !text.contains("Seq Scan on run"),
        "{text}"
    );
    s.check(summaries::COUNT_DAY, "run_270305_expr_job_id_idx", |q| {
        q.bind(vec![high >> runs::BLOCK_BITS])
            .bind(vec![1_i64])
            .bind(first)
            .bind(end - 1)
            .bind(1_i64)
    })
    .await;
    s.check(ledger::RUNS_AT, "run_270305_fire", |q| {
        q.bind(vec![START_MS]).bind(1_i64).bind(first).bind(end)
    })
    .await;
    for sql in [runs::ALL, runs::ALL_ASCENDING] {
        let text = s
            .plan(sql, |q| q.bind(first).bind(i64::MAX).bind(5_i64))
            .await;
        assert!(
            text.contains("run_270305_pkey") && !text.contains("Sort"),
            "{text}"
        );
    }
    for sql in [run_list::IN_RARE_STATES, run_list::IN_RARE_STATES_ASCENDING] {
        let text = s
            .plan(sql, |q| {
                q.bind(0_i64).bind(i64::MAX).bind(vec![11_i16]).bind(5_i64)
            })
            .await;
        assert!(
            text.contains("unsuccessful_state") && !text.contains("Seq Scan on run_27"),
            "{text}"
        );
    }
    s.check(run_list::FITTING, "run_270305_pkey", |q| {
        q.bind(&ids)
            .bind(low)
            .bind(high)
            .bind(false)
            .bind(vec![0_i16])
            .bind(true)
            .bind(Vec::<i16>::new())
            .bind(true)
            .bind(Vec::<String>::new())
            .bind(0_i64)
            .bind(i64::MAX)
    })
    .await;
    let text = s.plan(oldest_queued::OLDEST, |q| q).await;
    assert!(
        text.contains("run_live") && !text.contains("run_27"),
        "only live runs: {text}"
    );
    let listed = s
        .store
        .list_runs(&RunFilter {
            limit: 5,
            ..RunFilter::default()
        })
        .await;
    assert_eq!(listed.expect("lists").runs.len(), 5);
}

/// Pages of jobs are read in the order of an index.
#[tokio::test]
async fn lists_of_jobs_use_their_indexes() {
    let s = fixture().await;
    for (sql, index) in [
        (job_list::BY_NAME, "job_name"),
        (job_list::BY_NAME_DESCENDING, "job_name"),
    ] {
        let text = s
            .plan(sql, |q| q.bind("job-1").bind("job-2").bind(5_i64))
            .await;
        assert!(text.contains(index) && !text.contains("Sort"), "{text}");
    }
    for sql in [job_list::OF_GROUP, job_list::OF_GROUP_DESCENDING] {
        let text = s
            .plan(sql, |q| {
                q.bind("job-1").bind("job-2").bind(5_i64).bind("none")
            })
            .await;
        assert!(
            text.contains("job_group") && !text.contains("Seq Scan"),
            "{text}"
        );
    }
    for sql in [job_list::PLANNED, job_list::PLANNED_DESCENDING] {
        let text = s
            .plan(sql, |q| q.bind(START_MS).bind(1_i64).bind(5_i64))
            .await;
        assert!(
            text.contains("job_due_next") && !text.contains("Sort"),
            "{text}"
        );
    }
    for sql in [job_list::BY_ID, job_list::BY_ID_DESCENDING] {
        let text = s.plan(sql, |q| q.bind(100_i64).bind(5_i64)).await;
        assert!(
            text.contains("job_due_pkey") && !text.contains("Sort"),
            "{text}"
        );
    }
    let text = s
        .plan(run_list::JOBS_OF_GROUPS, |q| {
            q.bind(vec!["none".to_owned()]).bind(5_i64)
        })
        .await;
    assert!(text.contains("job_group"), "{text}");
}

fn bound(query: Explained<'_>, parameters: Vec<Bound>) -> Explained<'_> {
    parameters
        .into_iter()
        .fold(query, |query, parameter| match parameter {
            Bound::Number(number) => query.bind(number),
            Bound::Text(text) => query.bind(text),
        })
}

/// Makes a filter, and the index that it uses.
type AuditCase = (fn(&mut AuditFilter), &'static str);

/// Filters of the audit log with the index that each one uses.
fn audit_filters() -> Vec<(AuditFilter, &'static str)> {
    let text = || vec!["none".to_owned()];
    let cases: [AuditCase; 10] = [
        (|_| {}, "audit_pkey"),
        (|f| f.order = Order::Ascending, "audit_pkey"),
        (|f| f.result = Some(AuditResult::Refused), "audit_refused"),
        (|f| f.actions = vec!["job.pause".to_owned()], "audit_action"),
        (
            |f| f.groups = vec!["none".parse().expect("a name")],
            "audit_group",
        ),
        (
            |f| f.namespace = Some("none".parse().expect("a name")),
            "audit_namespace",
        ),
        (
            |f| f.since = Some(Timestamp::from_millis(START_MS)),
            "audit_at",
        ),
        (
            |f| f.until = Some(Timestamp::from_millis(START_MS)),
            "audit_at",
        ),
        (
            |f| f.actors = vec!["none".to_owned(), "nothing".to_owned()],
            "audit_actor",
        ),
        (
            |f| f.objects = vec!["none".to_owned(), "nothing".to_owned()],
            "audit_object",
        ),
    ];
    let mut filters: Vec<(AuditFilter, &'static str)> = cases
        .into_iter()
        .map(|(change, index)| {
            let mut filter = AuditFilter::default();
            change(&mut filter);
            (filter, index)
        })
        .collect();
    let one = |filter: AuditFilter, index| (filter, index);
    filters.push(one(
        AuditFilter {
            actors: text(),
            ..AuditFilter::default()
        },
        "audit_actor",
    ));
    filters.push(one(
        AuditFilter {
            actions: text(),
            ..AuditFilter::default()
        },
        "audit_action_object",
    ));
    filters.push(one(
        AuditFilter {
            objects: text(),
            ..AuditFilter::default()
        },
        "audit_object",
    ));
    for (filter, _) in &mut filters {
        filter.limit = 5;
    }
    filters
}

/// The fixture's jobs have left an entry each. Every filter finds its few entries by its index, in the order of the list.
#[tokio::test]
async fn the_audit_log_uses_its_indexes() {
    let s = fixture().await;
    for (filter, index) in audit_filters() {
        let AuditQuery {
            sql, parameters, ..
        } = AuditQuery::new(&filter, '$');
        let text = s.plan(&sql, |query| bound(query, parameters)).await;
        assert!(text.contains(index), "no {index} in {text}");
        assert!(!text.contains("Seq Scan"), "{text}");
    }
    s.check(audit::PRUNE, "audit_at", |q| q.bind(START_MS).bind(5_i64))
        .await;
    for sql in [audit::VERSIONS, audit::VERSIONS_ASCENDING] {
        s.check(sql, "job_version_pkey", |q| {
            q.bind("job-1").bind(5_i64).bind(5_i64)
        })
        .await;
    }
    s.check(audit::TRIM_VERSIONS, "job_version_pkey", |q| {
        q.bind(vec![1_i64, 2]).bind(1_000_i64)
    })
    .await;
    s.check(audit::DELETED_JOBS, "job_keeps_versions", |q| {
        q.bind(START_MS).bind(5_i64)
    })
    .await;
    s.check(audit::PRUNE_VERSIONS, "job_version_pkey", |q| {
        q.bind(vec![1_i64, 2]).bind(5_i64)
    })
    .await;
    // Of the jobs that ever had the name, only the last one before is read.
    for part in ["job_version_pkey", "job_ever_named", "(id < "] {
        s.check(audit::FORGET_VERSIONS, part, |q| q.bind(vec![1_i64, 2]))
            .await;
    }
}

/// An analysis while the rows of an apply are not committed finds pages, and no row.
#[tokio::test]
async fn new_jobs_are_not_compared_with_all_versions() {
    let (s, server, name) = loaded(JOBS).await;
    let analyzed =
        "UPDATE pg_class SET reltuples = 0, relpages = 20 WHERE relname IN ('job', 'job_version')";
    server.sql(&name, analyzed).expect("changes statistics");
    let ids: Vec<i64> = (1..).take(JOBS).collect();
    let text = s.plan(audit::FORGET_VERSIONS, |q| q.bind(ids)).await;
    let parts = ["job_version_pkey", "Index Cond: (job_id = ANY", "(id < "];
    assert_plan(&text, &parts, &["Join"], "new jobs");
}

/// Letters of one namespace are found among many others.
#[tokio::test]
async fn dead_letters_are_listed_by_their_indexes() {
    let (s, server, name) = loaded(1).await;
    let letters: Vec<NewDeadLetter> = (0..2_000)
        .map(|n| NewDeadLetter {
            key: format!("key-{n}"),
            queue: "results".to_owned(),
            topic: "job".to_owned(),
            reason: "a test".to_owned(),
            at: Timestamp::from_millis(START_MS),
            payload: vec![1],
            origin: None,
            namespace: (n % 500 == 0).then(|| "team-a".parse().expect("a name")),
        })
        .collect();
    let stored = s.store.insert_dead_letters(&letters).await;
    assert_eq!(stored.expect("stores"), 2_000);
    server
        .sql(&name, "VACUUM ANALYZE dead_letter")
        .expect("analyzes");
    for (namespace, index) in [
        (None, "dead_letter_pkey"),
        (Some("team-a"), "dead_letter_of_namespace"),
    ] {
        for order in [Order::Ascending, Order::Descending] {
            let filter = DeadLetterFilter {
                namespace: namespace.map(|name| name.parse().expect("a name")),
                order,
                limit: 5,
                ..DeadLetterFilter::default()
            };
            let DeadLetterQuery {
                sql, parameters, ..
            } = DeadLetterQuery::new(&filter, dead_letters::DIALECT);
            let text = s.plan(&sql, |query| bound(query, parameters)).await;
            assert!(text.contains(index), "no {index} in {text}");
            assert!(!text.contains("Seq Scan"), "{text}");
        }
    }
}

/// Each request to the API finds its session or its token.
#[tokio::test]
async fn sessions_and_tokens_are_found_by_their_hashes() {
    let (s, ..) = loaded(1).await;
    for (sql, index, validity) in [
        (accounts::sessions::FIND, "session_pkey", None),
        (accounts::api_tokens::FIND, "api_token_hash", Some(1_i64)),
    ] {
        let text = s
            .plan(sql, |q| {
                let q = q.bind(vec![0_u8; 32]).bind(None::<i64>);
                match validity {
                    Some(validity) => q.bind(validity),
                    None => q,
                }
            })
            .await;
        for index in [index, "account_user_pkey"] {
            assert!(text.contains(index), "no {index} in\n{text}");
        }
        assert!(!text.contains("Seq Scan"), "{text}");
    }
    let text = s
        .plan(accounts::api_tokens::LIST_OF_OWNER, |q| {
            q.bind("").bind(5_i64).bind(1_i64)
        })
        .await;
    assert!(text.contains("api_token_of_owner"), "{text}");
}

#[tokio::test]
async fn changes_are_read_by_their_indexes() {
    let s = fixture().await;
    let (ids, low, high) = s.some();
    let n = ids.len();
    let text = s
        .plan(changes::SEARCH, |q| {
            q.bind(vec![low, high])
                .bind(vec![high, high])
                .bind(vec![5_i64, 5])
        })
        .await;
    for part in ["run_270305_pkey", "Index Cond: ((id >= e.first) AND"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(!text.contains("Seq Scan on run"), "{text}");
    s.check(changes::LIVE, "run_live_pkey", |q| q.bind(5_i64))
        .await;
    s.check(changes::CHANGED, "run_live_pkey", |q| {
        q.bind(&ids).bind(vec![0_i16; n]).bind(vec![1_i32; n])
    })
    .await;
    s.check(changes::BRIEFS, "run_270305_pkey", |q| q.bind(&ids))
        .await;
}
