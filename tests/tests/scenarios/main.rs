//! Scenarios: the real programs on real servers, seen from outside.

mod bulk;
mod crontab_import;
mod example_jobs;
mod forged_reports;
mod forged_triggers;
mod frozen_worker;
mod full_disk;
mod group_lanes;
mod hostile_requests;
mod lost_broker_queues;
mod lost_state_directory;
mod namespaces;
mod openid_login;
mod partitioned_broker;
mod process_guard;
mod routes;
mod quartz_import;
mod scheduler_and_worker;
mod secrets;
mod server_restarts;
mod silent_clients;
mod standalone_kills;
mod startup_failures;
mod stop_requests;
mod storms;
mod walk_through;
