//! The engine over a real store and a real broker, with a clock that the tests set and executors that they play.

mod admin;
mod broadcast_hold;
mod cancel;
mod due_times;
mod failover;
mod fixture;
mod follow_ups;
mod forget;
mod heartbeats;
mod incarnations;
mod ingest;
mod lease_times;
mod misfire;
mod node_loss;
mod random_faults;
mod reconcile;
mod refused_copies;
mod refused_triggers;
mod retry;
mod routing;
mod shutdown;
mod single_faults;
mod stop_means_stop;
mod trigger_requests;
mod unanswered_publish;
mod unroutable;
