//! The API over a real store, asked as a client asks.

mod behaviour;
mod dead_letters;
mod fake_admin;
mod refusals;
mod server;
