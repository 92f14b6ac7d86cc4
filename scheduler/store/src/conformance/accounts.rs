//! Users.

use cueline_model::{Grant, Role};

use super::account_steps::{
    admin, by, change, create, create_token, found, hash, log_in, password, revoke, session,
    set_enabled, token, user, viewer,
};
use super::fixture::{Fixture, refused};
use crate::{
    AuditFilter, ErrorKind, Login, MAX_DISPLAY_NAME_BYTES, MAX_GRANTS, MAX_USERS, NewUser,
    StoredUser, UserChange, UserId,
};

/// Processes that act at the same time.
const PROCESSES: usize = 4;

fn open_id(subject: &str) -> Login {
    Login::OpenId {
        issuer: "https://id.example.org".to_owned(),
        subject: subject.to_owned(),
    }
}

fn with_login(login: Login) -> UserChange {
    UserChange {
        login: Some(login),
        ..UserChange::default()
    }
}

fn with_grants(grants: Vec<Grant>) -> UserChange {
    UserChange {
        grants: Some(grants),
        ..UserChange::default()
    }
}

/// A name is found in upper and lower case, and kept as it was written.
pub async fn users_are_kept(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    assert!(!accounts.has_users().await.expect("answers"));
    let new = NewUser {
        login: open_id("7"),
        ..user("Ann@Example.org")
    };
    let id = create(&*accounts, &new).await;
    assert!(accounts.has_users().await.expect("answers"));
    let expected = StoredUser {
        id,
        name: new.name.clone(),
        display_name: new.display_name.clone(),
        login: new.login.clone(),
        grants: new.grants.clone(),
        unreadable_grants: None,
        enabled: true,
        version: 1,
        created_at: fixture.now(),
        created_by: "user root".to_owned(),
        last_login_at: None,
    };
    let again = fixture.harness.open_accounts().await;
    for name in ["Ann@Example.org", "ANN@EXAMPLE.ORG", "ann@example.org"] {
        assert_eq!(again.user(name).await.expect("exists"), expected);
    }
    let by_subject = async |issuer: &'static str, subject: &'static str| {
        let found = again.user_by_subject(issuer, subject).await;
        found.expect("answers")
    };
    assert_eq!(
        by_subject("https://id.example.org", "7").await,
        Some(expected)
    );
    assert_eq!(by_subject("https://id.example.org", "8").await, None);
    assert_eq!(by_subject("https://example.org", "7").await, None);
    for missing in ["bob", "", "a\0b"] {
        refused(again.user(missing).await, ErrorKind::NotFound, "no user");
    }
}

/// The order does not depend on upper and lower case.
pub async fn users_are_listed_by_name(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    for name in ["cat", "Bob", "ann", "Dan", "李雷"] {
        create(&*accounts, &user(name)).await;
    }
    let mut after: Option<String> = None;
    let mut names = Vec::new();
    loop {
        let page = accounts.users(after.as_deref(), 2).await.expect("lists");
        assert!(page.len() <= 2);
        names.extend(page.into_iter().map(|user| user.name));
        if names.last() == after.as_ref() {
            break;
        }
        after = names.last().cloned();
    }
    assert_eq!(names, ["ann", "Bob", "cat", "Dan", "李雷"]);
}

/// Nothing is stored then.
pub async fn a_users_fields_are_checked(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let mut elsewhere = viewer();
    elsewhere.group = Some("billing".parse().expect("a name"));
    elsewhere.namespace = Some("elsewhere".parse().expect("a name"));
    let long = "x".repeat(MAX_DISPLAY_NAME_BYTES + 1);
    let many = vec![viewer(); MAX_GRANTS + 1];
    for (new, field) in [
        (user(""), "name: "),
        (user("a b"), "name: "),
        (
            NewUser {
                display_name: long.clone(),
                ..user("a")
            },
            "display_name: ",
        ),
        (
            NewUser {
                login: open_id(""),
                ..user("a")
            },
            "subject: ",
        ),
        (
            NewUser {
                grants: many.clone(),
                ..user("a")
            },
            "grants: ",
        ),
        (
            NewUser {
                grants: vec![elsewhere.clone()],
                ..user("a")
            },
            "grants[0]: ",
        ),
    ] {
        let created = accounts.create_user(&new, &by()).await;
        refused(created, ErrorKind::Invalid, field);
        let created = accounts.create_first_user(&new, &by()).await;
        refused(created, ErrorKind::Invalid, field);
    }
    assert!(!accounts.has_users().await.expect("answers"));
    create(&*accounts, &user("ann")).await;
    for (change, field) in [
        (
            UserChange {
                display_name: Some(long),
                ..UserChange::default()
            },
            "display_name: ",
        ),
        (with_login(open_id("")), "subject: "),
        (with_grants(many), "grants: "),
        (with_grants(vec![elsewhere]), "grants[0]: "),
    ] {
        let changed = accounts.change_user("ann", &change, &by()).await;
        refused(changed, ErrorKind::Invalid, field);
    }
    assert_eq!(accounts.user("ann").await.expect("exists").version, 1);
}

/// A deleted user's name and subject are free again. The number is not.
pub async fn a_name_and_a_subject_belong_to_one_user(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = NewUser {
        login: open_id("7"),
        ..user("ann")
    };
    let first = create(&*accounts, &ann).await;
    let taken = accounts.create_user(&user("ANN"), &by()).await;
    refused(taken, ErrorKind::Conflict, "\"ANN\"");
    let same_subject = NewUser {
        name: "bob".to_owned(),
        ..ann.clone()
    };
    let taken = accounts.create_user(&same_subject, &by()).await;
    refused(taken, ErrorKind::Conflict, "subject: ");
    create(&*accounts, &user("bob")).await;
    let taken = accounts
        .change_user("bob", &with_login(open_id("7")), &by())
        .await;
    refused(taken, ErrorKind::Conflict, "subject: ");
    let bob = accounts.user("bob").await.expect("exists");
    assert_eq!((bob.login, bob.version), (password("bob"), 1));
    // Its own subject is free for a user.
    let mut own = with_login(open_id("7"));
    own.display_name = Some("Ann".to_owned());
    assert_eq!(change(&*accounts, "ann", &own).await, 2);

    let deleted = accounts.delete_user("ann", &by()).await;
    deleted.expect("deletes");
    let second = create(&*accounts, &ann).await;
    assert!(second > first, "{second:?} after {first:?}");
    let last = accounts.delete_user("ann", &by()).await;
    last.expect("deletes");
    assert!(create(&*accounts, &ann).await > second);
}

/// A user more is refused, and one after a deletion is not.
pub async fn users_are_bounded(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    assert_eq!(MAX_USERS, 10_000, "the number in the statement");
    fixture
        .harness
        .sql(
            "INSERT INTO account_user
                (name, name_key, display_name, grants, enabled, is_admin, version, created_at, created_by)
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
            SELECT 'u' || i, 'u' || i, '', '[]', true, false, 1, 0, '' FROM n",
        )
        .await;
    let full = accounts.create_user(&user("ann"), &by()).await;
    refused(full, ErrorKind::Conflict, "10000");
    let deleted = accounts.delete_user("u10000", &by()).await;
    deleted.expect("deletes");
    create(&*accounts, &user("ann")).await;
    let full = accounts.create_user(&user("bob"), &by()).await;
    refused(full, ErrorKind::Conflict, "10000");
}

/// Several processes set up the same server.
pub async fn one_first_user_is_created(fixture: &Fixture) {
    let mut tasks = Vec::new();
    for number in 0..2 * PROCESSES {
        let accounts = fixture.harness.open_accounts().await;
        let new = admin(&format!("admin-{number}"));
        tasks.push(tokio::spawn(async move {
            accounts.create_first_user(&new, &by()).await
        }));
    }
    let mut created = 0;
    for task in tasks {
        match task.await.expect("no panic") {
            Ok(_) => created += 1,
            refusal => refused(refusal, ErrorKind::Conflict, "there is a user"),
        }
    }
    assert_eq!(created, 1);
    let accounts = fixture.harness.open_accounts().await;
    assert_eq!(accounts.users(None, 10).await.expect("lists").len(), 1);
}

/// No one could create a second user otherwise.
pub async fn the_first_user_can_manage_users(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let created = accounts.create_first_user(&user("ann"), &by()).await;
    refused(created, ErrorKind::Invalid, "grants: ");
    let silent = NewUser {
        login: Login::None,
        ..admin("ann")
    };
    let created = accounts.create_first_user(&silent, &by()).await;
    refused(created, ErrorKind::Invalid, "login: ");
    let created = accounts.create_first_user(&admin("ann"), &by()).await;
    created.expect("creates");
    let ann = accounts.user("ann").await.expect("exists");
    assert_eq!(ann.grants, [Grant::everything()]);
}

/// A change of another version changes nothing.
pub async fn a_user_is_changed_by_version(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let id = create(&*accounts, &user("ann")).await;
    let mut all = UserChange {
        display_name: Some("Ann".to_owned()),
        login: Some(Login::None),
        grants: Some(vec![Grant::everything()]),
        enabled: Some(false),
        revoke_tokens: false,
        if_version: Some(1),
        condition: crate::Precondition::None,
    };
    fixture.clock.advance(1_000);
    assert_eq!(change(&*accounts, "ANN", &all).await, 2);
    let stored = accounts.user("ann").await.expect("exists");
    let expected = StoredUser {
        id,
        name: "ann".to_owned(),
        display_name: "Ann".to_owned(),
        login: Login::None,
        grants: vec![Grant::everything()],
        unreadable_grants: None,
        enabled: false,
        version: 2,
        created_at: fixture.now().minus_ms(1_000),
        created_by: "user root".to_owned(),
        last_login_at: None,
    };
    assert_eq!(stored, expected);
    all.display_name = Some("Other".to_owned());
    let late = accounts.change_user("ann", &all, &by()).await;
    refused(late, ErrorKind::Conflict, "version 2");
    assert_eq!(accounts.user("ann").await.expect("exists"), expected);
    // Nothing changes, so the version stays.
    all.display_name = Some("Ann".to_owned());
    all.if_version = Some(2);
    assert_eq!(change(&*accounts, "ann", &all).await, 2);
    let missing = accounts.change_user("bob", &all, &by()).await;
    refused(missing, ErrorKind::NotFound, "\"bob\"");
    let missing = accounts.delete_user("bob", &by()).await;
    refused(missing, ErrorKind::NotFound, "\"bob\"");
}

/// A user counts who is enabled, can log in and has all rights.
pub async fn the_last_administrator_stays(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    create(&*accounts, &admin("ann")).await;
    let author = Grant {
        role: Role::Author,
        ..Grant::everything()
    };
    let in_one_namespace = Grant {
        namespace: Some("default".parse().expect("a name")),
        ..Grant::everything()
    };
    let without_scripts = Grant {
        scripts: false,
        ..Grant::everything()
    };
    // These do not take the place of the last one.
    let others = [
        NewUser {
            grants: vec![without_scripts.clone()],
            ..user("eve")
        },
        NewUser {
            grants: vec![author.clone(), in_one_namespace],
            ..user("bob")
        },
        NewUser {
            login: Login::None,
            ..admin("program")
        },
        admin("disabled"),
    ];
    for other in &others {
        create(&*accounts, other).await;
    }
    set_enabled(&*accounts, "disabled", false).await;
    let disabled = UserChange {
        enabled: Some(false),
        ..UserChange::default()
    };
    for change in [
        disabled.clone(),
        with_login(Login::None),
        with_grants(vec![author]),
        with_grants(vec![without_scripts]),
    ] {
        let changed = accounts.change_user("ann", &change, &by()).await;
        refused(changed, ErrorKind::Conflict, "\"ann\"");
    }
    let deleted = accounts.delete_user("ann", &by()).await;
    refused(deleted, ErrorKind::Conflict, "\"ann\"");
    assert_eq!(accounts.user("ann").await.expect("exists").version, 1);
    // Other changes are possible.
    change(&*accounts, "ann", &with_login(open_id("7"))).await;
    accounts
        .delete_user("program", &by())
        .await
        .expect("deletes");
    set_enabled(&*accounts, "disabled", true).await;
    change(&*accounts, "ann", &disabled).await;
    let deleted = accounts.delete_user("disabled", &by()).await;
    refused(deleted, ErrorKind::Conflict, "\"disabled\"");
    accounts.delete_user("ann", &by()).await.expect("deletes");
}

/// Both are allowed alone.
pub async fn two_administrators_do_not_delete_each_other(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    for round in 0..PROCESSES {
        let names = [format!("a{round}"), format!("b{round}")];
        for name in &names {
            create(&*accounts, &admin(name)).await;
        }
        // Those of earlier rounds are in the way.
        for user in accounts.users(None, 100).await.expect("lists") {
            if !names.contains(&user.name) {
                let deleted = accounts.delete_user(&user.name, &by()).await;
                deleted.expect("deletes");
            }
        }
        let mut tasks = Vec::new();
        for name in names {
            let accounts = fixture.harness.open_accounts().await;
            tasks.push(tokio::spawn(async move {
                accounts.delete_user(&name, &by()).await
            }));
        }
        let mut deleted = 0;
        for task in tasks {
            match task.await.expect("no panic") {
                Ok(()) => deleted += 1,
                refusal => refused(refusal, ErrorKind::Conflict, "no other user"),
            }
        }
        assert_eq!(deleted, 1, "round {round}");
    }
}

/// A user of the same name has nothing of them.
pub async fn a_deleted_user_has_no_sessions_and_tokens(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let ann = create(&*accounts, &user("ann")).await;
    let bob = create(&*accounts, &user("bob")).await;
    for (user, number) in [(ann, 1), (bob, 2)] {
        log_in(&*accounts, user, number).await;
        create_token(&*accounts, &token(number, Some(user))).await;
    }
    accounts.delete_user("ann", &by()).await.expect("deletes");
    create(&*accounts, &user("ann")).await;
    assert_eq!(session(&*accounts, 1).await, None);
    assert_eq!(found(&*accounts, 1).await, None);
    let name = |user: Option<(UserId, String)>| user.expect("has a user").1;
    let of_session = session(&*accounts, 2).await.expect("counts");
    assert_eq!(name(of_session.user), "bob");
    let of_token = found(&*accounts, 2).await.expect("counts");
    assert_eq!(name(of_token.user), "bob");
    let tokens = accounts.api_tokens(None, None, 10).await.expect("lists");
    assert_eq!(tokens.len(), 1);
}

/// In the transaction of the change, and without the hashes. What changes nothing has no entry.
pub async fn changes_of_accounts_are_in_the_audit_log(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    let created = accounts.create_first_user(&admin("ann"), &by()).await;
    created.expect("creates");
    let bob = create(&*accounts, &user("bob")).await;
    set_enabled(&*accounts, "bob", false).await;
    set_enabled(&*accounts, "bob", false).await;
    set_enabled(&*accounts, "bob", true).await;
    log_in(&*accounts, bob, 1).await;
    for _ in 0..2 {
        let ended = accounts.end_session(hash(1), &by()).await;
        ended.expect("ends");
    }
    create_token(&*accounts, &token(1, Some(bob))).await;
    for _ in 0..2 {
        assert!(revoke(&*accounts, 1, None).await);
    }
    accounts.delete_user("bob", &by()).await.expect("deletes");
    for refusal in [
        accounts.create_user(&user("ann"), &by()).await.map(drop),
        accounts.delete_user("ann", &by()).await,
        accounts.create_api_token(&token(2, Some(bob)), &by()).await,
    ] {
        refusal.expect_err("is refused");
    }
    let filter = AuditFilter {
        limit: 100,
        ..AuditFilter::default()
    };
    let mut entries = fixture.store.audit_entries(&filter).await.expect("lists");
    entries.reverse();
    let seen: Vec<(&str, &str)> = entries
        .iter()
        .map(|entry| (entry.entry.action.as_str(), entry.entry.object.as_str()))
        .collect();
    let id = token(1, None).id;
    let expected = [
        ("user.create", "ann"),
        ("user.create", "bob"),
        ("user.change", "bob"),
        ("user.change", "bob"),
        ("session.login", "bob"),
        ("session.logout", "bob"),
        ("token.create", id.as_str()),
        ("token.revoke", id.as_str()),
        ("user.delete", "bob"),
    ];
    assert_eq!(seen, expected);
    for entry in &entries {
        assert_eq!((&entry.entry.actor, entry.at), (&by(), fixture.now()));
        assert!(!format!("{entry:?}").contains("argon2id"), "{entry:?}");
    }
    let disabled = &entries[2].entry;
    let has = |value: Option<&str>, part: &str| value.is_some_and(|value| value.contains(part));
    let (before, after) = (disabled.before.as_deref(), disabled.after.as_deref());
    assert!(has(before, "\"enabled\":true"), "{disabled:?}");
    assert!(has(after, "\"enabled\":false"), "{disabled:?}");
}
