//! Jobs, schedules, policies and the state machine of runs: pure data and pure decisions.
//!
//! Nothing here reads a clock, does I/O or knows tokio. `now` is always an argument, so tests can check every decision
//! by a function call. `docs/GLOSSARY.md` defines the terms.

pub mod access;
pub mod alarm;
pub mod attempt;
pub mod backfill;
pub mod conclude;
pub mod crontab;
pub mod decode;
pub mod duration;
pub mod exclusion;
pub mod executor;
pub mod flow;
pub mod handler;
pub mod import;
#[allow(
    missing_docs,
    reason = "serde derives two functions of JobSpec that cannot have docs"
)]
pub mod job;
pub mod limit;
pub mod name;
mod nearest;
pub mod policy;
pub mod preview;
pub mod retention;
pub mod route;
pub mod run;
pub mod schedule;
pub mod script;
pub mod secret;
pub mod selector;
pub mod store_id;
pub mod time;

pub use access::{Access, Actor, ActorKind, Grant, Right, Role, Scope as AccessScope};
pub use alarm::{AlarmBook, AlarmChannel, AlarmRule, AlarmSilence};
pub use attempt::{AttemptEvent, AttemptId, LogLine, LogStream};
pub use conclude::{Conclusion, RunFacts, conclude};
pub use duration::DurationMs;
pub use exclusion::{Calendar, CalendarSpec, Exclusions, FireRules, MaintenanceWindow, WindowSpec};
pub use executor::{ExecutorId, Heartbeat, Session, Weight};
pub use flow::{FireState, ParentState};
pub use handler::HandlerSpec;
pub use job::{After, AfterOn, Job, JobId, JobSpec, Parents};
pub use limit::{Concurrency, Rate, RateLimit, RatePer, RateWindow};
pub use name::{
    CalendarName, ChannelName, ExecutorName, GroupName, JobName, NameError, Namespace, RuleName,
    ScriptName,
};
pub use policy::{Backoff, Block, Fence, Misfire, MisfirePolicy, OnLost, Retry, Scope};
pub use retention::{Retention, RetentionOfJob, retention_of_job};
pub use route::{Route, Shard, ShardPlan, expand};
pub use run::{Outcome, OutcomeKind, RunId, RunKind, RunState};
pub use schedule::{Dialect, DstRule, Schedule};
pub use script::ScriptSpec;
pub use secret::{SecretName, TextOrSecret};
pub use selector::{ExecutorLabels, Selector, SelectorError};
pub use store_id::StoreId;
pub use time::Timestamp;
