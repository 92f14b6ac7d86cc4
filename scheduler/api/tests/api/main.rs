//! The API over a real store, called over HTTP like by a client.

mod behaviour;
mod dead_letters;
mod fake_admin;
mod refusals;
mod server;
