//! Enrolment tokens that a process stores at its start.

use cueline_interface::with_causes;
use cueline_model::{Actor, ExecutorId};
use cueline_protocol::origin::EnrolmentToken;
use cueline_store::{ErrorKind, NewEnrolmentToken, Store, StoreError};

use crate::adapters::OpenError;

/// Workers that a token from a file can enrol. A new token is needed for more.
const SHARED_USES: u32 = 10_000;
/// A token for one executor is used at the start of this process.
const OWN_VALID_MS: u64 = 3_600_000;

/// Stores a token that enrols workers of all groups, unless there is one of its id. All schedulers have the same file.
pub(crate) async fn store_shared(
    store: &dyn Store,
    token: &EnrolmentToken,
    by: &Actor,
) -> Result<(), OpenError> {
    let new = NewEnrolmentToken {
        id: token.id().to_owned(),
        verifier: token.verifier(),
        namespace: None,
        group: None,
        executor: None,
        uses: SHARED_USES,
        valid_ms: None,
        by: by.clone(),
        idempotency_key: None,
    };
    create(store, &new).await
}

/// Stores a token that enrols this executor once. It takes the place of a key that the executor has lost, and of an
/// earlier token with this id, which may have expired.
pub(crate) async fn store_for(
    store: &dyn Store,
    token: &EnrolmentToken,
    executor: &ExecutorId,
    by: &Actor,
) -> Result<(), OpenError> {
    let new = NewEnrolmentToken {
        id: token.id().to_owned(),
        verifier: token.verifier(),
        namespace: Some(executor.group.namespace()),
        group: Some(executor.group.clone()),
        executor: Some(executor.name.clone()),
        uses: 1,
        valid_ms: Some(OWN_VALID_MS),
        by: by.clone(),
        idempotency_key: None,
    };
    delete(store, token.id(), by).await?;
    create(store, &new).await
}

/// Deletes the token with this id, if there is one.
pub(crate) async fn delete(store: &dyn Store, id: &str, by: &Actor) -> Result<(), OpenError> {
    let deleted = store.delete_enrolment_token(id, by).await;
    deleted
        .map(drop)
        .map_err(|error| failed("delete an earlier enrolment token", &error))
}

async fn create(store: &dyn Store, new: &NewEnrolmentToken) -> Result<(), OpenError> {
    let created = store.create_enrolment_token(new).await;
    created
        .map(drop)
        .map_err(|error| failed("store an enrolment token", &error))
}

/// The error of a call that was to do this.
pub(crate) fn failed(what: &str, error: &StoreError) -> OpenError {
    OpenError {
        message: format!("failed to {what}: {}", with_causes(error)),
        is_transient: error.kind() == ErrorKind::Transient,
    }
}
