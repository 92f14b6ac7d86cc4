//! Flows: whether a job starts after its parents have ended.
//!
//! A flow run begins with a fire that has no parent: of a schedule, of a person, or at the start of a scheduler. All
//! fires that follow from it belong to the flow run, and each job fires at most once in it. So a job after two branches
//! waits for both sides of the same flow run, and never mixes two.

use crate::job::{After, AfterOn, Parents};
use crate::run::RunState;

/// How the fire of a job in a flow run stands. All its shards count as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FireState {
    /// All shards succeeded.
    Succeeded = 1,
    /// All shards ended, and at least one of them failed.
    Failed = 2,
    /// All shards ended. At least one was cancelled, discarded, covered or skipped, or its cancellation was requested.
    /// The flow run stops here: nothing follows, whatever the other shards did.
    Stopped = 3,
    /// A shard is live.
    Live = 4,
}

impl FireState {
    /// The contribution of one shard.
    pub fn of_shard(state: RunState, cancel_requested: bool) -> Self {
        if !state.is_terminal() {
            Self::Live
        } else if cancel_requested {
            Self::Stopped
        } else if state == RunState::Succeeded {
            Self::Succeeded
        } else if state.is_failure() {
            Self::Failed
        } else {
            Self::Stopped
        }
    }

    /// The state of a fire with these shards; `None` without a shard. The greatest contribution decides.
    pub fn of_shards(shards: impl IntoIterator<Item = (RunState, bool)>) -> Option<Self> {
        let shards = shards.into_iter();
        shards
            .map(|(state, cancel_requested)| Self::of_shard(state, cancel_requested))
            .max()
    }

    /// The state with that number, by which stores compare contributions.
    pub fn from_code(code: i64) -> Option<Self> {
        [Self::Succeeded, Self::Failed, Self::Stopped, Self::Live]
            .into_iter()
            .find(|state| i64::from(*state as u8) == code)
    }
}

impl AfterOn {
    /// Whether a fire in this state starts the child.
    pub fn accepts(self, state: FireState) -> bool {
        match state {
            FireState::Succeeded => matches!(self, Self::Success | Self::Always),
            FireState::Failed => self.includes_failure(),
            FireState::Stopped | FireState::Live => false,
        }
    }
}

/// What a flow run knows of a parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentState {
    /// It has fired.
    Fired(FireState),
    /// It has not fired. A job that has fired leads to it.
    Ahead,
    /// It has not fired, and no job that has fired leads to it. A flow run that began beside or after it does not wait
    /// for it.
    OutOfReach,
}

/// Whether a child starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// It starts.
    Now,
    /// The end of another parent may start it.
    Later,
    /// It does not start in this flow run.
    Never,
}

/// Whether a child that has not fired in the flow run starts, given all of its parents.
pub fn start(after: &After, parents: impl IntoIterator<Item = ParentState>) -> Start {
    let (mut accepted, mut open, mut refused) = (false, false, false);
    for parent in parents {
        match parent {
            ParentState::OutOfReach => {}
            ParentState::Ahead | ParentState::Fired(FireState::Live) => open = true,
            ParentState::Fired(state) if after.on.accepts(state) => accepted = true,
            ParentState::Fired(_) => refused = true,
        }
    }
    match after.parents {
        Parents::All(_) if refused => Start::Never,
        Parents::Any(_) if accepted => Start::Now,
        _ if open => Start::Later,
        _ if accepted => Start::Now,
        _ => Start::Never,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(all: bool, on: AfterOn) -> After {
        let names = vec!["p".parse().expect("a name")];
        After {
            parents: if all {
                Parents::All(names)
            } else {
                Parents::Any(names)
            },
            on,
            pass_output: false,
        }
    }

    #[test]
    fn a_stopped_shard_outranks_a_failed_one() {
        use RunState as S;
        for (shards, state) in [
            (&[S::Succeeded, S::Succeeded][..], FireState::Succeeded),
            (&[S::Succeeded, S::Lost], FireState::Failed),
            (&[S::Failed, S::Discarded, S::Succeeded], FireState::Stopped),
            (&[S::Cancelled, S::Running], FireState::Live),
            (&[S::Skipped], FireState::Stopped),
        ] {
            let shards = shards.iter().map(|state| (*state, false));
            assert_eq!(FireState::of_shards(shards), Some(state));
        }
        assert_eq!(FireState::of_shards([]), None);
        let cancelled_too_late = [(S::Succeeded, true)];
        assert_eq!(
            FireState::of_shards(cancelled_too_late),
            Some(FireState::Stopped)
        );
    }

    #[test]
    fn each_terminal_state_counts_as_one_of_three_ends() {
        for state in RunState::ALL {
            let expected = match state {
                RunState::Succeeded => FireState::Succeeded,
                state if state.is_failure() => FireState::Failed,
                state if state.is_terminal() => FireState::Stopped,
                _ => FireState::Live,
            };
            assert_eq!(FireState::of_shard(state, false), expected, "{state}");
            assert_eq!(FireState::from_code(expected as i64), Some(expected));
        }
    }

    fn parent() -> impl Strategy<Value = ParentState> {
        prop_oneof![
            Just(ParentState::Fired(FireState::Succeeded)),
            Just(ParentState::Fired(FireState::Failed)),
            Just(ParentState::Fired(FireState::Stopped)),
            Just(ParentState::Fired(FireState::Live)),
            Just(ParentState::Ahead),
            Just(ParentState::OutOfReach),
        ]
    }

    fn on() -> impl Strategy<Value = AfterOn> {
        prop_oneof![
            Just(AfterOn::Success),
            Just(AfterOn::Failure),
            Just(AfterOn::Always)
        ]
    }

    proptest! {
        /// The rules again, as sentences over the whole list.
        #[test]
        fn a_child_starts_by_the_rules(all: bool, on in on(), parents in proptest::collection::vec(parent(), 1..6)) {
            let within: Vec<_> = parents.iter().filter(|p| **p != ParentState::OutOfReach).collect();
            let fits = |p: &&ParentState| matches!(p, ParentState::Fired(state) if on.accepts(*state));
            let is_open = |p: &&ParentState| matches!(p, ParentState::Ahead | ParentState::Fired(FireState::Live));
            let starts = if all {
                !within.is_empty() && within.iter().all(fits)
            } else {
                within.iter().any(fits)
            };
            let may_start = if all {
                !within.is_empty() && within.iter().all(|p| fits(p) || is_open(p))
            } else {
                within.iter().any(|p| fits(p) || is_open(p))
            };
            let expected = match (starts, may_start) {
                (true, _) => Start::Now,
                (false, true) => Start::Later,
                (false, false) => Start::Never,
            };
            prop_assert_eq!(start(&after(all, on), parents), expected);
        }
    }
}
