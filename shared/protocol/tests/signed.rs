//! Signed triggers as they are on the wire, those of the time before stores had ids among them.

use std::sync::Arc;

use cueline_model::handler::ShellSpec;
use cueline_model::{
    Block, DurationMs, Fence, HandlerSpec, JobId, OnLost, RunId, RunKind, Scope, Shard, StoreId,
    Timestamp,
};
use cueline_protocol::{
    JobPart, SignError, SigningKey, Trigger, VERSION, VerifyingKeys, decode, encode,
};

/// As it goes out today.
const GOLDEN: &str = include_str!("golden/trigger.json");
/// As a scheduler wrote it that knew nothing of stores, groups and deadlines; taken from a journal of that time, with the key of that scheduler.
const BEFORE: &str = include_str!("golden/trigger-before-stores.json");
const BEFORE_KEY: &str = "qg9VwOy12nQEqXN/nw3h86qs/hx/Imp0DTdB5ZcOs5I=";

fn key() -> SigningKey {
    SigningKey::from_seed([7; 32])
}

fn keys() -> VerifyingKeys {
    VerifyingKeys::from_base64([key().public_base64().as_str()]).expect("a key")
}

fn trigger() -> Trigger {
    let job = JobPart {
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
        store: Some(StoreId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef)),
        run: RunId(7),
        attempt: 2,
        group: Some("billing".parse().expect("a name")),
        executor: "one".parse().expect("a name"),
        kind: RunKind::Manual,
        fire_at: Timestamp::from_millis(1_800_000_000_000),
        shard: Shard::whole(),
        params: Some("p".to_owned()),
        job: Arc::new(job),
        deadline: Some(Timestamp::from_millis(1_800_003_600_000)),
        signature: None,
    }
}

fn verify(message: &str) -> Result<(), SignError> {
    let trigger: Trigger = decode(message.as_bytes()).expect("readable");
    keys().verify(message.as_bytes(), &trigger)
}

#[test]
fn the_message_is_as_it_was_when_it_was_agreed_on() {
    let mut trigger = trigger();
    let message = String::from_utf8(key().sign(&mut trigger)).expect("UTF-8");
    assert_eq!(message, GOLDEN.trim_end());
    assert_eq!(String::from_utf8(encode(&trigger)), Ok(message));
    assert_eq!(verify(GOLDEN.trim_end()), Ok(()));
}

#[test]
fn one_of_the_time_before_still_holds() {
    let keys = VerifyingKeys::from_base64([BEFORE_KEY]).expect("a key");
    let verify = |message: &str| {
        let trigger: Trigger = decode(message.as_bytes()).expect("readable");
        assert_eq!(trigger.group, None);
        keys.verify(message.as_bytes(), &trigger)
    };
    let message = BEFORE.trim_end();
    assert_eq!(verify(message), Ok(()));
    for (from, to) in [
        ("\"attempt\":1", "\"attempt\":2"),
        ("sleep 20", "sleep 99"),
        // It would have to be signed as it is today.
        (
            "\"run\":2",
            "\"store\":\"0123456789abcdef0123456789abcdef\",\"run\":2",
        ),
    ] {
        let changed = message.replacen(from, to, 1);
        assert_ne!(changed, message);
        assert_eq!(verify(&changed), Err(SignError::Mismatch(1)), "{changed}");
    }
}

/// Byte by byte: whatever is changed, left out or written otherwise.
#[test]
fn nothing_can_be_changed() {
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
        ("\"v\":1,", "\"v\":1,\"news\":true,"),
        ("}", "} "),
    ] {
        let changed = golden.replacen(from, to, 1);
        assert_eq!(verify(&changed), Err(SignError::Mismatch(1)), "{changed}");
    }
    let behind = format!("{golden} ");
    assert_eq!(verify(&behind), Err(SignError::Mismatch(1)));
}
