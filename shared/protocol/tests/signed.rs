//! Signed triggers as they are on the wire.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cueline_model::handler::ShellSpec;
use cueline_model::{
    Block, DurationMs, Fence, HandlerSpec, JobId, OnLost, RunId, RunKind, Scope, SecretName, Shard,
    StoreId, Timestamp,
};
use cueline_protocol::sign::{MAX_BATCH, MAX_SHARED_BATCH};
use cueline_protocol::{
    JobSnapshot, SignError, SigningKey, SigningKeys, Trigger, TriggerVerifier, VERSION,
    VerifyingKeys, decode, encode,
};
use proptest::prelude::*;
use serde_json::Value;

/// The wire format, byte for byte. Another implementation made the signature.
const GOLDEN: &str = include_str!("golden/trigger.json");

/// The same trigger of run 8, in a batch with those of the runs 7 and 9.
const GOLDEN_OF_THREE: &str = include_str!("golden/trigger_of_three.json");

/// The same trigger as a retry, which is due a minute later.
const GOLDEN_OF_RETRY: &str = include_str!("golden/trigger_of_retry.json");

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
        handler: HandlerSpec::from(ShellSpec {
            script: "echo \"größe\"\n".to_owned(),
            ..ShellSpec::default()
        }),
        block: Block::Serial,
        scope: Scope::Executor,
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
        lane_at: None,
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

#[test]
fn the_wire_format_of_a_batch_is_the_golden_message() {
    let mut triggers = [7, 8, 9].map(|run| Trigger {
        run: RunId(run),
        ..trigger()
    });
    let messages = key().sign_all(&mut triggers);
    assert_eq!(str::from_utf8(&messages[1]), Ok(GOLDEN_OF_THREE.trim_end()));
    assert_eq!(verify(GOLDEN_OF_THREE.trim_end()), Ok(()));
}

/// The place of a retry in its lane is covered by the signature. Other triggers do not have the field.
#[test]
fn the_signature_covers_the_place_of_a_retry() {
    let mut retry = Trigger {
        lane_at: Some(Timestamp::from_millis(1_800_000_060_000)),
        ..trigger()
    };
    let message = String::from_utf8(key().sign(&mut retry)).expect("UTF-8");
    assert_eq!(message, GOLDEN_OF_RETRY.trim_end());
    assert_eq!(verify(&message), Ok(()));
    let changed = message.replacen("1800000060000", "1800000000001", 1);
    assert_eq!(verify(&changed), Err(SignError::Mismatch(1)));
    let first = message.replacen(",\"lane_at\":1800000060000", "", 1);
    assert_eq!(verify(&first), Err(SignError::Mismatch(1)));
    assert!(!GOLDEN.contains("lane_at"));
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

/// Triggers for three executors of two groups.
fn triggers(count: usize) -> Vec<Trigger> {
    let targets = [("billing", "one"), ("sales", "one"), ("billing", "two")];
    (0..count)
        .map(|n| {
            let (group, executor) = targets[n % targets.len()];
            Trigger {
                run: RunId(i64::try_from(n).expect("small")),
                group: group.parse().expect("a name"),
                executor: executor.parse().expect("a name"),
                ..trigger()
            }
        })
        .collect()
}

/// The signature field of a message.
fn signature_of(message: &[u8]) -> String {
    let whole: Value = serde_json::from_slice(message).expect("JSON");
    whole["signature"].as_str().expect("a text").to_owned()
}

/// The signature of the batch in a message.
fn batch_of(message: &[u8]) -> Vec<u8> {
    let bytes = BASE64.decode(signature_of(message)).expect("base64");
    bytes[4..68].to_vec()
}

/// The message without its signature, and its signature.
fn split(message: &[u8]) -> (&[u8], &[u8]) {
    let ending = b",\"signature\"";
    let at = message.windows(ending.len()).position(|w| w == ending);
    message.split_at(at.expect("signed"))
}

#[test]
fn the_messages_have_the_order_of_their_triggers() {
    let mut all = triggers(70);
    let messages = key().sign_all(&mut all);
    for (message, trigger) in messages.iter().zip(&all) {
        assert_eq!(message, &encode(trigger));
        assert_eq!(keys().verify(message, trigger), Ok(()));
    }
    assert!(key().sign_all(&mut []).is_empty());
}

#[test]
fn triggers_of_one_executor_share_signatures() {
    let mut all = triggers(3 * MAX_BATCH);
    all.retain(|t| t.executor.as_str() == "two" || t.group.as_str() == "sales");
    let messages = key().sign_all(&mut all);
    let of = |group: &str| {
        let messages = messages.iter().zip(&all);
        let own = messages.filter(|(_, t)| t.group.as_str() == group);
        let mut batches: Vec<Vec<u8>> = own.map(|(message, _)| batch_of(message)).collect();
        batches.sort();
        batches.dedup();
        batches.len()
    };
    assert_eq!((of("billing"), of("sales")), (1, 1));
}

/// The size of the batch in a message.
fn batch_size(message: &[u8]) -> usize {
    let bytes = BASE64.decode(signature_of(message)).expect("base64");
    usize::from(bytes[0]) * 256 + usize::from(bytes[1])
}

#[test]
fn executors_with_few_triggers_share_small_batches() {
    let of_executor = |executor: usize, count: usize| {
        (0..count).map(move |n| Trigger {
            run: RunId(i64::try_from(1000 * executor + n).expect("small")),
            executor: format!("e{executor}").parse().expect("a name"),
            ..trigger()
        })
    };
    let few = (1..=9).flat_map(|executor| of_executor(executor, 7));
    let mut all: Vec<Trigger> = of_executor(0, MAX_BATCH + 7).chain(few).collect();
    let messages = key().sign_all(&mut all);
    let sizes = |executor: &str| {
        let own = messages.iter().zip(&all);
        let own = own.filter(|(_, t)| t.executor.as_str() == executor);
        let mut batches: Vec<_> = own.map(|(m, _)| (batch_size(m), batch_of(m))).collect();
        batches.sort();
        batches.dedup();
        batches
            .into_iter()
            .map(|(size, _)| size)
            .collect::<Vec<_>>()
    };
    // Ten times seven of them, four in each but the last.
    let shared = 28;
    assert!(shared <= MAX_SHARED_BATCH && shared + 7 > MAX_SHARED_BATCH);
    assert_eq!(sizes("e0"), [shared, MAX_BATCH]);
    assert_eq!(sizes("e3"), [shared]);
    assert_eq!(sizes("e7"), [shared]);
    assert_eq!(sizes("e9"), [14]);
}

#[test]
fn each_group_is_signed_with_its_key() {
    let own = SigningKey::from_seed([8; 32]);
    let sales: cueline_model::GroupName = "sales".parse().expect("a name");
    let both = SigningKeys::from(key()).with_group(sales.clone(), own.clone());
    let mut all = triggers(100);
    let messages = both.sign_all(&mut all);
    for (message, trigger) in messages.iter().zip(&all) {
        let is_own = trigger.group == sales;
        let by_own = own.verifying_keys().verify(message, trigger);
        let by_default = keys().verify(message, trigger);
        assert_eq!((by_own.is_ok(), by_default.is_ok()), (is_own, !is_own));
    }
}

#[test]
fn an_unsigned_trigger_is_refused() {
    let trigger = trigger();
    let message = encode(&trigger);
    let verified = keys().verify(&message, &trigger);
    assert_eq!(verified, Err(SignError::Missing));
}

proptest! {
    /// Each trigger of a batch is genuine by itself. With the signature of another trigger, of its own batch or of
    /// another one, it is not.
    #[test]
    fn a_signature_is_valid_for_its_trigger_alone(
        count in 1..=2 * MAX_BATCH,
        one in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
    ) {
        let mut all = triggers(count);
        let messages = key().sign_all(&mut all);
        let verifier = TriggerVerifier::new(keys());
        for (message, trigger) in messages.iter().zip(&all) {
            prop_assert_eq!(verifier.verify(message, trigger), Ok(()));
        }
        let refused = |message: &[u8]| match decode::<Trigger>(message) {
            // The batches are remembered, and a changed trigger is not taken for one of them.
            Ok(read) => {
                verifier.verify(message, &read).is_err() && keys().verify(message, &read).is_err()
            }
            Err(_) => true,
        };
        let (one, other) = (one.index(count), other.index(count));
        if one != other {
            let mixed = [split(&messages[one]).0, split(&messages[other]).1].concat();
            prop_assert!(refused(&mixed));
        }
        let mut later = triggers(count);
        for trigger in &mut later {
            trigger.attempt += 1;
        }
        let later = key().sign_all(&mut later);
        let mixed = [split(&messages[one]).0, split(&later[one]).1].concat();
        prop_assert!(refused(&mixed));

        let mut changed = messages[one].clone();
        let at = at.index(changed.len());
        if changed[at] != to {
            changed[at] = to;
            prop_assert!(refused(&changed), "{}", String::from_utf8_lossy(&changed));
        }
    }

    /// Each byte of the signature itself, its length and its text.
    #[test]
    fn a_changed_signature_is_refused(
        count in 2..=MAX_BATCH,
        one in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
        cut in 1..100_usize,
        text in "[A-Za-z0-9+/]{0,300}",
    ) {
        let mut all = triggers(count);
        let messages = key().sign_all(&mut all);
        let message = String::from_utf8(messages[one.index(count)].clone()).expect("UTF-8");
        let signature = signature_of(message.as_bytes());
        let genuine = BASE64.decode(&signature).expect("base64");
        let mut changed = genuine.clone();
        let at = at.index(changed.len());
        changed[at] = to;
        let longer = [&genuine[..], &[to; 32]].concat();
        let shorter = &genuine[..genuine.len().saturating_sub(cut)];
        let texts = [&changed[..], &longer, shorter].map(|bytes| BASE64.encode(bytes));
        for text in texts.iter().chain([&text]) {
            let changed = message.replace(&signature, text);
            if changed != message {
                prop_assert_eq!(verify(&changed), Err(SignError::Mismatch(1)), "{}", changed);
            }
        }
    }
}
