//! Tests of the entries.

use cueline_model::Timestamp;

use super::*;
use crate::{MAX_AUDIT_VALUE_BYTES, NewEnrolmentToken};

fn stored(value: String) -> AuditColumns {
    let actor = Actor::new(ActorKind::User, "ann");
    AuditColumns::from(&NewAuditEntry {
        after: Some(value),
        ..entry(&actor, "user.create", "bob")
    })
}

#[test]
fn a_long_value_is_replaced_by_its_length_and_its_hash() {
    let most = "x".repeat(MAX_AUDIT_VALUE_BYTES);
    assert_eq!(stored(most.clone()).new_value, Some(most.clone()));
    let cut = stored(most + "x").new_value.expect("a value");
    let cut: Value = serde_json::from_str(&cut).expect("JSON");
    assert_eq!(cut["bytes"], MAX_AUDIT_VALUE_BYTES + 1);
    assert_eq!(cut["sha256"].as_str().map(str::len), Some(64));
}

#[test]
fn the_object_of_an_action_is_the_part_before_the_dot() {
    assert_eq!(stored(String::new()).action_object, "user");
}

#[test]
fn an_entry_about_a_token_is_in_the_namespace_of_the_token() {
    let token = |namespace: Option<&str>, group: Option<&str>| NewEnrolmentToken {
        id: "0123456789abcdef".to_owned(),
        verifier: [1; 32],
        namespace: namespace.map(|text| text.parse().expect("a namespace")),
        group: group.map(|text| text.parse().expect("a name")),
        executor: None,
        uses: 1,
        valid_ms: None,
        by: Actor::new(ActorKind::User, "ann"),
        idempotency_key: None,
    };
    for (namespace, group) in [
        (None, None),
        (Some("team"), None),
        (Some("team"), Some("team/x")),
    ] {
        let created = token_created(&token(namespace, group));
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let id = "0123456789abcdef".to_owned();
        let row = (
            id,
            owned(group),
            None,
            1,
            None,
            0,
            String::new(),
            owned(namespace),
        );
        let by = Actor::new(ActorKind::User, "ann");
        let deleted = token_deleted(&by, row).expect("readable");
        for entry in [created, deleted] {
            let found = entry.namespace.as_ref().map(Namespace::as_str);
            assert_eq!(found, namespace, "{}", entry.action);
            assert_eq!(entry.group.as_ref().map(GroupName::as_str), group);
        }
    }
}

#[test]
fn an_entry_is_read_as_it_was_written() {
    let actor = Actor::new(ActorKind::Token, "of ann").from_address("10.0.0.1");
    let group: GroupName = "billing".parse().expect("a name");
    let written = NewAuditEntry {
        result: AuditResult::Refused,
        detail: "it has no right to it".to_owned(),
        before: Some("1".to_owned()),
        ..entry_in_group(&actor, "job.pause", &group, "a")
    };
    let columns = AuditColumns::from(&written);
    let row = (
        7,
        8,
        columns.actor,
        columns.address,
        columns.action,
        columns.namespace,
        columns.group_name,
        columns.object,
        columns.result.to_owned(),
        columns.detail,
        columns.old_value,
        columns.new_value,
    );
    let read = audit_entry(row).expect("readable");
    assert_eq!((read.id, read.at), (7, Timestamp::from_millis(8)));
    assert_eq!(read.entry, written);
}
