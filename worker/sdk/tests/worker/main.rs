//! The worker against its guarantees, over the embedded broker.

mod block_policies;
mod broker_lease;
mod control;
mod counts;
mod crash;
mod dead_letters;
mod drain;
mod ended_journal_thread;
mod faulty_link;
mod fixture;
mod full_disk;
mod lease_fixture;
mod locked_journal;
mod logs;
mod name_conflict;
mod origin;
mod outcomes;
mod overdue_lease;
mod paused_process;
mod readiness;
mod reissued_ids;
mod repeated_triggers;
mod restart_after_absence;
mod start_log;
mod stores;
mod unjournalled;
