//! A trigger request with an idempotency key that an earlier one had.

use cueline_model::{RunId, Timestamp};

use super::convert::without_nul;
use crate::{StoreError, TriggerRequest};

/// What the first run of the earlier request says about that request: parameters, fire time, time of creation.
pub type FirstRunRow = (Option<String>, i64, i64);

/// Fails if the earlier request asked for something else. A request without a time has the time of its creation as fire
/// time.
///
/// # Errors
///
/// [`ErrorKind::KeyReused`](crate::ErrorKind::KeyReused).
pub fn require_same_request(
    request: &TriggerRequest,
    (params, fire_at, created_at): FirstRunRow,
) -> Result<(), StoreError> {
    let wanted_at = request.run_at.map_or(created_at, Timestamp::as_millis);
    let wanted_params = request.params.as_deref().map(without_nul);
    let difference = if wanted_params.as_deref() != params.as_deref() {
        "other parameters"
    } else if wanted_at != fire_at {
        "another time"
    } else {
        return Ok(());
    };
    let what = format!("trigger job {:?}", request.job.as_str());
    Err(StoreError::key_reused(&what, difference))
}

/// The runs of the earlier request. If retention has deleted them, its first run stands for them, so that the answer still
/// names what the request has made.
pub fn runs_of_repeated(first: i64, stored: Vec<RunId>) -> Vec<RunId> {
    if stored.is_empty() {
        vec![RunId(first)]
    } else {
        stored
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{Actor, ActorKind};

    use super::*;
    use crate::{ErrorKind, Precondition};

    fn request(params: Option<&str>, run_at: Option<i64>) -> TriggerRequest {
        TriggerRequest {
            job: "report".parse().expect("a name"),
            params: params.map(str::to_owned),
            idempotency_key: Some("k".to_owned()),
            run_at: run_at.map(Timestamp::from_millis),
            condition: Precondition::None,
            by: Actor::new(ActorKind::User, "ann"),
        }
    }

    #[test]
    fn a_repeated_request_has_the_same_parameters_and_the_same_time() {
        let with = |params: Option<&str>, at| (params.map(str::to_owned), at, 5);
        for (params, run_at, row) in [
            (None, None, with(None, 5)),
            (Some("p"), None, with(Some("p"), 5)),
            (Some("p\0"), Some(9), with(Some("p\u{fffd}"), 9)),
        ] {
            let same = require_same_request(&request(params, run_at), row);
            assert!(same.is_ok(), "{same:?}");
        }
        for (params, run_at, row, says) in [
            (None, None, with(Some("p"), 5), "other parameters"),
            (Some(""), None, with(None, 5), "other parameters"),
            (None, None, with(None, 9), "another time"),
            (None, Some(8), with(None, 9), "another time"),
        ] {
            let refused = require_same_request(&request(params, run_at), row);
            let error = refused.expect_err("is refused");
            assert_eq!(error.kind(), ErrorKind::KeyReused);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
