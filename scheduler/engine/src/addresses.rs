//! The queue, the start log and the control channel of an executor.

use cueline_broker::{Channel, QueueId, StartLog};
use cueline_model::{ExecutorId, ExecutorName, GroupName};

/// The queue that holds the executor's triggers.
pub(crate) fn executor_queue(group: &GroupName, executor: &ExecutorName) -> QueueId {
    QueueId::Executor {
        group: group.to_string(),
        executor: executor.to_string(),
    }
}

/// The log in which the executor records its starts.
pub(crate) fn start_log(executor: &ExecutorId) -> StartLog {
    StartLog {
        group: executor.group.to_string(),
        executor: executor.name.to_string(),
    }
}

/// The channel on which the executor receives control messages.
pub(crate) fn control_channel(executor: &ExecutorId) -> Channel {
    Channel::Control {
        group: executor.group.to_string(),
        executor: executor.name.to_string(),
    }
}
