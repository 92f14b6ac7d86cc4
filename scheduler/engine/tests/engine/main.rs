//! The engine over a real store and a real broker, with a clock that the tests set and executors that they play.

mod cancel;
mod desk;
mod doubt;
mod due;
mod executor;
mod failing_store;
mod failover;
mod faults;
mod finish;
mod follow;
mod heartbeats;
mod misfire;
mod nobody;
mod nodes;
mod random;
mod reconcile;
mod requests;
mod results;
mod retry;
mod routing;
mod scene;
mod stop;
