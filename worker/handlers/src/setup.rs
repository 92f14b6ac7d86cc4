//! The settings that all processes of a handler share.

use std::collections::BTreeMap;
use std::ffi::OsString;

use cueline_worker::model::handler::ProcessSpec;
use cueline_worker::{Context, Failure};

use crate::account::{self, Account, AllowedUsers};
use crate::environment::{Environment, attempt_variables, environment, inheritable};
use crate::marks::{GuardId, ProcessMarks};
use crate::masks::Masks;
use crate::secrets::SecretSources;

/// The part of a process's start that is the same for all attempts of a handler.
#[derive(Debug, Clone)]
pub(crate) struct ProcessSetup {
    marks: ProcessMarks,
    /// Read only once, because a worker does not change its environment.
    inherited: BTreeMap<OsString, OsString>,
    allowed: AllowedUsers,
    secrets: SecretSources,
}

/// What the spec of a process says, with the values of its secrets.
pub(crate) struct Prepared {
    /// The user, if the environment depends on it.
    pub(crate) account: Option<Account>,
    pub(crate) environment: Environment,
    pub(crate) stdin: Option<String>,
    pub(crate) masks: Masks,
}

/// The texts of a spec with the values of its secrets.
struct Texts {
    env: BTreeMap<String, String>,
    stdin: Option<String>,
    masks: Masks,
}

impl ProcessSetup {
    pub(crate) fn new(marker: String) -> Self {
        Self {
            marks: ProcessMarks {
                worker: marker,
                guard: None,
            },
            inherited: inheritable(),
            allowed: AllowedUsers::default(),
            secrets: SecretSources::default(),
        }
    }

    pub(crate) fn secrets(mut self, secrets: SecretSources) -> Self {
        self.secrets = secrets;
        self
    }

    pub(crate) fn guarded(mut self, guard: GuardId) -> Self {
        self.marks.guard = Some(guard);
        self
    }

    pub(crate) fn allow_run_as(mut self, users: impl IntoIterator<Item = String>) -> Self {
        self.allowed = AllowedUsers::new(users);
        self
    }

    /// Resolves the user and the secrets of a process.
    pub(crate) async fn prepare(
        &self,
        spec: &ProcessSpec,
        cx: &Context,
        shell: &str,
    ) -> Result<Prepared, Failure> {
        if spec.run_as.is_none() {
            account::check_unnamed(&self.allowed)?;
        }
        let texts = tokio::select! {
            biased;
            texts = self.texts(spec) => texts?,
            reason = cx.stopped() => return Err(Failure::new(format!("not started ({reason:?})"))),
        };
        let account = if spec.clear_env || spec.run_as.is_some() {
            Some(account::resolve(spec.run_as.clone(), self.allowed.clone(), cx).await?)
        } else {
            None
        };
        let environment = environment(
            spec,
            &texts.env,
            &attempt_variables(cx.info(), &self.marks, cx.lease_proven_ms()),
            account.as_ref(),
            shell,
            &self.inherited,
        );
        Ok(Prepared {
            account,
            environment,
            stdin: texts.stdin,
            masks: texts.masks,
        })
    }

    async fn texts(&self, spec: &ProcessSpec) -> Result<Texts, Failure> {
        let mut resolver = self.secrets.resolver();
        Ok(Texts {
            env: resolver.map(&spec.env).await?,
            stdin: resolver.optional(spec.stdin.as_ref()).await?,
            masks: resolver.into_masks(),
        })
    }
}
