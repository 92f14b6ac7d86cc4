//! Jobs that run scripts by name: what their triggers carry, who gets them, and G3 after a save.

use cueline_engine::ManualEngine;
use cueline_model::handler::Interpreter;
use cueline_model::{HandlerSpec, RunState, ScriptSpec};
use cueline_store::{Precondition, ScriptStore as _, Store as _};
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, actor, name, tick};

async fn save(fixture: &Fixture, language: Interpreter, text: &str) {
    let spec = ScriptSpec {
        name: name("backup"),
        language,
        text: text.to_owned(),
        remark: String::new(),
    };
    let ann = actor("ann");
    let put = fixture
        .store
        .put_script(&spec, &Precondition::None, false, &ann);
    put.await.expect("saves");
}

async fn announces(e1: &FakeExecutor, capabilities: &[&str]) {
    e1.heartbeat_with(|heartbeat| {
        heartbeat.capabilities = capabilities.iter().map(|one| (*one).to_owned()).collect();
    })
    .await;
}

/// A job with a period of 10 s and a script, whose first run is claimed and due in one second.
async fn claimed() -> (Fixture, ManualEngine, FakeExecutor) {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    announces(&e1, &["shell", "shell:sh"]).await;
    save(&fixture, Interpreter::Sh, "echo 1").await;
    let rest =
        json!({ "schedule": { "every": "10s" }, "handler": { "script": { "name": "backup" } } });
    fixture.apply("job", rest).await;
    fixture.set(9_000);
    tick(&mut engine).await;
    assert_eq!(fixture.states("job").await, [RunState::Scheduled]);
    (fixture, engine, e1)
}

/// Version and text of the only trigger in the queue.
async fn taken(e1: &FakeExecutor) -> (i64, String) {
    let trigger = e1.take_one().await;
    match &trigger.job.handler {
        HandlerSpec::Shell(shell) => (trigger.job.version, shell.script.clone()),
        other => panic!("a worker gets the text: {other:?}"),
    }
}

#[tokio::test]
async fn a_trigger_carries_the_text_of_the_script() {
    let (fixture, mut engine, e1) = claimed().await;
    fixture.set(10_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(taken(&e1).await, (1, "echo 1".to_owned()));
}

#[tokio::test]
async fn a_save_after_the_claim_applies_to_the_run() {
    let (fixture, mut engine, e1) = claimed().await;
    save(&fixture, Interpreter::Sh, "echo 2").await;
    fixture.set(10_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(taken(&e1).await, (2, "echo 2".to_owned()));
}

#[tokio::test]
async fn after_the_mark_a_save_waits_for_the_publish() {
    let (fixture, mut engine, e1) = claimed().await;
    fixture.set(10_000);
    engine.prepare().await.expect("prepares");
    assert_eq!(fixture.states("job").await, [RunState::Dispatching]);
    save(&fixture, Interpreter::Sh, "echo 2").await;
    let job = fixture.runs("job").await[0].job_id;
    let publishing = async || {
        let attempts = fixture.store.dispatching_attempts(&[job]).await;
        attempts.expect("lists").len()
    };
    assert_eq!(publishing().await, 1);
    engine.publish().await.expect("publishes");
    assert_eq!(publishing().await, 0);
    assert_eq!(taken(&e1).await.1, "echo 1");
    fixture.set(20_000);
    tick(&mut engine).await;
    assert_eq!(taken(&e1).await, (2, "echo 2".to_owned()));
}

#[tokio::test]
async fn only_executors_with_the_runtime_are_candidates() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    announces(&e1, &["shell", "shell:sh", "shell:bash"]).await;
    save(&fixture, Interpreter::Python3, "print(1)").await;
    let script = json!({ "script": { "name": "backup" } });
    let rest = json!({ "handler": script, "dispatch_deadline": "30s" });
    fixture.apply("job", rest).await;
    let first = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
    // Steps of 5 s keep the node's lease.
    for ms in (5_000..=30_000).step_by(5_000) {
        fixture.set(ms);
        announces(&e1, &["shell", "shell:sh", "shell:bash"]).await;
        assert_eq!(tick(&mut engine).await, 0);
    }
    let ended = fixture.run(first).await;
    assert_eq!(ended.state, RunState::Unroutable);
    let why = ended.message.expect("a reason");
    assert!(why.contains("can run shell:python3"), "{why}");
    let second = fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 0);
    announces(&e1, &["shell", "shell:python3"]).await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, second);
}

/// The same for a script in the definition of the job.
#[tokio::test]
async fn a_job_with_a_search_path_of_its_own_needs_no_announced_runtime() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    announces(&e1, &["shell"]).await;
    let with = |env: serde_json::Value| {
        let shell = json!({ "script": "1", "interpreter": "node", "env": env });
        json!({ "handler": { "shell": shell } })
    };
    fixture.apply("plain", with(json!({}))).await;
    fixture
        .apply("own", with(json!({ "PATH": "/opt/node/bin" })))
        .await;
    fixture.trigger("plain").await;
    let own = fixture.trigger("own").await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.run, own);
}
