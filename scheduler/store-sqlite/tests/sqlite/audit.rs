//! The audit log is append-only.

use cueline_model::{Actor, ActorKind, JobSpec};
use cueline_store::Store;
use cueline_store_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{Connection, SqliteConnection};

#[tokio::test]
async fn no_program_can_change_an_entry_or_a_version() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store.db");
    let store = SqliteStore::open(&path, SqliteOptions::default()).await;
    let store = store.expect("opens");
    let spec: JobSpec = serde_json::from_value(serde_json::json!({
        "name": "a", "group": "default", "schedule": { "manual": true }, "handler": { "native": "noop" },
    }))
    .expect("a valid definition");
    let by = Actor::new(ActorKind::User, "ann");
    store
        .apply_jobs(&[spec], false, &by)
        .await
        .expect("applies");
    let address = format!("sqlite://{}", path.display());
    let mut conn = SqliteConnection::connect(&address).await.expect("opens");
    for statement in [
        "UPDATE audit SET actor = 'user bob'",
        "UPDATE job_version SET definition = '{}'",
    ] {
        let refused = sqlx::raw_sql(statement).execute(&mut conn).await;
        let error = refused.expect_err("is refused").to_string();
        assert!(error.contains("are never changed"), "{error}");
    }
    let kept: String = sqlx::query_scalar("SELECT actor FROM audit")
        .fetch_one(&mut conn)
        .await
        .expect("reads");
    assert_eq!(kept, "user ann");
    conn.close().await.expect("closes");
}
