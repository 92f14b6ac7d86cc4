//! Waits while the machine lacks descriptors, processes or memory.
//!
//! Such a shortage says nothing about the job. It usually ends when other work ends, so the attempt waits for a while
//! before it fails.

use std::fmt;
use std::io;
use std::time::Duration;

use cueline_worker::Context;
use nix::errno::Errno;
use tokio::time::Instant;

/// How long an attempt waits for the end of a shortage.
const PATIENCE: Duration = Duration::from_secs(30);

/// The first wait. It doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// What the machine lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The worker has too many open files.
    Descriptors,
    /// The machine has too many open files.
    DescriptorsOfMachine,
    /// The user or the service has too many processes.
    Processes,
    /// The system has no memory left.
    Memory,
}

impl Shortage {
    /// The shortage that this error of opening a file or a connection means.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        match Errno::from_raw(error.raw_os_error()?) {
            Errno::EMFILE => Some(Self::Descriptors),
            Errno::ENFILE => Some(Self::DescriptorsOfMachine),
            Errno::ENOMEM => Some(Self::Memory),
            _ => None,
        }
    }

    /// The shortage that this error of starting a process means.
    pub(crate) fn of_start(error: &io::Error) -> Option<Self> {
        let lacks_process = error.raw_os_error().map(Errno::from_raw) == Some(Errno::EAGAIN);
        if lacks_process {
            Some(Self::Processes)
        } else {
            Self::of(error)
        }
    }
}

/// Names the limit and what raises it.
impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptors => {
                "the worker has too many open files (EMFILE); raise LimitNOFILE, or lower concurrency"
            }
            Self::DescriptorsOfMachine => {
                "the machine has too many open files (ENFILE); raise fs.file-max"
            }
            Self::Processes => {
                "the worker's user or service has too many processes (EAGAIN); raise LimitNPROC or TasksMax, or lower concurrency"
            }
            Self::Memory => "the machine has no memory left (ENOMEM); lower concurrency",
        })
    }
}

/// The waits of one attempt.
#[derive(Debug)]
pub(crate) struct Patience {
    until: Option<Instant>,
    next: Duration,
}

impl Patience {
    pub(crate) const fn new() -> Self {
        Self {
            until: None,
            next: FIRST_WAIT,
        }
    }

    /// Waits before the next try. It returns early if the attempt must stop; the caller looks for that. `false` once it has
    /// waited long enough.
    pub(crate) async fn wait(&mut self, shortage: Shortage, cx: &Context) -> bool {
        let now = Instant::now();
        let until = *self.until.get_or_insert_with(|| {
            tracing::warn!(
                %shortage,
                patience_s = PATIENCE.as_secs(),
                "start of an attempt was delayed by a limit of this machine; raise the limit"
            );
            now + PATIENCE
        });
        if now >= until {
            return false;
        }
        let wait = self.next.min(until - now);
        self.next = (self.next * 2).min(LONGEST_WAIT);
        tokio::select! {
            biased;
            _ = cx.stopped() => {}
            () = tokio::time::sleep(wait) => {}
        }
        true
    }
}

/// The end of the message of an attempt that has waited long enough.
pub(crate) fn waited(shortage: Shortage) -> String {
    format!("{shortage}; it was tried for {} s", PATIENCE.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_the_machine_is_a_shortage() {
        for (errno, opening, starting) in [
            (
                Errno::EMFILE,
                Some(Shortage::Descriptors),
                Some(Shortage::Descriptors),
            ),
            (
                Errno::ENFILE,
                Some(Shortage::DescriptorsOfMachine),
                Some(Shortage::DescriptorsOfMachine),
            ),
            (
                Errno::ENOMEM,
                Some(Shortage::Memory),
                Some(Shortage::Memory),
            ),
            (Errno::EAGAIN, None, Some(Shortage::Processes)),
            (Errno::ENOENT, None, None),
            (Errno::EACCES, None, None),
            (Errno::ECONNREFUSED, None, None),
        ] {
            let error = io::Error::from(errno);
            assert_eq!(Shortage::of(&error), opening, "{errno}");
            assert_eq!(Shortage::of_start(&error), starting, "{errno}");
        }
        assert_eq!(Shortage::of(&io::Error::other("no number")), None);
    }
}
