//! Checks users, sessions and API tokens, decides their changes, reads them from rows, and describes changes for the
//! audit log. Knows no secret but the hash of a password, and puts that into no message and no entry.

mod audit_entries;
mod bounds;
mod errors;
mod rows;
mod use_notes;
mod uses;

pub use audit_entries::{
    session_ended, session_started, token_created, token_revoked, user_changed, user_created,
    user_deleted,
};
pub use bounds::{check_first_user, check_new_token, check_new_user, check_user_change};
pub use errors::{
    last_admin, no_enabled_user, no_owner, no_session, no_user, not_first_user, session_exists,
    subject_taken, token_exists, too_many_tokens, too_many_users, user_created_before, user_exists,
};
pub use rows::{
    ApiTokenRow, UserRow, grants_text, login_columns, name_key, stored_api_token, stored_user,
    user_grants_text,
};
pub use use_notes::{PendingUse, UseNotes, Used};
pub use uses::{SessionUseRow, TokenUseRow, Use, noted_until, session_use, token_use};

use cueline_model::{Grant, Role};

use crate::accounts::{Login, MAX_API_TOKENS, MAX_PROGRAM_TOKENS, StoredUser, UserChange, UserId};
use crate::{ErrorKind, StoreError};

/// A change of a user that is about to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserUpdate {
    /// The user afterwards, with the new version.
    pub after: StoredUser,
    /// The way to log in is another one.
    pub changes_login: bool,
    /// All sessions of the user end.
    pub ends_sessions: bool,
    /// The user was able to manage everything and no longer is, so another one must be.
    pub needs_other_admin: bool,
}

/// Whether a user is enabled, can log in, and has all rights everywhere.
pub fn is_admin(login: &Login, grants: &[Grant], enabled: bool) -> bool {
    enabled && *login != Login::None && grants.iter().any(is_all_rights)
}

/// As [`is_admin`]. Grants that this program cannot read may be all rights.
pub fn may_be_admin(user: &StoredUser) -> bool {
    let can_log_in = user.enabled && user.login != Login::None;
    can_log_in && (user.unreadable_grants.is_some() || user.grants.iter().any(is_all_rights))
}

/// The right to edit scripts belongs to it. Who does not have that right cannot give it.
fn is_all_rights(grant: &Grant) -> bool {
    let is_everywhere = grant.namespace.is_none() && grant.group.is_none();
    grant.role == Role::Admin && grant.scripts && is_everywhere
}

/// Decides a change. `None` if nothing changes. The change was checked by [`check_user_change`].
///
/// # Errors
///
/// [`ErrorKind::Precondition`] if the condition is not met, [`ErrorKind::Conflict`] if the user has another version.
pub fn plan_user_change(
    before: &StoredUser,
    change: &UserChange,
) -> Result<Option<UserUpdate>, StoreError> {
    change
        .condition
        .require("change the user", &before.name, Some(before.into()))?;
    if let Some(wanted) = change.if_version
        && wanted != before.version
    {
        return Err(StoreError::new(
            ErrorKind::Conflict,
            format!(
                "failed to change the user {:?}: version {wanted} is asked for, the user has version {}; read the user again",
                before.name, before.version
            ),
        ));
    }
    let change = change.clone();
    let mut after = before.clone();
    after.display_name = change.display_name.unwrap_or(after.display_name);
    after.login = change.login.unwrap_or(after.login);
    if let Some(grants) = change.grants {
        after.grants = grants;
        after.unreadable_grants = None;
    }
    after.enabled = change.enabled.unwrap_or(after.enabled);
    if after == *before && !change.revoke_tokens {
        return Ok(None);
    }
    after.version = before.version.saturating_add(1);
    let changes_login = after.login != before.login;
    Ok(Some(UserUpdate {
        changes_login,
        ends_sessions: changes_login || !after.enabled,
        needs_other_admin: may_be_admin(before) && !may_be_admin(&after),
        after,
    }))
}

/// The most valid tokens of an owner, or of all programs.
pub fn most_tokens(owner: Option<UserId>) -> usize {
    if owner.is_some() {
        MAX_API_TOKENS
    } else {
        MAX_PROGRAM_TOKENS
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::Timestamp;

    use super::*;
    use crate::accounts::PasswordHash;
    use crate::{Precondition, Revision};

    fn admin() -> StoredUser {
        StoredUser {
            id: UserId(1),
            name: "ann".to_owned(),
            display_name: "Ann".to_owned(),
            login: Login::Password(PasswordHash("$argon2id$a".to_owned())),
            grants: vec![Grant::everything()],
            unreadable_grants: None,
            enabled: true,
            version: 4,
            created_at: Timestamp::from_millis(1),
            created_by: "user root".to_owned(),
            last_login_at: None,
        }
    }

    fn update(change: &UserChange) -> UserUpdate {
        let planned = plan_user_change(&admin(), change).expect("has the version");
        planned.expect("is a change")
    }

    #[test]
    fn a_change_that_changes_nothing_is_not_written() {
        for change in [
            UserChange::default(),
            UserChange {
                display_name: Some("Ann".to_owned()),
                login: Some(admin().login),
                grants: Some(vec![Grant::everything()]),
                enabled: Some(true),
                revoke_tokens: false,
                if_version: Some(4),
                condition: Precondition::Version(4),
            },
        ] {
            assert_eq!(plan_user_change(&admin(), &change).expect("plans"), None);
        }
    }

    #[test]
    fn another_version_is_refused() {
        let change = UserChange {
            if_version: Some(3),
            ..UserChange::default()
        };
        let error = plan_user_change(&admin(), &change).expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains("version 4"), "{error}");
        // A change that would change nothing is refused too.
        let change = UserChange {
            condition: Precondition::OneOf(vec![Revision { id: 1, version: 3 }]),
            ..UserChange::default()
        };
        let error = plan_user_change(&admin(), &change).expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Precondition);
    }

    #[test]
    fn a_new_login_and_disabling_end_sessions() {
        let renamed = update(&UserChange {
            display_name: Some("A.".to_owned()),
            ..UserChange::default()
        });
        assert_eq!((renamed.after.version, renamed.ends_sessions), (5, false));
        let other_password = update(&UserChange {
            login: Some(Login::Password(PasswordHash("$argon2id$b".to_owned()))),
            ..UserChange::default()
        });
        assert!(other_password.ends_sessions && other_password.changes_login);
        assert!(!other_password.needs_other_admin);
        let revoked = update(&UserChange {
            revoke_tokens: true,
            ..UserChange::default()
        });
        assert_eq!((revoked.after.version, revoked.ends_sessions), (5, false));
        let disabled = update(&UserChange {
            enabled: Some(false),
            ..UserChange::default()
        });
        assert!(disabled.ends_sessions && !disabled.changes_login);
    }

    #[test]
    fn an_administrator_is_enabled_can_log_in_and_has_all_rights() {
        let mut in_one_namespace = Grant::everything();
        in_one_namespace.namespace = Some("default".parse().expect("a name"));
        let mut author = Grant::everything();
        author.role = Role::Author;
        let mut without_scripts = Grant::everything();
        without_scripts.scripts = false;
        for change in [
            UserChange {
                enabled: Some(false),
                ..UserChange::default()
            },
            UserChange {
                login: Some(Login::None),
                ..UserChange::default()
            },
            UserChange {
                grants: Some(vec![in_one_namespace.clone(), author]),
                ..UserChange::default()
            },
            UserChange {
                grants: Some(vec![without_scripts]),
                ..UserChange::default()
            },
        ] {
            assert!(update(&change).needs_other_admin);
        }
        let still = update(&UserChange {
            grants: Some(vec![in_one_namespace, Grant::everything()]),
            ..UserChange::default()
        });
        assert!(!still.needs_other_admin);
        let mut viewer = admin();
        viewer.grants.clear();
        let change = UserChange {
            enabled: Some(false),
            ..UserChange::default()
        };
        let planned = plan_user_change(&viewer, &change).expect("plans");
        assert!(!planned.expect("is a change").needs_other_admin);
    }
}
