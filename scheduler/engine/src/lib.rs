//! The scheduler: claim, plan, wheel, route, dispatch, ingest, and the duties that keep them true.
//!
//! ```text
//! store ─claim─► wheel ─prepare─► outbox ─publish─► broker ─► executors
//!   ▲                 (route, mark)         │                     │
//!   └──── ingest ◄── results ◄──────────────┼─────────────────────┘
//!   └──── confirm ◄─────────────────────────┘
//! ```
//!
//! The database is the truth: what is in the wheel or the outbox is also in the store, claimed by this node, and is found again when the
//! node dies. Each stage reads a batch, decides, and writes a batch. The engine knows no concrete store or broker.

mod cancel;
mod claim;
mod confirm;
mod counts;
mod dead;
mod desk;
mod dispatch;
mod engine;
mod error;
mod failover;
mod finding;
mod hearing;
mod heartbeats;
mod ingest;
mod lock;
mod manual;
mod node;
mod options;
mod pace;
mod parked;
mod plan;
mod queues;
mod reap;
mod reconcile;
mod registry;
mod requests;
mod retention;
mod route;
mod shared;
mod wheel;

pub use counts::Counts;
pub use desk::{Desk, DeskError, Replayed};
pub use engine::{Engine, Nudges};
pub use error::EngineError;
pub use manual::{ManualEngine, Tick};
pub use options::EngineOptions;
pub use plan::SchedulePlanner;
pub use route::{Candidates, Router};
pub use wheel::Wheel;
