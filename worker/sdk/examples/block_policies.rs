//! Block policies, and a handler that stops when it is asked to:
//! `cargo run -p cueline-worker --example block_policies`.
//!
//! A trigger that meets a busy lane waits (`serial`), ends at once (`discard`), or replaces the older one (`cover`).
//! The policy is part of the job's definition, `block = "cover"`. The handler only has to stop when it is asked to.
//! This program acts as a scheduler. It publishes two triggers of each policy to a broker in this process, and prints
//! their outcomes.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{Broker, BrokerOptions, Outgoing, QueueId};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_model::{
    AttemptEvent, Block, DurationMs, Fence, HandlerSpec, JobId, OnLost, OutcomeKind, RunId,
    RunKind, Scope, Shard, StoreId, Timestamp,
};
use cueline_protocol::{JobSnapshot, Trigger, VERSION, decode_reports, encode};
use cueline_worker::{Context, Failure, Stop, Worker};

const GROUP: &str = "default";
const EXECUTOR: &str = "worker-1";
const POLICIES: [Block; 3] = [Block::Serial, Block::Discard, Block::Cover];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for (run, outcome) in demonstrate().await? {
        let policy = POLICIES[usize::try_from((run.0 - 1) / 2)?];
        println!("run {run} of the {policy:?} job: {outcome:?}");
    }
    Ok(())
}

/// Works for 300 ms, and cleans up when it is asked to stop.
async fn work(cx: Context) -> Result<&'static str, Failure> {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(300)) => Ok("done"),
        reason = cx.stopped() => {
            cx.log("removing temporary files");
            Err(Failure::new(format!("stopped: {reason:?}")))
        }
    }
}

/// Runs 1 and 2 belong to a `serial` job, 3 and 4 to a `discard` job, 5 and 6 to a `cover` job.
async fn demonstrate() -> Result<Vec<(RunId, OutcomeKind)>, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("broker.db");
    let driver = EmbeddedDriver::open(&path, EmbeddedOptions::default()).await?;
    let broker = Broker::new(driver, BrokerOptions::default());
    let worker = Worker::builder(GROUP)
        .name(EXECUTOR)
        .broker(broker.clone())
        .state_dir(directory.path().join("state"))
        .in_process_scheduler()
        .allow_unverified_native() // the broker is a file that no other process uses
        .handler("work", work)
        .build()?;
    let mut messages = Vec::new();
    for (n, block) in (1_i64..).zip(POLICIES) {
        messages.push(message(2 * n - 1, n, block)?);
        messages.push(message(2 * n, n, block)?);
    }
    for answer in broker.publish(&messages).await? {
        answer?;
    }
    let stop = Stop::new();
    let running = tokio::spawn(worker.run(stop.clone()));
    let outcomes = outcomes(&broker, messages.len()).await?;
    stop.ask_soft();
    running.await??;
    Ok(outcomes)
}

async fn outcomes(
    broker: &Broker,
    count: usize,
) -> Result<Vec<(RunId, OutcomeKind)>, Box<dyn Error>> {
    let mut outcomes = Vec::new();
    broker.declare(&QueueId::Results).await?;
    while outcomes.len() < count {
        let wait = Duration::from_secs(1);
        for delivery in broker.fetch(&QueueId::Results, 100, wait).await? {
            for report in decode_reports(&delivery.payload) {
                let report = report?;
                if let AttemptEvent::Ended { outcome } = report.event {
                    outcomes.push((report.run, outcome.kind));
                }
            }
        }
    }
    outcomes.sort_unstable_by_key(|(run, _)| *run);
    Ok(outcomes)
}

fn message(run: i64, job: i64, block: Block) -> Result<Outgoing, Box<dyn Error>> {
    let job = JobSnapshot {
        id: JobId(job),
        name: format!("job-{job}").parse()?,
        version: 1,
        handler: HandlerSpec::Native("work".to_owned()),
        block,
        scope: Scope::default(),
        backlog: 1_000,
        timeout: None,
        kill_grace: DurationMs::secs(5),
        on_lost: OnLost::default(),
        fence: Fence::default(),
        priority: 5,
        lane_per_shard: false,
    };
    let trigger = Trigger {
        v: VERSION,
        store: StoreId(1),
        run: RunId(run),
        attempt: 1,
        group: GROUP.parse()?,
        executor: EXECUTOR.parse()?,
        kind: RunKind::Schedule,
        fire_at: Timestamp::from_millis(0),
        lane_at: None,
        shard: Shard::whole(),
        params: None,
        job: Arc::new(job),
        session: None,
        deadline: Timestamp::from_millis(i64::MAX / 2),
        signature: None,
    };
    Ok(Outgoing {
        queue: QueueId::Executor {
            group: GROUP.to_owned(),
            executor: EXECUTOR.to_owned(),
        },
        topic: trigger.job.name.to_string(),
        id: format!("{run}:1"),
        payload: encode(&trigger).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_policy_ends_its_runs_as_the_example_says() {
        let kinds = demonstrate().await.expect("all runs end");
        let kinds: Vec<OutcomeKind> = kinds.into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(
            kinds,
            [
                OutcomeKind::Succeeded,
                OutcomeKind::Succeeded,
                OutcomeKind::Succeeded,
                OutcomeKind::Discarded,
                OutcomeKind::Covered,
                OutcomeKind::Succeeded,
            ]
        );
    }
}
