//! Preconditions of changes: what must hold for the stored object, in the transaction of the change.
//!
//! A caller that has read an object and changes it later gives the revision that it has read. Of several changes of the
//! same revision, exactly one succeeds.

use std::collections::BTreeMap;

use cueline_model::{Job, JobName};

use crate::error::{RefusedObject, StoreError};

/// One state of a stored job or user. An object that is deleted and created again has another id, so a revision is never
/// that of another object of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision {
    /// The id of the object.
    pub id: i64,
    /// Counts the changes of the object, from 1.
    pub version: i64,
}

impl From<&Job> for Revision {
    fn from(job: &Job) -> Self {
        Self {
            id: job.id.0,
            version: job.version,
        }
    }
}

/// What must hold for the stored object. Otherwise the change fails with
/// [`ErrorKind::Precondition`](crate::ErrorKind::Precondition), and nothing is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    #[default]
    None,
    /// It exists.
    Exists,
    /// It does not exist.
    Absent,
    /// It exists in this version, whatever its id.
    Version(i64),
    /// It exists in one of these states. Without any, nothing fulfils it.
    OneOf(Vec<Revision>),
}

/// Preconditions of several jobs. Jobs without one have [`Precondition::None`].
pub type JobPreconditions = BTreeMap<JobName, Precondition>;

impl Precondition {
    /// Why the stored object does not fulfil it; `None` if it does. `stored` is `None` if there is no object.
    pub fn refusal(&self, stored: Option<Revision>) -> Option<String> {
        let holds = match (self, stored) {
            (Self::None, _) | (Self::Exists, Some(_)) | (Self::Absent, None) => true,
            (Self::Version(version), Some(stored)) => stored.version == *version,
            (Self::OneOf(revisions), Some(stored)) => revisions.contains(&stored),
            (Self::Exists | Self::Version(_) | Self::OneOf(_), None) | (Self::Absent, Some(_)) => {
                false
            }
        };
        if holds {
            return None;
        }
        Some(match (self, stored) {
            (_, None) => "it does not exist; read it again".to_owned(),
            (Self::Absent, Some(stored)) => format!("it exists, in version {}", stored.version),
            (Self::Version(version), Some(stored)) => format!(
                "version {version} is asked for, it has version {}; read it again",
                stored.version
            ),
            (_, Some(stored)) => format!(
                "another version is asked for, it has version {} and the id {}; read it again",
                stored.version, stored.id
            ),
        })
    }

    /// Fails if the stored object does not fulfil it. `what` completes "failed to …".
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Precondition`](crate::ErrorKind::Precondition) with the object's `name`.
    pub fn require(
        &self,
        what: &str,
        name: &str,
        stored: Option<Revision>,
    ) -> Result<(), StoreError> {
        match self.refusal(stored) {
            None => Ok(()),
            Some(reason) => {
                let name = name.to_owned();
                let refused = vec![RefusedObject { name, reason }];
                Err(StoreError::precondition(what, refused))
            }
        }
    }
}

/// Fails if stored jobs do not fulfil their preconditions. `stored` has each job that a call is about, with its present state
/// if it exists.
///
/// # Errors
///
/// [`ErrorKind::Precondition`](crate::ErrorKind::Precondition) with each job whose condition is not met.
pub fn require_jobs<'a>(
    conditions: &JobPreconditions,
    stored: impl IntoIterator<Item = (&'a JobName, Option<Revision>)>,
) -> Result<(), StoreError> {
    let refused: Vec<RefusedObject> = stored
        .into_iter()
        .filter_map(|(job, stored)| {
            let reason = conditions.get(job)?.refusal(stored)?;
            let name = job.as_str().to_owned();
            Some(RefusedObject { name, reason })
        })
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(StoreError::precondition("apply jobs", refused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    const STORED: Revision = Revision { id: 7, version: 3 };

    fn holds(condition: &Precondition, stored: Option<Revision>) -> bool {
        condition.refusal(stored).is_none()
    }

    #[test]
    fn a_precondition_is_about_the_stored_object() {
        let of = |id, version| Precondition::OneOf(vec![Revision { id, version }]);
        let both = Precondition::OneOf(vec![Revision { id: 7, version: 2 }, STORED]);
        for (condition, with, without) in [
            (Precondition::None, true, true),
            (Precondition::Exists, true, false),
            (Precondition::Absent, false, true),
            (Precondition::Version(3), true, false),
            (Precondition::Version(2), false, false),
            (of(7, 3), true, false),
            (of(7, 2), false, false),
            (of(8, 3), false, false),
            (both, true, false),
            (Precondition::OneOf(Vec::new()), false, false),
        ] {
            assert_eq!(holds(&condition, Some(STORED)), with, "{condition:?}");
            assert_eq!(holds(&condition, None), without, "{condition:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_object_and_its_version() {
        let refused = Precondition::Version(2).require("delete a job", "report", Some(STORED));
        let error = refused.expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Precondition);
        assert_eq!(
            error.to_string(),
            "failed to delete a job: report: version 2 is asked for, it has version 3; read it again"
        );
        assert_eq!(error.refused_objects().len(), 1);
        assert_eq!(error.refused_objects()[0].name, "report");
    }
}
