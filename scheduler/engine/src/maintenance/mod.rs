//! Periodic duties that keep the store and the broker tidy, each independent of the others.

pub(crate) mod backfills;
pub(crate) mod cancellations;
pub(crate) mod dead_letters;
pub(crate) mod overdue;
mod received_letter;
pub(crate) mod refused_triggers;
pub(crate) mod retention;
pub(crate) mod time_zones;
pub(crate) mod window_plans;
