//! An attacker with an account on the broker publishes triggers that no scheduler has sent. None runs. Each becomes a
//! dead letter with its reason, and the worker continues.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream;
use cueline_model::{HandlerSpec, Timestamp};
use cueline_protocol::{SigningKey, Trigger, decode, encode};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_support::try_eventually;
use cueline_tests::cluster::{Cluster, WITHIN, database};
use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use serde_json::Value;

/// A client of the broker product itself.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
enum Attacker {
    Nats {
        client: async_nats::Client,
        triggers: async_nats::Subscriber,
    },
    Rabbit {
        _connection: Connection,
        channel: Channel,
        triggers: lapin::Consumer,
    },
}

impl Attacker {
    /// Receives every trigger from now on.
    async fn on_nats(url: &str) -> Result<Self> {
        let patient = async_nats::ConnectOptions::new().connection_timeout(WITHIN);
        let client = patient.connect(url).await?;
        let triggers = client.subscribe("cueline.trigger.>").await?;
        client.flush().await?;
        Ok(Self::Nats { client, triggers })
    }

    /// Receives every trigger from now on. The exchange must exist.
    async fn on_rabbit(url: &str) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let queue = QueueDeclareOptions {
            exclusive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = channel
            .queue_declare("".into(), queue, FieldTable::default())
            .await?;
        let (name, bind) = (queue.name().clone(), QueueBindOptions::default());
        channel
            .queue_bind(
                name.clone(),
                "cueline.triggers".into(),
                "#".into(),
                bind,
                FieldTable::default(),
            )
            .await?;
        let consume = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let triggers = channel
            .basic_consume(name, "attacker".into(), consume, FieldTable::default())
            .await?;
        Ok(Self::Rabbit {
            _connection: connection,
            channel,
            triggers,
        })
    }

    /// Returns the next trigger to any executor.
    async fn next_trigger(&mut self) -> Result<Vec<u8>> {
        let next = async {
            match self {
                Self::Nats { triggers, .. } => triggers.next().await.map(|m| m.payload.to_vec()),
                Self::Rabbit { triggers, .. } => triggers.next().await?.ok().map(|d| d.data),
            }
        };
        let trigger = tokio::time::timeout(WITHIN, next).await;
        trigger
            .context("no trigger was received")?
            .context("the broker closed the connection")
    }

    /// Publishes to the queue of an executor of the group `default`.
    async fn publish(&self, executor: &str, payload: Vec<u8>) -> Result<()> {
        match self {
            Self::Nats { client, .. } => {
                let subject = format!("cueline.trigger.default.{executor}.honest");
                let mut stream = jetstream::new(client.clone());
                stream.set_timeout(WITHIN);
                stream.publish(subject, payload.into()).await?.await?;
            }
            Self::Rabbit { channel, .. } => {
                let key = format!("default.{executor}.honest");
                let sent = channel
                    .basic_publish(
                        "cueline.triggers".into(),
                        key.into(),
                        BasicPublishOptions::default(),
                        &payload,
                        BasicProperties::default(),
                    )
                    .await?;
                ensure!(sent.await?.is_ack(), "the broker refused it");
            }
        }
        Ok(())
    }

    /// The largest message that the broker accepts, or a size that is large enough.
    fn large_message(&self) -> usize {
        match self {
            Self::Nats { client, .. } => client.max_payload(),
            Self::Rabbit { .. } => 8 << 20,
        }
    }
}

/// A message to an executor's queue, and the reason that its dead letter must name.
struct Forgery {
    executor: &'static str,
    payload: Vec<u8>,
    reason: &'static str,
}

const CHANGED: &str = "none of the 1 keys";
const LATE: &str = "it was valid until";

/// The genuine trigger with one change.
fn changed(genuine: &str, from: &str, to: &str) -> Result<Forgery> {
    ensure!(genuine.contains(from), "no {from} in {genuine}");
    Ok(Forgery {
        executor: "one",
        payload: genuine.replacen(from, to, 1).into_bytes(),
        reason: CHANGED,
    })
}

/// The genuine trigger without one field.
fn without(genuine: &str, trigger: &Value, name: &str, reason: &'static str) -> Result<Forgery> {
    let removed = changed(genuine, &format!("{},", field(trigger, name)), "")?;
    Ok(Forgery { reason, ..removed })
}

fn field(trigger: &Value, name: &str) -> String {
    format!("{name:?}:{}", trigger[name])
}

/// A changed trigger with a signature as a scheduler would make it.
fn signed(genuine: &str, key: &SigningKey, change: impl FnOnce(&mut Trigger)) -> Result<Vec<u8>> {
    let mut trigger: Trigger = decode(genuine.as_bytes())?;
    // An attempt that the worker does not know: a valid trigger for it would run.
    trigger.run.0 += 1_000_000;
    change(&mut trigger);
    Ok(key.sign(&mut trigger))
}

/// The genuine trigger with one change each, or in the queue of another executor.
fn changes(genuine: &str) -> Result<Vec<Forgery>> {
    let trigger: Value = serde_json::from_str(genuine)?;
    let run = trigger["run"].as_i64().context("a run")?;
    let mut all = vec![
        changed(genuine, "echo honest", "echo wicked")?,
        changed(genuine, "\"params\":\"genuine\"", "\"params\":\"another\"")?,
        changed(genuine, "\"attempt\":1", "\"attempt\":2")?,
        changed(
            genuine,
            &format!("\"run\":{run}"),
            &format!("\"run\":{}", run + 1_000_000),
        )?,
        changed(genuine, "\"version\":1", "\"version\":2")?,
        changed(
            genuine,
            &field(&trigger, "deadline"),
            "\"deadline\":4102444800000",
        )?,
        without(genuine, &trigger, "deadline", "missing field `deadline`")?,
        without(genuine, &trigger, "store", "missing field `store`")?,
    ];
    // Another executor: as it is, and with its name changed.
    let other = changed(genuine, "\"executor\":\"one\"", "\"executor\":\"two\"")?;
    let mut to_two = |payload, reason| {
        all.push(Forgery {
            executor: "two",
            payload,
            reason,
        });
    };
    to_two(other.payload, CHANGED);
    to_two(
        genuine.as_bytes().to_vec(),
        "it is for executor default/one, this is default/two",
    );
    Ok(all)
}

/// Triggers of another signer, triggers kept too long, and messages that are no triggers.
fn inventions(genuine: &str, key: &SigningKey, large: usize) -> Result<Vec<Forgery>> {
    let trigger: Value = serde_json::from_str(genuine)?;
    let run = trigger["run"].as_i64().context("a run")?;
    let mut all = Vec::new();
    let mut to_one = |payload, reason| {
        all.push(Forgery {
            executor: "one",
            payload,
            reason,
        });
    };
    let mut unsigned = trigger.clone();
    unsigned["run"] = (run + 1_000_000).into();
    let signature = unsigned["signature"].take();
    ensure!(signature.is_string(), "it was not signed: {genuine}");
    unsigned
        .as_object_mut()
        .context("an object")?
        .remove("signature");
    to_one(serde_json::to_vec(&unsigned)?, "the trigger is not signed");
    let stranger = SigningKey::from_seed([9; 32]);
    to_one(signed(genuine, &stranger, |_| {})?, CHANGED);
    // Native handlers are the worker's own code. Their parameters are not.
    let native = |t: &mut Trigger| {
        Arc::make_mut(&mut t.job).handler = HandlerSpec::Native("work".to_owned());
    };
    to_one(signed(genuine, &stranger, native)?, CHANGED);
    let mut forged: Trigger = decode(&signed(genuine, key, native)?)?;
    let of_another = forged.signature.take();
    to_one(encode(&forged), "the trigger is not signed");
    // With the signature of another trigger.
    forged.run.0 += 1;
    forged.signature = of_another;
    to_one(encode(&forged), CHANGED);
    // Published again after its deadline.
    to_one(
        signed(genuine, key, |t| {
            t.deadline = Timestamp::from_millis(0);
        })?,
        LATE,
    );
    to_one(
        signed(genuine, key, |t| {
            t.group = "other".parse().expect("a name");
        })?,
        "it is for executor other/one, this is default/one",
    );
    to_one(
        b"\xff\xfe no JSON at all".to_vec(),
        "failed to read the message: expected value",
    );
    to_one(
        genuine.replacen("\"v\":1", "\"v\":9", 1).into_bytes(),
        "its version is 9",
    );
    // As large as the broker accepts. Its dead letter is larger.
    unsigned["params"] = "".into();
    let room = large - serde_json::to_vec(&unsigned)?.len();
    unsigned["params"] = "x".repeat(room).into();
    to_one(serde_json::to_vec(&unsigned)?, "the trigger is not signed");
    to_one(
        vec![b'x'; large],
        "failed to read the message: expected value",
    );
    Ok(all)
}

fn jobs(cluster: &Cluster) -> String {
    format!(
        r#"
[[job]]
name = "honest"
schedule = {{ manual = true }}
route = "first"
params = "genuine"
handler = {{ shell = "echo honest $CUELINE_RUN_ID $CUELINE_EXECUTOR $1 >> {}" }}
"#,
        cluster.path("ran").display()
    )
}

async fn run_one(cluster: &Cluster) -> Result<()> {
    let honest = cluster.run(&["trigger", "honest", "--wait"]).await?;
    ensure!(honest.status == Some(0), "{honest:?}");
    Ok(())
}

fn ran(cluster: &Cluster) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(cluster.path("ran"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

async fn attack(cluster: &Cluster, attacker: &mut Attacker) -> Result<()> {
    cluster.apply(&jobs(cluster)).await?;
    run_one(cluster).await?;
    let genuine = String::from_utf8(attacker.next_trigger().await?)?;
    let first = ran(cluster)?;
    ensure!(
        first.len() == 1 && first[0].ends_with(" one genuine"),
        "{first:?}"
    );

    let key = std::fs::read_to_string(cluster.path("signing.key"))?;
    let key = key.trim().rsplit(':').next().context("a key")?;
    let key = SigningKey::from_base64(key)?;
    let mut forgeries = changes(&genuine)?;
    forgeries.extend(inventions(&genuine, &key, attacker.large_message())?);
    let mut expected: Vec<&str> = forgeries.iter().map(|f| f.reason).collect();
    // The genuine trigger again: the worker knows it and does not run it a second time.
    attacker
        .publish("one", genuine.clone().into_bytes())
        .await?;
    for forgery in forgeries {
        attacker.publish(forgery.executor, forgery.payload).await?;
    }
    let reasons = try_eventually("each is a dead letter", WITHIN, async || {
        let reasons = dead_letter_reasons(cluster).await?;
        anyhow::Ok(if reasons.len() >= expected.len() {
            Ok(reasons)
        } else {
            Err(format!("{reasons:#?}"))
        })
    })
    .await?;
    for reason in &reasons {
        let place = expected.iter().position(|e| reason.contains(e));
        let place = place.with_context(|| format!("not among {expected:?}: {reason}"))?;
        expected.swap_remove(place);
    }

    // The worker continues, and no forgery has run.
    run_one(cluster).await?;
    let now = ran(cluster)?;
    ensure!(now.len() == 2 && now[0] == first[0], "{now:?}");
    ensure!(now[1].ends_with(" one genuine"), "{now:?}");
    Ok(())
}

/// The reasons of all dead letters.
async fn dead_letter_reasons(cluster: &Cluster) -> Result<Vec<String>> {
    let list = ["dlq", "list", "-A", "--limit", "100", "-o", "json"];
    let answer = cluster.run(&list).await?.json()?;
    let letters = answer["letters"].as_array().context("a list")?;
    let reasons = letters.iter().filter_map(|l| l["reason"].as_str());
    Ok(reasons.map(str::to_owned).collect())
}

/// Starts a scheduler, two workers and an attacker.
async fn no_forgery_runs(broker: String, rabbit: bool) -> Result<()> {
    let (_server, store) = database()?;
    let cluster = Cluster::new(store, broker).await?;
    let mut scheduler = cluster.scheduler(&[])?;
    cluster.wait_until_ready(&mut scheduler).await?;
    let mut workers = Vec::new();
    for name in ["one", "two"] {
        workers.push(cluster.worker(name)?);
        cluster.wait_for_executor(name).await?;
    }
    let mut attacker = if rabbit {
        Attacker::on_rabbit(&cluster.broker).await?
    } else {
        Attacker::on_nats(&cluster.broker).await?
    };
    attack(&cluster, &mut attacker)
        .await
        .with_context(|| cluster.logs())?;
    for worker in &mut workers {
        worker.terminate().await?;
    }
    scheduler.terminate().await
}

#[tokio::test]
async fn a_forged_trigger_does_not_run_over_nats() -> Result<()> {
    let nats = Nats::start(Version::V2_12)?;
    no_forgery_runs(nats.url(), false).await
}

#[tokio::test]
async fn a_forged_trigger_does_not_run_over_rabbitmq() -> Result<()> {
    no_forgery_runs(Rabbit::shared_vhost()?, true).await
}
