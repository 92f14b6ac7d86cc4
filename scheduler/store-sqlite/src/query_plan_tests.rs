//! The query plans of the hot statements: each uses its index, and none scans all runs.

use cueline_model::Timestamp;
use cueline_store::adapter::audit_query::AuditQuery;
use cueline_store::adapter::dead_letter_query::DeadLetterQuery;
use cueline_store::{AuditFilter, AuditResult, DeadLetterFilter, Order};
use sqlx::{AssertSqlSafe, Row as _};

use crate::dispatch::limits;
use crate::{
    SqliteOptions, SqliteStore, accounts, alarm_outbox, alarms, audit, backfills, cancel, changes,
    children, claim, dead_letters, dispatch, executors, fire_due, flows, follow_ups, group_rates,
    ingest, job_list, jobs, lanes, ledger, oldest_queued, retention, run_list, runs, situations,
    summaries, trigger,
};

/// The steps of a statement's query plan.
async fn plan(store: &SqliteStore, sql: &str) -> Vec<String> {
    let mut tx = store.db.write().await.expect("begins");
    sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")))
        .fetch_all(&mut *tx)
        .await
        .expect("is a statement")
        .iter()
        .map(|row| row.get::<String, _>("detail"))
        .collect()
}

async fn store() -> (tempfile::TempDir, SqliteStore) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cueline.db");
    let store = SqliteStore::open(&path, SqliteOptions::default()).await;
    (dir, store.expect("opens"))
}

/// Each statement with the indexes that its plan must name.
const HOT: [(&str, &[&str]); 55] = [
    (fire_due::DUE, &["job_due_next"]),
    (
        fire_due::ADVANCE,
        &["SEARCH job_due USING INTEGER PRIMARY KEY"],
    ),
    (claim::WAITING, &["run_waiting"]),
    (claim::ANY, &["run_waiting", "run_live"]),
    (claim::CLAIM, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (claim::READ, &["SEARCH r USING INTEGER PRIMARY KEY"]),
    (
        claim::NEXT_DUE,
        &["job_due_next", "run_waiting", "run_live"],
    ),
    (
        dispatch::BEGIN,
        &[
            "SEARCH run USING INTEGER PRIMARY KEY",
            "SEARCH d USING INTEGER PRIMARY KEY",
        ],
    ),
    (
        lanes::TO_LOOK_AT,
        &["SEARCH r EXISTS USING INDEX run_lane (job_id=?)"],
    ),
    (lanes::FACTS, &["SEARCH r USING INDEX run_lane (job_id=?)"]),
    (lanes::TAKE_BACK, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (dispatch::ACCEPTED, &["SEARCH r USING INTEGER PRIMARY KEY"]),
    (
        dispatch::CONFIRM_SAME_ATTEMPT,
        &["SEARCH run USING INTEGER PRIMARY KEY"],
    ),
    (dispatch::CONFIRM, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (
        ingest::SNAPSHOTS,
        &[
            "SEARCH r USING INTEGER PRIMARY KEY",
            "SEARCH d USING INTEGER PRIMARY KEY",
        ],
    ),
    (ingest::START, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (ingest::SUCCEED, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (
        ingest::TRANSITION,
        &["SEARCH run USING INTEGER PRIMARY KEY"],
    ),
    (follow_ups::IDLE, &["run_delays_next_fire"]),
    (children::ENDED_FIRES, &["run_fire"]),
    (
        children::CHILDREN,
        &[
            "SEARCH l USING PRIMARY KEY",
            "job_parent_child",
            "SEARCH d USING INTEGER PRIMARY KEY",
        ],
    ),
    (children::PARENTS, &["run_fire", "job_parent_child"]),
    (children::AHEAD, &["run_fire", "job_parent_child"]),
    (children::OUTPUTS, &["run_fire", "job_parent_child"]),
    (flows::FLOW_OF, &["run_fire"]),
    (flows::MEMBERS, &["run_fire"]),
    (flows::COUNTS, &["run_fire"]),
    (
        flows::JOBS_AFTER,
        &[
            "SEARCH l USING PRIMARY KEY",
            "SEARCH d USING INTEGER PRIMARY KEY",
        ],
    ),
    (flows::RETRY, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (trigger::RUNS_OF_REQUEST, &["run_fire"]),
    (executors::OUTSTANDING, &["run_live"]),
    (executors::OF_JOBS, &["run_live"]),
    (executors::OVERDUE, &["run_overdue"]),
    (runs::OF_JOBS, &["run_by_job"]),
    (summaries::COUNT_DAY, &["run_by_job"]),
    (run_list::IN_RARE_STATES, &["run_unsuccessful", "run_live"]),
    (
        run_list::IN_RARE_STATES_ASCENDING,
        &["run_unsuccessful", "run_live"],
    ),
    (run_list::FITTING, &["SEARCH r USING INTEGER PRIMARY KEY"]),
    (run_list::JOBS_OF_GROUPS, &["job_group (group_name=?)"]),
    (ledger::SKIPPED, &["run_skipped"]),
    (retention::TO_PRUNE, &["SEARCH r USING INTEGER PRIMARY KEY"]),
    (retention::DELETE_KEYS, &["trigger_key_run (first_run<?)"]),
    (
        oldest_queued::OLDEST,
        &["run_live (state=?)", "SEARCH j USING INTEGER PRIMARY KEY"],
    ),
    (changes::LIVE, &["run_live"]),
    (situations::LIVE_OF_JOB, &["run_lane (job_id=?)"]),
    (jobs::KEEP_GROUP, &["run_lane (job_id=?)"]),
    (jobs::DELAY_NEXT_FIRE, &["run_lane (job_id=?)"]),
    (backfills::OUTSTANDING, &["run_lane (job_id=?)"]),
    (backfills::INSERT_CANCEL_EVENTS, &["run_lane (job_id=?)"]),
    (backfills::CANCEL_WAITING, &["run_lane (job_id=?)"]),
    (backfills::REQUEST_CANCEL, &["run_lane (job_id=?)"]),
    (changes::NEW, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (changes::CHANGED, &["SEARCH r USING INTEGER PRIMARY KEY"]),
    (changes::BRIEFS, &["SEARCH r USING INTEGER PRIMARY KEY"]),
    (changes::JOBS, &["SEARCH d USING INTEGER PRIMARY KEY"]),
];

#[tokio::test]
async fn hot_statements_use_their_indexes() {
    let (_dir, store) = store().await;
    for (sql, wanted) in HOT {
        let steps = plan(&store, sql).await;
        let text = steps.join("\n");
        for part in wanted {
            assert!(
                text.contains(part),
                "no {part} in the plan of {sql}\n{text}"
            );
        }
        for step in &steps {
            let full_scan = ["SCAN run", "SCAN r", "SCAN job_due", "SCAN d"]
                .iter()
                .any(|scan| step == scan);
            assert!(!full_scan, "{step} in the plan of {sql}\n{text}");
        }
    }
}

/// Statements of alarms and of limits, with what their plans must name.
const ALARMS_AND_LIMITS: [(&str, &[&str]); 21] = [
    (
        alarms::STREAKS,
        &["SEARCH alarm_streak USING INTEGER PRIMARY KEY"],
    ),
    (
        alarms::DELETE_STREAKS,
        &["SEARCH alarm_streak USING INTEGER PRIMARY KEY"],
    ),
    (
        alarms::SET_FAILING,
        &["SEARCH job_due USING INTEGER PRIMARY KEY"],
    ),
    (alarms::INSERT_EVENTS, &["alarm_event_waiting (rule_id=?)"]),
    (
        alarm_outbox::WAITING,
        &[
            "alarm_event_due (send_at<?)",
            "alarm_event_waiting (rule_id=?)",
        ],
    ),
    (
        alarm_outbox::DECIDE,
        &["SEARCH alarm_event USING INTEGER PRIMARY KEY"],
    ),
    (alarm_outbox::DUE, &["alarm_delivery_due (next_at<?)"]),
    (
        alarm_outbox::CLAIM,
        &["SEARCH alarm_delivery USING INTEGER PRIMARY KEY"],
    ),
    (
        alarm_outbox::GIVE_UP_OLD,
        &[
            "alarm_delivery_due (next_at<?)",
            "SEARCH alarm_delivery USING INTEGER PRIMARY KEY",
        ],
    ),
    (
        alarm_outbox::WAITING_OF_CHANNELS,
        &["alarm_delivery_of_channel (channel=?)"],
    ),
    (
        alarm_outbox::OF_BATCHES,
        &[
            "SEARCH e USING INDEX alarm_event_batch (reference=?)",
            "alarm_event_batch (reference=?)",
        ],
    ),
    (
        alarm_outbox::SETTLE,
        &["SEARCH alarm_delivery USING INTEGER PRIMARY KEY"],
    ),
    (
        alarm_outbox::NEXT,
        &["alarm_event_due", "alarm_delivery_due"],
    ),
    (alarm_outbox::LOADS, &["(job_id=?"]),
    (
        alarm_outbox::EVENTS,
        &["alarm_event_of_namespace (namespace=? AND id<?)"],
    ),
    (
        alarm_outbox::DELIVERIES,
        &["alarm_delivery_of_namespace (namespace=? AND id<?)"],
    ),
    (
        alarm_outbox::PRUNE_EVENTS,
        &["alarm_event_at (at<?)", "alarm_delivery_pending (batch=?)"],
    ),
    (
        alarm_outbox::PRUNE_DELIVERIES,
        &["alarm_delivery_ended (ended_at<?)"],
    ),
    (limits::READ, &["SEARCH run_limit USING"]),
    (limits::AT_WORK, &["SEARCH r USING INTEGER PRIMARY KEY"]),
    (group_rates::DELETE, &["SEARCH group_rate USING"]),
];

#[tokio::test]
async fn alarms_and_limits_use_their_indexes() {
    let (_dir, store) = store().await;
    for (sql, wanted) in ALARMS_AND_LIMITS {
        let steps = plan(&store, sql).await;
        let text = steps.join("\n");
        for part in wanted {
            assert!(
                text.contains(part),
                "no {part} in the plan of {sql}\n{text}"
            );
        }
        let tables = [
            "alarm_event",
            "alarm_delivery",
            "alarm_streak",
            "run_limit",
            "run",
            "e",
            "d",
            "job_due",
        ];
        for step in &steps {
            let full_scan = tables.iter().any(|table| *step == format!("SCAN {table}"));
            assert!(!full_scan, "{step} in the plan of {sql}\n{text}");
        }
    }
}

/// Statements that read runs by id stop at their limit.
#[tokio::test]
async fn scans_by_id_do_not_sort() {
    let (_dir, store) = store().await;
    for sql in [
        run_list::ALL,
        run_list::ALL_ASCENDING,
        changes::NEW,
        retention::EXPIRED,
        retention::EXPIRED_BY_RULES,
    ] {
        let text = plan(&store, sql).await.join("\n");
        assert!(
            text.contains("SEARCH run USING INTEGER PRIMARY KEY"),
            "{text}"
        );
        assert!(!text.contains("TEMP B-TREE"), "{text}");
    }
    let text = plan(&store, claim::WAITING).await.join("\n");
    assert!(!text.contains("TEMP B-TREE"), "{text}");
    let text = plan(&store, executors::OUTSTANDING).await.join("\n");
    let scans = text.matches("run_live (state=? AND claimed_by=? AND rowid>?)");
    assert_eq!(scans.count(), 2, "{text}");
    let text = plan(&store, executors::OVERDUE).await.join("\n");
    assert!(!text.contains("TEMP B-TREE"), "{text}");
    let text = plan(&store, cancel::PENDING).await.join("\n");
    assert!(text.contains("run_cancelling"), "{text}");
    assert!(!text.contains("TEMP B-TREE"), "{text}");
    let text = plan(&store, ledger::RUNS_AT).await.join("\n");
    assert!(text.contains("run_fire"), "{text}");
}

/// Pages of jobs are read in the order of an index.
#[tokio::test]
async fn lists_of_jobs_use_their_indexes() {
    let (_dir, store) = store().await;
    for (sql, wanted) in [
        (
            job_list::BY_NAME,
            "USING INDEX job_name (name>? AND name<?)",
        ),
        (
            job_list::BY_NAME_DESCENDING,
            "USING INDEX job_name (name>? AND name<?)",
        ),
        (
            job_list::OF_GROUP,
            "job_group (group_name=? AND name>? AND name<?)",
        ),
        (
            job_list::OF_GROUP_DESCENDING,
            "job_group (group_name=? AND name>? AND name<?)",
        ),
        (job_list::PLANNED, "job_due_next"),
        (job_list::PLANNED_DESCENDING, "job_due_next"),
        (job_list::BY_ID, "SEARCH d USING INTEGER PRIMARY KEY"),
        (
            job_list::BY_ID_DESCENDING,
            "SEARCH d USING INTEGER PRIMARY KEY",
        ),
    ] {
        let text = plan(&store, sql).await.join("\n");
        assert!(
            text.contains(wanted),
            "no {wanted} in the plan of {sql}\n{text}"
        );
        assert!(
            !text.contains("TEMP B-TREE") && !text.contains("SCAN"),
            "{sql}\n{text}"
        );
    }
}

/// Makes a filter, and what the plan of its statement says.
type AuditCase = (fn(&mut AuditFilter), &'static str);

/// Each filter of the audit log uses its index, and stops at its limit.
#[tokio::test]
async fn lists_of_the_audit_log_use_their_indexes() {
    let (_dir, store) = store().await;
    let by_number = "SEARCH audit USING INTEGER PRIMARY KEY";
    let cases: [AuditCase; 12] = [
        (|_| {}, by_number),
        (|f| f.order = Order::Ascending, by_number),
        (|f| f.actors = vec!["x".to_owned()], "audit_actor (actor=?"),
        (
            |f| f.actions = vec!["job.pause".to_owned()],
            "audit_action (action=?",
        ),
        (
            |f| f.actions = vec!["x".to_owned()],
            "audit_action_object (action_object=?",
        ),
        (
            |f| f.objects = vec!["x".to_owned()],
            "audit_object (object=?",
        ),
        (
            |f| f.groups = vec!["x".parse().expect("a name")],
            "audit_group (group_name=?",
        ),
        (
            |f| f.namespace = Some("x".parse().expect("a name")),
            "audit_namespace (namespace=?",
        ),
        (
            |f| f.since = Some(Timestamp::from_millis(1)),
            "audit_at (at<?",
        ),
        (
            |f| f.until = Some(Timestamp::from_millis(1)),
            "audit_at (at>?",
        ),
        (
            |f| f.result = Some(AuditResult::Refused),
            "audit_refused (result=?",
        ),
        (|f| f.result = Some(AuditResult::Done), by_number),
    ];
    for (change, wanted) in cases {
        let mut filter = AuditFilter::default();
        change(&mut filter);
        let text = plan(&store, &AuditQuery::new(&filter, '?').sql)
            .await
            .join("\n");
        assert!(text.contains(wanted), "no {wanted} in {text}");
        assert!(
            !text.contains("TEMP B-TREE") && !text.contains("SCAN audit"),
            "{text}"
        );
    }
    let both = AuditFilter {
        actors: vec!["x".to_owned(), "y".to_owned()],
        ..AuditFilter::default()
    };
    let text = plan(&store, &AuditQuery::new(&both, '?').sql)
        .await
        .join("\n");
    assert_eq!(text.matches("audit_actor (actor=?").count(), 2, "{text}");
}

#[tokio::test]
async fn dead_letters_are_listed_by_their_indexes() {
    let (_dir, store) = store().await;
    for (namespace, wanted) in [
        (None, "SEARCH dead_letter USING INTEGER PRIMARY KEY"),
        (Some("x"), "dead_letter_of_namespace (namespace=?"),
    ] {
        for order in [Order::Ascending, Order::Descending] {
            let filter = DeadLetterFilter {
                namespace: namespace.map(|name| name.parse().expect("a name")),
                order,
                ..DeadLetterFilter::default()
            };
            let query = DeadLetterQuery::new(&filter, dead_letters::DIALECT);
            let text = plan(&store, &query.sql).await.join("\n");
            assert!(text.contains(wanted), "no {wanted} in {text}");
            assert!(
                !text.contains("TEMP B-TREE") && !text.contains("SCAN"),
                "{text}"
            );
        }
    }
}

#[tokio::test]
async fn old_entries_and_versions_are_found_by_their_indexes() {
    let (_dir, store) = store().await;
    for (sql, wanted) in [
        (audit::PRUNE, "audit_at (at<?"),
        (
            audit::VERSIONS,
            "SEARCH job_version USING PRIMARY KEY (job_id=? AND version<?",
        ),
        (
            audit::VERSIONS_ASCENDING,
            "SEARCH job_version USING PRIMARY KEY (job_id=? AND version>?",
        ),
        (
            audit::TRIM_VERSIONS,
            "SEARCH job_version USING PRIMARY KEY (job_id=? AND version=?",
        ),
        (
            audit::FORGET_VERSIONS,
            "SEARCH job_version USING PRIMARY KEY (job_id=?",
        ),
        (audit::DELETED_JOBS, "job_keeps_versions (deleted_at<?"),
        (
            audit::PRUNE_VERSIONS,
            "SEARCH job_version USING PRIMARY KEY (job_id=? AND version=?",
        ),
        // Of the jobs that ever had the name, only the last one before is read.
        (audit::FORGET_VERSIONS, "job_ever_named (name=? AND rowid<?"),
    ] {
        let text = plan(&store, sql).await.join("\n");
        assert!(text.contains(wanted), "no {wanted} in {text}");
        assert!(
            !text.contains("SCAN audit") && !text.contains("SCAN job_version"),
            "{text}"
        );
    }
}

/// Each request to the API finds its session or its token.
#[tokio::test]
async fn sessions_and_tokens_are_found_by_their_hashes() {
    let (_dir, store) = store().await;
    for (sql, index) in [
        (accounts::sessions::FIND, "s USING PRIMARY KEY (hash=?)"),
        (accounts::api_tokens::FIND, "api_token_hash (hash=?)"),
        (
            accounts::api_tokens::LIST_OF_OWNER,
            "api_token_of_owner (owner_id=? AND id>?)",
        ),
    ] {
        let text = plan(&store, sql).await.join("\n");
        assert!(text.contains(index), "no {index} in\n{text}");
        assert!(
            text.contains("SEARCH u USING INTEGER PRIMARY KEY"),
            "{text}"
        );
        assert!(!text.contains("TEMP B-TREE"), "{text}");
    }
}
