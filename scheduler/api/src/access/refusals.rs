//! Records refused requests in the audit log, within a bound.

use std::sync::{Mutex, PoisonError};

use axum::extract::{FromRequestParts as _, RawPathParams};
use axum::http::request::Parts;
use cueline_model::{Actor, GroupName, Namespace};
use cueline_store::{Audit, AuditResult, NewAuditEntry};
use tokio::time::Instant;

use super::caller::Caller;
use super::refusal_budget::RefusalBudget;
use super::rules::Rule;
use crate::ApiState;
use crate::namespace::InNamespace;

/// Entries about one kind of refusal.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<RefusalBudget>);

impl Refusals {
    /// Records a refusal, within the bound. If that fails, the refusal is answered all the same.
    pub(crate) async fn record(&self, audit: &dyn Audit, mut entry: NewAuditEntry) {
        let admitted = {
            let mut budget = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            budget.admit(Instant::now())
        };
        match admitted {
            None => return,
            Some(0) => {}
            Some(left_out) => {
                // First, because a long detail is cut.
                entry.detail = format!(
                    "{left_out} refusals before this one are not recorded; {}",
                    entry.detail
                );
            }
        }
        if let Err(error) = audit.record(&[entry]).await {
            tracing::warn!(%error, "failed to record a refused request; check the database if this continues");
        }
    }
}

/// Who asks for what. It becomes an entry if the request is refused.
#[derive(Debug)]
pub(super) struct Attempt {
    actor: Actor,
    action: &'static str,
    namespace: Option<Namespace>,
    group: Option<GroupName>,
    object: String,
}

impl Attempt {
    /// The request of this caller. Its row says which action it is, and whether its object belongs to a namespace.
    pub(super) async fn of(
        state: &ApiState,
        caller: &Caller,
        (action, rule): (&'static str, Rule),
        parts: &mut Parts,
    ) -> Self {
        // What cannot be read is refused as malformed, and not for want of a right.
        let namespace = InNamespace::from_request_parts(parts, state).await.ok();
        let namespace = namespace.filter(|_| rule.is_in_namespace());
        let params = RawPathParams::from_request_parts(parts, state).await.ok();
        let params = params.iter().flatten();
        let (group, object) = object(namespace.as_ref(), params);
        Self {
            actor: caller.actor.clone(),
            action,
            namespace: namespace.map(|namespace| namespace.0),
            group,
            object,
        }
    }

    /// The entry about the refusal.
    pub(super) fn refused(self, reason: &str) -> NewAuditEntry {
        NewAuditEntry {
            actor: self.actor,
            action: self.action.to_owned(),
            namespace: self.namespace,
            group: self.group,
            object: self.object,
            result: AuditResult::Refused,
            detail: reason.to_owned(),
            before: None,
            after: None,
        }
    }
}

/// The group and the object that the parameters of a path name, in the words of the entries about changes. Without
/// parameters, the object is empty.
fn object<'p>(
    namespace: Option<&InNamespace>,
    params: impl Iterator<Item = (&'p str, &'p str)>,
) -> (Option<GroupName>, String) {
    let (mut found, mut object) = (None, String::new());
    // A version is no object of its own.
    for (name, text) in params.filter(|(name, _)| *name != "version") {
        let part = match (name, namespace) {
            ("name", Some(namespace)) => namespace.job(text).ok().map(|job| job.to_string()),
            ("group", Some(namespace)) => {
                found = namespace.group(text).ok();
                found.as_ref().map(GroupName::to_string)
            }
            _ => None,
        };
        if !object.is_empty() {
            object.push('/');
        }
        object.push_str(part.as_deref().unwrap_or(text));
    }
    (found, object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_the_name_that_entries_about_changes_have() {
        let team = InNamespace("team-a".parse().expect("a namespace"));
        let named = |namespace, params: &[(&'static str, &'static str)]| {
            let (group, object) = object(namespace, params.iter().copied());
            (group.map(|group| group.to_string()), object)
        };
        let team = Some(&team);
        assert_eq!(
            named(team, &[("name", "job"), ("version", "7")]),
            (None, "team-a/job".to_owned())
        );
        assert_eq!(
            named(team, &[("group", "g"), ("executor", "one"), ("key", "0f")]),
            (Some("team-a/g".to_owned()), "team-a/g/one/0f".to_owned())
        );
        assert_eq!(named(team, &[("id", "7")]), (None, "7".to_owned()));
        assert_eq!(named(None, &[("name", "ann")]), (None, "ann".to_owned()));
        assert_eq!(named(team, &[]), (None, String::new()));
    }
}
