//! Finding out who sends a request waits neither for the queries of users nor for the writes of the scheduler.

use std::sync::Arc;

use cueline_model::{Actor, ActorKind, Grant};
use cueline_store::{Accounts, Login, NewApiToken, NewUser, SecretHash};
use cueline_test_servers::postgres::Postgres;
use cueline_test_support::{SOON, eventually};

use crate::{PgOptions, PgStore};

const SESSION: SecretHash = SecretHash([1; 32]);
const TOKEN: SecretHash = SecretHash([2; 32]);

/// A store with one connection for queries and one for writes, a session and an API token that was never used.
async fn store() -> (Arc<Postgres>, PgStore) {
    let server = Postgres::shared().expect("PostgreSQL starts");
    let name = server.create_database().expect("creates a database");
    let options = PgOptions {
        readers: 1,
        writers: 1,
        // Longer than the test waits.
        acquire_timeout: 3 * SOON,
        idle_in_transaction_timeout: 3 * SOON,
        call_timeout: 3 * SOON,
        ..PgOptions::default()
    };
    let store = PgStore::connect(&server.url(&name), options).await;
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
    (server, store)
}

async fn both_are_found(store: &PgStore) {
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
    let (_server, store) = store().await;
    let held = store.db.snapshot().await.expect("begins");
    both_are_found(&store).await;
    drop(held);
}

/// The token was never used, so its use has to be noted. That happens later.
#[tokio::test]
async fn a_request_is_authenticated_while_all_writers_are_in_use() {
    let (_server, store) = store().await;
    let held = store.db.write().await.expect("begins");
    both_are_found(&store).await;
    held.roll_back().await;
    let accounts: &dyn Accounts = &store;
    let noted = eventually("the use is noted", SOON, async || {
        let tokens = accounts.api_tokens(None, None, 1).await.expect("lists");
        tokens[0].last_used_at.ok_or("it is not noted")
    });
    noted.await.expect("in time");
}
