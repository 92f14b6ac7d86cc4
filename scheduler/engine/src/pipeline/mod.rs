//! Moves a run from its due time to its outcome.
//!
//! ```text
//! store ─claim─► wheel ─prepare─► pending ─publish─► broker ─► executor
//!   ▲    (plan)         (route, mark)       │                     │
//!   ├──────────── confirm ◄─────────────────┘                     │
//!   └──────────── ingest  ◄──── results queue ◄───────────────────┘
//! ```
//!
//! Wheel and pending triggers are in memory ([`crate::claims`]). Their loss is harmless: the store holds the same runs,
//! claimed by this node, and the next claim of a live node finds them.
//!
//! Prepare reads [`earlier_runs`] where a route depends on them, and [`outstanding_attempts`] keeps them up to date. Runs that
//! any executor may take wait for [`room`].
//!
//! Runs that are triggered by hand skip the claim stage: [`manual_trigger`] writes them as claimed and puts them on the
//! wheel.

pub(crate) mod broadcast_hold;
pub(crate) mod burst;
pub(crate) mod claim;
pub(crate) mod confirm;
pub(crate) mod earlier_runs;
pub(crate) mod ended_runs;
pub(crate) mod group_lanes;
pub(crate) mod ingest;
pub(crate) mod limited_runs;
pub(crate) mod manual_trigger;
pub(crate) mod outstanding_attempts;
pub(crate) mod pace;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod publish;
mod quota_planner;
mod report_batch;
mod report_bounds;
pub(crate) mod room;
pub(crate) mod trigger_requests;
pub(crate) mod trigger_writer;
pub(crate) mod unroutable_runs;
