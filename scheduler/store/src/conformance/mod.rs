//! The behaviour of every adapter, as named cases split by concern.
//!
//! An adapter's crate implements [`Harness`] and calls [`store_conformance!`](crate::store_conformance), which makes
//! each case a test of its own. The cases know the port only; they set the clock, and never sleep.

mod account_steps;
pub mod accounts;
pub mod alarm_outbox;
pub mod alarm_places;
pub mod alarms;
pub mod api_tokens;
pub mod audit;
pub mod backfills;
pub mod cancel;
pub mod changes;
pub mod claims;
pub mod concurrency;
pub mod dead_letters;
pub mod dispatch;
pub mod executors;
pub mod fire_due;
pub mod fire_rules;
mod fixture;
pub mod flow_runs;
pub mod flows;
pub mod follow_ups;
pub mod idempotency;
pub mod job_loads;
pub mod jobs;
pub mod lanes;
pub mod limits;
pub mod lists;
pub mod logs;
pub mod maintenance;
pub mod mixed_reports;
pub mod newer_rows;
pub mod nodes;
pub mod pauses;
pub mod preconditions;
pub mod queries;
pub mod quotas;
pub mod random_calls;
pub mod random_flows;
pub mod record_lists;
pub mod reports;
pub mod retention;
pub mod scripts;
pub mod sessions;
pub mod situations;
pub mod stopped_jobs;
pub mod triggers;
pub mod worker_key_bounds;
pub mod worker_keys;

pub use fixture::{Fixture, Harness, TestClock};

/// Makes each case of the conformance suite a test. The argument is an async function `fn(TestClock) -> impl Harness`
/// that gives a fresh, empty database.
///
/// The calling crate needs `tokio` with the features `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! store_conformance {
    ($fresh:expr) => {
        $crate::store_conformance! { @cases $fresh;
            nodes: the_first_node_is_reported, a_restart_ends_the_lease_of_its_name, a_lease_expires, renewing_late_is_refused, released_lease_ends_at_once, a_renewal_tells_when_others_reached_the_broker,
                nodes_that_ended_long_ago_are_deleted,
                startup_jobs_run_once_per_start, unknown_node_cannot_claim, a_store_has_an_id;
            jobs: apply_reports_each_job, dry_run_changes_nothing, apply_is_all_or_nothing,
                parents_must_exist, cycles_are_refused, edit_withdraws_runs_ahead_of_their_fire_time,
                edit_releases_waiting_runs, dispatching_attempts_are_listed,
                definitions_of_deleted_jobs_remain, jobs_are_listed_by_name, jobs_are_listed_by_namespace, a_job_stays_in_its_namespace, missing_jobs_are_named;
            stopped_jobs: pause_ends_waiting_runs, pause_and_resume_are_versions, pause_keeps_what_it_does_not_know, an_unreadable_job_can_be_paused_and_deleted,
                pause_by_edit_ends_waiting_runs, apply_does_not_resume, delete_keeps_runs_and_frees_the_name, parent_cannot_be_deleted;
            fire_due: due_jobs_fire_once, enough_runs_end_a_transaction, order_is_due_priority_id, horizon_and_limit_bound_a_call, fire_time_is_unique,
                skipped_runs_say_why, live_candidates_reach_the_planner, held_jobs_stay_due, turns_count_runs, paused_jobs_do_not_fire,
                shards_and_pins_are_kept, panicking_planner_leaves_nothing, committed_data_outlives_reopening;
            fire_rules: calendars_are_kept_in_versions, jobs_keep_their_calendars, excluded_fire_times_are_accounted_for,
                a_change_accounts_for_excluded_fire_times, a_change_withdraws_runs_ahead_at_every_node, a_window_stops_the_jobs_in_its_scope,
                a_deleted_window_lets_jobs_fire_again, a_changed_time_zone_replans_its_jobs;
            scripts: scripts_are_kept_in_versions, scripts_belong_to_one_namespace, a_save_reaches_the_jobs_that_follow, a_save_reaches_every_node,
                an_edit_changes_the_script_of_a_job, the_last_versions_are_kept, a_script_that_jobs_use_is_not_deleted,
                changes_of_scripts_are_in_the_audit_log;
            backfills: a_backfill_runs_each_fire_time_once, a_backfill_outlives_its_node, a_backfill_is_paused_resumed_and_cancelled,
                a_backfill_waits_for_its_job, a_backfill_joins_at_the_end_of_the_lane;
            alarms: alarm_definitions_are_kept_in_versions, failures_in_a_row_raise_one_alarm, a_failure_that_is_retried_raises_no_alarm,
                alarms_follow_the_times_of_a_batch, missed_fire_times_raise_one_alarm, a_run_that_is_skipped_as_a_misfire_raises_an_alarm,
                a_condition_raises_an_alarm_when_it_begins,
                a_condition_ends_after_several_checks, one_node_checks_alarms;
            job_loads: the_load_of_jobs_is_what_waits, a_postponed_run_waits_since_its_fire_time,
                a_long_backlog_is_counted_up_to_a_bound;
            alarm_outbox: events_of_an_interval_are_one_message, a_delivery_is_sent_until_it_is_settled,
                a_silence_keeps_alarms_from_being_sent, silences_are_bounded,
                alarms_of_a_deleted_rule_are_dropped, a_channel_is_tested, alarms_are_listed, old_alarms_are_deleted;
            alarm_places: nodes_share_deliveries, a_channel_takes_some_places_only, a_failing_channel_gets_one_place,
                a_namespace_takes_some_places_only, old_messages_are_given_up, waiting_messages_of_a_channel_are_bounded;
            situations: a_situation_is_complete;
            pauses: a_pause_ends_waiting_runs_of_its_jobs, a_pause_lets_nothing_follow, a_paused_job_is_not_retried,
                plans_that_change_in_parts_lose_no_fire_time, another_node_finishes_a_pause, a_paused_fixed_delay_job_goes_on,
                a_pause_does_not_resume_what_was_paused_alone;
            claims: fired_runs_are_claimed, waiting_runs_are_claimed_once, runs_of_dead_nodes_are_taken_over,
                dispatching_runs_of_dead_nodes_go_to_the_same_executor, oldest_due_first, unreadable_runs_are_left_to_other_nodes, unreadable_reclaimed_attempts_are_left_to_other_nodes, claims_respect_the_horizon, next_due_covers_jobs_and_runs;
            dispatch: begin_marks_scheduled_runs, begin_is_repeatable, begin_refuses_others, begin_refuses_an_older_version,
                late_confirmation_changes_nothing, released_runs_are_claimable, release_keeps_possibly_published_runs,
                released_cancelled_run_ends, released_run_of_a_stopped_job_ends;
            lanes: a_lane_is_at_one_executor, a_lane_is_free_once_its_attempts_have_ended, a_returned_run_keeps_its_place, a_lane_with_places_is_bounded, older_runs_go_first,
                only_due_runs_go_first, each_shard_has_a_lane, nodes_race_for_a_lane, an_unaccepted_mark_is_taken_back,
                the_older_of_two_unknown_marks_goes_on, a_mark_that_is_taken_back_ends_with_its_job, a_lane_stays_with_the_group_of_its_attempts,
                a_mark_stays_in_the_group_that_its_job_left;
            limits: jobs_share_the_places_of_a_key, a_run_that_is_scheduled_again_gives_its_place_back, a_repeated_call_takes_no_second_place,
                a_rate_holds_in_any_interval, only_dispatched_runs_take_places, older_runs_of_a_limit_go_first, a_turn_passes_with_its_node,
                attempts_of_a_dead_node_keep_their_places, nodes_race_for_a_limit, a_situation_has_the_limits_of_its_job, unused_limits_are_forgotten, rates_of_groups_are_kept;
            reports: times_and_texts_of_a_run_are_kept, extreme_values_are_kept, end_may_come_before_the_confirmation, repeated_reports_change_nothing,
                older_attempts_are_refused, a_scheduler_fails_only_attempts_that_wait, ended_runs_stay_ended, failure_is_retried_with_backoff, retries_are_bounded,
                lost_is_rerun_three_times, returned_attempt_is_followed_at_once, unroutable_ends_a_scheduled_run, cancelled_runs_are_not_retried,
                stopped_jobs_are_not_retried, progress_is_kept, unknown_runs_are_refused, reports_of_other_executors_are_refused,
                earlier_attempts_keep_their_executor, an_attempt_stays_with_the_group_of_its_publication, reports_about_ended_runs_are_known_after_their_job_has_moved,
                reports_of_a_batch_apply_in_order;
            mixed_reports: plain_successes_are_applied_with_the_others_of_their_batch;
            follow_ups: children_run_once_after_all_shards, failed_shard_prevents_children, children_take_the_output,
                children_of_children, paused_child_is_left_out, manual_fires_are_distinguished, broadcast_child_runs_on_all,
                fixed_delay_counts_from_the_end, fixed_delay_waits_for_the_last_run, fixed_delay_follows_a_cancel,
                an_edit_does_not_start_a_fixed_delay;
            flows: the_end_of_a_diamond_waits_for_both_sides, parents_may_end_in_one_batch, any_parent_starts_a_child_once, children_may_run_after_failures,
                a_failure_that_is_retried_starts_nothing_yet, a_failed_shard_alone_is_retried, a_stopped_parent_stops_the_flow_run,
                nothing_follows_a_run_that_was_to_be_cancelled, a_child_waits_for_parents_that_are_still_ahead, a_flow_run_begins_with_a_scheduled_fire,
                a_child_takes_the_outputs_of_all_parents, jobs_that_nothing_joins_are_refused, links_follow_the_definition,
                a_flow_run_is_kept_until_it_has_ended, parents_that_end_at_the_same_time_start_one_child;
            flow_runs: a_flow_run_is_read_by_any_of_its_runs, jobs_with_children_are_listed, a_cancelled_flow_run_starts_nothing,
                a_flow_run_is_retried_from_what_failed, a_cancelled_flow_run_can_be_retried, a_retried_broadcast_keeps_its_executors,
                a_retry_leaves_out_what_is_paused,
                changes_of_flow_runs_leave_one_entry;
            random_flows: random_flows_run_as_the_model_says;
            cancel: scheduled_run_is_cancelled, published_run_is_cancelled_by_its_executor, running_run_may_end_before_its_cancellation, ended_run_cannot_be_cancelled,
                missing_run_is_named;
            triggers: trigger_runs_a_paused_job, an_idempotency_key_is_used_once, a_trigger_may_claim_its_runs, a_trigger_may_be_for_later, each_trigger_is_of_the_present_definition, sharded_trigger_makes_all_shards,
                missing_job_cannot_be_triggered;
            executors: heartbeats_are_kept, silent_executors_are_no_candidates, silent_executors_are_forgotten, outstanding_pages_by_id, outstanding_attempts_of_one_executor, attempts_of_jobs, broadcast_follows_the_selector, outstanding_names_the_group_of_the_publication,
                outstanding_tells_when_the_first_publication_began,
                a_republished_attempt_goes_to_the_same_group, reclaimed_attempts_are_published_again, ended_attempts_are_not_reclaimed,
                running_attempts_are_not_reclaimed,
                reclaimed_attempts_of_stopped_jobs_end, overdue_attempts_are_found, overdue_uses_the_timeout_of_the_publication,
                overdue_ignores_later_timeouts, overdue_counts_from_the_last_start,
                a_start_in_the_far_future_is_limited;
            logs: lines_are_ordered, repeated_lines_are_ignored, the_cursor_continues_after_the_last_line, late_lines_are_kept, lines_of_other_executors_are_refused, odd_text_survives;
            dead_letters: dead_letters_are_kept, a_dead_letter_is_kept_once, dead_letters_are_paged, dead_letters_are_found_and_deleted_by_number, dead_letters_belong_to_one_namespace;
            quotas: quotas_are_kept_until_they_are_deleted, changes_of_quotas_are_in_the_audit_log, quotas_are_changed_by_version, max_jobs_bounds_new_jobs,
                max_jobs_is_exact_under_concurrent_applies, namespaces_are_listed_with_their_numbers, namespaces_are_paged_and_filtered,
                fires_beyond_the_quota_are_skipped;
            worker_keys: a_token_enrols_as_many_workers_as_it_has_uses, tokens_expire_and_are_deleted, a_token_is_checked_and_created_once, a_token_enrols_its_namespace_only,
                a_name_is_taken_over_only_by_its_own_token, keys_are_revoked_and_allowed_again, a_replaced_key_is_revoked_by_an_operator, keys_are_rotated,
                keys_are_read_from_the_last_change_on, enrolments_at_the_same_time_take_one_use_each,
                keys_of_one_call_are_enrolled_in_their_order;
            worker_key_bounds: tokens_are_bounded, revoked_keys_are_bounded, keys_are_bounded;
            accounts: users_are_kept, users_are_listed_by_name, a_users_fields_are_checked, a_name_and_a_subject_belong_to_one_user, users_are_bounded,
                one_first_user_is_created, the_first_user_can_manage_users, a_user_is_changed_by_version, the_last_administrator_stays,
                two_administrators_do_not_delete_each_other, a_deleted_user_has_no_sessions_and_tokens,
                changes_of_accounts_are_in_the_audit_log;
            sessions: a_session_has_its_users_rights, a_session_is_refused, a_session_expires_and_ends_when_it_is_idle, the_use_of_a_session_is_noted_once_a_minute,
                a_further_session_ends_the_least_recently_used, expired_sessions_make_room_first, a_disabled_user_has_no_session, a_new_password_ends_all_sessions,
                a_login_from_before_a_change_of_the_login_starts_no_session,
                a_session_is_ended, logins_at_the_same_time_are_bounded;
            api_tokens: a_token_has_an_owner_or_none, a_token_is_refused, a_token_expires, a_token_is_revoked, a_token_of_a_disabled_owner_does_not_count,
                tokens_of_openid_users_count_for_a_while_after_the_last_login, a_new_password_revokes_the_tokens_of_the_user, a_session_that_has_ended_makes_no_token,
                the_use_of_a_token_is_noted_once_a_minute, tokens_are_listed_in_pages, tokens_of_an_owner_are_bounded, tokens_of_programs_are_bounded,
                ended_tokens_are_bounded, ended_sessions_and_tokens_are_pruned;
            audit: each_change_of_a_job_leaves_one_entry, triggers_and_cancellations_leave_one_entry, deleted_dead_letters_leave_one_entry_each,
                changes_of_tokens_and_keys_leave_one_entry, calls_without_an_effect_leave_no_entry, each_of_many_applied_jobs_has_an_entry_and_a_version,
                entries_are_filtered, entries_are_found_by_time, entries_are_paged, odd_entries_are_kept_within_their_bounds, old_entries_are_deleted,
                versions_of_a_job_are_kept, an_earlier_version_can_be_applied_again, a_deleted_job_keeps_its_versions_until_its_name_is_taken, old_versions_of_deleted_jobs_are_deleted, versions_are_bounded;
            newer_rows: unreadable_grants_are_listed_as_such, users_and_tokens_with_unreadable_grants_are_changed_and_removed,
                the_last_administrator_stays_also_with_unreadable_grants, an_entry_of_an_unknown_kind_of_actor_is_listed;
            queries: a_run_has_all_its_fields, runs_are_filtered_and_paged, runs_are_listed_by_namespace, summaries_show_last_and_day, ledger_accounts_for_each_fire_time,
                ledger_of_shards, ledger_of_fixed_delay, stats_count_jobs_and_live_runs,
                the_oldest_queued_attempt_of_each_executor_is_found, pools_stay_within_their_limits;
            lists: jobs_are_listed_by_every_filter, jobs_without_a_next_fire_time_come_last, a_list_of_jobs_goes_on_while_jobs_change,
                runs_are_listed_by_every_filter, runs_are_found_by_the_time_of_their_creation, a_rare_match_ends_a_page_early;
            record_lists: dead_letters_are_listed_by_every_filter, entries_are_listed_in_both_directions, versions_are_listed_in_both_directions;
            changes: new_runs_are_read_once, new_runs_are_read_in_parts, runs_written_by_several_nodes_are_read_once,
                runs_of_an_older_day_are_new_runs, changed_runs_are_those_in_another_state_or_attempt, deleted_runs_are_named, live_runs_are_listed_newest_first,
                each_change_of_a_job_changes_the_fingerprint, job_briefs_are_paged_by_id;
            maintenance: old_runs_are_deleted, ids_of_deleted_runs_are_not_used_again, a_key_lives_as_long_as_its_runs, a_shard_is_kept_for_its_siblings, a_fixed_delay_job_without_a_next_fire_time_is_repaired;
            retention: a_job_has_an_age_of_its_own, a_group_says_what_its_jobs_leave_open, a_number_of_runs_is_kept,
                logs_and_outputs_expire_before_their_run, a_sweep_goes_on_where_it_stopped, a_key_outlives_runs_that_are_deleted_early,
                the_ledger_names_deleted_runs, ended_runs_are_pruned, rules_of_groups_are_kept, old_dead_letters_are_deleted;
            concurrency: no_run_is_claimed_twice, no_job_fires_twice, triggers_with_one_key_make_one_run, readers_see_whole_transactions;
            preconditions: one_of_several_editors_of_a_job_wins, one_of_several_changes_of_a_job_wins, a_refused_change_of_a_job_leaves_nothing,
                a_job_that_is_created_again_has_another_revision, applied_jobs_have_their_versions, one_of_two_editors_of_a_user_wins,
                a_refused_change_of_a_user_leaves_nothing;
            idempotency: a_repeated_trigger_is_the_same_request, a_repeated_trigger_needs_no_condition, an_api_token_is_created_once,
                requests_with_one_key_create_one_token, an_enrolment_token_is_created_once, a_user_is_created_once;
            random_calls: any_sequence_of_calls_keeps_the_invariants;
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
                        let fixture = $crate::conformance::Fixture::new(Box::new(harness), clock).await;
                        $crate::conformance::$module::$case(&fixture).await;
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
            include_str!("accounts.rs"),
            include_str!("alarm_outbox.rs"),
            include_str!("alarm_places.rs"),
            include_str!("alarms.rs"),
            include_str!("api_tokens.rs"),
            include_str!("audit.rs"),
            include_str!("backfills.rs"),
            include_str!("cancel.rs"),
            include_str!("changes.rs"),
            include_str!("claims.rs"),
            include_str!("concurrency.rs"),
            include_str!("dead_letters.rs"),
            include_str!("dispatch.rs"),
            include_str!("mixed_reports.rs"),
            include_str!("reports.rs"),
            include_str!("scripts.rs"),
            include_str!("sessions.rs"),
            include_str!("situations.rs"),
            include_str!("stopped_jobs.rs"),
            include_str!("executors.rs"),
            include_str!("fire_due.rs"),
            include_str!("fire_rules.rs"),
            include_str!("flow_runs.rs"),
            include_str!("flows.rs"),
            include_str!("follow_ups.rs"),
            include_str!("idempotency.rs"),
            include_str!("jobs.rs"),
            include_str!("lanes.rs"),
            include_str!("limits.rs"),
            include_str!("lists.rs"),
            include_str!("logs.rs"),
            include_str!("newer_rows.rs"),
            include_str!("nodes.rs"),
            include_str!("pauses.rs"),
            include_str!("preconditions.rs"),
            include_str!("queries.rs"),
            include_str!("quotas.rs"),
            include_str!("random_calls.rs"),
            include_str!("random_flows.rs"),
            include_str!("record_lists.rs"),
            include_str!("triggers.rs"),
            include_str!("maintenance.rs"),
            include_str!("worker_key_bounds.rs"),
            include_str!("worker_keys.rs"),
        ] {
            for part in module.split("\npub async fn ").skip(1) {
                let name = part.split('(').next().unwrap_or_default();
                assert!(listed.contains(&name), "{name} is not in the list of cases");
            }
        }
    }
}
