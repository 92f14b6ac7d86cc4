//! Signed triggers as they are on the wire.

use std::sync::Arc;

use cueline_model::handler::ShellSpec;
use cueline_model::{
    Block, DurationMs, Fence, HandlerSpec, JobId, OnLost, RunId, RunKind, Scope, SecretName, Shard,
    StoreId, Timestamp,
};
use cueline_protocol::{
    JobSnapshot, SignError, SigningKey, Trigger, VERSION, VerifyingKeys, decode, encode,
};

/// The wire format, byte for byte.
const GOLDEN: &str = include_str!("golden/trigger.json");

fn key() -> SigningKey {
    SigningKey::from_seed([7; 32])
}

fn keys() -> VerifyingKeys {
    VerifyingKeys::from_base64([key().public_base64().as_str()]).expect("a key")
}

fn trigger() -> Trigger {
    let job = JobSnapshot {
        id: JobId(3),
        name: "report".parse().expect("a name"),
        version: 2,
        handler: HandlerSpec::Shell(ShellSpec {
            script: "echo \"größe\"\n".to_owned(),
            ..ShellSpec::default()
        }),
        block: Block::Serial,
        scope: Scope::default(),
        backlog: 1_000,
        timeout: Some(DurationMs::secs(60)),
        kill_grace: DurationMs::secs(5),
        on_lost: OnLost::default(),
        fence: Fence::default(),
        priority: 5,
        lane_per_shard: false,
    };
    Trigger {
        v: VERSION,
        store: StoreId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        run: RunId(7),
        attempt: 2,
        group: "billing".parse().expect("a name"),
        executor: "one".parse().expect("a name"),
        kind: RunKind::Manual,
        fire_at: Timestamp::from_millis(1_800_000_000_000),
        shard: Shard::whole(),
        params: Some("p".to_owned()),
        job: Arc::new(job),
        session: None,
        deadline: Timestamp::from_millis(1_800_003_600_000),
        signature: None,
    }
}

fn verify(message: &str) -> Result<(), SignError> {
    let trigger: Trigger = decode(message.as_bytes()).expect("readable");
    keys().verify(message.as_bytes(), &trigger)
}

#[test]
fn the_wire_format_is_the_golden_message() {
    let mut trigger = trigger();
    let message = String::from_utf8(key().sign(&mut trigger)).expect("UTF-8");
    assert_eq!(message, GOLDEN.trim_end());
    assert_eq!(String::from_utf8(encode(&trigger)), Ok(message));
    assert_eq!(verify(GOLDEN.trim_end()), Ok(()));
}

/// A trigger has the name of a secret, never its value. Another name would be another secret.
#[test]
fn the_signature_covers_the_names_of_secrets() {
    let secret: SecretName = "db-password".parse().expect("a name");
    let mut trigger = trigger();
    let mut job = JobSnapshot::clone(&trigger.job);
    let HandlerSpec::Shell(spec) = &mut job.handler else {
        panic!("a script");
    };
    spec.process
        .env
        .insert("PASSWORD".to_owned(), secret.into());
    trigger.job = Arc::new(job);
    let message = String::from_utf8(key().sign(&mut trigger)).expect("UTF-8");
    let reference = r#""PASSWORD":{"secret":"db-password"}"#;
    assert!(message.contains(reference), "{message}");
    assert_eq!(verify(&message), Ok(()));
    let changed = message.replacen("db-password", "db-of-another", 1);
    assert_eq!(verify(&changed), Err(SignError::Mismatch(1)));
}

/// Tries each byte, an added field, and added white space.
#[test]
fn the_signature_covers_every_byte() {
    let golden = GOLDEN.trim_end();
    let end = golden.find(",\"signature\"").expect("signed");
    let mut tried = 0;
    for at in 0..end {
        let mut bytes = golden.as_bytes().to_vec();
        bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
        let Ok(trigger) = decode::<Trigger>(&bytes) else {
            continue;
        };
        tried += 1;
        assert_eq!(
            keys().verify(&bytes, &trigger),
            Err(SignError::Mismatch(1)),
            "at {at}"
        );
    }
    assert!(tried > 100, "{tried} changes could be read");
    for (from, to) in [
        ("\"v\":1,", "\"v\": 1,"),
        ("\"v\":1,", "\"v\":1,\"extra\":true,"),
        ("}", "} "),
    ] {
        let changed = golden.replacen(from, to, 1);
        assert_eq!(verify(&changed), Err(SignError::Mismatch(1)), "{changed}");
    }
    let behind = format!("{golden} ");
    assert_eq!(verify(&behind), Err(SignError::Mismatch(1)));
}
