//! Code that all adapters share: decisions inside a transaction, and conversions of rows. Knows no database.
//!
//! An adapter reads rows, passes them to functions here, and writes the result. Ids are plain numbers, as in
//! statements. Callers of a store need nothing from here.

pub mod accounts;
pub mod alarm_deliveries;
pub mod alarm_events;
pub mod alarms;
pub mod audit;
pub mod audit_query;
pub mod backfills;
pub mod child_starts;
pub mod claimed;
pub mod clock;
pub mod convert;
pub mod dead_letter_query;
pub mod definitions;
mod delegate;
mod delegate_accounts;
pub mod fire_due;
pub mod fire_rules;
pub mod flow_runs;
pub mod follow_ups;
pub mod heartbeats;
pub mod job_list;
pub mod jobs;
pub mod lanes;
pub mod ledger;
pub mod limits;
pub mod live_executors;
pub mod log_lines;
pub mod migrations;
pub mod new_run;
pub mod page_scan;
mod parent_graph;
pub mod parents;
pub mod plain_ends;
pub mod queries;
pub mod quotas;
pub mod repeated_trigger;
pub mod report_batch;
pub mod retention;
pub mod run_list;
pub mod run_numbers;
pub mod script_bodies;
pub mod scripts;
pub mod snapshot;
pub mod store_id;
pub mod timeline;
pub mod transition;
pub mod windows;
pub mod worker_keys;
