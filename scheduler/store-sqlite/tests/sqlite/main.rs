//! The adapter on real files.

mod audit;
mod conformance;
mod opening;
mod space;
mod unreadable_definition;
