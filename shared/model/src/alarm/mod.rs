//! Alarms: rules, the channels that messages go to, silences, and the decision which events follow from what happened.
//!
//! A rule names jobs and conditions. What fulfils a condition is an event. Stores write events in the transaction of what
//! raises them. Later, the events of a rule within one interval become one message to each channel of the rule.

mod book;
mod channel;
mod conditions;
mod ends;
mod event;
mod message;
mod rule;
mod scope;
mod silence;
mod template;

pub use book::{AlarmBook, Stored};
pub use channel::{
    AlarmChannel, ChannelKind, EmailChannel, HookChannel, Language, MAX_RECIPIENTS, SmtpTls,
};
pub use conditions::{JobLoad, LevelFound, groups_to_watch, levels, missed};
pub use ends::{EndsEvaluated, JobEnd, Streak, evaluate_ends};
pub use event::{AlarmFacts, ConditionKind, MAX_EVENT_MESSAGE_BYTES, NewAlarmEvent};
pub use message::{AlarmMessage, MAX_LISTED_EVENTS, MessageEvent, render};
pub use rule::{
    AlarmRule, Condition, DEFAULT_GROUP_INTERVAL, MAX_CONDITIONS, MAX_GROUP_INTERVAL,
    MAX_RULE_CHANNELS,
};
pub use scope::{AlarmScope, MAX_SCOPE_NAMES};
pub use silence::AlarmSilence;
pub use template::{MAX_TEMPLATE_BYTES, Template, TemplateError};
