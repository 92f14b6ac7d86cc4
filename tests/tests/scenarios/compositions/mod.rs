//! One list of scenarios of scheduling, each with one body, on the three compositions: SQLite and the embedded broker in one
//! process, PostgreSQL and NATS, PostgreSQL and RabbitMQ.
//!
//! The scenarios of [`LIST`] share one server or cluster, and run at the same time, each with jobs of its own. Those of
//! [`OUTAGES`] stop and kill processes, so they run after the others, one by one. A scenario that is new in a list runs on
//! all compositions.

mod dead_letters;
mod flows;
mod outages;
mod routes;
mod runs;
mod schedules;
mod scripts;
mod server;

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_tests::cluster::database;
use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, join_all};

use server::Server;

type Scenario = (
    &'static str,
    for<'s> fn(&'s Server) -> LocalBoxFuture<'s, Result<()>>,
);
type Outage = (
    &'static str,
    for<'s> fn(&'s mut Server) -> LocalBoxFuture<'s, Result<()>>,
);

macro_rules! list {
    ($($module:ident::$name:ident,)*) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), |server| $module::$name(server).boxed_local()),)*]
    };
}

/// They share a server and run at the same time.
const LIST: &[Scenario] = list![
    schedules::each_kind_of_schedule_fires,
    schedules::a_calendar_excludes_fire_times,
    schedules::a_maintenance_window_excludes_fire_times,
    schedules::a_job_is_paused_and_resumed,
    schedules::several_jobs_are_paused_and_go_on_by_themselves,
    schedules::a_backfill_runs_each_fire_time_once,
    runs::a_trigger_by_hand_has_parameters_a_time_and_a_key,
    runs::a_failed_attempt_is_retried,
    runs::an_attempt_has_a_time_limit,
    runs::a_run_is_cancelled_in_each_state,
    runs::a_serial_lane_runs_one_after_the_other,
    runs::a_discard_lane_ends_what_meets_a_busy_lane,
    runs::a_cover_lane_runs_the_newest,
    runs::a_parallel_lane_runs_as_many_as_it_says,
    runs::a_run_is_replayed_with_its_parameters,
    runs::a_log_has_the_lines_of_both_streams,
    runs::a_run_that_waits_is_explained,
    routes::each_route_chooses_an_executor,
    routes::a_selector_that_no_executor_fits_lets_a_run_wait,
    routes::a_broadcast_reaches_each_executor,
    routes::shards_have_their_items,
    flows::a_chain_passes_outputs_on,
    flows::a_diamond_ends_once_for_each_fire,
    flows::a_failure_starts_what_runs_after_failures,
    flows::a_flow_run_is_run_again_from_what_failed,
    scripts::a_job_runs_the_newest_version_or_the_one_it_is_pinned_to,
];

/// They stop and kill processes, one after the other.
const OUTAGES: &[Outage] = list![
    dead_letters::a_refused_trigger_is_replayed_and_runs_once,
    outages::an_attempt_whose_worker_dies_runs_again,
    outages::missed_fire_times_follow_the_misfire_policy,
];

async fn all(mut server: Server) -> Result<()> {
    let shared = &server;
    let all = LIST
        .iter()
        .map(|(name, scenario)| async move { (name, scenario(shared).await) });
    let mut results = join_all(all).await;
    for (name, outage) in OUTAGES {
        results.push((name, outage(&mut server).await));
    }
    let mut failures = String::new();
    for (name, result) in &results {
        if let Err(error) = result {
            writeln!(failures, "{name}: {error:#}")?;
        }
    }
    let count = results.iter().filter(|(_, result)| result.is_err()).count();
    ensure!(count == 0, "{count} failed:\n{failures}\n{}", server.log());
    server.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_passes_on_sqlite_and_the_embedded_broker() -> Result<()> {
    all(Server::standalone().await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_passes_on_postgresql_and_nats() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    let (_postgres, store) = database()?;
    all(Server::cluster(store, nats.url()).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_passes_on_postgresql_and_rabbitmq() -> Result<()> {
    let (_postgres, store) = database()?;
    all(Server::cluster(store, Rabbit::shared_vhost()?).await?).await
}
