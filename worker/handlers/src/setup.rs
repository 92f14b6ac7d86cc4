//! The settings that all processes of a handler share.

use std::collections::BTreeMap;
use std::ffi::OsString;

use cueline_worker::model::handler::ProcessSpec;
use cueline_worker::{Context, Failure};

use crate::account::{self, Account};
use crate::environment::{Environment, environment, inheritable};
use crate::marks::{GuardId, ProcessMarks};

/// The part of a process's start that is the same for all attempts of a handler.
#[derive(Debug, Clone)]
pub(crate) struct ProcessSetup {
    marks: ProcessMarks,
    /// Read only once, because a worker does not change its environment.
    inherited: BTreeMap<OsString, OsString>,
}

impl ProcessSetup {
    pub(crate) fn new(marker: String) -> Self {
        Self {
            marks: ProcessMarks {
                worker: marker,
                guard: None,
            },
            inherited: inheritable(),
        }
    }

    pub(crate) fn guarded(mut self, guard: GuardId) -> Self {
        self.marks.guard = Some(guard);
        self
    }

    /// Returns the user, if the environment depends on it, and the environment of a process.
    pub(crate) async fn prepare(
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
