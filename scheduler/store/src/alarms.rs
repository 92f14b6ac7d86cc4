//! Alarms: their definitions, the outbox of events and deliveries, and what is looked at from time to time.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::alarm::{AlarmFacts, ConditionKind, JobLoad, LevelFound, MessageEvent};
use cueline_model::{
    Actor, AlarmBook, AlarmChannel, AlarmRule, AlarmSilence, ChannelName, DurationMs, JobId,
    JobName, Namespace, RuleName, Timestamp,
};

use crate::error::StoreError;
use crate::job::Change;
use crate::precondition::{Precondition, Revision};

/// The most alarm rules of one namespace.
pub const MAX_RULES_OF_NAMESPACE: usize = 200;

/// The most alarm channels of one namespace.
pub const MAX_CHANNELS_OF_NAMESPACE: usize = 50;

/// The most silences of one namespace. Those that are over make room for new ones.
pub const MAX_SILENCES_OF_NAMESPACE: usize = 100;

/// The most events of one rule that wait for their message. While there are as many, further ones are not kept: the message
/// says that there are at least so many.
pub const MAX_WAITING_EVENTS: i64 = 1_000;

/// The most runs of a job that are counted for [`JobLoad`]. Of more, the oldest one may be left out.
pub const MAX_COUNTED_WAITING: i64 = 10_001;

/// A condition has ended after so many checks in which it did not hold.
pub const LEVEL_ENDS_AFTER: i64 = 3;

/// The longest answer of a channel that is kept, in bytes.
pub const MAX_ANSWER_BYTES: usize = 2_000;

/// The most sends of one channel that one call of [`AlarmStore::claim_alarm_deliveries`] begins. It is one if a message of the
/// channel is to be sent again.
pub const MAX_CLAIMED_OF_CHANNEL: usize = 4;

/// The most sends of one namespace at a time by one scheduler.
pub const MAX_SENDING_OF_NAMESPACE: usize = 16;

/// The most of these to channels with a message that is to be sent again.
pub const MAX_FAILING_OF_NAMESPACE: usize = 8;

/// The most sends of all namespaces to such channels at a time by one scheduler.
pub const MAX_FAILING: usize = 16;

/// The most messages of one channel that wait. Further ones are written as failed.
pub const MAX_WAITING_OF_CHANNEL: usize = 500;

/// Test messages of one channel that may wait beyond [`MAX_WAITING_OF_CHANNEL`]. Further ones are refused.
pub const MAX_MORE_TESTS: usize = 10;

/// For how long after its creation a message is sent again. One that was never sent is sent later, too.
pub const MAX_DELIVERY_AGE_MS: u64 = 2 * 3_600_000;

/// A definition that a person names.
#[derive(Debug, Clone, PartialEq)]
pub enum AlarmDefinition {
    /// A rule.
    Rule(AlarmRule),
    /// A channel.
    Channel(AlarmChannel),
}

/// The name of an [`AlarmDefinition`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlarmName {
    /// That of a rule.
    Rule(RuleName),
    /// That of a channel.
    Channel(ChannelName),
}

/// The change of one definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedAlarm {
    /// It afterwards.
    pub revision: Revision,
    /// What happened.
    pub change: Change,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmFate {
    /// It waits for its message, which is sent at this time at the latest.
    Waiting(Timestamp),
    /// It is in the message of these deliveries, which have this number in common.
    Sent(i64),
    /// This silence has kept it from being sent.
    Silenced(i64),
    /// Its rule was deleted or disabled before the message was written.
    Dropped,
}

/// An event as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlarmEvent {
    /// Its number.
    pub id: i64,
    /// When it happened.
    pub at: Timestamp,
    /// The rule.
    pub rule: RuleName,
    /// Which condition of the rule it fulfils.
    pub kind: ConditionKind,
    /// What is known.
    pub facts: AlarmFacts,
    /// What became of it.
    pub fate: AlarmFate,
}

/// The state of a delivery. Stores keep the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DeliveryState {
    /// It is to be sent, or sent again.
    Pending = 0,
    /// The channel has accepted it.
    Delivered = 1,
    /// It is not sent again.
    Failed = 2,
}

impl DeliveryState {
    /// The state with that number; a number of a newer program counts as failed.
    pub const fn from_code(code: i64) -> Self {
        match code {
            0 => Self::Pending,
            1 => Self::Delivered,
            _ => Self::Failed,
        }
    }

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
        }
    }
}

/// A message to one channel, with the answer of the last attempt to send it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlarmDelivery {
    /// Its number.
    pub id: i64,
    /// What the deliveries of one message have in common: [`AlarmFate::Sent`] of its events.
    pub batch: i64,
    /// The rule.
    pub rule: RuleName,
    /// The channel.
    pub channel: ChannelName,
    /// How many events the message is about.
    pub events: u64,
    /// When it was written.
    pub created_at: Timestamp,
    /// Its state.
    pub state: DeliveryState,
    /// How often it was sent.
    pub attempts: u32,
    /// When it is sent next, or sent again if its sender is gone.
    pub next_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// What the channel answered last, or why it could not be reached.
    pub answer: String,
}

/// Which events or deliveries to list: the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AlarmFilter {
    /// Only those of this namespace.
    pub namespace: Namespace,
    /// Only those of this rule.
    pub rule: Option<RuleName>,
    /// Only those about this job. Deliveries are not filtered by it.
    pub job: Option<JobName>,
    /// Only those with a smaller number.
    pub before: Option<i64>,
    /// At most so many.
    pub limit: usize,
}

/// A delivery that the caller sends.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedDelivery {
    /// Its number.
    pub id: i64,
    /// How often it was sent, this time included.
    pub attempt: u32,
    /// What its deliveries have in common. Receivers know a message that comes again by it.
    pub batch: i64,
    /// The rule.
    pub rule: RuleName,
    /// The name of the channel.
    pub channel_name: ChannelName,
    /// Whether a message of the channel is to be sent again.
    pub is_failing: bool,
    /// The channel; `None` if it was deleted, or if this program cannot read it.
    pub channel: Option<AlarmChannel>,
    /// How many events the message is about.
    pub count: u64,
    /// The first of them, at most [`MAX_LISTED_EVENTS`](cueline_model::alarm::MAX_LISTED_EVENTS).
    pub events: Vec<MessageEvent>,
}

/// A send in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendInProgress {
    /// The channel.
    pub channel: ChannelName,
    /// Its [`ClaimedDelivery::is_failing`].
    pub is_failing: bool,
}

/// How an attempt to send a delivery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendOutcome {
    /// What the channel answered, or why it could not be reached. It is cut to [`MAX_ANSWER_BYTES`].
    pub answer: String,
    /// What follows.
    pub then: AfterSend,
}

/// What follows an attempt to send a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterSend {
    /// The channel has accepted it.
    Delivered,
    /// It is sent again after so many milliseconds.
    Again(u64),
    /// It is given up.
    GiveUp,
}

/// The answer to [`AlarmStore::collect_alarms`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectedAlarms {
    /// How many events were looked at.
    pub events: usize,
    /// How many deliveries were written.
    pub deliveries: usize,
    /// How many of these deliveries are written as failed, because too many of their channel wait.
    pub refused: usize,
    /// How many events a silence has kept from being sent.
    pub silenced: usize,
}

/// A job whose runs that wait are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedJob {
    /// The job.
    pub id: JobId,
    /// By how much its runs are due after their fire times at most.
    pub jitter: DurationMs,
}

/// The answer to [`AlarmStore::note_alarm_levels`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NotedLevels {
    /// How many alarms were raised.
    pub raised: u64,
    /// How many conditions are noted now.
    pub noted: usize,
}

/// Alarms.
///
/// Events that follow from the end of a run are written by [`Store::ingest_reports`](crate::Store::ingest_reports), and
/// those about missed fire times by [`Store::fire_due`](crate::Store::fire_due), in the same transaction (G9). Each event of
/// a rule is written once. Events become deliveries, and a delivery is claimed by one scheduler at a time.
///
/// # Errors
///
/// As [`Store`](crate::Store).
#[async_trait]
pub trait AlarmStore: Send + Sync + 'static {
    /// All rules, channels and silences. One that this program cannot read is left out.
    async fn alarm_book(&self) -> Result<Arc<AlarmBook>, StoreError>;

    /// Creates or changes a rule or a channel. The channels of a rule must exist.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) beyond the bound of the namespace, and for a rule with an unknown channel.
    /// [`Precondition`](crate::ErrorKind::Precondition) if the condition is not met.
    async fn put_alarm(
        &self,
        definition: &AlarmDefinition,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<AppliedAlarm, StoreError>;

    /// Deletes a rule or a channel. Events of a deleted rule that wait are not sent.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if it does not exist, [`Conflict`](crate::ErrorKind::Conflict) for a channel
    /// that rules use. [`Precondition`](crate::ErrorKind::Precondition) if the condition is not met.
    async fn delete_alarm(
        &self,
        name: &AlarmName,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<(), StoreError>;

    /// Begins a silence, and returns its number.
    ///
    /// # Errors
    ///
    /// [`Conflict`](crate::ErrorKind::Conflict) beyond [`MAX_SILENCES_OF_NAMESPACE`].
    async fn add_silence(&self, spec: &AlarmSilence, by: &Actor) -> Result<i64, StoreError>;

    /// Ends a silence of a namespace.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if the namespace has no such silence.
    async fn end_silence(
        &self,
        namespace: &Namespace,
        id: i64,
        by: &Actor,
    ) -> Result<(), StoreError>;

    /// Writes a delivery of a test message, to be sent at once, and returns its number.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such channel, [`Conflict`](crate::ErrorKind::Conflict) beyond
    /// [`MAX_MORE_TESTS`].
    async fn test_channel(&self, channel: &ChannelName, by: &Actor) -> Result<i64, StoreError>;

    /// Turns events whose time has come into deliveries: all that wait of a rule become one message to each of its
    /// channels. Events that a silence covers are only marked. At most `limit` events are looked at. While another node
    /// does this, it does nothing. Deliveries beyond [`MAX_WAITING_OF_CHANNEL`] are written as failed.
    async fn collect_alarms(&self, limit: usize) -> Result<CollectedAlarms, StoreError>;

    /// Claims deliveries that are due, for `lease_ms`. When the lease has passed without
    /// [`settle_alarm_delivery`](Self::settle_alarm_delivery), they are due again. Those that were never sent come first.
    /// `sending` has the sends in progress of the caller. Their channels are left out, and they count for
    /// [`MAX_SENDING_OF_NAMESPACE`], [`MAX_FAILING_OF_NAMESPACE`] and [`MAX_FAILING`]. Deliveries older than
    /// [`MAX_DELIVERY_AGE_MS`] that were sent before are given up.
    async fn claim_alarm_deliveries(
        &self,
        lease_ms: u64,
        sending: &[SendInProgress],
        limit: usize,
    ) -> Result<Vec<ClaimedDelivery>, StoreError>;

    /// Writes how an attempt to send a delivery ended. Returns `false` if it is no longer at that attempt.
    async fn settle_alarm_delivery(
        &self,
        id: i64,
        attempt: u32,
        outcome: &SendOutcome,
    ) -> Result<bool, StoreError>;

    /// When the next event or delivery is due; `None` if there is none.
    async fn next_alarm_at(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Whether the caller is the one that looks at late runs, backlogs and groups, for `lease_ms` from now. `holder` names
    /// it.
    async fn hold_alarm_checks(&self, holder: &str, lease_ms: u64) -> Result<bool, StoreError>;

    /// The runs of these jobs that are due and have not started. Jobs without any are left out. The release of a claim
    /// postpones the due time, so the wait of a first attempt counts from its fire time and the jitter. A child has the fire
    /// time of its parent and a backfill one of the past, so their wait counts from the due time, and so does a retry's.
    async fn job_loads(&self, jobs: &[CountedJob]) -> Result<BTreeMap<i64, JobLoad>, StoreError>;

    /// Notes all conditions that hold at present. Those that did not hold before raise an alarm. A condition has ended when
    /// it was not among [`LEVEL_ENDS_AFTER`] calls in succession.
    async fn note_alarm_levels(&self, found: &[LevelFound]) -> Result<NotedLevels, StoreError>;

    /// Events, newest first.
    async fn alarm_events(&self, filter: &AlarmFilter) -> Result<Vec<AlarmEvent>, StoreError>;

    /// Deliveries, newest first.
    async fn alarm_deliveries(
        &self,
        filter: &AlarmFilter,
    ) -> Result<Vec<AlarmDelivery>, StoreError>;

    /// Deletes at most `limit` events, and as many deliveries, that ended more than `older_than_ms` ago. Returns the larger
    /// number.
    async fn prune_alarms(&self, older_than_ms: u64, limit: usize) -> Result<u64, StoreError>;
}
