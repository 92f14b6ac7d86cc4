//! Seals: the signature of one message by the executor that sends it.
//!
//! A sealed message is its body, a line feed, and the seal as one line of JSON. The signature covers the purpose and the
//! executor too, so a seal is worthless for another kind of message and for another executor.
//!
//! The body is signed by its SHA-256. Ed25519 hashes what it signs with SHA-512, twice, and processors have instructions for
//! SHA-256 only; so a message of many reports costs a fifth.

use cueline_model::{ExecutorId, ExecutorName, GroupName};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::key::{WorkerKey, WorkerKeyId, WorkerPublicKey};

/// The longest line that is read as a seal, in bytes. Names of the greatest length need about 450.
const MAX_SEAL_BYTES: usize = 1_024;

/// The beginning of each seal.
const SEAL_START: &[u8] = b"{\"seal\":";

/// The length of a signature in base64.
const SIGNATURE_CHARS: usize = 88;

/// What a sealed message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A [`HeartbeatMessage`](crate::HeartbeatMessage).
    Heartbeat,
    /// One or several [`ReportMessage`](crate::ReportMessage)s.
    Reports,
    /// A [`HoldingsReply`](crate::HoldingsReply).
    Holdings,
    /// A message that the executor refused.
    DeadLetter,
}

impl Purpose {
    const fn name(self) -> &'static str {
        match self {
            Self::Heartbeat => "heartbeat",
            Self::Reports => "reports",
            Self::Holdings => "holdings",
            Self::DeadLetter => "dead-letter",
        }
    }
}

/// Why a seal proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The message does not end with a seal.
    #[error("the message is not sealed")]
    Missing,
    /// The last line begins as a seal, but is none.
    #[error("the seal of the message cannot be read")]
    Malformed,
    /// Another key made the signature, or for something else.
    #[error("the signature was not made by the worker's key, or the message was changed")]
    Mismatch,
}

/// The last line of a sealed message.
#[derive(Serialize, Deserialize)]
struct SealLine {
    seal: SealFields,
}

#[derive(Serialize, Deserialize)]
struct SealFields {
    group: GroupName,
    executor: ExecutorName,
    key: WorkerKeyId,
    signature: String,
}

/// Seals what one executor sends.
#[derive(Debug, Clone)]
pub struct Sealer {
    executor: ExecutorId,
    key: WorkerKey,
    key_id: WorkerKeyId,
}

impl Sealer {
    /// Seals messages of `executor` with `key`.
    pub fn new(executor: ExecutorId, key: WorkerKey) -> Self {
        let key_id = key.public().id();
        Self {
            executor,
            key,
            key_id,
        }
    }

    /// The short name of the key.
    pub const fn key_id(&self) -> &WorkerKeyId {
        &self.key_id
    }

    /// The public half of the key.
    pub fn public_key(&self) -> WorkerPublicKey {
        self.key.public()
    }

    /// The executor whose messages it seals.
    pub const fn executor(&self) -> &ExecutorId {
        &self.executor
    }

    pub(super) const fn key(&self) -> &WorkerKey {
        &self.key
    }

    /// `body`, a line feed, and the seal as one line of JSON.
    pub fn seal(&self, purpose: Purpose, mut body: Vec<u8>) -> Vec<u8> {
        let signature = self.key.sign(&signed(purpose, &self.executor, &body));
        let line = self.line(signature);
        body.reserve(1 + line.len());
        body.push(b'\n');
        body.extend_from_slice(&line);
        body
    }

    /// An upper bound of what [`seal`](Self::seal) adds, in bytes.
    pub fn overhead(&self) -> usize {
        1 + self.line("A".repeat(SIGNATURE_CHARS)).len()
    }

    fn line(&self, signature: String) -> Vec<u8> {
        let line = SealLine {
            seal: SealFields {
                group: self.executor.group.clone(),
                executor: self.executor.name.clone(),
                key: self.key_id.clone(),
                signature,
            },
        };
        serde_json::to_vec(&line).expect("seals have string keys only, so writing them cannot fail")
    }
}

/// What a sealed message claims. Nothing of it is true before [`verify`](Self::verify).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed<'a> {
    /// The message without its seal.
    pub body: &'a [u8],
    /// The executor that is said to have sent it.
    pub executor: ExecutorId,
    /// The key that is said to have sealed it.
    pub key: WorkerKeyId,
    signature: String,
}

impl<'a> Sealed<'a> {
    /// Splits a message at its last line feed.
    ///
    /// # Errors
    ///
    /// [`SealError::Missing`] if the last line is no seal, [`SealError::Malformed`] if it begins as one.
    pub fn parse(payload: &'a [u8]) -> Result<Self, SealError> {
        let end = payload.iter().rposition(|byte| *byte == b'\n');
        let (body, rest) = payload.split_at(end.ok_or(SealError::Missing)?);
        let line = &rest[1..];
        if !line.starts_with(SEAL_START) {
            return Err(SealError::Missing);
        }
        if line.len() > MAX_SEAL_BYTES {
            return Err(SealError::Malformed);
        }
        let line = serde_json::from_slice::<SealLine>(line);
        let SealLine { seal } = line.map_err(|_| SealError::Malformed)?;
        Ok(Self {
            body,
            executor: ExecutorId {
                group: seal.group,
                name: seal.executor,
            },
            key: seal.key,
            signature: seal.signature,
        })
    }

    /// Checks that `key` sealed this message of this executor for this purpose.
    ///
    /// # Errors
    ///
    /// [`SealError::Mismatch`] if it did not.
    pub fn verify(&self, purpose: Purpose, key: &WorkerPublicKey) -> Result<(), SealError> {
        let signed = signed(purpose, &self.executor, self.body);
        if key.verifies(&signed, &self.signature) {
            Ok(())
        } else {
            Err(SealError::Mismatch)
        }
    }
}

/// The bytes that are signed. Names have no line feeds, so two different heads never read the same, and the hash has always
/// the same length. The first line keeps signatures of other data from being valid for messages.
fn signed(purpose: Purpose, executor: &ExecutorId, body: &[u8]) -> Vec<u8> {
    let purpose = purpose.name();
    let ExecutorId { group, name } = executor;
    let head = format!("cueline {purpose} sha256 1\n{group}\n{name}\n");
    [head.as_bytes(), &Sha256::digest(body)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PURPOSES: [Purpose; 4] = [
        Purpose::Heartbeat,
        Purpose::Reports,
        Purpose::Holdings,
        Purpose::DeadLetter,
    ];

    fn executor(group: &str, name: &str) -> ExecutorId {
        ExecutorId {
            group: group.parse().expect("a name"),
            name: name.parse().expect("a name"),
        }
    }

    fn sealer() -> Sealer {
        Sealer::new(executor("billing", "one"), WorkerKey::from_seed([7; 32]))
    }

    #[test]
    fn a_seal_is_the_last_line() {
        let one = sealer();
        for body in [&b""[..], b"{}", b"a\nb", b"ends with a line feed\n"] {
            let message = one.seal(Purpose::Reports, body.to_vec());
            let sealed = Sealed::parse(&message).expect("sealed");
            assert_eq!(sealed.body, body);
            assert_eq!(&sealed.executor, one.executor());
            assert_eq!(&sealed.key, one.key_id());
            assert_eq!(sealed.verify(Purpose::Reports, &one.public_key()), Ok(()));
            assert_eq!(message.len(), body.len() + one.overhead());
        }
    }

    #[test]
    fn a_seal_is_valid_for_its_purpose_alone() {
        let one = sealer();
        for made_for in PURPOSES {
            let message = one.seal(made_for, b"{}".to_vec());
            let sealed = Sealed::parse(&message).expect("sealed");
            for used_for in PURPOSES {
                let verified = sealed.verify(used_for, &one.public_key());
                assert_eq!(
                    verified.is_ok(),
                    made_for == used_for,
                    "{made_for:?} {used_for:?}"
                );
            }
        }
    }

    #[test]
    fn a_seal_is_valid_for_its_executor_and_key_alone() {
        let one = sealer();
        let message = one.seal(Purpose::Reports, b"{}".to_vec());
        let mut sealed = Sealed::parse(&message).expect("sealed");
        let other = WorkerKey::from_seed([8; 32]).public();
        assert_eq!(
            sealed.verify(Purpose::Reports, &other),
            Err(SealError::Mismatch)
        );
        for foreign in [executor("billing", "two"), executor("sales", "one")] {
            sealed.executor = foreign;
            let verified = sealed.verify(Purpose::Reports, &one.public_key());
            assert_eq!(verified, Err(SealError::Mismatch));
        }
    }

    /// Every byte of the body, and a line before it.
    #[test]
    fn a_seal_covers_the_whole_body() {
        let one = sealer();
        let body = b"{\"v\":1}\n{\"v\":1}";
        let message = one.seal(Purpose::Reports, body.to_vec());
        for at in 0..body.len() {
            let mut changed = message.clone();
            changed[at] ^= 1;
            let sealed = Sealed::parse(&changed).expect("sealed");
            let verified = sealed.verify(Purpose::Reports, &one.public_key());
            assert_eq!(verified, Err(SealError::Mismatch), "at {at}");
        }
        let longer = [b"{}\n", &message[..]].concat();
        let sealed = Sealed::parse(&longer).expect("sealed");
        let verified = sealed.verify(Purpose::Reports, &one.public_key());
        assert_eq!(verified, Err(SealError::Mismatch));
    }

    /// Neither a signature of the body as it is nor a hash in the place of a body passes.
    #[test]
    fn a_seal_signs_the_hash_of_the_body() {
        let one = sealer();
        let body = b"{\"v\":1}";
        let head = b"cueline reports sha256 1\nbilling\none\n";
        let of_body = one.key().sign(&[&head[..], body].concat());
        let of_hash = one.key().sign(&[&head[..], &Sha256::digest(body)].concat());
        let digest = Sha256::digest(body);
        for (body, signature, expected) in [
            (&body[..], &of_hash, Ok(())),
            (&body[..], &of_body, Err(SealError::Mismatch)),
            (&digest[..], &of_hash, Err(SealError::Mismatch)),
        ] {
            let message = [body, b"\n", &one.line(signature.clone())].concat();
            let sealed = Sealed::parse(&message).expect("sealed");
            assert_eq!(sealed.verify(Purpose::Reports, &one.public_key()), expected);
        }
    }

    #[test]
    fn bytes_that_are_no_key_verify_nothing() {
        let message = sealer().seal(Purpose::Reports, b"{}".to_vec());
        let sealed = Sealed::parse(&message).expect("sealed");
        for weak in [0, 1, 2, 255] {
            let key = WorkerPublicKey::from_bytes([weak; 32]);
            let verified = sealed.verify(Purpose::Reports, &key);
            assert_eq!(verified, Err(SealError::Mismatch));
        }
    }

    #[test]
    fn other_messages_are_refused() {
        for unsealed in ["", "{}", "{\"seal\":{}}", "{}\n{}", "{}\n", "\n"] {
            let parsed = Sealed::parse(unsealed.as_bytes());
            assert_eq!(parsed, Err(SealError::Missing), "{unsealed:?}");
        }
        let message = sealer().seal(Purpose::Reports, b"{}".to_vec());
        let message = String::from_utf8(message).expect("UTF-8");
        let long = "x".repeat(MAX_SEAL_BYTES);
        for (from, to) in [
            ("billing", "bil ling"),
            ("\"key\":\"", "\"key\":\"x"),
            ("\"signature\"", "\"sign\""),
            ("}}", "}"),
            ("}}", &format!("}},\"more\":\"{long}\"}}")),
        ] {
            let changed = message.replacen(from, to, 1);
            assert_ne!(changed, message);
            assert_eq!(
                Sealed::parse(changed.as_bytes()),
                Err(SealError::Malformed),
                "{changed}"
            );
        }
        // The seal of one message behind another line feed is no last line.
        let behind = message + "\n";
        assert_eq!(Sealed::parse(behind.as_bytes()), Err(SealError::Missing));
    }

    #[test]
    fn the_longest_names_fit() {
        let longest = "x".repeat(cueline_model::name::MAX_NAME_BYTES);
        let one = Sealer::new(executor(&longest, &longest), WorkerKey::from_seed([7; 32]));
        assert!(one.overhead() <= MAX_SEAL_BYTES);
    }
}
