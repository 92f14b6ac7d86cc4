//! Who sends a request, and what they may do.

use cueline_http::{Peer, PeerAddress};
use cueline_model::{Access, AccessScope, Actor, ActorKind, Grant, GroupName, Namespace, Right};
use cueline_store::UserId;

use super::secret::Secret;
use crate::problem::Problem;

/// How the sender has proven who they are.
#[derive(Debug, Clone)]
pub(crate) enum Identity {
    /// By the admin token of the server.
    AdminToken,
    /// By an API token.
    Token {
        id: String,
        name: String,
        owner: Option<(UserId, String)>,
    },
    /// By a session.
    Session {
        secret: Secret,
        user: UserId,
        name: String,
    },
}

/// The sender of a request. Each request that needs a right has it as an extension.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// For timelines and the audit log.
    pub(crate) actor: Actor,
    /// What the sender may do.
    pub(crate) access: Access,
    /// The grants of the user or of the token.
    pub(crate) grants: Vec<Grant>,
    /// The grants of the token's owner, which bound those of the token.
    pub(crate) owner_grants: Option<Vec<Grant>>,
    pub(crate) identity: Identity,
    pub(crate) peer: Peer,
}

impl Caller {
    pub(crate) fn admin_token(peer: Peer) -> Self {
        Self {
            actor: actor(ActorKind::Token, "admin", peer.address),
            access: Access::everything(),
            grants: vec![Grant::everything()],
            owner_grants: None,
            identity: Identity::AdminToken,
            peer,
        }
    }

    /// Refuses the request unless the caller has the right in the whole scope.
    pub(crate) fn require(&self, right: Right, scope: &AccessScope) -> Result<(), Problem> {
        if self.access.allows(right, scope) {
            return Ok(());
        }
        Err(Problem::forbidden(missing(right, scope)))
    }

    /// Whether the caller has the right in this group.
    pub(crate) fn may(&self, right: Right, group: &GroupName) -> bool {
        self.access
            .allows(right, &AccessScope::Group(group.clone()))
    }

    /// Whether the caller has the right in all namespaces.
    pub(crate) fn may_everywhere(&self, right: Right) -> bool {
        self.access.allows(right, &AccessScope::Cluster)
    }

    /// Refuses a list of the namespace, or of all namespaces for `None`, if the caller has the right nowhere in it. The
    /// list leaves out the entries for which the right is missing.
    pub(crate) fn require_somewhere(
        &self,
        right: Right,
        listed: Option<&Namespace>,
    ) -> Result<(), Problem> {
        let is_allowed = match listed {
            Some(namespace) => self.access.allows_somewhere_in(right, namespace),
            None => self.access.allows_somewhere(right),
        };
        if is_allowed {
            return Ok(());
        }
        let place = match listed {
            Some(namespace) => format!("namespace {namespace}"),
            None => "any namespace".to_owned(),
        };
        Err(Problem::forbidden(format!(
            "you may not {} in {place}",
            right.describe()
        )))
    }

    /// The scopes to which a list of the namespace, or of all namespaces for `None`, is limited for the caller. `None` if
    /// the caller may read all of it.
    pub(crate) fn readable(&self, listed: Option<&Namespace>) -> Option<Vec<AccessScope>> {
        self.limited(Right::Read, listed)
    }

    /// The scopes to which a request about the namespace, or about all namespaces for `None`, is limited because the caller
    /// has the right there only. `None` if the caller has it in all of it.
    pub(crate) fn limited(
        &self,
        right: Right,
        listed: Option<&Namespace>,
    ) -> Option<Vec<AccessScope>> {
        let whole = listed
            .cloned()
            .map_or(AccessScope::Cluster, AccessScope::Namespace);
        let is_unlimited = self.access.allows(right, &whole);
        (!is_unlimited).then(|| self.access.scopes(right))
    }

    /// The user who is logged in, or who owns the token.
    pub(crate) fn user(&self) -> Option<(UserId, &str)> {
        match &self.identity {
            Identity::AdminToken | Identity::Token { owner: None, .. } => None,
            Identity::Token {
                owner: Some((id, name)),
                ..
            } => Some((*id, name)),
            Identity::Session { user, name, .. } => Some((*user, name)),
        }
    }

    /// Whether this is the user with that number. Names are no proof: the store alone says which of them are the same.
    pub(crate) fn is_user(&self, user: UserId) -> bool {
        self.user().is_some_and(|(own, _)| own == user)
    }
}

/// The words of a refusal: the right and the scope where it is missing.
pub(crate) fn missing(right: Right, scope: &AccessScope) -> String {
    let right = right.describe();
    match scope {
        AccessScope::Cluster => format!("you may not {right} in all namespaces"),
        AccessScope::Namespace(namespace) => {
            format!("you may not {right} in namespace {namespace}")
        }
        AccessScope::Group(group) => format!("you may not {right} in group {group}"),
    }
}

/// An actor at the other end of this connection.
pub(crate) fn actor(kind: ActorKind, name: &str, address: PeerAddress) -> Actor {
    let actor = Actor::new(kind, name);
    match address {
        PeerAddress::Unknown => actor,
        known => actor.from_address(known.to_string()),
    }
}
