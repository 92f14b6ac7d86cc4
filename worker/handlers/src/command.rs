//! Programs with their arguments, run without a shell.

use std::collections::BTreeMap;
use std::ffi::OsString;

use async_trait::async_trait;
use cueline_worker::model::HandlerSpec;
use cueline_worker::model::handler::ProcessSpec;
use cueline_worker::{Context, Failure, Handler, Output};

use crate::account::{self, Account};
use crate::environment::{CRON_SHELL, Environment, GuardId, Marks, environment, inheritable};
use crate::process::{self, Start};
use crate::{mismatch, program};

/// Runs [`HandlerSpec::Command`]. What is said of processes at [`crate::ShellHandler`] holds here too.
///
/// The arguments are the spec's, as they stand; the parameter reaches the process as `CUELINE_PARAMS`.
#[derive(Debug, Clone)]
pub struct CommandHandler {
    surroundings: Surroundings,
}

impl CommandHandler {
    /// A handler whose processes carry `marker`; see [`crate::kill_orphans`].
    pub fn new(marker: impl Into<String>) -> Self {
        Self {
            surroundings: Surroundings::new(marker.into()),
        }
    }

    /// Its processes can also be found by the guard with this id; see [`crate::guard`].
    #[must_use]
    pub fn guarded(mut self, guard: GuardId) -> Self {
        self.surroundings = self.surroundings.guarded(guard);
        self
    }
}

#[async_trait]
impl Handler for CommandHandler {
    async fn run(&self, cx: Context) -> Result<Output, Failure> {
        let HandlerSpec::Command(spec) = &cx.info().handler else {
            return Err(mismatch("command", &cx.info().handler));
        };
        let Some((name, arguments)) = spec.argv.split_first() else {
            return Err(Failure::new("command: it is empty; give a program"));
        };
        let (account, environment) = self.surroundings.of(&spec.process, &cx, CRON_SHELL).await?;
        let start = Start {
            program: program::find(name, environment.path())?,
            name: name.clone(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment,
            account,
            stdin: spec.process.stdin.clone(),
        };
        process::run(start, &cx).await
    }
}

/// What a handler of processes has of its own.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    marks: Marks,
    /// Taken once: a worker does not change its environment.
    inherited: BTreeMap<OsString, OsString>,
}

impl Surroundings {
    pub(crate) fn new(marker: String) -> Self {
        Self {
            marks: Marks {
                marker,
                guard: None,
            },
            inherited: inheritable(),
        }
    }

    pub(crate) fn guarded(mut self, guard: GuardId) -> Self {
        self.marks.guard = Some(guard);
        self
    }

    /// The user, where it matters, and the environment of a process.
    pub(crate) async fn of(
        &self,
        spec: &ProcessSpec,
        cx: &Context,
        shell: &str,
    ) -> Result<(Option<Account>, Environment), Failure> {
        let account = if spec.clear_env || spec.user.is_some() {
            Some(account::resolve(spec.user.clone()).await?)
        } else {
            None
        };
        let environment = environment(
            spec,
            cx.info(),
            account.as_ref(),
            shell,
            &self.marks,
            cx.lease_proven_ms(),
            &self.inherited,
        );
        Ok((account, environment))
    }
}
