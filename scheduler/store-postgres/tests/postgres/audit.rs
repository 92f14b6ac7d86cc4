//! The audit log is append-only.

use cueline_model::{Actor, ActorKind, JobSpec};
use cueline_store::Store;
use cueline_store_postgres::{PgOptions, PgStore};

use crate::test_database::TestDatabase;

#[tokio::test]
async fn no_program_can_change_an_entry_or_a_version() {
    let database = TestDatabase::migrated().await;
    let store = PgStore::connect(&database.url(), PgOptions::default()).await;
    let store = store.expect("connects");
    let spec: JobSpec = serde_json::from_value(serde_json::json!({
        "name": "a", "group": "default", "schedule": { "manual": true }, "handler": { "native": "noop" },
    }))
    .expect("a valid definition");
    let by = Actor::new(ActorKind::User, "ann");
    store
        .apply_jobs(&[spec], false, &by)
        .await
        .expect("applies");
    for statement in [
        "UPDATE audit SET actor = 'user bob'",
        "TRUNCATE audit",
        "UPDATE job_version SET definition = '{}'",
    ] {
        let refused = database.server.sql(&database.name, statement);
        let error = format!("{:?}", refused.expect_err("is refused"));
        assert!(error.contains("are never changed"), "{error}");
    }
    assert_eq!(database.sql("SELECT actor FROM audit"), "user ann");
}
