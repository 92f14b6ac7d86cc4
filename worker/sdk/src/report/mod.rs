//! Reports of attempts: a bounded queue, and the task that publishes them until the broker has them.

mod message;
mod publisher;
mod queue;

pub(crate) use publisher::ReportPublisher;
pub(crate) use queue::{Report, ReportQueue};
