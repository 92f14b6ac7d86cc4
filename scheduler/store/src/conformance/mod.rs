//! What every adapter must do, as named cases split by concern.
//!
//! An adapter's crate implements [`Harness`] and calls [`store_conformance!`](crate::store_conformance), which makes each case a test of its own. The cases
//! know the port only; they set the clock, and never sleep.

pub mod cancel;
pub mod claims;
pub mod concurrency;
pub mod dead;
pub mod dispatch;
pub mod ends;
pub mod executors;
pub mod fires;
pub mod follow;
pub mod jobs;
pub mod logs;
pub mod nodes;
pub mod people;
pub mod random;
pub mod triggers;
pub mod upkeep;
mod world;

pub use world::{Harness, TestClock, World};

/// Makes each case of the conformance suite a test. The argument is an async function `fn(TestClock) -> impl Harness` that gives a
/// fresh, empty database.
///
/// The calling crate needs `tokio` with the features `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! store_conformance {
    ($fresh:expr) => {
        $crate::store_conformance! { @cases $fresh;
            nodes: first_node_is_told_so, restart_supersedes, lease_runs_out, renewing_late_is_refused, released_lease_ends_at_once,
                startup_jobs_run_once_per_start, unknown_node_cannot_claim, a_store_has_an_id;
            jobs: apply_creates_updates_and_leaves_alone, dry_run_changes_nothing, apply_is_all_or_nothing,
                parents_must_exist, circles_are_refused, edit_withdraws_what_was_written_ahead,
                edit_lets_waiting_runs_go_out_anew, pause_ends_what_waits, pause_and_resume_are_versions,
                pause_by_edit_ends_what_waits, apply_does_not_resume, delete_keeps_runs_and_frees_the_name, parent_cannot_be_deleted, publishing_counts,
                definitions_of_deleted_jobs_remain, jobs_are_listed_by_name, missing_jobs_are_named;
            fires: due_jobs_fire_once, order_is_due_priority_id, horizon_and_limit_bound_a_call, fire_time_is_unique,
                skipped_runs_say_why, live_candidates_reach_the_planner, turns_count_runs, paused_jobs_do_not_fire,
                shards_and_pins_are_kept, panicking_planner_leaves_nothing, store_outlives_reopening;
            claims: fired_runs_are_claimed_already, waiting_runs_are_claimed_once, dead_nodes_runs_are_taken_over,
                dispatching_runs_of_dead_nodes_go_to_the_same_executor, oldest_due_first, horizon_of_claims, next_due_sees_everything;
            dispatch: begin_takes_scheduled_runs, begin_is_repeatable, begin_refuses_others, begin_refuses_an_older_version,
                confirm_leaves_alone_what_went_further, release_gives_the_claim_up, release_keeps_what_may_be_published,
                released_cancelled_run_ends, released_run_of_a_stopped_job_ends;
            ends: started_and_ended_are_kept, end_may_come_before_the_confirmation, repeated_reports_change_nothing,
                older_attempts_are_refused, ended_runs_stay_ended, failure_is_retried_with_backoff, retries_are_bounded,
                lost_is_rerun_three_times, returned_goes_on_at_once, unroutable_ends_a_scheduled_run, cancelled_runs_are_not_retried,
                stopped_jobs_are_not_retried, progress_is_kept, unknown_runs_are_refused, one_batch_with_everything;
            follow: children_run_once_after_all_shards, failed_shard_holds_children_back, children_take_the_output,
                children_of_children, paused_child_is_left_out, manual_fires_are_told_apart, broadcast_child_runs_on_all,
                fixed_delay_counts_from_the_end, fixed_delay_waits_for_the_last_run, fixed_delay_follows_a_cancel,
                an_edit_does_not_begin_a_fixed_delay;
            cancel: scheduled_run_is_cancelled, published_run_is_asked, running_run_is_asked, ended_run_says_so,
                missing_run_is_named;
            triggers: trigger_runs_a_paused_job, key_is_used_once, trigger_may_claim, trigger_later, sharded_trigger_makes_all_shards,
                missing_job_cannot_be_triggered;
            executors: beats_are_kept, silent_executors_are_no_candidates, outstanding_pages_by_id, outstanding_keeps_the_group_it_went_to,
                what_was_sent_goes_to_the_same_group_again, take_back_publishes_again, take_back_refuses_what_ended,
                take_back_ends_what_was_stopped, overdue_is_found, overdue_goes_by_the_limit_that_a_run_went_out_with;
            logs: lines_come_in_order, repeated_lines_are_ignored, cursor_goes_on, late_lines_are_kept, odd_text_survives;
            dead: dead_letters_are_kept, a_dead_letter_is_kept_once, dead_letters_are_paged, dead_letters_are_found_and_deleted_by_number;
            people: run_tells_everything, runs_are_filtered_and_paged, summaries_show_last_and_day, ledger_accounts_for_each_fire_time,
                ledger_of_shards, ledger_of_fixed_delay, stats_count;
            upkeep: old_runs_are_retired, retired_ids_are_not_used_again, key_lives_as_long_as_its_runs, a_shard_is_kept_for_its_siblings, resting_fixed_delay_is_repaired;
            concurrency: no_run_is_claimed_twice, no_job_fires_twice, triggers_with_one_key_make_one_run, readers_see_whole_transactions;
            random: any_sequence_of_calls_keeps_the_invariants;
        }
    };
    (@cases $fresh:expr; $($module:ident: $($case:ident),+;)+) => {
        $(
            mod $module {
                #[allow(unused_imports, reason = "depends on where the harness is defined")]
                use super::*;
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        let clock = $crate::conformance::TestClock::default();
                        let harness = $fresh(clock.clone()).await;
                        let world = $crate::conformance::World::new(Box::new(harness), clock).await;
                        $crate::conformance::$module::$case(&world).await;
                    }
                )+
            }
        )+
    };
}

#[cfg(test)]
mod tests {
    /// A case that is written and not listed would never run.
    #[test]
    fn every_case_is_listed() {
        let list = include_str!("mod.rs");
        let listed: Vec<&str> = list
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .collect();
        for module in [
            include_str!("cancel.rs"),
            include_str!("claims.rs"),
            include_str!("concurrency.rs"),
            include_str!("dead.rs"),
            include_str!("dispatch.rs"),
            include_str!("ends.rs"),
            include_str!("executors.rs"),
            include_str!("fires.rs"),
            include_str!("follow.rs"),
            include_str!("jobs.rs"),
            include_str!("logs.rs"),
            include_str!("nodes.rs"),
            include_str!("people.rs"),
            include_str!("random.rs"),
            include_str!("triggers.rs"),
            include_str!("upkeep.rs"),
        ] {
            for part in module.split("\npub async fn ").skip(1) {
                let name = part.split('(').next().unwrap_or_default();
                assert!(listed.contains(&name), "{name} is not in the list of cases");
            }
        }
    }
}
