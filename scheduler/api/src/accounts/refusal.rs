//! Why a login by OpenID Connect is refused.

use cueline_store::StoreError;

use super::login::UNKNOWN_USER;
use crate::problem::Problem;

/// Why a login is refused: the name for the audit log, the reason there, and the answer.
pub(super) struct Refusal {
    pub(super) name: String,
    pub(super) reason: String,
    pub(super) problem: Box<Problem>,
}

impl Refusal {
    /// It is not known yet who logs in.
    pub(super) fn of_unknown(reason: &str, problem: Problem) -> Self {
        Self {
            name: UNKNOWN_USER.to_owned(),
            reason: reason.to_owned(),
            problem: Box::new(problem),
        }
    }

    pub(super) fn of_user(name: &str, reason: &str, problem: Problem) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::of_unknown(reason, problem)
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::of_unknown(&problem.detail.clone(), problem)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Problem::from(error).into()
    }
}
