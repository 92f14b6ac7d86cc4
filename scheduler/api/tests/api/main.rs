//! The API over a real store, called over HTTP like by a client.

mod access;
mod access_in_namespaces;
mod audit;
mod behaviour;
mod dead_letters;
mod events;
mod fake_admin;
mod hostile;
mod hostile_bodies;
mod large;
mod limits;
mod lists;
mod logins;
mod metrics;
mod namespaces;
mod openapi;
mod openapi_answers;
mod openid;
mod openid_provider;
mod raw;
mod refusals;
mod server;
mod tls;
mod worker_keys;
