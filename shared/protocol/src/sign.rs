//! Ed25519 signatures of triggers.
//!
//! A worker holds only public keys, so it can check a trigger but not forge one. One signature covers a batch of up to
//! [`MAX_BATCH`] triggers of an executor, or [`MAX_SHARED_BATCH`] of several. It is that of the root of a hash tree. Each
//! trigger carries the path from its own hash to the root. So it is checked alone, wherever the others of its batch have
//! gone.
//!
//! The hash covers all bytes of the message before the signature field. Fields that are new to the worker are covered
//! too, so signer and verifier need not know the same fields.

use std::borrow::BorrowMut;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer, VerifyingKey};

use crate::key_text::key_bytes;
use crate::merkle::{self, Hash, Tree};
use crate::message::{Trigger, encode_to};
pub use crate::sign_error::SignError;
use crate::trigger_signature::{SignatureParts, TriggerSignature};

/// The most triggers of one executor under one signature. Twice as many would lengthen each message by 43 bytes and add a
/// hash for each trigger, and a hundred-and-twenty-eighth of a signature is already cheap.
pub const MAX_BATCH: usize = 128;

/// The most triggers of several executors under one signature. Each of the executors checks it anyway, and remembers a
/// tree of its size.
pub const MAX_SHARED_BATCH: usize = 32;

/// Few signed messages are longer, so the others are written without being moved.
const USUAL_BYTES: usize = 1_024;

/// The beginning of a public key in files and settings.
pub const PUBLIC_KEY_PREFIX: &str = "cueline-public-key:";

/// The key with which a scheduler signs.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey(secret)")
    }
}

impl SigningKey {
    /// Makes a key from 32 random bytes.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&seed))
    }

    /// Reads a key in the format of [`to_base64`](Self::to_base64).
    pub fn from_base64(text: &str) -> Result<Self, SignError> {
        Ok(Self::from_seed(key_bytes(text)?))
    }

    /// The secret key as text.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.0.to_bytes())
    }

    /// The public key as text.
    pub fn public_base64(&self) -> String {
        BASE64.encode(self.0.verifying_key().to_bytes())
    }

    /// The public key, to check messages of this key's holders.
    pub fn verifying_keys(&self) -> VerifyingKeys {
        VerifyingKeys(vec![self.0.verifying_key()])
    }

    /// Signs `trigger` as a batch of its own, and returns the message to publish.
    pub fn sign(&self, trigger: &mut Trigger) -> Vec<u8> {
        self.sign_all(std::slice::from_mut(trigger)).concat()
    }

    /// Signs `triggers` in batches, and returns the messages to publish, in the same order.
    pub fn sign_all(&self, triggers: &mut [Trigger]) -> Vec<Vec<u8>> {
        sign_all(triggers, |_| self)
    }

    /// The signatures of the leaves of one batch, in their order.
    fn sign_batch(&self, leaves: Vec<Hash>) -> Vec<TriggerSignature> {
        let count = leaves.len();
        let size = u16::try_from(count).expect("a batch has at most MAX_BATCH triggers");
        let tree = Tree::new(leaves);
        let signature = self.0.sign(&signed(size, &tree.root())).to_bytes();
        (0..size)
            .map(|place| {
                let path = tree.path(place.into());
                TriggerSignature::new(&signature, size, place, path)
            })
            .collect()
    }
}

/// Signs each trigger with its key. Triggers of one executor share batches where possible, because a worker checks each
/// signature that it meets once.
pub(crate) fn sign_all<'k, T: BorrowMut<Trigger>>(
    triggers: &mut [T],
    key_of: impl Fn(&Trigger) -> &'k SigningKey,
) -> Vec<Vec<u8>> {
    let mut triggers: Vec<&mut Trigger> = triggers.iter_mut().map(T::borrow_mut).collect();
    let mut messages: Vec<Vec<u8>> = triggers
        .iter_mut()
        .map(|trigger| {
            trigger.signature = None;
            let mut message = Vec::with_capacity(USUAL_BYTES);
            encode_to(*trigger, &mut message);
            message
        })
        .collect();
    let keys: Vec<&SigningKey> = triggers.iter().map(|trigger| key_of(trigger)).collect();
    let executor = |at: &usize| (&triggers[*at].group, &triggers[*at].executor);
    let mut order: Vec<usize> = (0..triggers.len()).collect();
    order.sort_by(|a, b| executor(a).cmp(&executor(b)));
    let batches: Vec<Vec<usize>> = order
        .chunk_by(|a, b| std::ptr::eq(keys[*a], keys[*b]))
        .flat_map(|of_key| batches(of_key.chunk_by(|a, b| executor(a) == executor(b))))
        .collect();
    for batch in batches {
        let leaves = batch.iter().map(|at| merkle::leaf(&[&messages[*at]]));
        let signatures = keys[batch[0]].sign_batch(leaves.collect());
        for (at, signature) in batch.into_iter().zip(signatures) {
            signature.end(&mut messages[at]);
            triggers[at].signature = Some(signature);
        }
    }
    messages
}

/// Batches of the triggers of one key, which come by their executors.
fn batches<'a>(of_executors: impl Iterator<Item = &'a [usize]>) -> Vec<Vec<usize>> {
    let (mut batches, mut shared) = (Vec::new(), Vec::new());
    for part in of_executors.flat_map(|of_one| of_one.chunks(MAX_BATCH)) {
        if part.len() >= MAX_SHARED_BATCH {
            batches.push(part.to_vec());
            continue;
        }
        if shared.len() + part.len() > MAX_SHARED_BATCH {
            batches.push(std::mem::take(&mut shared));
        }
        shared.extend_from_slice(part);
    }
    if !shared.is_empty() {
        batches.push(shared);
    }
    batches
}

/// The message of `trigger` as it was before its signature was added. `None` if the message does not end with the signature.
pub fn without_signature(message: &[u8], trigger: &Trigger) -> Option<Vec<u8>> {
    let before = trigger.signature.as_ref()?.strip_from(message)?;
    Some([before, b"}"].concat())
}

/// The public keys that a worker trusts. There are several while a key is being replaced.
#[derive(Debug, Clone, Default)]
pub struct VerifyingKeys(Vec<VerifyingKey>);

impl VerifyingKeys {
    /// Reads public keys in the format of [`SigningKey::public_base64`].
    pub fn from_base64<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, SignError> {
        texts
            .into_iter()
            .map(|text| VerifyingKey::from_bytes(&key_bytes(text)?).map_err(|_| SignError::Key))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Reads public keys as `cueline key public` prints them, one per line. `#` begins a comment.
    ///
    /// # Errors
    ///
    /// [`SignError::PublicKeyLine`] with the number of the first line that is neither a public key nor empty.
    pub fn from_lines(text: &str) -> Result<Self, SignError> {
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let key = line.strip_prefix(PUBLIC_KEY_PREFIX);
            let key = key.and_then(|key| Self::from_base64([key]).ok());
            keys.extend(key.ok_or(SignError::PublicKeyLine(index + 1))?.0);
        }
        Ok(Self(keys))
    }

    /// Whether there is no key, so that no trigger passes.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that one of the keys signed `message`, from which `trigger` was read. A
    /// [`TriggerVerifier`](crate::TriggerVerifier) remembers the batches that it has checked.
    ///
    /// # Errors
    ///
    /// [`SignError::Missing`] if the trigger has no signature, [`SignError::Mismatch`] if it is of another key or for
    /// another message.
    pub fn verify(&self, message: &[u8], trigger: &Trigger) -> Result<(), SignError> {
        self.check(&self.proof_of(message, trigger)?).map(drop)
    }

    /// What the signature of `trigger` claims. Nothing is verified yet.
    pub(crate) fn proof_of(&self, message: &[u8], trigger: &Trigger) -> Result<Proof, SignError> {
        let signature = trigger.signature.as_ref().ok_or(SignError::Missing)?;
        Proof::of(message, signature).ok_or_else(|| self.mismatch())
    }

    /// Checks that one of the keys signed the batch. Returns the root of its tree.
    pub(crate) fn check(&self, proof: &Proof) -> Result<Hash, SignError> {
        let root = proof.root().ok_or_else(|| self.mismatch())?;
        let bytes = signed(proof.parts.size, &root);
        let signature = Signature::from_bytes(&proof.parts.batch);
        let is_trusted = self
            .0
            .iter()
            .any(|key| key.verify_strict(&bytes, &signature).is_ok());
        if is_trusted {
            Ok(root)
        } else {
            Err(self.mismatch())
        }
    }

    pub(crate) const fn mismatch(&self) -> SignError {
        SignError::Mismatch(self.0.len())
    }
}

/// What a trigger shows of its batch, and the hash of its message.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) leaf: Hash,
    pub(crate) parts: SignatureParts,
}

impl Proof {
    /// `None` if the message does not end with the signature, or the signature is none.
    fn of(message: &[u8], signature: &TriggerSignature) -> Option<Self> {
        // The signed bytes end with a brace. `sign_all` put the signature field in its place.
        let before = signature.strip_from(message)?;
        Some(Self {
            leaf: merkle::leaf(&[before, b"}"]),
            parts: signature.parts()?,
        })
    }

    /// The root of the tree. `None` if place, size and path do not fit each other.
    fn root(&self) -> Option<Hash> {
        let SignatureParts {
            size, place, path, ..
        } = &self.parts;
        merkle::root_by_path(self.leaf, (*place).into(), (*size).into(), path)
    }
}

/// The bytes that are signed. The prefix keeps signatures of other data from being valid for triggers.
fn signed(size: u16, root: &Hash) -> Vec<u8> {
    [&b"cueline triggers 1\n"[..], &size.to_be_bytes(), root].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::decode;

    #[test]
    fn the_signature_covers_fields_that_the_worker_does_not_know() {
        let key = SigningKey::from_seed([7; 32]);
        let keys = key.verifying_keys();
        let unsigned = r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":7,"attempt":2,"group":"g","executor":"one","kind":"manual","fire_at":1800000000000,"shard":{"index":0,"total":1},"job":{"id":1,"name":"report","version":1,"handler":{"native":"work"},"block":"serial","scope":"executor","backlog":1000,"kill_grace":"5s","on_lost":"fail","priority":5},"deadline":1800003600000,"news":"new"}"#;
        let signature = key.sign_batch(vec![merkle::leaf(&[unsigned.as_bytes()])]);
        let mut message = unsigned.as_bytes().to_vec();
        signature[0].end(&mut message);
        let message = String::from_utf8(message).expect("UTF-8");
        let verify = |message: &str| {
            let trigger: Trigger = decode(message.as_bytes()).expect("readable");
            keys.verify(message.as_bytes(), &trigger)
        };
        assert_eq!(verify(&message), Ok(()));
        let changed = message.replacen("\"new\"", "\"old\"", 1);
        assert_eq!(verify(&changed), Err(SignError::Mismatch(1)));
    }

    #[test]
    fn a_message_without_its_signature_is_the_one_that_was_signed() {
        let text = r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":7,"attempt":2,"group":"g","executor":"one","kind":"manual","fire_at":1800000000000,"job":{"id":1,"name":"report","version":1,"handler":{"native":"work"},"scope":"executor"},"deadline":1800003600000}"#;
        let mut trigger: Trigger = decode(text.as_bytes()).expect("readable");
        assert_eq!(without_signature(text.as_bytes(), &trigger), None);
        let message = SigningKey::from_seed([7; 32]).sign(&mut trigger);
        let stripped = without_signature(&message, &trigger);
        assert_eq!(stripped.as_deref(), Some(text.as_bytes()));
        assert_eq!(
            without_signature(&message[1..], &trigger).map(|m| m.len()),
            Some(text.len() - 1)
        );
        assert_eq!(without_signature(text.as_bytes(), &trigger), None);
    }

    #[test]
    fn keys_are_read_from_lines() {
        let text = |seed| {
            let public = SigningKey::from_seed([seed; 32]).public_base64();
            format!("{PUBLIC_KEY_PREFIX}{public}")
        };
        let lines = format!("# ours\n{} # old\n\n  {}\n", text(1), text(2));
        let keys = VerifyingKeys::from_lines(&lines).expect("two keys");
        assert_eq!(keys.0.len(), 2);
        let secret = SigningKey::from_seed([1; 32]).to_base64();
        for bad in [
            format!("{}\ncueline-secret-key:{secret}", text(1)),
            format!("\n{secret}"),
            format!("\n{PUBLIC_KEY_PREFIX}AAAA"),
        ] {
            let refused = VerifyingKeys::from_lines(&bad).expect_err("no public key");
            assert_eq!(refused, SignError::PublicKeyLine(2));
        }
        assert!(
            VerifyingKeys::from_lines("# none\n")
                .expect("empty")
                .is_empty()
        );
    }
}
