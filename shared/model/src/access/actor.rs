//! Who made a change.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest name of an actor, in bytes. A longer one is cut.
pub const MAX_ACTOR_BYTES: usize = 256;

/// What kind of actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorKind {
    /// A person who is logged in.
    User,
    /// An API token, or the admin token of a server.
    Token,
    /// A scheduler.
    Node,
    /// A worker.
    Worker,
    /// A program that sends trigger requests over the broker. Its name is what the request says.
    Message,
    /// A kind that only a newer program knows. The name has the name of the kind in front.
    #[serde(skip)]
    Other,
}

impl ActorKind {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Token => "token",
            Self::Node => "node",
            Self::Worker => "worker",
            Self::Message => "message",
            Self::Other => "other",
        }
    }
}

/// Who made a change, and from where. Timelines and the audit log keep it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Actor {
    /// What kind of actor.
    pub kind: ActorKind,
    /// Its name, at most [`MAX_ACTOR_BYTES`].
    pub name: String,
    /// The network address that the request came from, or `socket` for the Unix socket of the standalone server.
    pub address: Option<String>,
}

impl Actor {
    /// An actor without an address.
    pub fn new(kind: ActorKind, name: impl Into<String>) -> Self {
        let mut name = name.into();
        name.truncate(name.floor_char_boundary(MAX_ACTOR_BYTES));
        Self {
            kind,
            name,
            address: None,
        }
    }

    /// The same actor, from this address.
    #[must_use]
    pub fn from_address(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }
}

/// `user alice`, without the address.
impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ActorKind::Other => f.write_str(&self.name),
            kind => write!(f, "{} {}", kind.as_str(), self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Actor, ActorKind, MAX_ACTOR_BYTES};

    #[test]
    fn a_long_name_is_cut_at_a_whole_character() {
        let actor = Actor::new(ActorKind::User, "€".repeat(MAX_ACTOR_BYTES));
        assert_eq!(actor.name, "€".repeat(MAX_ACTOR_BYTES / 3));
        assert_eq!(
            Actor::new(ActorKind::User, "alice").to_string(),
            "user alice"
        );
    }

    #[test]
    fn an_unknown_kind_is_displayed_as_it_was_stored() {
        let actor = Actor::new(ActorKind::Other, "robot r2");
        assert_eq!(actor.to_string(), "robot r2");
        assert!(serde_json::from_str::<ActorKind>("\"other\"").is_err());
    }
}
