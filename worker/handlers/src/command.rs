//! Programs with their arguments, run without a shell.

use std::ffi::OsString;

use async_trait::async_trait;
use cueline_worker::model::HandlerSpec;
use cueline_worker::{Context, Failure, Handler, Output};

use crate::environment::CRON_SHELL;
use crate::marks::GuardId;
use crate::process::{self, Launch};
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
        let (account, environment) = self.setup.prepare(&spec.process, &cx, CRON_SHELL).await?;
        let launch = Launch {
            program: program::find(name, environment.path())?,
            name: name.clone(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment,
            account,
            stdin: spec.process.stdin.clone(),
        };
        process::run(launch, &cx).await
    }
}
