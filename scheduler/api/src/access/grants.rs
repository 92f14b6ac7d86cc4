//! Which grants a caller may give to others.

use cueline_model::{Access, AccessScope, Grant, Right};
use cueline_store::MAX_GRANTS;
use serde_json::Value;

use super::caller::Caller;
use crate::body::{Fields, a_kind};
use crate::problem::Problem;

/// Where the grant counts.
fn scope(grant: &Grant) -> AccessScope {
    match (&grant.namespace, &grant.group) {
        (_, Some(group)) => AccessScope::Group(group.clone()),
        (Some(namespace), None) => AccessScope::Namespace(namespace.clone()),
        (None, None) => AccessScope::Cluster,
    }
}

/// Whether each right of the grant is allowed in all of its scope.
fn has_fully(access: &Access, grant: &Grant) -> bool {
    let scope = scope(grant);
    let included = |right: &Right| {
        grant.role.includes(*right) && (*right != Right::EditScripts || grant.scripts)
    };
    let mut rights = Right::ALL.into_iter().filter(included);
    rights.all(|right| access.allows(right, &scope))
}

/// Whether the caller may give the grant to others, and change users and tokens that have it.
fn may_give(access: &Access, grant: &Grant) -> bool {
    has_fully(access, grant) && access.allows(Right::ManageAccounts, &scope(grant))
}

/// Whether the caller may change a user or a token with these grants. One without grants belongs to no namespace, so only
/// an administrator of all namespaces may.
pub(crate) fn may_manage(access: &Access, grants: &[Grant]) -> bool {
    let is_administrator = access.allows(Right::ManageAccounts, &AccessScope::Cluster);
    (is_administrator || !grants.is_empty()) && grants.iter().all(|one| may_give(access, one))
}

/// Whether the caller may know of a user or a token with these grants.
pub(crate) fn may_see(access: &Access, grants: &[Grant]) -> bool {
    access.allows(Right::ManageAccounts, &AccessScope::Cluster) || may_manage(access, grants)
}

/// Refuses to give a grant that the caller may not give.
pub(crate) fn check_given(caller: &Caller, grants: &[Grant]) -> Result<(), Problem> {
    match grants.iter().find(|one| !may_give(&caller.access, one)) {
        None => Ok(()),
        Some(grant) => Err(not_own(
            grant,
            "do not have all of it and manage accounts there",
        )),
    }
}

/// Refuses grants of a user's own token that the user does not have.
pub(crate) fn check_own(caller: &Caller, grants: &[Grant]) -> Result<(), Problem> {
    match grants.iter().find(|one| !has_fully(&caller.access, one)) {
        None => Ok(()),
        Some(grant) => Err(not_own(grant, "do not have all of it")),
    }
}

fn not_own(grant: &Grant, why: &str) -> Problem {
    let place = match scope(grant) {
        AccessScope::Cluster => "in all namespaces".to_owned(),
        AccessScope::Namespace(namespace) => format!("in namespace {namespace}"),
        AccessScope::Group(group) => format!("in group {group}"),
    };
    let scripts = if grant.scripts { " with scripts" } else { "" };
    Problem::forbidden(format!(
        "you may not give the role {}{scripts} {place}: you {why}",
        grant.role
    ))
}

/// The field `grants`, if it is given.
pub(crate) fn read(fields: &mut Fields) -> Option<Vec<Grant>> {
    let list = match fields.take("grants")? {
        Value::Array(list) => list,
        other => {
            let message = format!("{} is given; give a list of grants", a_kind(&other));
            fields.record("grants", message);
            return None;
        }
    };
    if list.len() > MAX_GRANTS {
        let message = format!("{} are given; give at most {MAX_GRANTS}", list.len());
        fields.record("grants", message);
        return None;
    }
    let mut grants = Vec::with_capacity(list.len());
    for (i, value) in list.into_iter().enumerate() {
        let field = format!("grants[{i}]");
        match serde_json::from_value::<Grant>(value) {
            Ok(grant) => match contradiction(&grant) {
                None => grants.push(grant),
                Some(message) => fields.record(&field, message),
            },
            Err(error) => fields.record(&field, error.to_string()),
        }
    }
    Some(grants)
}

/// A group says its namespace itself. Another one beside it has no meaning.
fn contradiction(grant: &Grant) -> Option<String> {
    let (namespace, group) = (grant.namespace.as_ref()?, grant.group.as_ref()?);
    (group.namespace() != *namespace)
        .then(|| format!("group {group} is not in namespace {namespace}; leave out the namespace"))
}

#[cfg(test)]
mod tests {
    use cueline_model::Role;

    use super::*;

    fn grant(group: Option<&str>, role: Role, scripts: bool) -> Grant {
        Grant {
            namespace: None,
            group: group.map(|name| name.parse().expect("a name")),
            role,
            scripts,
        }
    }

    fn access(grants: &[Grant]) -> Access {
        Access::new(grants.to_vec())
    }

    #[test]
    fn an_administrator_of_a_group_gives_roles_in_that_group_only() {
        let own = access(&[grant(Some("a"), Role::Admin, false)]);
        for role in Role::ALL {
            assert!(may_give(&own, &grant(Some("a"), role, false)), "{role}");
            assert!(!may_give(&own, &grant(Some("b"), role, false)), "{role}");
            assert!(!may_give(&own, &grant(None, role, false)), "{role}");
        }
        assert!(!may_give(&own, &grant(Some("a"), Role::Author, true)));
        // Without effect: a viewer edits no jobs.
        assert!(may_give(&own, &grant(Some("a"), Role::Viewer, true)));
    }

    #[test]
    fn an_author_gives_nothing_to_others_and_all_of_it_to_own_tokens() {
        let own = access(&[grant(None, Role::Author, true)]);
        let given = grant(Some("a"), Role::Author, true);
        assert!(!may_give(&own, &given));
        assert!(has_fully(&own, &given));
        assert!(!has_fully(&own, &grant(Some("a"), Role::Admin, false)));
    }

    #[test]
    fn a_user_without_grants_or_with_grants_elsewhere_is_managed_by_no_group_administrator() {
        let own = access(&[grant(Some("a"), Role::Admin, true)]);
        assert!(!may_manage(&own, &[]));
        let both = [
            grant(Some("a"), Role::Viewer, false),
            grant(Some("b"), Role::Viewer, false),
        ];
        assert!(may_manage(&own, &both[..1]));
        assert!(!may_manage(&own, &both));
        assert!(!may_see(&own, &both));
        let everything = Access::everything();
        assert!(may_manage(&everything, &both) && may_manage(&everything, &[]));
    }
}
