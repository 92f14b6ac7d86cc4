//! Silences: for a time, alarms are recorded and not sent.

use serde::{Deserialize, Serialize};

use super::event::AlarmFacts;
use super::scope::AlarmScope;
use crate::name::{Namespace, RuleName};
use crate::time::Timestamp;

/// For a time, no messages about the alarms in its scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlarmSilence {
    /// Its namespace.
    pub namespace: Namespace,
    /// Only alarms of these rules, by their local names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Only alarms about these jobs.
    #[serde(flatten)]
    pub scope: AlarmScope,
    /// When it begins.
    pub from: Timestamp,
    /// When it ends.
    pub until: Timestamp,
    /// Why, for people.
    pub reason: String,
    /// Who.
    #[serde(default)]
    pub by: String,
}

impl AlarmSilence {
    /// Whether no message about an event of the rule is sent at `now`. An event from within the silence stays silent when
    /// the message would come after its end.
    pub fn covers(
        &self,
        rule: &RuleName,
        at: Timestamp,
        facts: &AlarmFacts,
        now: Timestamp,
    ) -> bool {
        let is_open = |at: Timestamp| self.from <= at && at < self.until;
        let names_rule =
            self.rules.is_empty() || self.rules.iter().any(|name| name == rule.local());
        rule.is_in(&self.namespace)
            && (is_open(at) || is_open(now))
            && names_rule
            && facts.is_in(&self.scope)
    }
}
