//! Who sends the requests of a command. Pure.

use cueline_api::view::{CallerKind, SessionView};

/// The user on whose behalf requests are sent: the one who is logged in, or the owner of the API token.
pub(super) fn user(session: &SessionView) -> Option<&str> {
    match session.kind {
        CallerKind::User => Some(&session.name),
        CallerKind::AdminToken | CallerKind::Token => session.owner.as_deref(),
    }
}

/// Who sends requests, in one line.
pub(crate) fn describe(session: &SessionView) -> String {
    let name = &session.name;
    match (session.kind, &session.owner) {
        (CallerKind::User, _) => format!("user {name}"),
        (CallerKind::AdminToken, _) => "the admin token".to_owned(),
        (CallerKind::Token, Some(owner)) => format!("user {owner}, by the API token {name:?}"),
        (CallerKind::Token, None) => format!("the API token {name:?}"),
    }
}

#[cfg(test)]
mod tests {
    use cueline_api::view::SessionView;
    use serde_json::{Value, json};

    use super::{describe, user};

    #[test]
    fn a_caller_is_a_user_or_a_token_with_or_without_an_owner() {
        let of = |answer: Value| {
            let session: SessionView = serde_json::from_value(answer).expect("an answer");
            (user(&session).map(str::to_owned), describe(&session))
        };
        let admin = json!({ "kind": "admin_token", "name": "admin", "grants": [] });
        assert_eq!(of(admin), (None, "the admin token".to_owned()));
        let logged_in = json!({ "kind": "user", "name": "alice", "grants": [], "csrf": "x" });
        assert_eq!(
            of(logged_in),
            (Some("alice".to_owned()), "user alice".to_owned())
        );
        let mut token = json!({
            "kind": "token", "name": "ci", "token": "0123456789abcdef", "grants": [{ "role": "viewer" }],
        });
        assert_eq!(of(token.clone()), (None, "the API token \"ci\"".to_owned()));
        (token["owner"], token["owner_grants"]) = (json!("bob"), json!([]));
        assert_eq!(
            of(token),
            (
                Some("bob".to_owned()),
                "user bob, by the API token \"ci\"".to_owned()
            )
        );
    }
}
