//! Who may do what: roles, the rights they include, and one decision for every request.
//!
//! A request needs one right in one scope. Whoever sends it has grants. [`Access::allows`] is the only decision, and it
//! denies by default.

mod actor;
mod role;

pub use actor::{Actor, ActorKind, MAX_ACTOR_BYTES};
pub use role::{Right, Role, UnknownRole};

use serde::{Deserialize, Serialize};

use crate::name::{GroupName, JobName, Namespace};

/// A role in a namespace, or in one group of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The namespace; `None` for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// The group; `None` for all groups of the namespace. It says its namespace itself, so `namespace` is `None` or the
    /// same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// The role.
    pub role: Role,
    /// Whether jobs with scripts and commands, and HTTP jobs with secrets, may be edited. It has an effect only with a role
    /// that may edit jobs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scripts: bool,
}

impl Grant {
    /// Everything, everywhere.
    pub fn everything() -> Self {
        Self {
            namespace: None,
            group: None,
            role: Role::Admin,
            scripts: true,
        }
    }

    /// Whether the grant covers the scope.
    pub fn covers(&self, scope: &Scope) -> bool {
        match (&self.namespace, &self.group, scope) {
            (None, None, _) => true,
            (Some(own), None, Scope::Namespace(asked)) => own == asked,
            (Some(own), None, Scope::Group(asked)) => *own == asked.namespace(),
            (_, Some(own), Scope::Group(asked)) => own == asked,
            (Some(_), _, Scope::Cluster) | (_, Some(_), Scope::Cluster | Scope::Namespace(_)) => {
                false
            }
        }
    }

    /// The whole of what the grant covers.
    fn scope(&self) -> Scope {
        match (&self.namespace, &self.group) {
            (_, Some(group)) => Scope::Group(group.clone()),
            (Some(namespace), None) => Scope::Namespace(namespace.clone()),
            (None, None) => Scope::Cluster,
        }
    }

    /// Whether the grant counts anywhere in the namespace.
    fn reaches(&self, namespace: &Namespace) -> bool {
        match (&self.namespace, &self.group) {
            (_, Some(group)) => group.is_in(namespace),
            (Some(own), None) => own == namespace,
            (None, None) => true,
        }
    }

    fn includes(&self, right: Right) -> bool {
        self.role.includes(right) && (right != Right::EditScripts || self.scripts)
    }
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All namespaces, or what belongs to none: schedulers, users, dead letters without a verified origin.
    Cluster,
    /// All groups of a namespace.
    Namespace(Namespace),
    /// One group, with its jobs, runs, executors and queues.
    Group(GroupName),
}

impl Scope {
    /// The scope of all jobs in the job's namespace.
    pub fn around_job(job: &JobName) -> Self {
        Self::Namespace(job.namespace())
    }
}

/// The grants of a user, a token or a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    grants: Vec<Grant>,
    /// The grants of a token count only where its owner's count too.
    within: Option<Vec<Grant>>,
}

impl Access {
    /// What these grants allow.
    pub fn new(grants: Vec<Grant>) -> Self {
        Self {
            grants,
            within: None,
        }
    }

    /// What a token with `grants` allows while its owner has `owner`.
    pub fn of_token(grants: Vec<Grant>, owner: Vec<Grant>) -> Self {
        Self {
            grants,
            within: Some(owner),
        }
    }

    /// Everything, everywhere.
    pub fn everything() -> Self {
        Self::new(vec![Grant::everything()])
    }

    /// Whether `right` is granted in the whole of `scope`.
    pub fn allows(&self, right: Right, scope: &Scope) -> bool {
        let granted = |grants: &[Grant]| {
            grants
                .iter()
                .any(|grant| grant.covers(scope) && grant.includes(right))
        };
        granted(&self.grants) && self.within.as_deref().is_none_or(granted)
    }

    /// Where `right` is granted. What is in none of these scopes is not.
    pub fn scopes(&self, right: Right) -> Vec<Scope> {
        let grants = self.grants.iter().chain(self.within.iter().flatten());
        let mut scopes = Vec::new();
        for grant in grants.filter(|grant| grant.includes(right)) {
            let scope = grant.scope();
            // Of two grants that bound each other, the narrower one counts.
            if self.allows(right, &scope) && !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        scopes
    }

    /// Whether `right` is granted anywhere. A list answers with what is allowed of it then; otherwise it is refused.
    pub fn allows_somewhere(&self, right: Right) -> bool {
        let granted = |grants: &[Grant]| grants.iter().any(|grant| grant.includes(right));
        granted(&self.grants) && self.within.as_deref().is_none_or(granted)
    }

    /// Whether `right` is granted anywhere in the namespace. A list of the namespace answers with what is allowed of it
    /// then; otherwise it is refused.
    pub fn allows_somewhere_in(&self, right: Right, namespace: &Namespace) -> bool {
        let granted = |grants: &[Grant]| {
            grants
                .iter()
                .any(|grant| grant.reaches(namespace) && grant.includes(right))
        };
        granted(&self.grants) && self.within.as_deref().is_none_or(granted)
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, Grant, Right, Role, Scope};
    use crate::name::{GroupName, Namespace};

    fn group(text: &str) -> GroupName {
        text.parse().expect("a valid name")
    }

    fn namespace(text: &str) -> Namespace {
        text.parse().expect("a valid name")
    }

    fn grant(of: Option<&str>, group_name: Option<&str>, role: Role) -> Grant {
        Grant {
            namespace: of.map(namespace),
            group: group_name.map(group),
            role,
            scripts: false,
        }
    }

    #[test]
    fn without_grants_nothing_is_allowed() {
        for right in Right::ALL {
            let none = Access::default();
            assert!(!none.allows(right, &Scope::Cluster), "{right:?}");
            assert!(!none.allows(right, &Scope::Group(group("default"))));
            assert!(!none.allows_somewhere(right));
        }
    }

    #[test]
    fn a_grant_reaches_no_further_than_its_namespace_and_group() {
        let billing = Access::new(vec![grant(None, Some("billing"), Role::Admin)]);
        assert!(billing.allows(Right::EditJobs, &Scope::Group(group("billing"))));
        assert!(!billing.allows(Right::Read, &Scope::Group(group("default"))));
        let whole = Scope::Namespace(Namespace::default());
        assert!(!billing.allows(Right::Read, &whole));
        assert!(!billing.allows(Right::Read, &Scope::Cluster));

        let own = Access::new(vec![grant(Some("default"), None, Role::Viewer)]);
        assert!(own.allows(Right::Read, &whole));
        assert!(own.allows(Right::Read, &Scope::Group(group("billing"))));
        assert!(!own.allows(Right::Read, &Scope::Namespace(namespace("other"))));
        assert!(!own.allows(Right::Operate, &whole));
        assert!(!own.allows(Right::Read, &Scope::Cluster));
    }

    #[test]
    fn the_scopes_of_a_right_are_those_where_token_and_owner_have_it() {
        let own = vec![
            grant(Some("default"), None, Role::Viewer),
            grant(None, Some("team-a/x"), Role::Viewer),
        ];
        let owner = vec![
            grant(None, Some("billing"), Role::Viewer),
            grant(Some("team-a"), None, Role::Viewer),
        ];
        let token = Access::of_token(own, owner);
        let expected = [
            Scope::Group(group("team-a/x")),
            Scope::Group(group("billing")),
        ];
        assert_eq!(token.scopes(Right::Read), expected);
        assert_eq!(token.scopes(Right::EditJobs), []);
        let all = Access::everything();
        assert_eq!(all.scopes(Right::Read), [Scope::Cluster]);
    }

    #[test]
    fn a_grant_counts_somewhere_in_the_namespaces_that_it_reaches() {
        let (default, team) = (Namespace::default(), namespace("team-a"));
        for (own, expected) in [
            (grant(None, None, Role::Viewer), (true, true)),
            (grant(Some("team-a"), None, Role::Viewer), (false, true)),
            (
                grant(None, Some("team-a/billing"), Role::Viewer),
                (false, true),
            ),
            (grant(None, Some("billing"), Role::Viewer), (true, false)),
        ] {
            let access = Access::new(vec![own.clone()]);
            let found = |namespace| access.allows_somewhere_in(Right::Read, namespace);
            assert_eq!((found(&default), found(&team)), expected, "{own:?}");
            assert!(!access.allows_somewhere_in(Right::Operate, &team));
            let elsewhere = grant(Some("team-b"), None, Role::Admin);
            let token = Access::of_token(vec![own], vec![elsewhere]);
            assert!(!token.allows_somewhere_in(Right::Read, &team));
        }
    }

    #[test]
    fn scripts_are_a_right_of_their_own() {
        let mut edits = grant(None, None, Role::Admin);
        let scope = Scope::Group(group("default"));
        assert!(!Access::new(vec![edits.clone()]).allows(Right::EditScripts, &scope));
        edits.scripts = true;
        assert!(Access::new(vec![edits.clone()]).allows(Right::EditScripts, &scope));
        edits.role = Role::Operator;
        assert!(!Access::new(vec![edits]).allows(Right::EditScripts, &scope));
    }

    #[test]
    fn a_token_never_may_more_than_its_owner() {
        let all = vec![Grant::everything()];
        let viewer = vec![grant(None, None, Role::Viewer)];
        let scope = Scope::Group(group("default"));
        for (token, owner) in [(&all, &viewer), (&viewer, &all)] {
            let access = Access::of_token(token.clone(), owner.clone());
            assert!(access.allows(Right::Read, &scope));
            assert!(!access.allows(Right::Operate, &scope));
            assert!(!access.allows_somewhere(Right::Operate));
        }
    }
}
