//! Answers about alarms.

use cueline_model::alarm::{AlarmFacts, ConditionKind, Stored};
use cueline_model::{
    AlarmChannel, AlarmRule, AlarmSilence, ChannelName, GroupName, JobName, RuleName, RunId,
    RunState, Timestamp,
};
use cueline_store::{AlarmDelivery, AlarmEvent, AlarmFate, Change};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

/// An alarm rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RuleView {
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub name: RuleName,
    /// Counts its changes, from 1.
    pub version: i64,
    /// Its definition.
    #[schema(value_type = openapi::GivenAlarmRule)]
    pub definition: AlarmRule,
}

impl From<&Stored<AlarmRule>> for RuleView {
    fn from(stored: &Stored<AlarmRule>) -> Self {
        Self {
            name: stored.spec.name.clone(),
            version: stored.version,
            definition: stored.spec.clone(),
        }
    }
}

/// The alarm rules of a namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RuleList {
    /// The rules, by name.
    pub rules: Vec<RuleView>,
}

/// An alarm channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChannelView {
    /// Its name.
    #[schema(value_type = openapi::GivenName)]
    pub name: ChannelName,
    /// Counts its changes, from 1.
    pub version: i64,
    /// Its definition, with the names of its secrets.
    #[schema(value_type = openapi::GivenAlarmChannel)]
    pub definition: AlarmChannel,
}

impl From<&Stored<AlarmChannel>> for ChannelView {
    fn from(stored: &Stored<AlarmChannel>) -> Self {
        Self {
            name: stored.spec.name.clone(),
            version: stored.version,
            definition: stored.spec.clone(),
        }
    }
}

/// The alarm channels of a namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChannelList {
    /// The channels, by name.
    pub channels: Vec<ChannelView>,
}

/// The change of a rule or a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppliedAlarmView {
    /// Its name, qualified.
    #[schema(value_type = openapi::GivenName)]
    pub name: String,
    /// Its version afterwards.
    pub version: i64,
    /// What happened.
    #[schema(value_type = openapi::Change)]
    pub change: Change,
}

/// A deleted rule or channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AlarmRef {
    /// Its name, qualified.
    #[schema(value_type = openapi::GivenName)]
    pub name: String,
}

/// A test message that will be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChannelTest {
    /// The number of its delivery, which has the answer.
    pub delivery: i64,
}

/// A silence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SilenceView {
    /// Its number.
    pub id: i64,
    /// Who began it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When it begins.
    #[schema(value_type = openapi::Instant)]
    pub from: Timestamp,
    /// When it ends.
    #[schema(value_type = openapi::Instant)]
    pub until: Timestamp,
    /// Only alarms of these rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Only alarms about these jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
    /// Only alarms about jobs of these groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Only alarms about jobs with these labels.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub labels: std::collections::BTreeMap<String, String>,
}

impl From<&Stored<AlarmSilence>> for SilenceView {
    fn from(stored: &Stored<AlarmSilence>) -> Self {
        let spec = stored.spec.clone();
        Self {
            id: stored.id,
            by: spec.by,
            reason: spec.reason,
            from: spec.from,
            until: spec.until,
            rules: spec.rules,
            jobs: spec.scope.jobs,
            groups: spec.scope.groups,
            labels: spec.scope.labels,
        }
    }
}

/// The silences of a namespace that are not over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SilenceList {
    /// The silences, in the order in which they were added.
    pub silences: Vec<SilenceView>,
    /// The time of the answer.
    #[schema(value_type = openapi::Instant)]
    pub now: Timestamp,
}

/// A silence that began or ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SilenceRef {
    /// Its number.
    pub id: i64,
}

/// An alarm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AlarmView {
    /// Its number.
    pub id: i64,
    /// When it happened.
    #[schema(value_type = openapi::Instant)]
    pub at: Timestamp,
    /// The rule.
    #[schema(value_type = openapi::GivenName)]
    pub rule: RuleName,
    /// Which condition of the rule it fulfils.
    #[schema(value_type = openapi::AlarmCondition)]
    pub condition: ConditionKind,
    /// The job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::GivenName>, nullable = false)]
    pub job: Option<JobName>,
    /// The group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::GivenName>, nullable = false)]
    pub group: Option<GroupName>,
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, nullable = false)]
    pub run: Option<RunId>,
    /// The state of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::RunState>, nullable = false)]
    pub state: Option<RunState>,
    /// How many runs failed in a row, fire times were missed, or runs wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub count: Option<u64>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Instant>, nullable = false)]
    pub since: Option<Timestamp>,
    /// The message of the run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What became of it: `waiting`, `sent`, `silenced`, or `dropped` because its rule was deleted or disabled.
    #[schema(value_type = openapi::AlarmFate)]
    pub fate: String,
    /// When its message is sent at the latest, while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Instant>, nullable = false)]
    pub send_at: Option<Timestamp>,
    /// The number that its deliveries have in common, once it is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub batch: Option<i64>,
    /// The silence that has kept it from being sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub silence: Option<i64>,
}

impl From<AlarmEvent> for AlarmView {
    fn from(event: AlarmEvent) -> Self {
        let (fate, send_at, batch, silence) = match event.fate {
            AlarmFate::Waiting(at) => ("waiting", Some(at), None, None),
            AlarmFate::Sent(batch) => ("sent", None, Some(batch), None),
            AlarmFate::Silenced(silence) => ("silenced", None, None, Some(silence)),
            AlarmFate::Dropped => ("dropped", None, None, None),
        };
        let AlarmFacts {
            job,
            group,
            run,
            state,
            count,
            since,
            message,
            ..
        } = event.facts;
        Self {
            id: event.id,
            at: event.at,
            rule: event.rule,
            condition: event.kind,
            job,
            group,
            run,
            state,
            count,
            since,
            message,
            fate: fate.to_owned(),
            send_at,
            batch,
            silence,
        }
    }
}

/// A page of alarms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AlarmPage {
    /// The alarms, newest first.
    pub alarms: Vec<AlarmView>,
    /// `after` of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
}

/// A message to one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryView {
    /// Its number.
    pub id: i64,
    /// The number that the deliveries of one message have in common. Webhooks get it in `Cueline-Delivery`.
    pub batch: i64,
    /// The rule.
    #[schema(value_type = openapi::GivenName)]
    pub rule: RuleName,
    /// The channel.
    #[schema(value_type = openapi::GivenName)]
    pub channel: ChannelName,
    /// How many alarms the message is about.
    pub alarms: u64,
    /// When it was written.
    #[schema(value_type = openapi::Instant)]
    pub created_at: Timestamp,
    /// `pending`, `delivered`, or `failed` because it is not sent again.
    #[schema(value_type = openapi::AlarmDeliveryState)]
    pub state: String,
    /// How often it was sent.
    pub attempts: u32,
    /// When it is sent next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Instant>, nullable = false)]
    pub next_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Instant>, nullable = false)]
    pub ended_at: Option<Timestamp>,
    /// What the channel answered last, or why it could not be reached.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub answer: String,
}

impl From<AlarmDelivery> for DeliveryView {
    fn from(delivery: AlarmDelivery) -> Self {
        Self {
            id: delivery.id,
            batch: delivery.batch,
            rule: delivery.rule,
            channel: delivery.channel,
            alarms: delivery.events,
            created_at: delivery.created_at,
            state: delivery.state.as_str().to_owned(),
            attempts: delivery.attempts,
            next_at: delivery.next_at,
            ended_at: delivery.ended_at,
            answer: delivery.answer,
        }
    }
}

/// A page of deliveries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryPage {
    /// The deliveries, newest first.
    pub deliveries: Vec<DeliveryView>,
    /// `after` of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
}
