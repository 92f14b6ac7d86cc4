//! Transactions on [kept connections](crate::kept_connections).

use std::ops::{Deref, DerefMut};

use sqlx::Executor as _;
use sqlx::postgres::PgConnection;
use tokio::runtime::Handle;

use crate::error::{Error, Result};
use crate::kept_connections::CallConnection;

/// A transaction. If it is dropped before its end, it is rolled back in the background.
#[derive(Debug)]
pub(crate) struct Transaction {
    /// `None` once it has ended.
    conn: Option<CallConnection>,
}

impl Transaction {
    /// Begins a transaction by this statement.
    pub(crate) async fn begin(conn: CallConnection, statement: &'static str) -> Result<Self> {
        // The server may have begun it when this call is dropped.
        let mut tx = Self { conn: Some(conn) };
        tx.execute(statement).await?;
        Ok(tx)
    }

    /// Makes the changes durable.
    pub(crate) async fn commit(mut self) -> Result<()> {
        self.execute("COMMIT").await.map_err(Error::Commit)?;
        self.keep();
        Ok(())
    }

    /// Rolls back and waits for the result.
    pub(crate) async fn roll_back(mut self) -> Result<()> {
        self.execute("ROLLBACK").await?;
        self.keep();
        Ok(())
    }

    fn keep(mut self) {
        if let Some(conn) = self.conn.take() {
            conn.keep();
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let Some(conn) = self.conn.take() else {
            return;
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(conn.roll_back())),
            Err(_) => conn.detach(),
        }
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.conn.as_deref().expect("the transaction is open")
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.conn.as_deref_mut().expect("the transaction is open")
    }
}
