//! The scheduler's engine. It claims due jobs, publishes their triggers, ingests results, and monitors executors.
//!
//! | module | contents |
//! | --- | --- |
//! | `claims` | what this node has claimed and not yet published |
//! | `pipeline` | moves a run from its due time to its outcome |
//! | `route` | chooses the executor of a run |
//! | `liveness` | leases, heartbeats, failover, reconciliation |
//! | `maintenance` | cancellations, dead letters, overdue runs, retention |
//! | `alarms` | makes messages of alarms, sends them, and checks what raises some |
//! | `quotas` | limits of namespaces, and the present use of them |
//! | `admin` | requests of operators |
//! | `origin` | verifies which executor has sent a message |
//! | `stages` | creates and connects all stages |
//!
//! The database is the source of truth. Every run that a stage holds in memory is also in the store, claimed by this
//! node. When the node dies, another node finds it there. Each stage reads a batch, decides, and writes a batch. The
//! engine knows no concrete store or broker.

mod addresses;
mod admin;
mod alarms;
mod claims;
mod counters;
mod database_clock;
mod dead_letter_queue;
mod engine;
mod error;
mod liveness;
mod lock;
mod maintenance;
mod manual;
mod options;
mod origin;
mod pipeline;
mod queue_consumer;
mod quotas;
mod refused_messages;
mod route;
mod scheduler_report;
mod stages;
mod store_mismatch;
mod times;

pub use alarms::{AlarmTransport, SendFailure};
pub use engine::Engine;
pub use error::EngineError;
pub use manual::{ManualEngine, Tick};
pub use options::EngineOptions;
pub use origin::{EnrolledKeys, Origins};
