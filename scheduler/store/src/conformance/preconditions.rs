//! Changes that depend on the state that the caller has read.

use cueline_model::{Actor, JobId, JobName};

use super::account_steps::{by, create, user};
use super::fixture::{Fixture, actor, ask, by_hand, name, refused};
use crate::{
    AuditFilter, Change, ErrorKind, JobPreconditions, Order, Precondition, Revision, StoreError,
    TriggerRequest, UserChange,
};

/// Callers at the same time.
const EDITORS: u8 = 6;

fn only(revision: Revision) -> Precondition {
    Precondition::OneOf(vec![revision])
}

fn conditions(of: &[(&str, Precondition)]) -> JobPreconditions {
    let named = of.iter().map(|(job, condition)| {
        let job: JobName = name(job);
        (job, condition.clone())
    });
    named.collect()
}

async fn revision(fixture: &Fixture, job: &str) -> Revision {
    let found = fixture.store.job(&name(job)).await.expect("exists");
    Revision::from(&*found.job)
}

async fn versions(fixture: &Fixture, job: &str) -> usize {
    let job = name(job);
    let found = fixture
        .store
        .job_versions(&job, Order::Descending, None, 100);
    found.await.expect("lists").len()
}

async fn entries(fixture: &Fixture) -> usize {
    let all = AuditFilter {
        limit: 1_000,
        ..AuditFilter::default()
    };
    fixture
        .store
        .audit_entries(&all)
        .await
        .expect("lists")
        .len()
}

fn is_refused<T: std::fmt::Debug>(result: Result<T, StoreError>, says: &str) {
    refused(result, ErrorKind::Precondition, says);
}

/// All of them have read the same version.
pub async fn one_of_several_editors_of_a_job_wins(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let read = revision(fixture, "a").await;
    let mut tasks = Vec::new();
    for editor in 0..EDITORS {
        let store = fixture.harness.open().await;
        let mut spec = by_hand("a");
        spec.description = format!("by editor {editor}");
        let conditions = conditions(&[("a", only(read))]);
        tasks.push(tokio::spawn(async move {
            let by = Actor::new(cueline_model::ActorKind::User, format!("editor {editor}"));
            let applied = store.apply_jobs_if(&[spec], &conditions, false, &by).await;
            applied.map(|applied| applied[0].version)
        }));
    }
    let mut won = 0;
    for task in tasks {
        match task.await.expect("no panic") {
            Ok(version) => {
                assert_eq!(version, Some(read.version + 1));
                won += 1;
            }
            lost => is_refused(lost, "a: another version is asked for"),
        }
    }
    assert_eq!(won, 1);
    assert_eq!(versions(fixture, "a").await, 2);
}

/// Pause, deletion and trigger, each with the version before it.
pub async fn one_of_several_changes_of_a_job_wins(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let read = revision(fixture, "a").await;
    let mut tasks = Vec::new();
    for editor in 0..EDITORS {
        let store = fixture.harness.open().await;
        tasks.push(tokio::spawn(async move {
            let (job, by, condition) = (name("a"), actor("an editor"), only(read));
            if editor % 2 == 0 {
                let set = store.set_job_enabled_if(&job, false, &condition, &by);
                set.await.map(drop)
            } else {
                let deleted = store.delete_job_if(&job, &condition, &by);
                deleted.await.map(drop)
            }
        }));
    }
    let mut won = 0;
    for task in tasks {
        match task.await.expect("no panic") {
            Ok(()) => won += 1,
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Precondition | ErrorKind::NotFound),
                "{error}"
            ),
        }
    }
    assert_eq!(won, 1);
}

/// Neither a version nor an entry of the audit log, also if nothing would have changed.
pub async fn a_refused_change_of_a_job_leaves_nothing(fixture: &Fixture) {
    fixture.apply(&[by_hand("a"), by_hand("b")]).await;
    let (store, job, me) = (&fixture.store, name("a"), actor("me"));
    let first = revision(fixture, "a").await;
    let paused = store
        .set_job_enabled_if(&job, false, &only(first), &me)
        .await;
    let second = paused.expect("pauses");
    assert_eq!(
        (second.id, second.version),
        (first.id, first.version + 1),
        "the revision afterwards"
    );
    assert_eq!(revision(fixture, "a").await, second);
    let before = (versions(fixture, "a").await, entries(fixture).await);

    let (old, present) = (only(first), only(second));
    for enabled in [true, false] {
        let set = store.set_job_enabled_if(&job, enabled, &old, &me);
        is_refused(set.await, "a: ");
    }
    let again = store.set_job_enabled_if(&job, false, &present, &me);
    assert_eq!(again.await.expect("is paused already"), second);
    is_refused(store.delete_job_if(&job, &old, &me).await, "a: ");
    let absent = Precondition::Absent;
    is_refused(store.delete_job_if(&job, &absent, &me).await, "it exists");
    let outdated = TriggerRequest {
        condition: old,
        ..ask("a")
    };
    is_refused(store.trigger(&outdated).await, "a: ");
    for dry_run in [true, false] {
        let mut edited = by_hand("b");
        edited.priority = 9;
        let of_two = conditions(&[
            ("a", Precondition::Version(1)),
            ("new", Precondition::Exists),
        ]);
        let specs = [edited, by_hand("a"), by_hand("new")];
        let applied = store.apply_jobs_if(&specs, &of_two, dry_run, &me).await;
        let error = applied.expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Precondition);
        let named = error.refused_objects().iter().map(|one| one.name.as_str());
        assert_eq!(named.collect::<Vec<_>>(), ["a", "new"]);
    }
    let after = (versions(fixture, "a").await, entries(fixture).await);
    assert_eq!(after, before);
    assert_eq!(revision(fixture, "b").await.version, 1);
    assert!(store.job(&name("new")).await.is_err());

    let now = TriggerRequest {
        condition: present,
        ..ask("a")
    };
    store.trigger(&now).await.expect("triggers");
    let any = Precondition::Exists;
    store.delete_job_if(&job, &any, &me).await.expect("deletes");
    refused(
        store.delete_job_if(&job, &any, &me).await,
        ErrorKind::NotFound,
        "a",
    );
}

/// Also at the same version number.
pub async fn a_job_that_is_created_again_has_another_revision(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let (store, me) = (&fixture.store, actor("me"));
    let old = revision(fixture, "a").await;
    store.delete_job(&name("a"), &me).await.expect("deletes");
    fixture.apply(&[by_hand("a")]).await;
    let new = revision(fixture, "a").await;
    assert_eq!(new.version, old.version);
    assert_ne!(new.id, old.id);
    let deleted = store.delete_job_if(&name("a"), &only(old), &me).await;
    is_refused(deleted, "a: ");
    let both = Precondition::OneOf(vec![old, new]);
    let deleted = store.delete_job_if(&name("a"), &both, &me).await;
    assert_eq!(deleted.expect("deletes"), JobId(new.id));
}

/// The answer has the version of each job, with which the next change can be made.
pub async fn applied_jobs_have_their_versions(fixture: &Fixture) {
    let (store, me) = (&fixture.store, actor("me"));
    let create = conditions(&[("a", Precondition::Absent)]);
    let apply = async |specs: &[cueline_model::JobSpec], of: &JobPreconditions, dry_run: bool| {
        let applied = store.apply_jobs_if(specs, of, dry_run, &me).await;
        let applied = applied.expect("applies");
        let of_each = applied.iter().map(|one| (one.change, one.version));
        of_each.collect::<Vec<_>>()
    };
    let mut specs = [by_hand("a")];
    assert_eq!(
        apply(&specs, &create, true).await,
        [(Change::Created, None)]
    );
    assert_eq!(
        apply(&specs, &create, false).await,
        [(Change::Created, Some(1))]
    );
    is_refused(
        store.apply_jobs_if(&specs, &create, false, &me).await,
        "it exists, in version 1",
    );
    let first = conditions(&[("a", Precondition::Version(1))]);
    assert_eq!(
        apply(&specs, &first, false).await,
        [(Change::Unchanged, Some(1))]
    );
    specs[0].priority = 9;
    assert_eq!(
        apply(&specs, &first, true).await,
        [(Change::Updated, Some(1))]
    );
    assert_eq!(
        apply(&specs, &first, false).await,
        [(Change::Updated, Some(2))]
    );
    assert_eq!(revision(fixture, "a").await.version, 2);
}

/// Both have read the same version.
pub async fn one_of_two_editors_of_a_user_wins(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    create(&*accounts, &user("ann")).await;
    let read = Revision::from(&accounts.user("ann").await.expect("exists"));
    let mut tasks = Vec::new();
    for editor in 0..EDITORS {
        let accounts = fixture.harness.open_accounts().await;
        tasks.push(tokio::spawn(async move {
            let change = UserChange {
                display_name: Some(format!("Ann {editor}")),
                condition: only(read),
                ..UserChange::default()
            };
            accounts.change_user("ann", &change, &by()).await
        }));
    }
    let mut won = 0;
    for task in tasks {
        match task.await.expect("no panic") {
            Ok(changed) => {
                assert_eq!(changed.version, 2);
                won += 1;
            }
            lost => is_refused(lost, "ann: another version is asked for"),
        }
    }
    assert_eq!(won, 1);
}

/// Nor is it deleted. A user who is created again has another revision.
pub async fn a_refused_change_of_a_user_leaves_nothing(fixture: &Fixture) {
    let accounts = fixture.harness.open_accounts().await;
    create(&*accounts, &user("ann")).await;
    let old = Revision::from(&accounts.user("ann").await.expect("exists"));
    let any = Precondition::Exists;
    let deleted = accounts.delete_user_if("ann", &any, &by()).await;
    deleted.expect("deletes");
    create(&*accounts, &user("ann")).await;
    let new = accounts.user("ann").await.expect("exists");
    assert_ne!(Revision::from(&new), old);
    let before = entries(fixture).await;
    is_refused(
        accounts.delete_user_if("ann", &only(old), &by()).await,
        "ann: ",
    );
    let change = UserChange {
        enabled: Some(false),
        condition: only(old),
        ..UserChange::default()
    };
    is_refused(accounts.change_user("ann", &change, &by()).await, "ann: ");
    assert_eq!(accounts.user("ann").await.expect("exists"), new);
    assert_eq!(entries(fixture).await, before);
    let now = only(Revision::from(&new));
    let deleted = accounts.delete_user_if("ann", &now, &by()).await;
    deleted.expect("deletes");
}
