//! Which grants follow from the groups that a provider says. Pure.

use cueline_model::Grant;
use cueline_store::MAX_GRANTS;

/// The most rules of a mapping.
pub const MAX_GRANT_RULES: usize = 1_000;

/// Who is in this group of the provider has this grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRule {
    /// The group, exactly as the claim has it.
    pub group_claim: String,
    /// What follows from it.
    pub grant: Grant,
}

/// Rules from groups of the provider to grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantMapping(Vec<GrantRule>);

/// Why a mapping cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// There are no rules.
    #[error("there is no [[grant]]; at least one is expected")]
    Empty,
    /// There are too many rules.
    #[error("{0} rules given; at most {MAX_GRANT_RULES} are expected")]
    TooManyRules(usize),
    /// A rule has an empty group.
    #[error("group_claim is empty; the name of a group of the provider is expected")]
    EmptyGroup,
    /// The group of a grant is in another namespace than the grant.
    #[error(
        "the rule of {group_claim:?} has the namespace {namespace} and a group of another one; leave out the namespace"
    )]
    Contradiction {
        /// The group of the provider.
        group_claim: String,
        /// The namespace of the rule.
        namespace: String,
    },
    /// More grants follow from the groups of a user than the user may have.
    #[error("{0} grants follow from the user's groups; a user has at most {MAX_GRANTS}")]
    TooManyGrants(usize),
}

impl GrantMapping {
    /// A mapping with these rules. A grant for a group keeps no namespace beside it, because the group says its own.
    ///
    /// # Errors
    ///
    /// When there are none or more than [`MAX_GRANT_RULES`], or when one of them is not valid.
    pub fn new(mut rules: Vec<GrantRule>) -> Result<Self, MappingError> {
        if rules.is_empty() {
            return Err(MappingError::Empty);
        }
        if rules.len() > MAX_GRANT_RULES {
            return Err(MappingError::TooManyRules(rules.len()));
        }
        for rule in &mut rules {
            if rule.group_claim.is_empty() {
                return Err(MappingError::EmptyGroup);
            }
            if let (Some(namespace), Some(group)) = (&rule.grant.namespace, &rule.grant.group) {
                if !group.is_in(namespace) {
                    return Err(MappingError::Contradiction {
                        group_claim: rule.group_claim.clone(),
                        namespace: namespace.to_string(),
                    });
                }
                // One form, so that two rules for one group give one grant.
                rule.grant.namespace = None;
            }
        }
        Ok(Self(rules))
    }

    /// The grants of a user with these groups, in the order of the rules, each once.
    ///
    /// # Errors
    ///
    /// When there are more than a user may have.
    pub(crate) fn grants(&self, groups: &[String]) -> Result<Vec<Grant>, MappingError> {
        let mut grants: Vec<Grant> = Vec::new();
        for rule in &self.0 {
            if groups.contains(&rule.group_claim) && !grants.contains(&rule.grant) {
                grants.push(rule.grant.clone());
            }
        }
        if grants.len() > MAX_GRANTS {
            return Err(MappingError::TooManyGrants(grants.len()));
        }
        Ok(grants)
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::Role;

    use super::*;

    fn grant(group: Option<&str>, role: Role) -> Grant {
        Grant {
            namespace: None,
            group: group.map(|name| name.parse().expect("a name")),
            role,
            scripts: false,
        }
    }

    fn rule(group_claim: &str, grant: Grant) -> GrantRule {
        GrantRule {
            group_claim: group_claim.to_owned(),
            grant,
        }
    }

    fn groups(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn grants_follow_from_the_groups_in_the_order_of_the_rules() {
        let mapping = GrantMapping::new(vec![
            rule("admins", grant(None, Role::Admin)),
            rule("billing", grant(Some("billing"), Role::Operator)),
            rule("all", grant(None, Role::Viewer)),
            rule("watchers", grant(None, Role::Viewer)),
        ]);
        let mapping = mapping.expect("a mapping");
        let of = |names: &[&str]| mapping.grants(&groups(names)).expect("few grants");
        assert_eq!(
            of(&["all", "billing", "watchers", "unknown"]),
            [
                grant(Some("billing"), Role::Operator),
                grant(None, Role::Viewer)
            ]
        );
        for none in [
            &[][..],
            &["unknown"],
            &["ADMINS"],
            &["admins "],
            &["/admins"],
        ] {
            assert_eq!(of(none), [], "{none:?}");
        }
    }

    #[test]
    fn a_group_outside_of_default_is_qualified_and_keeps_no_namespace_beside_it() {
        let qualified = grant(Some("team-b/billing"), Role::Operator);
        let with_namespace = Grant {
            namespace: Some("team-b".parse().expect("a name")),
            ..qualified.clone()
        };
        let whole_namespace = Grant {
            group: None,
            ..with_namespace.clone()
        };
        let mapping = GrantMapping::new(vec![
            rule("billing", with_namespace),
            rule("billing", qualified.clone()),
            rule("team", whole_namespace.clone()),
        ]);
        let mapping = mapping.expect("a mapping");
        assert_eq!(
            mapping.grants(&groups(&["billing", "team"])),
            Ok(vec![qualified, whole_namespace])
        );
    }

    #[test]
    fn a_mapping_without_rules_or_with_a_contradiction_is_refused() {
        assert_eq!(GrantMapping::new(Vec::new()), Err(MappingError::Empty));
        let empty = rule("", grant(None, Role::Admin));
        assert_eq!(
            GrantMapping::new(vec![empty]),
            Err(MappingError::EmptyGroup)
        );
        let mut other = grant(Some("billing"), Role::Viewer);
        other.namespace = Some("team-b".parse().expect("a name"));
        let refused = GrantMapping::new(vec![rule("x", other)]).expect_err("a contradiction");
        assert!(refused.to_string().contains("team-b"), "{refused}");
    }

    #[test]
    fn more_grants_than_a_user_may_have_are_refused() {
        let rules = (0..=MAX_GRANTS).map(|i| {
            let group = format!("group-{i}");
            rule("all", grant(Some(&group), Role::Viewer))
        });
        let mapping = GrantMapping::new(rules.collect()).expect("a mapping");
        assert_eq!(
            mapping.grants(&groups(&["all"])),
            Err(MappingError::TooManyGrants(MAX_GRANTS + 1))
        );
        let rules = vec![rule("all", grant(None, Role::Viewer)); MAX_GRANT_RULES + 1];
        assert_eq!(
            GrantMapping::new(rules),
            Err(MappingError::TooManyRules(MAX_GRANT_RULES + 1))
        );
    }
}
