//! The plans of the hot statements, as SQLite makes them: each goes by an index, none reads all runs.

use sqlx::{AssertSqlSafe, Row as _};

use crate::{
    SqliteOptions, SqliteStore, claim, dispatch, executors, fire, follow, ingest, ledger, reads,
    summary, trigger, upkeep,
};

/// The steps of the plan of a statement.
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

/// Each statement with what its plan must name.
const HOT: [(&str, &[&str]); 25] = [
    (fire::DUE, &["job_due_next"]),
    (fire::ADVANCE, &["SEARCH job_due USING INTEGER PRIMARY KEY"]),
    (claim::WAITING, &["run_waiting"]),
    (claim::ANY, &["run_waiting", "run_live"]),
    (claim::CLAIM, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (claim::READ, &["SEARCH r USING INTEGER PRIMARY KEY"]),
    (claim::NEXT, &["job_due_next", "run_waiting", "run_live"]),
    (
        dispatch::BEGIN,
        &[
            "SEARCH run USING INTEGER PRIMARY KEY",
            "SEARCH d USING INTEGER PRIMARY KEY",
        ],
    ),
    (dispatch::TAKEN, &["SEARCH r USING INTEGER PRIMARY KEY"]),
    (
        dispatch::CONFIRM_SAME_ATTEMPT,
        &["SEARCH run USING INTEGER PRIMARY KEY"],
    ),
    (dispatch::CONFIRM, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (
        ingest::FACTS,
        &[
            "SEARCH r USING INTEGER PRIMARY KEY",
            "SEARCH d USING INTEGER PRIMARY KEY",
        ],
    ),
    (ingest::START, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (ingest::SUCCEED, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (ingest::CLOSE, &["SEARCH run USING INTEGER PRIMARY KEY"]),
    (follow::RESTING, &["run_awaited"]),
    (follow::COMPLETE, &["run_fire"]),
    (follow::CHILDREN, &["job_children"]),
    (trigger::RUNS, &["run_fire"]),
    (executors::OUTSTANDING, &["run_live"]),
    (executors::OVERDUE, &["run_live"]),
    (reads::OF_JOBS, &["run_by_job"]),
    (summary::DAY, &["run_by_job"]),
    (reads::IN_RARE_STATES, &["run_not_succeeded", "run_live"]),
    (ledger::STANDING, &["run_skipped"]),
];

#[tokio::test]
async fn hot_statements_go_by_their_indexes() {
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
            let whole = ["SCAN run", "SCAN r", "SCAN job_due", "SCAN d"]
                .iter()
                .any(|scan| step == scan);
            assert!(!whole, "{step} in the plan of {sql}\n{text}");
        }
    }
}

/// Statements that read runs in the order of their ids stop at their limit.
#[tokio::test]
async fn walks_by_id_do_not_sort() {
    let (_dir, store) = store().await;
    for sql in [reads::ANY, upkeep::OLD] {
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
    let walks = text.matches("run_live (state=? AND claimed_by=? AND rowid>?)");
    assert_eq!(walks.count(), 2, "{text}");
    let text = plan(&store, ledger::AT).await.join("\n");
    assert!(text.contains("run_fire"), "{text}");
    let text = plan(&store, summary::LIST).await.join("\n");
    assert!(text.contains("job_name"), "{text}");
}
