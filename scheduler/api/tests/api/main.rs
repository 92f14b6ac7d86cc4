//! The API over a real store, asked as a client asks.

mod behaviour;
mod dead;
mod refusals;
mod server;
