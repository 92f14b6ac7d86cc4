//! Programs with their arguments, run without a shell.

use std::ffi::OsString;

use async_trait::async_trait;
use cueline_worker::model::HandlerSpec;
use cueline_worker::{Context, Failure, Handler, Output};

use crate::environment::CRON_SHELL;
use crate::marks::GuardId;
use crate::process::{self, Launch};
use crate::secrets::SecretSources;
use crate::setup::ProcessSetup;
use crate::{mismatch, program};

/// Runs [`HandlerSpec::Command`]. Its processes behave like the processes of [`crate::ShellHandler`].
///
/// The spec's arguments are passed unchanged. The parameter is in the variable `CUELINE_PARAMS`.
#[derive(Debug, Clone)]
pub struct CommandHandler {
    setup: ProcessSetup,
}

impl CommandHandler {
    /// A handler that marks its processes with `marker`; see [`crate::kill_orphans`].
    pub fn new(marker: impl Into<String>) -> Self {
        Self {
            setup: ProcessSetup::new(marker.into()),
        }
    }

    /// Marks its processes for the guard with this id; see [`crate::guard`].
    #[must_use]
    pub fn guarded(mut self, guard: GuardId) -> Self {
        self.setup = self.setup.guarded(guard);
        self
    }

    /// Lets jobs run as these users, by `run_as`. Only a worker that runs as root can do that. Its jobs then run as root
    /// only if `root` is one of the users. Default: none, so that jobs run as the worker's own user.
    #[must_use]
    pub fn allow_run_as(mut self, users: impl IntoIterator<Item = String>) -> Self {
        self.setup = self.setup.allow_run_as(users);
        self
    }

    /// Where the values of secrets are. Default: the worker's variables `CUELINE_SECRET_…`.
    #[must_use]
    pub fn secrets(mut self, secrets: SecretSources) -> Self {
        self.setup = self.setup.secrets(secrets);
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
        let prepared = self.setup.prepare(&spec.process, &cx, CRON_SHELL).await?;
        let program = program::find(name, prepared.environment.path())
            .map_err(|failure| prepared.masks.hide_in(failure))?;
        let launch = Launch {
            program,
            name: name.clone(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: prepared.environment,
            account: prepared.account,
            stdin: prepared.stdin,
            masks: prepared.masks,
        };
        process::run(launch, &cx).await
    }
}
