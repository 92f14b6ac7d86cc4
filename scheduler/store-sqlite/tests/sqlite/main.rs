//! The adapter on real files.

mod conformance;
mod opening;
mod unreadable_definition;
