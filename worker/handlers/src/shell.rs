//! Scripts, run by an interpreter.

use std::path::PathBuf;

use async_trait::async_trait;
use cueline_worker::model::HandlerSpec;
use cueline_worker::model::handler::Interpreter;
use cueline_worker::{Context, Failure, Handler, Output};

use crate::environment::{self, CRON_SHELL};
use crate::marks::GuardId;
use crate::process::{self, Launch};
use crate::script::{self, ScriptLocation};
use crate::secrets::SecretSources;
use crate::setup::ProcessSetup;
use crate::{mismatch, program};

/// Runs [`HandlerSpec::Shell`].
///
/// **Arguments.** The first three arguments are the parameter, the shard's index and the number of shards. With `shell`
/// set there are none: the script runs as `SHELL -c SCRIPT`, as in cron.
///
/// **The text** is passed on the command line, where other users of the machine can see it. Secrets belong in `env` or
/// `stdin`, as references; see [`SecretSources`]. PHP scripts, PowerShell scripts and texts over 96 KiB are passed in a
/// file instead. The file has mode 0600 and a directory of its own.
///
/// **Variables.** `CUELINE_RUN_ID`, `CUELINE_ATTEMPT`, `CUELINE_JOB`, `CUELINE_FIRE_TIME` (RFC 3339),
/// `CUELINE_FIRE_TIME_MS`, `CUELINE_PARAMS`, `CUELINE_SHARD_INDEX`, `CUELINE_SHARD_TOTAL`, `CUELINE_SHARD_ITEM`,
/// `CUELINE_EXECUTOR`, `CUELINE_WORKER_STATE` and `CUELINE_WORKER_GUARD`. Variables without a value are empty. The
/// worker's other `CUELINE_…` variables are not passed on. With `run_as` set, `HOME`, `LOGNAME` and `USER` are that
/// user's.
///
/// **Another user** gets the user's id and primary group, and no supplementary groups.
///
/// **Output.** Each line becomes a line of the log as it comes. Bytes that are not UTF-8 are replaced, and a line over
/// 64 KiB continues in the next. [`Output::text`] is the last line of standard output that is not blank, trimmed and at
/// most 64 KiB long. `***` replaces the values of secrets. A line `::progress 0.4` on standard output reports the
/// progress, from 0 to 1, and is not logged.
///
/// **End.** Status 0 is success. After the process has ended, its output is read to its end. A background process
/// that holds the pipes open delays this by at most 1 s. It runs on until the next start of the worker.
///
/// **Stopping.** The whole process group gets SIGTERM. After the job's kill grace the remaining processes get SIGKILL,
/// and the handler waits at most 5 s for their end. If the handler's future is dropped, they get SIGKILL at once.
#[derive(Debug, Clone)]
pub struct ShellHandler {
    setup: ProcessSetup,
    script_dir: PathBuf,
}

impl ShellHandler {
    /// A handler that marks its processes with `marker`; see [`crate::kill_orphans`].
    pub fn new(marker: impl Into<String>) -> Self {
        Self {
            setup: ProcessSetup::new(marker.into()),
            script_dir: std::env::temp_dir(),
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

    /// The directory of script files. Default: the system's directory for temporary files. Every user that a job
    /// names must be able to enter it.
    #[must_use]
    pub fn script_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.script_dir = dir.into();
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
impl Handler for ShellHandler {
    async fn run(&self, cx: Context) -> Result<Output, Failure> {
        let info = cx.info();
        let HandlerSpec::Shell(spec) = &info.handler else {
            return Err(mismatch("shell", &info.handler));
        };
        let shell = spec.shell.as_deref();
        let prepared = self
            .setup
            .prepare(&spec.process, &cx, shell.unwrap_or(CRON_SHELL))
            .await?;
        let location = ScriptLocation {
            dir: self.script_dir.clone(),
            owner: prepared.account.as_ref().and_then(|a| a.switch),
        };
        let arguments = [
            cx.params_text().to_owned(),
            info.shard.index.to_string(),
            info.shard.total.to_string(),
        ];
        let script = script::prepare(
            &spec.script,
            spec.interpreter,
            shell,
            arguments,
            location,
            &cx,
        )
        .await?;
        let program = program::find(&script.program, prepared.environment.path())
            .map_err(|failure| prepared.masks.hide_in(failure))?;
        let launch = Launch {
            program,
            name: script.program.clone(),
            arguments: script.arguments.clone(),
            environment: prepared.environment,
            account: prepared.account,
            stdin: prepared.stdin,
            masks: prepared.masks,
        };
        process::run(launch, &cx).await
    }

    /// Those in the worker's own search path.
    fn interpreters(&self) -> Vec<Interpreter> {
        script::interpreters(&environment::own_path())
    }
}
