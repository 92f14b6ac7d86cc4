//! A second process that ends what a worker has started when the worker itself cannot.
//!
//! A worker without contact stops its processes before the schedulers may give its work to others. One that was killed, or that is stopped
//! itself (SIGSTOP), cannot, and its processes would go on beside those of the executor that took over. So a worker has a guard: the
//! same program, as its child, which reads from a pipe how far the worker's contact reaches. It kills them when that time has come
//! without a word, and when the pipe is closed without a farewell, which the system does whenever a process ends.
//!
//! The processes are found as [`kill_orphans`](crate::kill_orphans) finds them, by a variable of their own: its value differs after each start of a worker, so
//! that a late guard never ends what the next worker has started.
//!
//! What it cannot help against: being stopped or killed itself together with the worker (a frozen container freezes the processes too; whoever
//! kills the guard alone is answered with a new one), and what `kill_orphans` cannot find.

use std::time::Duration;

use cueline_worker::{BootClock, LeaseDeadline};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};
use tokio::time::timeout;

use crate::environment::GuardId;
use crate::orphans::{self, OrphanError};

/// What a worker writes when it ends in order: then it has left nothing that has to end.
const FAREWELL: &str = "done";

/// A timer counts no sleep of the machine: the clock is asked at least this often.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// When a reach seems to be over, what was said last may still be on its way.
const LAST_WORD: Duration = Duration::from_millis(100);

/// The guard's whole life: `input` is the pipe from the worker. Each line is a [`LeaseDeadline`] on `clock`, which holds until there is a newer one. Returns after the
/// farewell, or when the worker is gone and all of its processes are.
///
/// # Errors
///
/// [`OrphanError`] if the worker is gone and some of its processes could not be ended.
pub async fn watch(
    input: impl AsyncBufRead + Unpin,
    id: &GuardId,
    clock: &dyn BootClock,
) -> Result<(), OrphanError> {
    let mut lines = input.lines();
    let mut reach: Option<LeaseDeadline> = None;
    loop {
        let line = tokio::select! {
            biased;
            line = lines.next_line() => Ok(line),
            over = passed(clock, reach) => match timeout(LAST_WORD, lines.next_line()).await {
                Ok(line) => Ok(line),
                Err(_) => Err(over),
            }
        };
        match line {
            Ok(Ok(Some(line))) if line == FAREWELL => return Ok(()),
            Ok(Ok(Some(line))) => reach = read(&line).or(reach),
            // A pipe that cannot be read any more is closed as well.
            Ok(Ok(None) | Err(_)) => break,
            Err(over) => {
                // What the worker starts by the right of newer contact is spared: it may be back while the rest is looked for.
                let (newer, killed) = orphans::kill_outlived(id, over.proven_ms).await;
                // Its word of that may never come, if it stands still.
                reach = newer.map(|proven_ms| LeaseDeadline {
                    proven_ms,
                    end_by_ms: proven_ms.saturating_add(over.end_by_ms - over.proven_ms),
                });
                // Some that would not end are no reason to leave: the worker may come to.
                if let Err(error) = killed {
                    tracing::error!(%error, "the worker is out of contact, and not all of its processes could be ended");
                }
            }
        }
    }
    orphans::kill_guarded(id).await.map(drop)
}

fn written(reach: LeaseDeadline) -> String {
    format!("{} {}\n", reach.proven_ms, reach.end_by_ms)
}

fn read(line: &str) -> Option<LeaseDeadline> {
    let (proven, ends_by) = line.split_once(' ')?;
    Some(LeaseDeadline {
        proven_ms: proven.parse().ok()?,
        end_by_ms: ends_by.parse().ok()?,
    })
}

/// Returns when `clock` shows that this is over, with it; never if there is nothing.
async fn passed(clock: &dyn BootClock, reach: Option<LeaseDeadline>) -> LeaseDeadline {
    let Some(reach) = reach else {
        return std::future::pending().await;
    };
    while let Some(left_ms) = u64::try_from(reach.end_by_ms.saturating_sub(clock.up_ms()))
        .ok()
        .filter(|left| *left > 0)
    {
        tokio::time::sleep(Duration::from_millis(left_ms).min(LONGEST_NAP)).await;
    }
    reach
}

pub use keeper::Guard;

mod keeper {
    use std::process::Stdio;
    use std::time::Duration;

    use tokio::io::AsyncWriteExt as _;
    use tokio::process::{Child, ChildStdin, Command};
    use tokio::sync::watch;
    use tokio::task::JoinHandle;
    use tokio::time::{sleep, timeout};

    use cueline_worker::LeaseDeadline;

    use super::{FAREWELL, written};

    /// Before a guard that has ended is replaced.
    const PAUSE: Duration = Duration::from_secs(1);
    /// After the farewell it has nothing to do.
    const LEAVES_WITHIN: Duration = Duration::from_secs(5);

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Word {
        Nothing,
        LeaseDeadline(LeaseDeadline),
        Farewell,
    }

    /// The worker's side: keeps a guard running and tells it what it has to know.
    #[derive(Debug)]
    pub struct Guard {
        word: watch::Sender<Word>,
        task: JoinHandle<()>,
    }

    impl Guard {
        /// Starts one, by the command that `make` makes each time. A guard that ends is replaced.
        pub fn start(make: impl Fn() -> Command + Send + 'static) -> Self {
            let (word, heard) = watch::channel(Word::Nothing);
            let task = tokio::spawn(keep(make, heard));
            Self { word, task }
        }

        /// What tells the guard how far the worker's contact reaches. Returns at once.
        pub fn renewer(&self) -> impl Fn(LeaseDeadline) + Send + Sync + 'static {
            let word = self.word.clone();
            move |reach| {
                word.send_if_modified(|word| {
                    let news = *word != Word::Farewell && *word != Word::LeaseDeadline(reach);
                    if news {
                        *word = Word::LeaseDeadline(reach);
                    }
                    news
                });
            }
        }

        /// The worker has ended in order: the guard leaves without ending anything.
        pub async fn dismiss(self) {
            self.word.send_replace(Word::Farewell);
            // It is not waited for longer than it may take.
            let _ = self.task.await;
        }
    }

    async fn keep(make: impl Fn() -> Command, mut heard: watch::Receiver<Word>) {
        loop {
            match spawn(make()) {
                Ok((child, pipe)) => {
                    if !tell(child, pipe, &mut heard).await {
                        return;
                    }
                    tracing::warn!("the worker's guard has ended; starting another one");
                }
                Err(error) => {
                    tracing::error!(%error, "the worker's guard cannot be started: what it runs goes on if it is killed or stopped; trying again");
                }
            }
            if *heard.borrow() == Word::Farewell {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    fn spawn(mut command: Command) -> std::io::Result<(Child, ChildStdin)> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Signals that a terminal sends to the worker are none of its business.
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take();
        pipe.map(|pipe| (child, pipe))
            .ok_or_else(|| std::io::Error::other("it has no pipe"))
    }

    /// Passes on what is said. True when the guard has ended although nobody has dismissed it.
    async fn tell(
        mut child: Child,
        mut pipe: ChildStdin,
        heard: &mut watch::Receiver<Word>,
    ) -> bool {
        loop {
            let word = *heard.borrow_and_update();
            let line = match word {
                Word::Nothing => String::new(),
                Word::LeaseDeadline(reach) => written(reach),
                Word::Farewell => format!("{FAREWELL}\n"),
            };
            let told = pipe.write_all(line.as_bytes()).await;
            if word == Word::Farewell {
                drop(pipe);
                let _ = timeout(LEAVES_WITHIN, child.wait()).await;
                return false;
            }
            if told.is_err() {
                let _ = child.wait().await;
                return true;
            }
            tokio::select! {
                // The sender is gone when the worker has failed: the guard sees the pipe closed.
                news = heard.changed() => if news.is_err() { return false },
                _ = child.wait() => return true,
            }
        }
    }
}
