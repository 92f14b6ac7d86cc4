//! The user of a login by OpenID Connect: found or created, with the grants that follow from the groups of the provider.
//!
//! A user is found by issuer and subject only. A name never leads to a user, because a person may choose it at the provider.

use cueline_http::Peer;
use cueline_model::{ActorKind, Grant};
use cueline_store::{ErrorKind, Login, NewUser, StoredUser, UserChange};

use super::refusal::Refusal;
use crate::ApiState;
use crate::access::actor;
use crate::openid::{Identity, OpenId};
use crate::problem::Problem;

/// How often a change of a user is tried, when other changes of the same user come between.
const MAX_TRIES: usize = 3;

/// The user of this identity, with the grants that follow from it now.
pub(super) async fn account(
    state: &ApiState,
    openid: &OpenId,
    peer: Peer,
    identity: &Identity,
) -> Result<StoredUser, Refusal> {
    let settings = openid.settings();
    let grants = settings.grants.as_ref();
    let grants = grants.map(|mapping| mapping.grants(&identity.groups));
    let grants = grants.transpose().map_err(|error| {
        let reason = error.to_string();
        Refusal::of_unknown(&reason, Problem::forbidden(&reason))
    })?;
    for _ in 0..MAX_TRIES {
        let found = state
            .accounts
            .user_by_subject(&settings.issuer, &identity.subject)
            .await?;
        let Some(user) = found else {
            return create(state, openid, peer, identity, grants).await;
        };
        if !user.enabled {
            return Err(disabled(&user.name));
        }
        let Some(change) = change(&user, identity, grants.as_deref()) else {
            return Ok(user);
        };
        let by = actor(ActorKind::User, &user.name, peer.address);
        match state.accounts.change_user(&user.name, &change, &by).await {
            Ok(_) => return Ok(state.accounts.user(&user.name).await?),
            // Another change has come between, or it takes the rights of the last administrator.
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let latest = state.accounts.user(&user.name).await?;
                if latest.version == user.version {
                    let reason = format!("the grants of the provider cannot be given: {error}");
                    let problem = Problem::refused(&reason);
                    return Err(Refusal::of_user(&user.name, &reason, problem));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Problem::unavailable("the user is being changed; log in again").into())
}

/// What has to be changed in the user. `None` if nothing.
fn change(user: &StoredUser, identity: &Identity, grants: Option<&[Grant]>) -> Option<UserChange> {
    // The store may keep them in another order.
    let is_same = |grants: &[Grant]| {
        user.unreadable_grants.is_none()
            && grants.len() == user.grants.len()
            && grants.iter().all(|one| user.grants.contains(one))
    };
    let grants = grants.filter(|grants| !is_same(grants));
    // A provider that says no name leaves the one that was given here.
    let shown = Some(&identity.display_name);
    let shown = shown.filter(|name| !name.is_empty() && **name != user.display_name);
    if grants.is_none() && shown.is_none() {
        return None;
    }
    Some(UserChange {
        display_name: shown.cloned(),
        grants: grants.map(<[Grant]>::to_vec),
        if_version: Some(user.version),
        ..UserChange::default()
    })
}

/// Creates the user of a first login.
async fn create(
    state: &ApiState,
    openid: &OpenId,
    peer: Peer,
    identity: &Identity,
    grants: Option<Vec<Grant>>,
) -> Result<StoredUser, Refusal> {
    let settings = openid.settings();
    let forbidden = |reason: &str| Refusal::of_unknown(reason, Problem::forbidden(reason));
    if !settings.create_users {
        return Err(forbidden(
            "no user has this identity, and a login creates none",
        ));
    }
    // Every person whom the provider knows could fill the store with users who may do nothing.
    if grants.as_ref().is_some_and(Vec::is_empty) {
        return Err(forbidden(
            "no grant follows from the groups of this identity",
        ));
    }
    // Only while there is no user, the set-up secret makes an administrator. Another first user would end that.
    let gets_all_rights = |grants: &[Grant]| grants.contains(&Grant::everything());
    let is_first_admin = grants.as_deref().is_some_and(gets_all_rights);
    if !is_first_admin && !state.accounts.has_users().await? {
        return Err(forbidden(
            "there is no user yet; the first one is set up, or gets all rights from the groups of the provider",
        ));
    }
    let Some(name) = identity.name.clone() else {
        return Err(forbidden("no claim of the provider can be a login name"));
    };
    let user = NewUser {
        name,
        display_name: identity.display_name.clone(),
        login: Login::OpenId {
            issuer: settings.issuer.clone(),
            subject: identity.subject.clone(),
        },
        grants: grants.unwrap_or_default(),
        idempotency_key: None,
    };
    let by = actor(ActorKind::User, &user.name, peer.address);
    if let Err(error) = state.accounts.create_user(&user, &by).await {
        let reason = format!("the user {:?} cannot be created: {error}", user.name);
        return Err(Refusal::of_unknown(&reason, error.into()));
    }
    Ok(state.accounts.user(&user.name).await?)
}

fn disabled(name: &str) -> Refusal {
    let reason = "the user is disabled";
    Refusal::of_user(name, reason, Problem::forbidden(reason))
}

#[cfg(test)]
mod tests {
    use cueline_model::{Role, Timestamp};
    use cueline_store::UserId;

    use super::*;

    fn user(grants: Vec<Grant>) -> StoredUser {
        StoredUser {
            id: UserId(1),
            name: "alice".to_owned(),
            display_name: "Alice".to_owned(),
            login: Login::None,
            grants,
            unreadable_grants: None,
            enabled: true,
            version: 7,
            created_at: Timestamp::from_millis(0),
            created_by: String::new(),
            last_login_at: None,
        }
    }

    fn identity(display_name: &str) -> Identity {
        Identity {
            subject: "1".to_owned(),
            name: None,
            display_name: display_name.to_owned(),
            groups: Vec::new(),
        }
    }

    #[test]
    fn a_login_changes_only_what_differs() {
        let viewer = Grant {
            role: Role::Viewer,
            ..Grant::everything()
        };
        let user = user(vec![viewer.clone()]);
        let same = [viewer];
        for (name, grants) in [
            ("Alice", Some(&same[..])),
            ("", Some(&same[..])),
            ("", None),
        ] {
            assert_eq!(change(&user, &identity(name), grants), None, "{name}");
        }
        let lost = change(&user, &identity("Alice"), Some(&[])).expect("a change");
        assert_eq!(lost.grants, Some(Vec::new()));
        assert_eq!((lost.display_name, lost.if_version), (None, Some(7)));
        let renamed = change(&user, &identity("Alice Doe"), None).expect("a change");
        assert_eq!(renamed.display_name.as_deref(), Some("Alice Doe"));
        assert_eq!(renamed.grants, None);
        assert!(renamed.login.is_none() && renamed.enabled.is_none());
    }
}
