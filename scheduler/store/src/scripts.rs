//! Scripts with their versions.

use async_trait::async_trait;
use cueline_model::handler::Interpreter;
use cueline_model::{Actor, JobId, JobName, Namespace, ScriptName, ScriptSpec, Timestamp};

use crate::error::StoreError;
use crate::job::Change;
use crate::precondition::{Precondition, Revision};

/// The most scripts of one namespace.
pub const MAX_SCRIPTS_OF_NAMESPACE: usize = 1_000;

/// The newest versions of a script that are kept. A version that a job is pinned to is kept as well.
pub const MAX_SCRIPT_VERSIONS: usize = 30;

/// The most jobs that use one script. A save writes a new version of each in its transaction.
pub const MAX_JOBS_OF_SCRIPT: usize = 1_000;

/// The change of a script by [`ScriptStore::put_script`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedScript {
    /// The name.
    pub name: ScriptName,
    /// The script afterwards; `None` in a dry run that would create it.
    pub revision: Option<Revision>,
    /// What happened.
    pub change: Change,
}

/// A script as stored, with its newest version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredScript {
    /// The name.
    pub name: ScriptName,
    /// Its id and the number of its newest version.
    pub revision: Revision,
    /// The newest version, without its text in lists.
    pub newest: ScriptVersion,
    /// The jobs that use it, sorted by name, each with the version that it is pinned to.
    pub jobs: Vec<(JobName, Option<i64>)>,
}

/// A version of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptVersion {
    /// Its number, from 1.
    pub version: i64,
    /// When it was saved, by the database's clock.
    pub at: Timestamp,
    /// Who saved it.
    pub by: String,
    /// Why it was saved.
    pub remark: String,
    /// The program that runs it.
    pub language: Interpreter,
    /// The length of the text in bytes.
    pub bytes: u64,
    /// The text; `None` in lists.
    pub text: Option<String>,
}

/// Scripts.
///
/// A job that uses a script runs the version in `job_script`, which a save changes together with the versions of all jobs
/// that follow the newest one. So the guard of [`begin_dispatch`](crate::Store::begin_dispatch) refuses a trigger with the
/// text before (G3), and runs that wait are claimed again. [`put_script`](Self::put_script) returns the ids of these jobs.
///
/// # Errors
///
/// As [`Store`](crate::Store).
#[async_trait]
pub trait ScriptStore: Send + Sync + 'static {
    /// The scripts of a namespace, sorted by name, without their texts.
    async fn scripts(&self, namespace: &Namespace) -> Result<Vec<StoredScript>, StoreError>;

    /// One script with the text of its newest version.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such script.
    async fn script(&self, name: &ScriptName) -> Result<StoredScript, StoreError>;

    /// The kept versions of a script without their texts, newest first.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such script.
    async fn script_versions(&self, name: &ScriptName) -> Result<Vec<ScriptVersion>, StoreError>;

    /// One version with its text; `None` if it is not kept.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such script.
    async fn script_version(
        &self,
        name: &ScriptName,
        version: i64,
    ) -> Result<Option<ScriptVersion>, StoreError>;

    /// Saves a script as a new version, unless language and text are those of the newest one. With `dry_run` nothing
    /// changes.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) beyond [`MAX_SCRIPTS_OF_NAMESPACE`].
    /// [`Precondition`](crate::ErrorKind::Precondition) if the condition is not met.
    async fn put_script(
        &self,
        spec: &ScriptSpec,
        condition: &Precondition,
        dry_run: bool,
        by: &Actor,
    ) -> Result<(AppliedScript, Vec<JobId>), StoreError>;

    /// Deletes a script with its versions.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such script, [`Conflict`](crate::ErrorKind::Conflict) with
    /// the jobs that use it. [`Precondition`](crate::ErrorKind::Precondition) if the condition is not met.
    async fn delete_script(
        &self,
        name: &ScriptName,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<(), StoreError>;
}

/// Implements [`ScriptStore`] for a decorator: calls the store in its field `inner`.
#[macro_export]
macro_rules! forward_scripts {
    ($decorator:ty) => {
        #[async_trait::async_trait]
        impl $crate::ScriptStore for $decorator {
            async fn scripts(
                &self,
                namespace: &cueline_model::Namespace,
            ) -> Result<Vec<$crate::StoredScript>, $crate::StoreError> {
                self.inner.scripts(namespace).await
            }

            async fn script(
                &self,
                name: &cueline_model::ScriptName,
            ) -> Result<$crate::StoredScript, $crate::StoreError> {
                self.inner.script(name).await
            }

            async fn script_versions(
                &self,
                name: &cueline_model::ScriptName,
            ) -> Result<Vec<$crate::ScriptVersion>, $crate::StoreError> {
                self.inner.script_versions(name).await
            }

            async fn script_version(
                &self,
                name: &cueline_model::ScriptName,
                version: i64,
            ) -> Result<Option<$crate::ScriptVersion>, $crate::StoreError> {
                self.inner.script_version(name, version).await
            }

            async fn put_script(
                &self,
                spec: &cueline_model::ScriptSpec,
                condition: &$crate::Precondition,
                dry_run: bool,
                by: &cueline_model::Actor,
            ) -> Result<($crate::AppliedScript, Vec<cueline_model::JobId>), $crate::StoreError>
            {
                self.inner.put_script(spec, condition, dry_run, by).await
            }

            async fn delete_script(
                &self,
                name: &cueline_model::ScriptName,
                condition: &$crate::Precondition,
                by: &cueline_model::Actor,
            ) -> Result<(), $crate::StoreError> {
                self.inner.delete_script(name, condition, by).await
            }
        }
    };
}
