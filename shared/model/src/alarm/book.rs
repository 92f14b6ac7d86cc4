//! All alarm definitions of a store, and what they say about an event.

use super::channel::AlarmChannel;
use super::event::AlarmFacts;
use super::rule::AlarmRule;
use super::silence::AlarmSilence;
use crate::job::JobSpec;
use crate::name::{ChannelName, GroupName, JobName, RuleName};
use crate::time::Timestamp;

/// A definition with its identity in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    /// Its number.
    pub id: i64,
    /// Counts its changes, from 1.
    pub version: i64,
    /// What it says.
    pub spec: T,
}

/// All rules, channels and silences of a store at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AlarmBook {
    /// Counts the changes of all of them.
    pub revision: i64,
    /// The rules.
    pub rules: Vec<Stored<AlarmRule>>,
    /// The channels.
    pub channels: Vec<Stored<AlarmChannel>>,
    /// The silences that were not ended, also those that are over.
    pub silences: Vec<Stored<AlarmSilence>>,
}

impl AlarmBook {
    /// The rules about a job at present.
    pub fn about<'a>(&'a self, spec: &'a JobSpec) -> impl Iterator<Item = &'a Stored<AlarmRule>> {
        self.rules.iter().filter(|rule| rule.spec.watches(spec))
    }

    /// Whether a rule may ask for late runs, a backlog or executors of a job with this name and group. Its labels decide.
    pub fn may_ask_for_levels(&self, job: &JobName, group: &GroupName) -> bool {
        self.rules.iter().any(|rule| {
            let rule = &rule.spec;
            rule.asks_for_levels() && rule.scope.may_have(&rule.name.namespace(), job, group)
        })
    }

    /// The rule with this number.
    pub fn rule(&self, id: i64) -> Option<&Stored<AlarmRule>> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    /// The channel with this name.
    pub fn channel(&self, name: &ChannelName) -> Option<&Stored<AlarmChannel>> {
        self.channels
            .iter()
            .find(|channel| channel.spec.name == *name)
    }

    /// The silence that covers an event, if there is one.
    pub fn silence(
        &self,
        rule: &RuleName,
        at: Timestamp,
        facts: &AlarmFacts,
        now: Timestamp,
    ) -> Option<&Stored<AlarmSilence>> {
        let mut silences = self.silences.iter();
        silences.find(|silence| silence.spec.covers(rule, at, facts, now))
    }

    /// Whether a rule has a condition for which jobs and groups are looked at from time to time.
    pub fn has_levels(&self) -> bool {
        self.rules.iter().any(|rule| rule.spec.asks_for_levels())
    }
}
