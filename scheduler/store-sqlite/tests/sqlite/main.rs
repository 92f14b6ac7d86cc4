//! The adapter on real files.

mod audit;
mod conformance;
mod opening;
mod unreadable_definition;
