//! Messages of alarms over real connections.

mod email;
mod fixture;
mod hooks;
