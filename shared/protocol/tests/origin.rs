//! Seals and claims as they are on the wire. Another implementation made the expected values.

use cueline_model::ExecutorId;
use cueline_protocol::origin::{EnrolmentToken, Purpose, Sealed, Sealer, WorkerKey};

fn executor() -> ExecutorId {
    ExecutorId {
        group: "billing".parse().expect("a name"),
        name: "one".parse().expect("a name"),
    }
}

fn key() -> WorkerKey {
    WorkerKey::from_seed([7; 32])
}

#[test]
fn a_sealed_message() {
    let golden = concat!(
        "{\"v\":1}\n",
        r#"{"seal":{"group":"billing","executor":"one","key":"fe812c12f3ab4ce6","signature":"sCDk/Qs6ADF/7iVzjovO9Ir2lXHtZDLdT/KcvgeiTeQ2a64FrOQTPoZLuEphDDUqVJVdOoEGWOlNr5xaFYhmBQ=="}}"#,
    );
    let one = Sealer::new(executor(), key());
    let message = one.seal(Purpose::Reports, b"{\"v\":1}".to_vec());
    assert_eq!(String::from_utf8(message).as_deref(), Ok(golden));
    let sealed = Sealed::parse(golden.as_bytes()).expect("sealed");
    assert_eq!(sealed.verify(Purpose::Reports, &key().public()), Ok(()));
}

/// Readers ignore fields that they do not know.
#[test]
fn a_seal_may_have_new_fields() {
    let one = Sealer::new(executor(), key());
    let message = one.seal(Purpose::Holdings, b"{}".to_vec());
    let message = String::from_utf8(message).expect("UTF-8");
    let newer = message.replace("}}", ",\"more\":1},\"more\":1}");
    assert_ne!(newer, message);
    let sealed = Sealed::parse(newer.as_bytes()).expect("sealed");
    assert_eq!(sealed.verify(Purpose::Holdings, &key().public()), Ok(()));
}

#[test]
fn an_enrolment_claim() {
    let token = EnrolmentToken::new([0xab; 8], [7; 32]);
    let verifier = [
        0x34, 0xd2, 0x23, 0x7c, 0xa6, 0x48, 0xc2, 0xaa, 0xd3, 0x1d, 0xac, 0x7d, 0x7c, 0x64, 0x26,
        0xd5, 0xd5, 0xa7, 0x5f, 0x9e, 0xf2, 0x92, 0xe6, 0x81, 0x64, 0x85, 0x97, 0x13, 0xd3, 0x24,
        0x87, 0x2d,
    ];
    assert_eq!(token.verifier(), verifier);
    let claim = token.claim(&executor(), &key().public());
    let golden = r#"{"token":"abababababababab","key":"6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw=","mac":"F1uLXvQu7QZ+DNyTuTNgoAwezDGRbnb5OB1ih6e1lVM="}"#;
    assert_eq!(serde_json::to_string(&claim).expect("writable"), golden);
    assert!(claim.verify(&executor(), &verifier));
}

#[test]
fn a_rotation_claim() {
    let new = WorkerKey::from_seed([8; 32]).public();
    let claim = key().rotate_to(&executor(), &new);
    let golden = r#"{"key":"E5j2LG0aRXxRumpLXz29L2n8qTIWIY3ImX5Ba9F9k8o=","by":"fe812c12f3ab4ce6","signature":"8gTXJ5xS17Ai8nO0EwD836NyIrHKFZ4u5gK8W4hZ9l5C7hneWta/hNhtRO33LIXLsPbsRUj07mQUoqwerUh5DA=="}"#;
    assert_eq!(serde_json::to_string(&claim).expect("writable"), golden);
    assert_eq!(claim.verify(&executor(), &key().public()), Ok(()));
}
