//! Why the origin of a message is not known.

use cueline_model::ExecutorId;
use cueline_protocol::origin::{SealError, WorkerKeyId};

/// Why a message does not count as one of the executor that it names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Forged {
    /// The seal is missing or wrong.
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error("key {key} is not enrolled for executor {executor}")]
    NotEnrolled {
        executor: ExecutorId,
        key: WorkerKeyId,
    },
    #[error("key {key} of executor {executor} is revoked")]
    Revoked {
        executor: ExecutorId,
        key: WorkerKeyId,
    },
    /// An executor speaks for another one.
    #[error("executor {sealer} sealed a message of executor {named}")]
    OtherExecutor {
        sealer: ExecutorId,
        named: ExecutorId,
    },
    /// An executor refuses what is not its own.
    #[error("executor {sealer} sealed a dead letter of another queue than its own")]
    OtherQueue { sealer: ExecutorId },
    /// It may have been recorded and sent again.
    #[error("executor {executor} answered another question")]
    OtherQuestion { executor: ExecutorId },
    /// It may have been recorded and sent again.
    #[error(
        "executor {executor} sent it {off_ms} ms before or after it was received, by its clock; check that clock"
    )]
    OtherTime { executor: ExecutorId, off_ms: u64 },
    /// It does not say when it was sent.
    #[error("executor {executor} does not say when it sent it; check the version of the worker")]
    NoTime { executor: ExecutorId },
}
