//! Decides whether a session or an API token counts, and when its use is noted.

use cueline_model::Timestamp;

use super::rows::stored_grants;
use crate::StoreError;
use crate::accounts::{Principal, UserId};

/// Uses are noted once in this time.
const NOTED_EVERY_MS: u64 = 60_000;

/// A session and its user: the user's number, name, grants, and whether enabled; end of the session, last use, and the
/// present time.
pub type SessionUseRow = (i64, String, String, bool, i64, i64, i64);

/// An API token and its owner: id, name, grants, end of validity, time of revocation, last use; the owner's number, name,
/// grants, and whether enabled; the present time. A token with the number of a user that does not exist has no other
/// column of one.
pub type TokenUseRow = (
    String,
    String,
    String,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<String>,
    Option<String>,
    Option<bool>,
    i64,
);

/// A use of a session or a token that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Who.
    pub principal: Principal,
    /// When; `None` if a use less than a minute before was noted.
    pub note_at: Option<Timestamp>,
}

/// Only a use until this time is replaced by one of now. It counts from each use, not by the clock's minutes: otherwise all
/// uses would be noted in the same second.
pub fn noted_until(now: Timestamp) -> Timestamp {
    now.minus_ms(NOTED_EVERY_MS)
}

/// Who has a session; `None` if it does not count.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for unreadable grants.
pub fn session_use(row: SessionUseRow, idle_ms: u64) -> Result<Option<Use>, StoreError> {
    let (user, name, grants, enabled, expires_at, last_used_at, now) = row;
    let now = Timestamp::from_millis(now);
    let last_used_at = Timestamp::from_millis(last_used_at);
    let expires_at = Timestamp::from_millis(expires_at);
    if !enabled || expires_at <= now || last_used_at.plus_ms(idle_ms) <= now {
        return Ok(None);
    }
    let grants = stored_grants(&format!("the user {name:?}"), &grants)?;
    Ok(Some(Use {
        principal: Principal {
            user: Some((UserId(user), name)),
            token: None,
            grants,
            owner_grants: None,
        },
        note_at: note_at(Some(last_used_at), now),
    }))
}

/// Who has an API token; `None` if it does not count.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for unreadable grants.
pub fn token_use(row: TokenUseRow) -> Result<Option<Use>, StoreError> {
    let (id, name, grants, expires_at, revoked_at, last_used_at) =
        (row.0, row.1, row.2, row.3, row.4, row.5);
    let now = Timestamp::from_millis(row.10);
    let expired = expires_at.is_some_and(|at| Timestamp::from_millis(at) <= now);
    if expired || revoked_at.is_some() {
        return Ok(None);
    }
    let (user, owner_grants) = match (row.6, row.7, row.8, row.9) {
        (None, ..) => (None, None),
        (Some(owner_id), Some(owner_name), Some(text), Some(true)) => {
            let owner_grants = stored_grants(&format!("the user {owner_name:?}"), &text)?;
            (Some((UserId(owner_id), owner_name)), Some(owner_grants))
        }
        _ => return Ok(None),
    };
    let grants = stored_grants(&format!("the API token {id}"), &grants)?;
    let last_used_at = last_used_at.map(Timestamp::from_millis);
    Ok(Some(Use {
        principal: Principal {
            user,
            token: Some((id, name)),
            grants,
            owner_grants,
        },
        note_at: note_at(last_used_at, now),
    }))
}

fn note_at(last_used_at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    let is_noted = last_used_at.is_some_and(|at| at > noted_until(now));
    (!is_noted).then_some(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 600_000;

    fn session(enabled: bool, expires_at: i64, last_used_at: i64) -> Option<Use> {
        let (name, grants) = ("ann".to_owned(), "[]".to_owned());
        let row = (1, name, grants, enabled, expires_at, last_used_at, NOW);
        session_use(row, 300_000).expect("readable")
    }

    #[test]
    fn a_session_counts_until_it_expires_or_is_idle() {
        let found = session(true, NOW + 1, NOW).expect("counts");
        let user = found.principal.user.clone();
        assert_eq!(user, Some((UserId(1), "ann".to_owned())));
        assert_eq!(
            (found.principal.token, found.principal.owner_grants),
            (None, None)
        );
        assert_eq!(session(true, NOW, NOW), None);
        assert_eq!(session(false, NOW + 1, NOW), None);
        assert!(session(true, NOW + 1, NOW - 299_999).is_some());
        assert_eq!(session(true, NOW + 1, NOW - 300_000), None);
    }

    #[test]
    fn a_use_is_noted_once_a_minute() {
        let note_at = |used: Option<Use>| used.expect("counts").note_at;
        assert_eq!(note_at(session(true, NOW + 1, NOW)), None);
        let now = Timestamp::from_millis(NOW);
        assert_eq!(note_at(session(true, NOW + 1, NOW - 59_999)), None);
        assert_eq!(note_at(session(true, NOW + 1, NOW - 60_000)), Some(now));
        assert_eq!(note_at(token_use(token()).expect("readable")), Some(now));
    }

    /// A token without an owner that was never used.
    fn token() -> TokenUseRow {
        let (id, name) = ("t".to_owned(), "backup".to_owned());
        let grants = r#"[{"role":"admin"}]"#.to_owned();
        (
            id, name, grants, None, None, None, None, None, None, None, NOW,
        )
    }

    #[test]
    fn a_token_counts_until_it_ends() {
        let counts = |row: TokenUseRow| token_use(row).expect("readable").is_some();
        assert!(counts(token()));
        let mut expiring = token();
        expiring.3 = Some(NOW + 1);
        assert!(counts(expiring.clone()));
        expiring.3 = Some(NOW);
        assert!(!counts(expiring));
        let mut revoked = token();
        revoked.4 = Some(NOW + 1);
        assert!(!counts(revoked));
    }

    #[test]
    fn a_token_counts_while_its_owner_does() {
        let mut row = token();
        row.6 = Some(1);
        assert_eq!(token_use(row.clone()).expect("readable"), None);
        (row.7, row.8, row.9) = (Some("ann".to_owned()), Some("[]".to_owned()), Some(true));
        let used = token_use(row.clone()).expect("readable").expect("counts");
        assert_eq!(used.principal.owner_grants, Some(Vec::new()));
        assert_eq!(used.principal.grants.len(), 1);
        assert_eq!(used.principal.user, Some((UserId(1), "ann".to_owned())));
        row.9 = Some(false);
        assert_eq!(token_use(row).expect("readable"), None);
    }
}
