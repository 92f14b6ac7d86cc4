//! Decides enrolments, and reads the keys of workers and their tokens from rows.

use cueline_model::{ExecutorId, Timestamp};

use super::convert::{corrupt, parse_name, to_u32};
use crate::worker_keys::{
    EnrolOutcome, EnrolRefusal, KeyOrigin, MAX_ENROLMENT_TOKENS, MAX_REVOKED_KEYS,
    NewEnrolmentToken, NewWorkerKey, StoredEnrolmentToken, StoredWorkerKey, WorkerKeyState,
    WorkerKeysPage,
};
use crate::{ErrorKind, MAX_IDEMPOTENCY_KEY_BYTES, StoreError};

/// The number of hexadecimal digits in a token's id.
const TOKEN_ID_DIGITS: usize = 16;

/// The beginning of what enrolled a key, or revoked it, if a token did. No [`Actor`](cueline_model::Actor) is displayed like
/// this, so that a revocation by an operator is not taken for a replacement. Statements of the stores contain it too.
pub const ENROLLED_BY_TOKEN: &str = "enrolment token ";

/// A stored token: id, group, executor, uses left, end of validity, time of creation, creator, namespace.
pub type TokenRow = (
    String,
    Option<String>,
    Option<String>,
    i64,
    Option<i64>,
    i64,
    String,
    Option<String>,
);

/// A stored key: group, executor, key id, key, whether it is allowed, time and origin of the enrolment, time and origin
/// of the last change, number of that change.
pub type KeyRow = (
    String,
    String,
    String,
    Vec<u8>,
    bool,
    i64,
    String,
    i64,
    String,
    i64,
);

/// A key of the executor whose enrolment is decided: key id, key, whether it is allowed. Newest change first.
pub type KnownKey = (String, Vec<u8>, bool);

/// What an enrolment does.
#[derive(Debug, PartialEq, Eq)]
pub enum EnrolmentPlan {
    /// Nothing; this is the answer.
    Done(EnrolOutcome),
    /// These writes; the answer is [`EnrolOutcome::Enrolled`].
    Write(EnrolmentWrites),
}

/// The writes of an enrolment, besides the new key. Each changed key gets the next number of a change.
#[derive(Debug, PartialEq, Eq)]
pub struct EnrolmentWrites {
    /// The token that loses one use.
    pub token: Option<String>,
    /// Ids of the executor's keys that become revoked.
    pub revoked: Vec<String>,
    /// What revokes them.
    pub revoked_by: String,
    /// Ids of the executor's keys that were revoked long ago. They are deleted.
    pub deleted: Vec<String>,
    /// What enrols the new key.
    pub enrolled_by: String,
}

/// Checks a new token.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] for a wrong id, for no uses, for a group of another namespace, and for an executor without a
/// group.
pub fn check_new_token(token: &NewEnrolmentToken) -> Result<(), StoreError> {
    let invalid = |why: &str| {
        Err(StoreError::invalid(format!(
            "failed to create an enrolment token: {why}"
        )))
    };
    let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    if token.id.len() != TOKEN_ID_DIGITS || !token.id.chars().all(is_digit) {
        return invalid("id: give 16 lower-case hexadecimal digits");
    }
    if token.uses == 0 {
        return invalid("uses: 0 is given; give at least 1");
    }
    if let (Some(namespace), Some(group)) = (&token.namespace, &token.group)
        && !group.is_in(namespace)
    {
        return invalid("group: it is in another namespace; give one of the token's namespace");
    }
    if token.executor.is_some() && token.group.is_none() {
        return invalid("executor: its name is unique within a group only; give its group too");
    }
    let key_bytes = token.idempotency_key.as_ref().map_or(1, String::len);
    if !(1..=MAX_IDEMPOTENCY_KEY_BYTES).contains(&key_bytes) {
        return invalid("idempotency_key: give 1 to 255 bytes");
    }
    Ok(())
}

/// There are too many tokens.
pub fn too_many_tokens() -> StoreError {
    StoreError::new(
        ErrorKind::Conflict,
        format!(
            "failed to create an enrolment token: there are {MAX_ENROLMENT_TOKENS} that are not spent; delete some first"
        ),
    )
}

/// Decides an enrolment. `token` is the token that vouches for the key, if it exists. `keys` are all keys of the
/// executor, those with the newest changes first.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for an unreadable name.
pub fn plan_enrolment(
    request: &NewWorkerKey,
    token: Option<TokenRow>,
    keys: &[KnownKey],
    now: Timestamp,
) -> Result<EnrolmentPlan, StoreError> {
    if let Some((_, key, is_allowed)) = keys.iter().find(|(id, ..)| *id == request.key_id) {
        let is_same = key.as_slice() == request.key;
        return Ok(EnrolmentPlan::Done(match (is_same, *is_allowed) {
            (true, true) => EnrolOutcome::AlreadyAllowed,
            (true, false) => EnrolOutcome::Refused(EnrolRefusal::Revoked),
            // Another key with the same id: the new one could never be told from it.
            (false, _) => EnrolOutcome::Refused(EnrolRefusal::NameTaken),
        }));
    }
    let refusal = match &request.by {
        KeyOrigin::Token(_) => refused_token(&request.executor, token, keys, now)?,
        KeyOrigin::Rotation { old } => {
            let is_allowed = keys
                .iter()
                .any(|(id, _, is_allowed)| id == old && *is_allowed);
            (!is_allowed).then_some(EnrolRefusal::OldKeyNotAllowed)
        }
    };
    Ok(match refusal {
        Some(refusal) => EnrolmentPlan::Done(EnrolOutcome::Refused(refusal)),
        None => EnrolmentPlan::Write(writes(request, keys)),
    })
}

/// Why the token does not enrol the executor.
fn refused_token(
    executor: &ExecutorId,
    token: Option<TokenRow>,
    keys: &[KnownKey],
    now: Timestamp,
) -> Result<Option<EnrolRefusal>, StoreError> {
    let Some(row) = token else {
        return Ok(Some(EnrolRefusal::NoSuchToken));
    };
    let token = stored_token(row)?;
    Ok(
        if token
            .namespace
            .as_ref()
            .is_some_and(|namespace| !executor.group.is_in(namespace))
        {
            Some(EnrolRefusal::OtherNamespace)
        } else if token.group.is_some_and(|group| group != executor.group) {
            Some(EnrolRefusal::OtherGroup)
        } else if token
            .executor
            .as_ref()
            .is_some_and(|name| *name != executor.name)
        {
            Some(EnrolRefusal::OtherExecutor)
        } else if token.expires_at.is_some_and(|at| at <= now) {
            Some(EnrolRefusal::Expired)
        } else if token.uses_left == 0 {
            Some(EnrolRefusal::UsedUp)
        } else if !keys.is_empty() && token.executor.is_none() {
            // Otherwise, each holder of a group's token could take over all its executors, and a revoked worker with such
            // a token could come back with a new key.
            Some(EnrolRefusal::NameTaken)
        } else {
            None
        },
    )
}

fn writes(request: &NewWorkerKey, keys: &[KnownKey]) -> EnrolmentWrites {
    let ids = |allowed: bool| {
        keys.iter()
            .filter(move |(_, _, is_allowed)| *is_allowed == allowed)
            .map(|(id, ..)| id.clone())
    };
    let revoked: Vec<String> = ids(true).collect();
    let kept = MAX_REVOKED_KEYS.saturating_sub(revoked.len());
    let (token, enrolled_by, revoked_by) = match &request.by {
        KeyOrigin::Token(id) => (
            Some(id.clone()),
            format!("{ENROLLED_BY_TOKEN}{id}"),
            format!("{ENROLLED_BY_TOKEN}{id}"),
        ),
        KeyOrigin::Rotation { old } => (
            None,
            format!("rotation of {old}"),
            format!("rotation to {}", request.key_id),
        ),
    };
    EnrolmentWrites {
        token,
        deleted: ids(false).skip(kept).collect(),
        revoked,
        revoked_by,
        enrolled_by,
    }
}

/// A token from its row.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for an unreadable name.
pub fn stored_token(row: TokenRow) -> Result<StoredEnrolmentToken, StoreError> {
    let (id, group, executor, uses_left, expires_at, created_at, by, namespace) = row;
    Ok(StoredEnrolmentToken {
        id,
        namespace: namespace.as_deref().map(parse_name).transpose()?,
        group: group.as_deref().map(parse_name).transpose()?,
        executor: executor.as_deref().map(parse_name).transpose()?,
        uses_left: to_u32(uses_left),
        expires_at: expires_at.map(Timestamp::from_millis),
        created_at: Timestamp::from_millis(created_at),
        by,
    })
}

/// A verifier or a key from its bytes.
///
/// # Errors
///
/// [`ErrorKind::Broken`] if there are not 32.
pub fn stored_bytes(bytes: &[u8]) -> Result<[u8; 32], StoreError> {
    bytes.try_into().map_err(|_| {
        let why = format!("{} bytes instead of 32", bytes.len());
        corrupt("failed to read a worker key or an enrolment token", why)
    })
}

/// A page from the rows of the keys that changed after `changed_after`. `newest` is the number of the newest change,
/// read before the rows.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for an unreadable name or key.
pub fn keys_page(
    rows: Vec<KeyRow>,
    changed_after: i64,
    newest: i64,
) -> Result<WorkerKeysPage, StoreError> {
    // A restored store gives the same numbers to other changes.
    let from = if newest < changed_after {
        0
    } else {
        changed_after
    };
    let version = rows.last().map_or(from, |row| row.9);
    let keys = rows.into_iter().map(stored_key);
    Ok(WorkerKeysPage {
        keys: keys.collect::<Result<_, _>>()?,
        version,
    })
}

fn stored_key(row: KeyRow) -> Result<StoredWorkerKey, StoreError> {
    let (group, name, key_id, key, is_allowed, enrolled_at, enrolled_by, changed_at, changed_by, _) =
        row;
    Ok(StoredWorkerKey {
        executor: ExecutorId {
            group: parse_name(&group)?,
            name: parse_name(&name)?,
        },
        key: stored_bytes(&key)?,
        key_id,
        state: if is_allowed {
            WorkerKeyState::Allowed
        } else {
            WorkerKeyState::Revoked
        },
        enrolled_at: Timestamp::from_millis(enrolled_at),
        enrolled_by,
        changed_at: Timestamp::from_millis(changed_at),
        changed_by,
    })
}

#[cfg(test)]
mod tests {
    use cueline_model::{Actor, ActorKind};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    fn request(by: KeyOrigin) -> NewWorkerKey {
        NewWorkerKey {
            executor: ExecutorId {
                group: "default".parse().expect("a name"),
                name: "one".parse().expect("a name"),
            },
            key: [7; 32],
            key_id: "new".to_owned(),
            by,
        }
    }

    fn token(group: Option<&str>, executor: Option<&str>) -> TokenRow {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let id = "t".to_owned();
        let by = String::new();
        (id, owned(group), owned(executor), 1, None, 0, by, None)
    }

    fn by_token(token: Option<TokenRow>, keys: &[KnownKey]) -> EnrolmentPlan {
        let request = request(KeyOrigin::Token("t".to_owned()));
        plan_enrolment(&request, token, keys, NOW).expect("readable")
    }

    fn known(id: &str, is_allowed: bool) -> KnownKey {
        (id.to_owned(), vec![1; 32], is_allowed)
    }

    fn refused(why: EnrolRefusal) -> EnrolmentPlan {
        EnrolmentPlan::Done(EnrolOutcome::Refused(why))
    }

    #[test]
    fn a_token_enrols_only_what_it_is_for() {
        assert_eq!(by_token(None, &[]), refused(EnrolRefusal::NoSuchToken));
        let other = token(Some("other"), None);
        assert_eq!(
            by_token(Some(other), &[]),
            refused(EnrolRefusal::OtherGroup)
        );
        let other = token(Some("default"), Some("two"));
        assert_eq!(
            by_token(Some(other), &[]),
            refused(EnrolRefusal::OtherExecutor)
        );
        for (uses_left, expires_at, why) in [
            (1, Some(1_000), EnrolRefusal::Expired),
            (0, None, EnrolRefusal::UsedUp),
        ] {
            let mut spent = token(None, None);
            (spent.3, spent.4) = (uses_left, expires_at);
            assert_eq!(by_token(Some(spent), &[]), refused(why));
        }
        let mut valid = token(None, None);
        valid.4 = Some(1_001);
        assert!(matches!(
            by_token(Some(valid), &[]),
            EnrolmentPlan::Write(_)
        ));
    }

    #[test]
    fn a_token_of_a_namespace_enrols_all_its_groups_and_no_other() {
        let enrols = |namespace: &str, group: &str| {
            let mut row = token(None, None);
            row.7 = Some(namespace.to_owned());
            let mut request = request(KeyOrigin::Token("t".to_owned()));
            request.executor.group = group.parse().expect("a name");
            plan_enrolment(&request, Some(row), &[], NOW).expect("readable")
        };
        for (namespace, group) in [("team-a", "team-a/x"), ("default", "x")] {
            let plan = enrols(namespace, group);
            assert!(matches!(plan, EnrolmentPlan::Write(_)), "{group}");
        }
        for (namespace, group) in [
            ("team-a", "x"),
            ("team-a", "team-b/x"),
            ("default", "team-a/x"),
        ] {
            assert_eq!(
                enrols(namespace, group),
                refused(EnrolRefusal::OtherNamespace),
                "{group}"
            );
        }
    }

    #[test]
    fn only_a_token_for_the_executor_replaces_its_key() {
        let keys = [known("old", true)];
        let shared = token(Some("default"), None);
        assert_eq!(
            by_token(Some(shared.clone()), &keys),
            refused(EnrolRefusal::NameTaken)
        );
        let EnrolmentPlan::Write(writes) =
            by_token(Some(token(Some("default"), Some("one"))), &keys)
        else {
            panic!("it is enrolled");
        };
        assert_eq!(writes.revoked, ["old"]);
        assert_eq!(writes.enrolled_by, "enrolment token t");
        let revoked = [known("old", false)];
        assert_eq!(
            by_token(Some(shared), &revoked),
            refused(EnrolRefusal::NameTaken)
        );
    }

    #[test]
    fn a_known_key_needs_no_token() {
        let mut key = known("new", true);
        key.1 = vec![7; 32];
        assert_eq!(
            by_token(None, std::slice::from_ref(&key)),
            EnrolmentPlan::Done(EnrolOutcome::AlreadyAllowed)
        );
        key.2 = false;
        assert_eq!(by_token(None, &[key]), refused(EnrolRefusal::Revoked));
        let same_id = known("new", true);
        assert_eq!(by_token(None, &[same_id]), refused(EnrolRefusal::NameTaken));
    }

    #[test]
    fn an_allowed_key_is_rotated_and_old_ones_are_forgotten() {
        let rotation = request(KeyOrigin::Rotation {
            old: "old".to_owned(),
        });
        let plan =
            |keys: &[KnownKey]| plan_enrolment(&rotation, None, keys, NOW).expect("readable");
        for keys in [
            vec![],
            vec![known("old", false)],
            vec![known("other", true)],
        ] {
            assert_eq!(plan(&keys), refused(EnrolRefusal::OldKeyNotAllowed));
        }
        let mut keys = vec![known("old", true)];
        keys.extend((0..10).map(|n| known(&n.to_string(), false)));
        let expected = EnrolmentWrites {
            token: None,
            revoked: vec!["old".to_owned()],
            revoked_by: "rotation to new".to_owned(),
            deleted: vec!["9".to_owned()],
            enrolled_by: "rotation of old".to_owned(),
        };
        assert_eq!(plan(&keys), EnrolmentPlan::Write(expected));
    }

    #[test]
    fn a_new_token_is_checked() {
        let good = NewEnrolmentToken {
            id: "0123456789abcdef".to_owned(),
            verifier: [1; 32],
            namespace: Some(cueline_model::Namespace::default()),
            group: Some("default".parse().expect("a name")),
            executor: Some("one".parse().expect("a name")),
            uses: 1,
            valid_ms: None,
            by: Actor::new(ActorKind::User, "me"),
            idempotency_key: None,
        };
        assert!(check_new_token(&good).is_ok());
        let mut wrong = vec![good.clone(); 5];
        wrong[4].idempotency_key = Some("k".repeat(MAX_IDEMPOTENCY_KEY_BYTES + 1));
        wrong[0].id = "0123456789ABCDEF".to_owned();
        wrong[1].uses = 0;
        wrong[2].group = None;
        wrong[3].group = Some("team/x".parse().expect("a name"));
        let key = "idempotency_key: ";
        let fields = ["id: ", "uses: ", "executor: ", "group: ", key];
        for (token, field) in wrong.iter().zip(fields) {
            let error = check_new_token(token).expect_err("is refused");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(field), "{error}");
        }
        assert!(!format!("{good:?}").contains("verifier"));
    }

    #[test]
    fn a_restored_store_is_read_again() {
        let page = |after, newest| keys_page(Vec::new(), after, newest).expect("empty").version;
        assert_eq!((page(5, 5), page(5, 9), page(5, 4)), (5, 5, 0));
    }
}
