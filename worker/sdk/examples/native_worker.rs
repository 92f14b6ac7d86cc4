//! A worker on NATS:
//! `NATS_URL=nats://127.0.0.1:4222 CUELINE_ENROL_TOKEN_FILE=enrol.token cargo run -p cueline-worker --example native_worker`.
//!
//! It runs jobs of the group `billing` whose definition says `handler = { native = "invoice" }`. Schedulers accept the
//! key that it makes in its state directory, because it knows their enrolment token.

use std::error::Error;
use std::path::Path;

use cueline_broker::{Broker, BrokerOptions};
use cueline_broker_nats::{NatsDriver, NatsOptions};
use cueline_worker::model::ExecutorId;
use cueline_worker::{Builder, Context, DeadLetterSealer, Failure, KeyFile, Sealer, Worker};

const STATE: &str = "cueline-state/billing/billing-1";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let executor = ExecutorId {
        group: "billing".parse()?,
        name: "billing-1".parse()?,
    };
    let key = KeyFile::in_state_dir(Path::new(STATE)).read_or_create()?;
    let sealer = Sealer::new(executor, key);
    let token = std::fs::read_to_string(std::env::var("CUELINE_ENROL_TOKEN_FILE")?)?;
    let options = NatsOptions {
        seal_dead_letters: Some(DeadLetterSealer::new(sealer.clone()).seal()),
        ..NatsOptions::default()
    };
    let driver = NatsDriver::connect(&std::env::var("NATS_URL")?, options).await?;
    let broker = Broker::new(driver, BrokerOptions::default());
    let builder = worker(broker).state_dir(STATE).sealer(Some(sealer));
    let worker = builder.enrolment(Some(token.parse()?)).build()?;
    worker.run_until_signal().await?;
    Ok(())
}

fn worker(broker: Broker) -> Builder {
    Worker::builder("billing")
        .name("billing-1")
        .broker(broker)
        .handler("invoice", invoice)
}

async fn invoice(cx: Context) -> Result<String, Failure> {
    let month: u8 = cx.params()?;
    cx.log(format!("billing month {month}"));
    Ok(format!("month {month} is billed"))
}

#[cfg(test)]
mod tests {
    use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
    use cueline_worker::model::HandlerSpec;
    use cueline_worker::testing::{attempt_info, run};
    use cueline_worker::{AttemptInfo, Stop, from_fn};

    use super::*;

    #[tokio::test]
    async fn the_handler_bills_a_month_and_refuses_a_wrong_parameter() {
        let info = |params: &str| AttemptInfo {
            params: Some(params.to_owned()),
            ..attempt_info(HandlerSpec::Native("invoice".to_owned()))
        };
        let (result, recorded) = run(&from_fn(invoice), info("7")).await;
        let text = result.expect("success").text;
        assert_eq!(text.as_deref(), Some("month 7 is billed"));
        assert_eq!(recorded.lines().len(), 1);
        let (result, _) = run(&from_fn(invoice), info("July")).await;
        let message = result.expect_err("a failure").message;
        assert!(message.contains("\"July\" does not fit"), "{message}");
    }

    #[tokio::test]
    async fn the_worker_starts_and_drains() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("broker.db");
        let driver = EmbeddedDriver::open(&path, EmbeddedOptions::default()).await;
        let broker = Broker::new(driver.expect("broker"), BrokerOptions::default());
        let builder = worker(broker).state_dir(directory.path().join("state"));
        let stop = Stop::new();
        let running = tokio::spawn(builder.build().expect("a worker").run(stop.clone()));
        stop.ask_soft();
        running.await.expect("no panic").expect("no error");
    }
}
