//! API tokens.

use cueline_model::Grant;

use super::account_steps::{
    MINUTE_MS, TOKEN_USED_AT, admin, by, create, create_token, found, hash, log_in, password,
    revoke, session, set_enabled, token, user, viewer, wait_for_use,
};
use super::fixture::{Fixture, refused};
use crate::{
    Accounts, ErrorKind, Login, MAX_API_TOKENS, MAX_GRANTS, MAX_PROGRAM_TOKENS,
    MAX_TOKEN_NAME_BYTES, NewApiToken, NewUser, Principal, StoredApiToken, UserChange, UserId,
};

/// The ids of all tokens, or of those of an owner.
async fn ids(accounts: &dyn Accounts, owner: Option<UserId>) -> Vec<String> {
    let tokens = accounts.api_tokens(owner, None, 10_000).await;
    let tokens = tokens.expect("lists").into_iter();
    tokens.map(|token| token.id).collect()
}

/// A token of a user has the rights of both, one of a program only its own.
pub async fn a_token_has_an_owner_or_none(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("Ann")).await;
    let own = token(1, Some(ann));
    let program = token(2, None);
    for token in [&own, &program] {
        create_token(&*accounts, token).await;
    }
    let again = fixture.harness.open_accounts().await;
    let of_own = Principal {
        user: Some((ann, "Ann".to_owned())),
        token: Some((own.id.clone(), own.name.clone())),
        grants: vec![Grant::everything()],
        owner_grants: Some(vec![viewer()]),
    };
    assert_eq!(found(&*again, 1).await, Some(of_own));
    let of_program = Principal {
        user: None,
        token: Some((program.id, program.name)),
        grants: vec![Grant::everything()],
        owner_grants: None,
    };
    assert_eq!(found(&*again, 2).await, Some(of_program));
    assert_eq!(found(&*again, 3).await, None);
    wait_for_use(fixture, TOKEN_USED_AT, fixture.now()).await;
    let listed = again.api_tokens(Some(ann), None, 10).await;
    let expected = StoredApiToken {
        id: own.id,
        name: own.name,
        owner: Some("Ann".to_owned()),
        grants: own.grants,
        unreadable_grants: None,
        created_at: fixture.now(),
        created_by: "user root".to_owned(),
        expires_at: None,
        revoked_at: None,
        last_used_at: Some(fixture.now()),
    };
    assert_eq!(listed.expect("lists"), [expected]);
}

/// Nothing is stored then.
pub async fn a_token_is_refused(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let with = |change: &dyn Fn(&mut NewApiToken)| {
        let mut token = token(1, Some(ann));
        change(&mut token);
        token
    };
    for (wrong, field) in [
        (with(&|token| "xyz".clone_into(&mut token.id)), "id: "),
        (with(&|token| token.name = String::new()), "name: "),
        (
            with(&|token| token.name = "x".repeat(MAX_TOKEN_NAME_BYTES + 1)),
            "name: ",
        ),
        (
            with(&|token| token.grants = vec![viewer(); MAX_GRANTS + 1]),
            "grants: ",
        ),
    ] {
        let created = accounts.create_api_token(&wrong, &by()).await;
        refused(created, ErrorKind::Invalid, field);
    }
    let missing = token(1, Some(UserId(ann.0 + 1_000)));
    let created = accounts.create_api_token(&missing, &by()).await;
    refused(created, ErrorKind::NotFound, "number");
    assert!(ids(&*accounts, None).await.is_empty());

    create_token(&*accounts, &token(1, Some(ann))).await;
    let same_id = NewApiToken {
        hash: hash(2),
        ..token(1, None)
    };
    let same_hash = NewApiToken {
        hash: hash(1),
        ..token(2, None)
    };
    for taken in [same_id, same_hash] {
        let created = accounts.create_api_token(&taken, &by()).await;
        refused(created, ErrorKind::Conflict, &taken.id);
    }
    assert_eq!(ids(&*accounts, None).await.len(), 1);
    let principal = found(&*accounts, 1).await.expect("counts");
    assert_eq!(principal.user, Some((ann, "ann".to_owned())));
}

/// It counts until the last millisecond of its validity.
pub async fn a_token_expires(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let short = NewApiToken {
        valid_ms: Some(1_000),
        ..token(1, None)
    };
    create_token(&*accounts, &short).await;
    let end = fixture.now().plus_ms(1_000);
    fixture.clock.advance(999);
    assert!(found(&*accounts, 1).await.is_some());
    fixture.clock.advance(1);
    assert_eq!(found(&*accounts, 1).await, None);
    let listed = accounts.api_tokens(None, None, 10).await.expect("lists");
    assert_eq!(
        (listed[0].expires_at, listed[0].revoked_at),
        (Some(end), None)
    );
}

/// At once, also in another process. A user revokes only own tokens.
pub async fn a_token_is_revoked(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let bob = create(&*accounts, &user("bob")).await;
    for (number, owner) in [(1, Some(ann)), (2, Some(bob)), (3, None)] {
        create_token(&*accounts, &token(number, owner)).await;
    }
    let again = fixture.harness.open_accounts().await;
    assert!(found(&*again, 1).await.is_some());
    fixture.clock.advance(1_000);
    assert!(revoke(&*accounts, 1, Some(ann)).await);
    let revoked_at = fixture.now();
    assert_eq!(found(&*again, 1).await, None);
    for (number, owner) in [(2, Some(ann)), (3, Some(ann)), (9, None)] {
        assert!(!revoke(&*accounts, number, owner).await, "{number}");
    }
    assert!(found(&*again, 2).await.is_some());
    assert!(found(&*again, 3).await.is_some());
    // A repeated call changes nothing.
    fixture.clock.advance(1_000);
    assert!(revoke(&*accounts, 1, None).await);
    let listed = accounts.api_tokens(Some(ann), None, 10).await;
    assert_eq!(listed.expect("lists")[0].revoked_at, Some(revoked_at));
    assert!(revoke(&*accounts, 3, None).await);
    assert_eq!(found(&*again, 3).await, None);
}

/// It counts again when its owner is enabled.
pub async fn a_token_of_a_disabled_owner_does_not_count(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    for (number, owner) in [(1, Some(ann)), (2, None)] {
        create_token(&*accounts, &token(number, owner)).await;
    }
    set_enabled(&*accounts, "ann", false).await;
    assert_eq!(found(&*accounts, 1).await, None);
    assert!(found(&*accounts, 2).await.is_some());
    set_enabled(&*accounts, "ann", true).await;
    assert!(found(&*accounts, 1).await.is_some());
}

/// Only a login says that the provider still knows the user. Other tokens need none.
pub async fn tokens_of_openid_users_count_for_a_while_after_the_last_login(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let of_provider = NewUser {
        login: Login::OpenId {
            issuer: "https://id.example.org".to_owned(),
            subject: "7".to_owned(),
        },
        ..user("eve")
    };
    let eve = create(&*accounts, &of_provider).await;
    let ann = create(&*accounts, &user("ann")).await;
    for (number, owner) in [(1, Some(eve)), (2, Some(ann)), (3, None)] {
        create_token(&*accounts, &token(number, owner)).await;
    }
    let counts = async |number: u64| {
        let found = accounts.api_token(hash(number), MINUTE_MS).await;
        found.expect("answers").is_some()
    };
    assert!(!counts(1).await, "there was no login");
    for session in [7, 8] {
        log_in(&*accounts, eve, session).await;
        assert!(counts(1).await);
        fixture.clock.advance(MINUTE_MS - 1);
        assert!(counts(1).await);
        fixture.clock.advance(1);
        assert!(!counts(1).await);
    }
    assert!(counts(2).await && counts(3).await);
    let with_password = UserChange {
        login: Some(password("eve")),
        ..UserChange::default()
    };
    let changed = accounts.change_user("eve", &with_password, &by()).await;
    changed.expect("changes");
    assert!(counts(1).await, "the user has a password now");
}

/// Only those of the user, and only if it is asked for. What has ended keeps the time of its end.
pub async fn a_new_password_revokes_the_tokens_of_the_user(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let bob = create(&*accounts, &user("bob")).await;
    for (number, owner) in [
        (1, Some(ann)),
        (2, Some(ann)),
        (3, Some(ann)),
        (4, Some(bob)),
    ] {
        create_token(&*accounts, &token(number, owner)).await;
    }
    create_token(&*accounts, &token(5, None)).await;
    let short = NewApiToken {
        valid_ms: Some(1_000),
        ..token(6, Some(ann))
    };
    create_token(&*accounts, &short).await;
    assert!(revoke(&*accounts, 3, None).await);
    let revoked_at = fixture.now();
    fixture.clock.advance(1_000);
    let change = async |text: &str, revoke_tokens: bool| {
        let change = UserChange {
            login: Some(password(text)),
            revoke_tokens,
            ..UserChange::default()
        };
        let changed = accounts.change_user("ann", &change, &by()).await;
        changed.expect("changes").tokens_revoked
    };
    assert_eq!(change("one", false).await, 0);
    assert!(found(&*accounts, 1).await.is_some());
    assert_eq!(change("two", true).await, 2);
    for number in [1, 2] {
        assert_eq!(found(&*accounts, number).await, None, "{number}");
    }
    for number in [4, 5] {
        assert!(found(&*accounts, number).await.is_some(), "{number}");
    }
    let listed = accounts.api_tokens(Some(ann), None, 10).await;
    let ends: Vec<_> = listed
        .expect("lists")
        .iter()
        .map(|t| t.revoked_at)
        .collect();
    let now = fixture.now();
    assert_eq!(ends, [Some(now), Some(now), Some(revoked_at), None]);
    assert_eq!(change("three", true).await, 0, "none is left");
}

/// A request may be on its way while the session ends.
pub async fn a_session_that_has_ended_makes_no_token(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    log_in(&*accounts, ann, 7).await;
    let by_session = |number: u64| NewApiToken {
        session: Some(hash(7)),
        ..token(number, Some(ann))
    };
    create_token(&*accounts, &by_session(1)).await;
    let new_password = UserChange {
        login: Some(password("another")),
        revoke_tokens: true,
        ..UserChange::default()
    };
    let changed = accounts.change_user("ann", &new_password, &by()).await;
    assert_eq!(changed.expect("changes").tokens_revoked, 1);
    let late = accounts.create_api_token(&by_session(2), &by()).await;
    refused(late, ErrorKind::NotFound, "session");
    assert_eq!(found(&*accounts, 2).await, None);
    assert_eq!(ids(&*accounts, Some(ann)).await.len(), 1);
}

/// Each request uses a token, and most of them write nothing.
pub async fn the_use_of_a_token_is_noted_once_a_minute(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    create_token(&*accounts, &token(1, None)).await;
    let used_at = async || {
        let listed = accounts.api_tokens(None, None, 10).await;
        listed.expect("lists")[0].last_used_at
    };
    assert_eq!(used_at().await, None);
    // Not at the beginning of a minute of the clock.
    fixture.clock.advance(MINUTE_MS / 2);
    assert!(found(&*accounts, 1).await.is_some());
    wait_for_use(fixture, TOKEN_USED_AT, fixture.now()).await;
    assert_eq!(used_at().await, Some(fixture.now()));
    fixture.clock.advance(MINUTE_MS - 1);
    assert!(found(&*accounts, 1).await.is_some());
    // If that use were noted, this one would not be.
    fixture.clock.advance(1);
    assert!(found(&*accounts, 1).await.is_some());
    wait_for_use(fixture, TOKEN_USED_AT, fixture.now()).await;
}

/// Those of an owner by their ids too.
pub async fn tokens_are_listed_in_pages(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    for number in [5, 3, 1, 4, 2] {
        let owner = (number % 2 == 1).then_some(ann);
        create_token(&*accounts, &token(number, owner)).await;
    }
    let pages = async |owner: Option<UserId>| {
        let mut listed: Vec<String> = Vec::new();
        loop {
            let after = listed.last().map(String::as_str);
            let page = accounts.api_tokens(owner, after, 2).await.expect("lists");
            assert!(page.len() <= 2);
            if page.is_empty() {
                return listed;
            }
            listed.extend(page.into_iter().map(|token| token.id));
        }
    };
    let expected = |numbers: &[u64]| -> Vec<String> {
        let numbers = numbers.iter();
        numbers.map(|number| token(*number, None).id).collect()
    };
    assert_eq!(pages(None).await, expected(&[1, 2, 3, 4, 5]));
    assert_eq!(pages(Some(ann)).await, expected(&[1, 3, 5]));
}

/// Tokens that have ended take no place, and tokens of others neither.
pub async fn tokens_of_an_owner_are_bounded(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let bob = create(&*accounts, &user("bob")).await;
    let most = u64::try_from(MAX_API_TOKENS).expect("a small number");
    let short = NewApiToken {
        valid_ms: Some(1_000),
        ..token(1, Some(ann))
    };
    create_token(&*accounts, &short).await;
    for number in 2..=most {
        create_token(&*accounts, &token(number, Some(ann))).await;
    }
    let refused_for = async |number: u64| {
        let more = token(number, Some(ann));
        let full = accounts.create_api_token(&more, &by()).await;
        refused(full, ErrorKind::Conflict, "\"ann\" has 100");
    };
    refused_for(most + 1).await;
    create_token(&*accounts, &token(1_001, Some(bob))).await;
    create_token(&*accounts, &token(1_002, None)).await;
    fixture.clock.advance(1_000);
    create_token(&*accounts, &token(most + 1, Some(ann))).await;
    refused_for(most + 2).await;
    assert!(revoke(&*accounts, 2, None).await);
    create_token(&*accounts, &token(most + 2, Some(ann))).await;
    refused_for(most + 3).await;
}

/// They have no owner who could be disabled, and a bound of their own.
pub async fn tokens_of_programs_are_bounded(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let most = u64::try_from(MAX_PROGRAM_TOKENS).expect("a small number");
    for number in 1..=most {
        create_token(&*accounts, &token(number, None)).await;
    }
    let full = accounts
        .create_api_token(&token(most + 1, None), &by())
        .await;
    refused(full, ErrorKind::Conflict, "without an owner");
    assert!(revoke(&*accounts, 1, None).await);
    create_token(&*accounts, &token(most + 1, None)).await;
}

/// Those that ended first are deleted, so that a loop of creations and revocations fills no disk.
pub async fn ended_tokens_are_bounded(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let most = u64::try_from(MAX_API_TOKENS).expect("a small number");
    for number in 1..=most + 3 {
        create_token(&*accounts, &token(number, Some(ann))).await;
        fixture.clock.advance(1);
        assert!(revoke(&*accounts, number, None).await);
    }
    create_token(&*accounts, &token(1_000, Some(ann))).await;
    let kept = ids(&*accounts, Some(ann)).await;
    assert_eq!(kept.len(), MAX_API_TOKENS + 1);
    assert_eq!(kept[0], token(4, None).id);
}

/// The sessions first; what is valid stays.
pub async fn ended_sessions_and_tokens_are_pruned(fixture: &Fixture) {
    const KEEP_MS: u64 = 10_000;
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &admin("ann")).await;
    log_in(&*accounts, ann, 1).await;
    for number in [2, 3] {
        let short = accounts
            .create_session(ann, &password("ann"), hash(number), 1_000, &by())
            .await;
        short.expect("starts");
    }
    for number in 1..=4 {
        let valid_ms = (number == 4).then_some(1_000);
        let new = NewApiToken {
            valid_ms,
            ..token(number, Some(ann))
        };
        create_token(&*accounts, &new).await;
    }
    fixture.clock.advance(1_000);
    assert!(revoke(&*accounts, 2, None).await);
    let prune = async |limit: usize| {
        let pruned = fixture.store.prune_accounts(KEEP_MS, limit).await;
        pruned.expect("prunes")
    };
    assert_eq!(prune(1).await, 1, "a session");
    assert_eq!(prune(10).await, 1, "the other session");
    assert_eq!(prune(10).await, 0, "the tokens are kept for longer");
    fixture.clock.advance(KEEP_MS);
    assert_eq!(prune(10).await, 0, "they are not older yet");
    fixture.clock.advance(1);
    assert_eq!(prune(1).await, 1);
    assert_eq!(prune(10).await, 1);
    assert_eq!(prune(10).await, 0);
    let kept = [token(1, None).id, token(3, None).id];
    assert_eq!(ids(&*accounts, None).await, kept);
    assert!(session(&*accounts, 1).await.is_some());
}
