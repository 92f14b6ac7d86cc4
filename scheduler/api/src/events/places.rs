//! The places of streams: how many are open, and how many of them one caller has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cueline_store::UserId;

use crate::access::{Caller, Identity};
use crate::problem::Problem;

/// One caller has at most this part of the places: a quarter. Otherwise a single one could keep all others from theirs.
const PARTS: usize = 4;

/// Who has a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    AdminToken,
    /// A user, with all sessions and API tokens.
    User(UserId),
    /// An API token without an owner, by its id.
    Program(String),
}

impl Holder {
    pub(super) fn of(caller: &Caller) -> Self {
        match &caller.identity {
            Identity::AdminToken => Self::AdminToken,
            Identity::Session { user, .. }
            | Identity::Token {
                owner: Some((user, _)),
                ..
            } => Self::User(*user),
            Identity::Token {
                id, owner: None, ..
            } => Self::Program(id.clone()),
        }
    }
}

/// The places of a process.
#[derive(Debug, Clone)]
pub(super) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    most_of_one: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    /// Only holders that have a place, so there are no more of them than places.
    by_holder: HashMap<Holder, usize>,
}

impl Places {
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Shared {
            most,
            most_of_one: most.div_ceil(PARTS),
            taken: Mutex::default(),
        }))
    }

    /// A place. It is given back when it is dropped.
    ///
    /// # Errors
    ///
    /// When all places are taken, or when this holder has a quarter of them.
    pub(super) fn take(&self, holder: Holder) -> Result<Place, Problem> {
        let (most, most_of_one) = (self.0.most, self.0.most_of_one);
        let mut taken = self.0.lock();
        if taken.total >= most {
            return Err(Problem::unavailable(format!(
                "{most} event streams are open at this server, which are all that it has; close others, or ask another scheduler"
            )));
        }
        let own = taken.by_holder.get(&holder).copied().unwrap_or(0);
        if own >= most_of_one {
            return Err(Problem::unavailable(format!(
                "{own} event streams of yours are open at this server, which are all that one user or token may have; close others, or ask another scheduler"
            )));
        }
        taken.total += 1;
        taken.by_holder.insert(holder.clone(), own + 1);
        drop(taken);
        Ok(Place {
            shared: Arc::clone(&self.0),
            holder,
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        // No code panics with the lock held, and the numbers are consistent after each change.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one stream.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<Shared>,
    holder: Holder,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.shared.lock();
        taken.total = taken.total.saturating_sub(1);
        let own = taken.by_holder.get(&self.holder).copied().unwrap_or(0);
        if own > 1 {
            taken.by_holder.insert(self.holder.clone(), own - 1);
        } else {
            taken.by_holder.remove(&self.holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use cueline_http::Peer;

    use super::*;
    use crate::access::Secret;

    fn program(id: &str) -> Holder {
        Holder::Program(id.to_owned())
    }

    #[track_caller]
    fn refused(places: &Places, holder: Holder, says: &str) {
        let problem = places.take(holder).expect_err("is refused");
        assert_eq!(problem.status, 503);
        assert!(problem.detail.contains(says), "{}", problem.detail);
    }

    #[test]
    fn one_holder_has_a_quarter_of_the_places_and_all_together_have_all() {
        let places = Places::new(8);
        let mut taken = Vec::new();
        for id in ["a", "b", "c", "d"] {
            for _ in 0..2 {
                taken.push(places.take(program(id)).expect("a place"));
            }
            let says = if id == "d" {
                "8 event"
            } else {
                "2 event streams of yours"
            };
            refused(&places, program(id), says);
        }
        refused(&places, Holder::AdminToken, "8 event streams are open");
        drop(taken.remove(0));
        refused(&places, program("b"), "of yours");
        taken.push(places.take(program("a")).expect("it is given back"));
        refused(&places, Holder::AdminToken, "8 event streams are open");
        drop(taken);
        assert!(places.0.lock().by_holder.is_empty(), "nothing is kept");
        assert_eq!(places.0.lock().total, 0);
    }

    #[test]
    fn a_single_place_is_for_any_holder() {
        let places = Places::new(1);
        let place = places.take(Holder::AdminToken).expect("a place");
        refused(&places, program("a"), "1 event");
        drop(place);
        assert!(places.take(program("a")).is_ok());
    }

    #[test]
    fn the_sessions_and_tokens_of_a_user_are_one_holder() {
        let holder = |identity: Identity| {
            let caller = Caller {
                identity,
                ..Caller::admin_token(Peer::UNKNOWN)
            };
            Holder::of(&caller)
        };
        let token = |id: &str, owner: Option<UserId>| Identity::Token {
            id: id.to_owned(),
            name: "x".to_owned(),
            owner: owner.map(|id| (id, "ann".to_owned())),
        };
        let session = Identity::Session {
            secret: Secret::random().expect("random bytes"),
            user: UserId(7),
            name: "ann".to_owned(),
        };
        let ann = Holder::User(UserId(7));
        assert_eq!(holder(session), ann);
        assert_eq!(holder(token("a", Some(UserId(7)))), ann);
        assert_eq!(holder(token("a", None)), program("a"));
        assert_ne!(holder(token("b", None)), program("a"));
        assert_eq!(holder(Identity::AdminToken), Holder::AdminToken);
    }
}
