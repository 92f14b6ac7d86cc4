//! Users and API tokens as rows.

use cueline_model::{Grant, Timestamp};

use crate::StoreError;
use crate::accounts::{Login, PasswordHash, StoredApiToken, StoredUser, UserId};
use crate::adapter::convert::{corrupt, to_u64};

/// A stored user: number, name, name that people see, password hash, issuer, subject, grants, whether enabled, version,
/// time of creation, creator, last login.
pub type UserRow = (
    i64,
    String,
    String,
    Option<String>,
    Option<String>,
    Option<String>,
    String,
    bool,
    i64,
    i64,
    String,
    Option<i64>,
);

/// A stored API token: id, name, owner's name, grants, time of creation, creator, end of validity, time of revocation,
/// last use.
pub type ApiTokenRow = (
    String,
    String,
    Option<String>,
    String,
    i64,
    String,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

/// What makes a login name unique: its characters in lower case.
pub fn name_key(name: &str) -> String {
    // Character by character: for a whole text, the form of a sigma depends on its place.
    let lower = name.chars().flat_map(char::to_lowercase);
    lower
        .map(|c| if c == '\0' { '\u{fffd}' } else { c })
        .collect()
}

/// Grants as they are stored.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if they cannot be serialised.
pub fn grants_text(grants: &[Grant]) -> Result<String, StoreError> {
    serde_json::to_string(grants).map_err(|e| corrupt("failed to write grants", e))
}

/// The grants of a user as they are stored. Those that this program cannot read stay as they are.
///
/// # Errors
///
/// As [`grants_text`].
pub fn user_grants_text(user: &StoredUser) -> Result<String, StoreError> {
    match &user.unreadable_grants {
        Some(text) => Ok(text.clone()),
        None => grants_text(&user.grants),
    }
}

/// Stored grants, and their text if this program cannot read them. One row of a newer program must not keep the others
/// from being listed, nor itself from being removed.
fn listed_grants(text: String) -> (Vec<Grant>, Option<String>) {
    match serde_json::from_str(&text) {
        Ok(grants) => (grants, None),
        Err(_) => (Vec::new(), Some(text)),
    }
}

/// Stored grants of `whose`, who sends a request.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if this program cannot read them. They count for nothing then.
pub(super) fn stored_grants(whose: &str, text: &str) -> Result<Vec<Grant>, StoreError> {
    serde_json::from_str(text)
        .map_err(|e| corrupt(format!("failed to read the grants of {whose}"), e))
}

/// The columns of a login: password hash, issuer, subject.
pub fn login_columns(login: &Login) -> (Option<&str>, Option<&str>, Option<&str>) {
    match login {
        Login::Password(hash) => (Some(&hash.0), None, None),
        Login::OpenId { issuer, subject } => (None, Some(issuer), Some(subject)),
        Login::None => (None, None, None),
    }
}

/// A user from its row.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) for two ways to log in.
pub fn stored_user(row: UserRow) -> Result<StoredUser, StoreError> {
    let (id, name, display_name, hash, issuer, subject, grants, enabled, version, at, by, login_at) =
        row;
    let login = match (hash, issuer, subject) {
        (Some(hash), None, None) => Login::Password(PasswordHash(hash)),
        (None, Some(issuer), Some(subject)) => Login::OpenId { issuer, subject },
        (None, None, None) => Login::None,
        _ => {
            return Err(corrupt(
                format!("failed to read the user {name:?}"),
                "several ways to log in",
            ));
        }
    };
    let (grants, unreadable_grants) = listed_grants(grants);
    Ok(StoredUser {
        id: UserId(id),
        grants,
        unreadable_grants,
        name,
        display_name,
        login,
        enabled,
        version: to_u64(version),
        created_at: Timestamp::from_millis(at),
        created_by: by,
        last_login_at: login_at.map(Timestamp::from_millis),
    })
}

/// An API token from its row.
pub fn stored_api_token(row: ApiTokenRow) -> StoredApiToken {
    let (id, name, owner, grants, created_at, created_by, expires_at, revoked_at, last_used_at) =
        row;
    let (grants, unreadable_grants) = listed_grants(grants);
    StoredApiToken {
        id,
        name,
        owner,
        grants,
        unreadable_grants,
        created_at: Timestamp::from_millis(created_at),
        created_by,
        expires_at: expires_at.map(Timestamp::from_millis),
        revoked_at: revoked_at.map(Timestamp::from_millis),
        last_used_at: last_used_at.map(Timestamp::from_millis),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn row(hash: Option<&str>, issuer: Option<&str>, grants: &str) -> UserRow {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (name, display) = ("ann".to_owned(), "Ann".to_owned());
        let grants = grants.to_owned();
        let by = "user root".to_owned();
        (
            1,
            name,
            display,
            owned(hash),
            owned(issuer),
            owned(issuer),
            grants,
            true,
            1,
            5,
            by,
            None,
        )
    }

    #[test]
    fn names_differ_by_more_than_case() {
        assert_eq!(name_key("Ann"), name_key("aNN"));
        assert_eq!(name_key("ΟΔΟΣ"), name_key("οδοσ"));
        assert_ne!(name_key("ann"), name_key("anne"));
        assert_eq!(name_key("a\0"), "a\u{fffd}");
    }

    #[test]
    fn grants_are_read_as_they_were_written() {
        let mut some = Grant::everything();
        some.group = Some("billing".parse().expect("a name"));
        some.scripts = false;
        let grants = vec![Grant::everything(), some];
        let text = grants_text(&grants).expect("writes");
        assert_eq!(stored_grants("x", &text).expect("reads"), grants);
        // A part that this program does not know may be a limit.
        for unknown in [
            "",
            r#"[{"role":"owner"}]"#,
            r#"[{"role":"admin","until":5}]"#,
        ] {
            let error = stored_grants("x", unknown).expect_err("is unreadable");
            assert_eq!(error.kind(), ErrorKind::Broken);
            let listed = stored_user(row(None, None, unknown)).expect("reads");
            assert!(listed.grants.is_empty());
            assert_eq!(listed.unreadable_grants.as_deref(), Some(unknown));
            assert_eq!(user_grants_text(&listed).expect("writes"), unknown);
        }
    }

    #[test]
    fn a_user_has_one_way_to_log_in() {
        let login = |hash, issuer| {
            let user = stored_user(row(hash, issuer, "[]"));
            user.map(|user| user.login)
        };
        let password = Login::Password(PasswordHash("h".to_owned()));
        assert_eq!(login(Some("h"), None).expect("reads"), password);
        assert_eq!(login(None, None).expect("reads"), Login::None);
        let open_id = login(None, Some("i")).expect("reads");
        assert_eq!(login_columns(&open_id), (None, Some("i"), Some("i")));
        assert_eq!(login_columns(&password), (Some("h"), None, None));
        let error = login(Some("h"), Some("i")).expect_err("is unreadable");
        assert_eq!(error.kind(), ErrorKind::Broken);
    }
}
