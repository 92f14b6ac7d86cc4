//! Sessions of users who are logged in.

use super::account_steps::{
    LONG_MS, MINUTE_MS, SESSION_USED_AT, admin, by, change, create, hash, log_in, login_of,
    password, session, set_enabled, user, wait_for, wait_for_use,
};
use super::fixture::{Fixture, refused};
use crate::{Accounts, ErrorKind, Login, MAX_SESSIONS, NewUser, Principal, UserChange, UserId};

/// How many sessions were used last at the same time.
const USED_LAST: &str = "
    SELECT CAST(count(*) AS text) FROM session WHERE last_used_at = (SELECT max(last_used_at) FROM session)";

async fn last_login(accounts: &dyn Accounts, name: &str) -> Option<cueline_model::Timestamp> {
    accounts.user(name).await.expect("exists").last_login_at
}

/// The grants are those that the user has now.
pub async fn a_session_has_its_users_rights(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("Ann")).await;
    assert_eq!(last_login(&*accounts, "ann").await, None);
    fixture.clock.advance(1_000);
    log_in(&*accounts, ann, 1).await;
    assert_eq!(last_login(&*accounts, "ann").await, Some(fixture.now()));
    let mut expected = Principal {
        user: Some((ann, "Ann".to_owned())),
        token: None,
        grants: user("Ann").grants,
        owner_grants: None,
    };
    let again = fixture.harness.open_accounts().await;
    assert_eq!(session(&*again, 1).await.as_ref(), Some(&expected));
    assert_eq!(session(&*again, 2).await, None);
    expected.grants = admin("Ann").grants;
    let promoted = UserChange {
        grants: Some(expected.grants.clone()),
        ..UserChange::default()
    };
    change(&*accounts, "ann", &promoted).await;
    assert_eq!(session(&*again, 1).await, Some(expected));
}

/// Of a missing or a disabled user, and with the hash of another session.
pub async fn a_session_is_refused(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let bob = create(&*accounts, &user("bob")).await;
    let start = async |user: UserId, number: u64| {
        let login = login_of(&*accounts, user).await;
        accounts
            .create_session(user, &login, hash(number), LONG_MS, &by())
            .await
    };
    let missing = UserId(bob.0 + 1_000);
    refused(start(missing, 1).await, ErrorKind::NotFound, "number");
    set_enabled(&*accounts, "ann", false).await;
    refused(start(ann, 1).await, ErrorKind::NotFound, "enabled user");
    assert_eq!(session(&*accounts, 1).await, None);
    assert_eq!(last_login(&*accounts, "ann").await, None);
    set_enabled(&*accounts, "ann", true).await;
    start(ann, 1).await.expect("starts");
    refused(start(bob, 1).await, ErrorKind::Conflict, "hash");
    let principal = session(&*accounts, 1).await.expect("counts");
    assert_eq!(principal.user, Some((ann, "ann".to_owned())));
    assert_eq!(last_login(&*accounts, "bob").await, None);
}

/// A use extends the time in which a session may be idle, and not its validity.
pub async fn a_session_expires_and_ends_when_it_is_idle(fixture: &Fixture) {
    const IDLE_MS: u64 = 10 * MINUTE_MS;
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let valid_ms = 3 * IDLE_MS;
    for number in [1, 2] {
        let started = accounts
            .create_session(ann, &password("ann"), hash(number), valid_ms, &by())
            .await;
        started.expect("starts");
    }
    let counts = async |number: u64| {
        let found = accounts.session(hash(number), IDLE_MS).await;
        found.expect("answers").is_some()
    };
    fixture.clock.advance(IDLE_MS - 1);
    assert!(counts(1).await);
    wait_for_use(fixture, SESSION_USED_AT, fixture.now()).await;
    fixture.clock.advance(1);
    assert!(counts(1).await, "it was used a moment ago");
    assert!(!counts(2).await, "it was never used");
    for _ in 0..3 {
        fixture.clock.advance(IDLE_MS / 2);
        assert!(counts(1).await);
        wait_for_use(fixture, SESSION_USED_AT, fixture.now()).await;
    }
    fixture.clock.advance(IDLE_MS / 2 - 1);
    assert!(counts(1).await, "it is valid for one more millisecond");
    fixture.clock.advance(1);
    assert!(!counts(1).await);
}

/// Each request uses a session, and most of them write nothing.
pub async fn the_use_of_a_session_is_noted_once_a_minute(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    // Not at the beginning of a minute of the clock.
    fixture.clock.advance(MINUTE_MS / 2);
    log_in(&*accounts, ann, 1).await;
    fixture.clock.advance(MINUTE_MS - 1);
    assert!(session(&*accounts, 1).await.is_some());
    // If that use were noted, this one would not be.
    fixture.clock.advance(1);
    assert!(session(&*accounts, 1).await.is_some());
    wait_for_use(fixture, SESSION_USED_AT, fixture.now()).await;
    assert!(
        accounts
            .session(hash(1), 1)
            .await
            .expect("answers")
            .is_some()
    );
}

/// Sessions of other users are not touched.
pub async fn a_further_session_ends_the_least_recently_used(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let bob = create(&*accounts, &user("bob")).await;
    log_in(&*accounts, bob, 1_000).await;
    let most = u64::try_from(MAX_SESSIONS).expect("a small number");
    for number in 1..=most {
        fixture.clock.advance(MINUTE_MS);
        log_in(&*accounts, ann, number).await;
    }
    for number in 1..=most {
        assert!(session(&*accounts, number).await.is_some(), "{number}");
    }
    wait_for(fixture, USED_LAST, &most.to_string()).await;
    // All were used in the same minute but the second one, which is used later.
    fixture.clock.advance(MINUTE_MS);
    for number in (1..=most).filter(|number| *number != 2) {
        assert!(session(&*accounts, number).await.is_some(), "{number}");
    }
    wait_for(fixture, USED_LAST, &(most - 1).to_string()).await;
    log_in(&*accounts, ann, most + 1).await;
    for number in 1..=most + 1 {
        let counts = session(&*accounts, number).await.is_some();
        assert_eq!(counts, number != 2, "{number}");
    }
    assert!(session(&*accounts, 1_000).await.is_some());
}

/// A session that has expired takes no place.
pub async fn expired_sessions_make_room_first(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    log_in(&*accounts, ann, 1).await;
    let most = u64::try_from(MAX_SESSIONS).expect("a small number");
    for number in 2..=most {
        let short = accounts
            .create_session(ann, &password("ann"), hash(number), MINUTE_MS, &by())
            .await;
        short.expect("starts");
    }
    fixture.clock.advance(MINUTE_MS);
    log_in(&*accounts, ann, most + 1).await;
    assert!(session(&*accounts, 1).await.is_some());
    assert!(session(&*accounts, most + 1).await.is_some());
    let count = "SELECT CAST(count(*) AS text) FROM session";
    assert_eq!(fixture.harness.sql(count).await, "2");
}

/// An enabled user has to log in again.
pub async fn a_disabled_user_has_no_session(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let bob = create(&*accounts, &user("bob")).await;
    log_in(&*accounts, ann, 1).await;
    log_in(&*accounts, bob, 2).await;
    set_enabled(&*accounts, "ann", false).await;
    assert_eq!(session(&*accounts, 1).await, None);
    set_enabled(&*accounts, "ann", true).await;
    assert_eq!(session(&*accounts, 1).await, None);
    assert!(session(&*accounts, 2).await.is_some());
}

/// Whoever knows the old password has no session any more.
pub async fn a_new_password_ends_all_sessions(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    log_in(&*accounts, ann, 1).await;
    let renamed = UserChange {
        display_name: Some("A.".to_owned()),
        ..UserChange::default()
    };
    change(&*accounts, "ann", &renamed).await;
    assert!(session(&*accounts, 1).await.is_some());
    let new_password = UserChange {
        login: Some(password("another")),
        ..UserChange::default()
    };
    change(&*accounts, "ann", &new_password).await;
    assert_eq!(session(&*accounts, 1).await, None);
}

/// The login takes a while between the look at the user and the session. Other changes of the user do not end it.
pub async fn a_login_from_before_a_change_of_the_login_starts_no_session(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let open_id = |subject: &str| Login::OpenId {
        issuer: "https://id.example.org".to_owned(),
        subject: subject.to_owned(),
    };
    let bob = NewUser {
        login: open_id("7"),
        ..user("bob")
    };
    let ann = create(&*accounts, &user("ann")).await;
    let bob = create(&*accounts, &bob).await;
    let other_names = UserChange {
        display_name: Some("A.".to_owned()),
        grants: Some(Vec::new()),
        ..UserChange::default()
    };
    for (number, id, name, old, new) in [
        (1, ann, "ann", password("ann"), password("another")),
        (3, bob, "bob", open_id("7"), open_id("8")),
        (5, bob, "bob", open_id("8"), password("bob")),
        (7, bob, "bob", password("bob"), Login::None),
    ] {
        let start = async |number: u64| {
            accounts
                .create_session(id, &old, hash(number), LONG_MS, &by())
                .await
        };
        change(&*accounts, name, &other_names).await;
        start(number).await.expect("starts");
        let changed = UserChange {
            login: Some(new),
            ..UserChange::default()
        };
        change(&*accounts, name, &changed).await;
        refused(start(number + 1).await, ErrorKind::NotFound, "this login");
        assert_eq!(session(&*accounts, number).await, None, "{name}");
        assert_eq!(session(&*accounts, number + 1).await, None, "{name}");
    }
}

/// At once, and only this one.
pub async fn a_session_is_ended(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    for number in [1, 2] {
        log_in(&*accounts, ann, number).await;
    }
    let again = fixture.harness.open_accounts().await;
    for number in [1, 1, 3] {
        let ended = again.end_session(hash(number), &by()).await;
        ended.expect("ends");
    }
    assert_eq!(session(&*accounts, 1).await, None);
    assert!(session(&*accounts, 2).await.is_some());
}

/// Logins of one user at the same time exceed no bound.
pub async fn logins_at_the_same_time_are_bounded(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let most = u64::try_from(MAX_SESSIONS).expect("a small number");
    let mut tasks = Vec::new();
    for process in 0..3_u64 {
        let accounts = fixture.harness.open_accounts().await;
        tasks.push(tokio::spawn(async move {
            for number in 0..most {
                log_in(&*accounts, ann, process * 100 + number).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let count = "SELECT CAST(count(*) AS text) FROM session";
    assert_eq!(fixture.harness.sql(count).await, most.to_string());
}
