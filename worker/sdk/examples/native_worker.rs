//! A worker on NATS:
//! `NATS_URL=nats://127.0.0.1:4222 CUELINE_TRUST=trusted.keys CUELINE_ENROL_TOKEN_FILE=enrol.token cargo run -p cueline-worker --example native_worker`.
//!
//! It runs jobs of the group `billing` whose definition says `handler = { native = "invoice" }`, from triggers that one
//! of the trusted keys has signed. Schedulers accept the key that it makes in its state directory, because it knows their
//! enrolment token. Later starts need no token.

use std::env;
use std::error::Error;
use std::fs;

use cueline_broker::{Broker, BrokerOptions};
use cueline_broker_nats::{NatsDriver, NatsOptions};
use cueline_worker::{Builder, Context, Failure, VerifyingKeys, Worker, WorkerIdentity};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let identity = WorkerIdentity::open("billing", "billing-1", "cueline-state/billing/billing-1")?
        .enrol_token_file(env::var_os("CUELINE_ENROL_TOKEN_FILE"))?;
    let keys = VerifyingKeys::from_lines(&fs::read_to_string(env::var("CUELINE_TRUST")?)?)?;
    let options = NatsOptions {
        seal_dead_letters: Some(identity.dead_letter_seal()),
        ..NatsOptions::default()
    };
    let driver = NatsDriver::connect(&env::var("NATS_URL")?, options).await?;
    let broker = Broker::new(driver, BrokerOptions::default());
    let builder = worker(broker, identity).trust(keys);
    builder.build()?.run_until_signal().await?;
    Ok(())
}

fn worker(broker: Broker, identity: WorkerIdentity) -> Builder {
    Worker::builder("billing")
        .identity(identity)
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

    const PUBLIC_KEY: &str = "6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw=";

    #[test]
    fn the_readme_shows_this_program() {
        let program = include_str!("native_worker.rs");
        let begins = program.find("use std::env;").expect("imports");
        let ends = program.find("\n#[cfg(test)]").expect("tests");
        let shown = format!("```rust\n{}```\n", &program[begins..ends]);
        let page = include_str!("../../../README.md");
        assert!(page.contains(&shown), "README.md should show:\n{shown}");
    }

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
        let state = directory.path().join("state");
        let identity = WorkerIdentity::open("billing", "billing-1", state).expect("an identity");
        let keys = VerifyingKeys::from_base64([PUBLIC_KEY]).expect("a key");
        let builder = worker(broker, identity).trust(keys);
        let stop = Stop::new();
        let running = tokio::spawn(builder.build().expect("a worker").run(stop.clone()));
        stop.ask_soft();
        running.await.expect("no panic").expect("no error");
    }
}
