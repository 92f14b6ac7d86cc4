//! Finding out who sends a request waits neither for the queries of users nor for the writes of the scheduler.

use std::time::Duration;

use cueline_model::{Actor, ActorKind, Grant};
use cueline_store::{Accounts, Login, NewApiToken, NewUser, SecretHash};

use crate::database::READERS;
use crate::{SqliteOptions, SqliteStore};

const SESSION: SecretHash = SecretHash([1; 32]);
const TOKEN: SecretHash = SecretHash([2; 32]);

/// Shorter than a call waits for a connection.
const SOON: Duration = Duration::from_secs(20);

/// A store with a session and an API token that was never used.
async fn store() -> (tempfile::TempDir, SqliteStore) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cueline.db");
    let store = SqliteStore::open(&path, SqliteOptions::default()).await;
    let store = store.expect("opens");
    let by = Actor::new(ActorKind::User, "root");
    let ann = NewUser {
        name: "ann".to_owned(),
        display_name: String::new(),
        login: Login::None,
        grants: vec![Grant::everything()],
        idempotency_key: None,
    };
    let accounts: &dyn Accounts = &store;
    let ann = accounts.create_user(&ann, &by).await.expect("creates");
    let token = NewApiToken {
        id: "0123456789abcdef".to_owned(),
        hash: TOKEN,
        name: "backup".to_owned(),
        owner: Some(ann),
        grants: vec![Grant::everything()],
        valid_ms: None,
        session: None,
        idempotency_key: None,
    };
    let created = accounts.create_api_token(&token, &by).await;
    created.expect("creates");
    let started = accounts.create_session(ann, &Login::None, SESSION, 600_000, &by);
    started.await.expect("starts");
    (dir, store)
}

async fn both_are_found(store: &SqliteStore) {
    let accounts: &dyn Accounts = store;
    let found = async {
        let session = accounts.session(SESSION, 600_000).await;
        assert!(session.expect("answers").is_some());
        let token = accounts.api_token(TOKEN, 600_000).await;
        assert!(token.expect("answers").is_some());
    };
    let answered = tokio::time::timeout(SOON, found).await;
    answered.expect("a connection is free");
}

#[tokio::test]
async fn a_request_is_authenticated_while_queries_use_all_readers() {
    let (_dir, store) = store().await;
    let mut held = Vec::new();
    for _ in 0..READERS {
        held.push(store.db.snapshot().await.expect("begins"));
    }
    both_are_found(&store).await;
    drop(held);
}

/// The token was never used, so its use has to be noted. That happens later.
#[tokio::test]
async fn a_request_is_authenticated_during_a_write() {
    let (_dir, store) = store().await;
    let held = store.db.write().await.expect("begins");
    both_are_found(&store).await;
    drop(held);
}
