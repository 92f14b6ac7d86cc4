//! The audit log and the versions of jobs (G19).

use cueline_model::{Actor, ActorKind, JobSpec, RunId};
use serde_json::{Value, json};

use super::fixture::{Fixture, actor, ask, by_hand, each_second, executor, name, refused};
use crate::{
    AuditEntry, AuditFilter, AuditResult, EnrolOutcome, ErrorKind, JobVersion, KeyOrigin,
    MAX_AUDIT_VALUE_BYTES, MAX_JOB_VERSIONS, NewAuditEntry, NewDeadLetter, NewEnrolmentToken,
    NewWorkerKey, Order, TriggerRequest, WorkerKeyState,
};

async fn list(fixture: &Fixture, filter: &AuditFilter) -> Vec<AuditEntry> {
    fixture.store.audit_entries(filter).await.expect("lists")
}

/// Lists any entries.
fn any() -> AuditFilter {
    AuditFilter {
        limit: 1_000,
        ..AuditFilter::default()
    }
}

/// Reads the entries that were written since the last reading.
struct Log<'a> {
    fixture: &'a Fixture,
    seen: i64,
}

impl<'a> Log<'a> {
    fn of(fixture: &'a Fixture) -> Self {
        Self { fixture, seen: 0 }
    }

    /// The new entries, oldest first.
    async fn next(&mut self) -> Vec<NewAuditEntry> {
        let mut found = list(self.fixture, &any()).await;
        found.retain(|entry| entry.id > self.seen);
        found.reverse();
        self.seen = found.last().map_or(self.seen, |last| last.id);
        found.into_iter().map(|entry| entry.entry).collect()
    }

    /// The only new entry: its action, object, and values before and after.
    async fn one(&mut self) -> (String, String, Value, Value) {
        let mut new = self.next().await;
        assert_eq!(new.len(), 1, "{new:#?}");
        let entry = new.remove(0);
        assert_eq!(entry.result, AuditResult::Done);
        let read = |text: Option<String>| {
            text.map_or(Value::Null, |text| {
                serde_json::from_str(&text).expect("JSON")
            })
        };
        let (before, after) = (read(entry.before), read(entry.after));
        (entry.action, entry.object, before, after)
    }
}

fn recorded(by: &Actor, action: &str, object: &str) -> NewAuditEntry {
    NewAuditEntry {
        actor: by.clone(),
        action: action.to_owned(),
        namespace: None,
        group: None,
        object: object.to_owned(),
        result: AuditResult::Done,
        detail: String::new(),
        before: None,
        after: None,
    }
}

fn definition(spec: &JobSpec) -> Value {
    serde_json::to_value(spec).expect("JSON")
}

async fn apply(fixture: &Fixture, spec: &JobSpec) {
    let by = actor("ann").from_address("10.0.0.1");
    let applied = fixture
        .store
        .apply_jobs(std::slice::from_ref(spec), false, &by)
        .await;
    applied.expect("applies");
}

async fn set_enabled(fixture: &Fixture, job: &str, enabled: bool) {
    let set = fixture
        .store
        .set_job_enabled(&name(job), enabled, &actor("bob"))
        .await;
    set.expect("sets");
}

/// The versions of a job, newest first.
async fn versions(fixture: &Fixture, job: &str) -> Vec<JobVersion> {
    let found = fixture
        .store
        .job_versions(&name(job), Order::Descending, None, 10_000)
        .await;
    found.expect("lists")
}

/// Applying, pausing, resuming and deleting a job each leave one entry with the job before and after.
pub async fn each_change_of_a_job_leaves_one_entry(fixture: &Fixture) {
    let mut log = Log::of(fixture);
    let mut spec = by_hand("a");
    apply(fixture, &spec).await;
    let entry = log.next().await.remove(0);
    let by = actor("ann").from_address("10.0.0.1");
    assert_eq!((&entry.actor, entry.action.as_str()), (&by, "job.create"));
    assert_eq!(entry.group, Some(name("default")));
    assert_eq!(entry.namespace, Some(spec.name.namespace()));
    assert_eq!((entry.object.as_str(), entry.before), ("a", None));
    let first = definition(&spec);
    let after: Value = serde_json::from_str(&entry.after.expect("a value")).expect("JSON");
    assert_eq!(after, first);

    spec.priority = 9;
    apply(fixture, &spec).await;
    let (action, _, before, after) = log.one().await;
    assert_eq!(action, "job.update");
    assert_eq!((&before, &after), (&first, &definition(&spec)));

    for (enabled, action) in [(false, "job.pause"), (true, "job.resume")] {
        set_enabled(fixture, "a", enabled).await;
        let wanted = (action.to_owned(), "a".to_owned());
        let (action, object, before, after) = log.one().await;
        assert_eq!((action, object), wanted);
        assert_eq!(before, json!({ "enabled": !enabled }));
        assert_eq!(after, json!({ "enabled": enabled }));
    }
    let deleted = fixture.store.delete_job(&name("a"), &actor("bob")).await;
    deleted.expect("deletes");
    let (action, _, before, after) = log.one().await;
    assert_eq!((action.as_str(), after), ("job.delete", Value::Null));
    assert_eq!(before, definition(&spec));
}

/// A trigger and a cancellation each leave one entry.
pub async fn triggers_and_cancellations_leave_one_entry(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let mut log = Log::of(fixture);
    log.next().await;
    let request = TriggerRequest {
        params: Some("p".to_owned()),
        by: Actor::new(ActorKind::Message, "billing"),
        ..ask("a")
    };
    let triggered = fixture.store.trigger(&request).await.expect("triggers");
    let run = triggered.runs[0];
    let entry = log.next().await.remove(0);
    assert_eq!(entry.actor, request.by);
    assert_eq!(
        (entry.action.as_str(), entry.object.as_str()),
        ("job.trigger", "a")
    );
    assert_eq!(entry.detail, format!("run {run}"));
    let after: Value = serde_json::from_str(&entry.after.expect("a value")).expect("JSON");
    assert_eq!(after["params"], "p");
    let timeline = fixture.store.run(run).await.expect("exists").timeline;
    assert_eq!(timeline[0].detail, "triggered by message billing");

    let cancelled = fixture.store.cancel_run(run, &actor("ann")).await;
    cancelled.expect("cancels");
    let (action, object, before, after) = log.one().await;
    assert_eq!((action, object), ("run.cancel".to_owned(), run.to_string()));
    assert_eq!(before, json!({ "state": "scheduled" }));
    assert_eq!(after, json!({ "state": "cancelled" }));

    let node = fixture.node().await;
    fixture.trigger("a").await;
    let published = fixture.claim(node).await.remove(0);
    fixture.publish(node, &published).await;
    log.next().await;
    for _ in 0..2 {
        let asked = fixture.store.cancel_run(published.id, &actor("ann")).await;
        asked.expect("asks");
    }
    let (action, _, before, after) = log.one().await;
    assert_eq!(
        (action.as_str(), before),
        ("run.cancel", json!({ "state": "queued" }))
    );
    assert_eq!(
        after,
        json!({ "state": "queued", "cancel_requested": true })
    );
}

/// Each deleted dead letter leaves an entry.
pub async fn deleted_dead_letters_leave_one_entry_each(fixture: &Fixture) {
    let letters = ["one", "two"].map(|key| NewDeadLetter {
        key: key.to_owned(),
        queue: "results".to_owned(),
        topic: "job".to_owned(),
        reason: "unreadable".to_owned(),
        at: fixture.now(),
        payload: b"four".to_vec(),
        origin: None,
        namespace: None,
    });
    let inserted = fixture.store.insert_dead_letters(&letters).await;
    assert_eq!(inserted.expect("inserts"), 2);
    let mut log = Log::of(fixture);
    assert!(log.next().await.is_empty());
    let stored = fixture
        .store
        .dead_letters(None, None, 9)
        .await
        .expect("lists");
    let ids: Vec<i64> = stored.iter().map(|letter| letter.id).collect();
    for _ in 0..2 {
        let deleted = fixture
            .store
            .delete_dead_letters(None, &ids[..1], &actor("ann"))
            .await;
        deleted.expect("deletes");
    }
    let (action, object, before, after) = log.one().await;
    assert_eq!(
        (action.as_str(), object),
        ("dead_letter.delete", ids[0].to_string())
    );
    assert_eq!(
        (&before["reason"], &before["payload_bytes"]),
        (&json!("unreadable"), &json!(4))
    );
    assert_eq!(after, Value::Null);
}

/// Changes of enrolment tokens and worker keys each leave one entry.
pub async fn changes_of_tokens_and_keys_leave_one_entry(fixture: &Fixture) {
    let store = &fixture.store;
    let mut log = Log::of(fixture);
    let token = NewEnrolmentToken {
        id: "0123456789abcdef".to_owned(),
        verifier: [7; 32],
        namespace: Some(name("default")),
        group: Some(name("default")),
        executor: None,
        uses: 3,
        valid_ms: None,
        by: actor("ann"),
        idempotency_key: None,
    };
    for _ in 0..2 {
        store.create_enrolment_token(&token).await.expect("answers");
    }
    let (action, object, before, after) = log.one().await;
    assert_eq!(
        (action.as_str(), object.as_str()),
        ("enrolment_token.create", token.id.as_str())
    );
    assert_eq!((before, &after["uses"]), (Value::Null, &json!(3)));
    assert!(after.get("verifier").is_none(), "{after}");

    let key = NewWorkerKey {
        executor: executor("default", "e1"),
        key: [1; 32],
        key_id: "key-1".to_owned(),
        by: KeyOrigin::Token(token.id.clone()),
    };
    for wanted in [EnrolOutcome::Enrolled, EnrolOutcome::AlreadyAllowed] {
        let outcomes = store.enrol_workers(std::slice::from_ref(&key)).await;
        assert_eq!(outcomes.expect("answers"), [wanted]);
    }
    let entry = log.next().await.remove(0);
    assert_eq!(entry.actor, Actor::new(ActorKind::Worker, "default/e1"));
    assert_eq!(
        (entry.action.as_str(), entry.object.as_str()),
        ("worker_key.enrol", "default/e1/key-1")
    );
    assert!(log.next().await.is_empty());

    for (state, action) in [
        (WorkerKeyState::Revoked, "worker_key.revoke"),
        (WorkerKeyState::Allowed, "worker_key.allow"),
    ] {
        for _ in 0..2 {
            let set = store
                .set_worker_key(&key.executor, "key-1", state, &actor("ann"))
                .await;
            assert!(set.expect("answers"));
        }
        let (found, object, before, after) = log.one().await;
        assert_eq!(
            (found.as_str(), object.as_str()),
            (action, "default/e1/key-1")
        );
        assert_ne!(before["state"], after["state"]);
        assert_eq!(after["changed_by"], "user ann");
    }
    for wanted in [true, false] {
        let deleted = store.delete_enrolment_token(&token.id, &actor("ann")).await;
        assert_eq!(deleted.expect("answers"), wanted);
    }
    let (action, _, before, after) = log.one().await;
    assert_eq!(
        (action.as_str(), &before["uses_left"]),
        ("enrolment_token.delete", &json!(2))
    );
    assert_eq!(after, Value::Null);
}

/// Unchanged, repeated, tried and refused calls.
pub async fn calls_without_an_effect_leave_no_entry(fixture: &Fixture) {
    let store = &fixture.store;
    let by = actor("ann");
    let spec = by_hand("a");
    fixture.apply(std::slice::from_ref(&spec)).await;
    let once = TriggerRequest {
        idempotency_key: Some("k".to_owned()),
        ..ask("a")
    };
    store.trigger(&once).await.expect("triggers");
    let mut log = Log::of(fixture);
    log.next().await;
    let before = versions(fixture, "a").await;

    fixture.apply(std::slice::from_ref(&spec)).await;
    let tried = store.apply_jobs(&[by_hand("b")], true, &by).await;
    tried.expect("tries");
    store
        .set_job_enabled(&name("a"), true, &by)
        .await
        .expect("it is enabled already");
    assert!(store.trigger(&once).await.expect("answers").duplicate);
    let mut orphan = by_hand("c");
    orphan.after = Some(serde_json::from_value(json!({ "all": ["nothing"] })).expect("a parent"));
    let applied = store.apply_jobs(&[by_hand("b"), orphan], false, &by).await;
    assert!(applied.is_err(), "{applied:?}");
    refused(
        store.delete_job(&name("x"), &by).await,
        ErrorKind::NotFound,
        "x",
    );
    refused(store.trigger(&ask("x")).await, ErrorKind::NotFound, "x");
    refused(
        store.cancel_run(RunId(999_999), &by).await,
        ErrorKind::NotFound,
        "999999",
    );
    let deleted = store.delete_dead_letters(None, &[7], &by).await;
    assert_eq!(deleted.expect("answers"), 0);
    let of = executor("default", "e1");
    let set = store
        .set_worker_key(&of, "key-1", WorkerKeyState::Revoked, &by)
        .await;
    assert!(!set.expect("answers"));

    let new = log.next().await;
    assert!(new.is_empty(), "{new:#?}");
    assert_eq!(versions(fixture, "a").await, before);
    refused(
        store
            .job_versions(&name("b"), Order::Descending, None, 9)
            .await,
        ErrorKind::NotFound,
        "b",
    );
}

/// A call that applies many jobs leaves an entry and a version for each of them.
pub async fn each_of_many_applied_jobs_has_an_entry_and_a_version(fixture: &Fixture) {
    let mut specs: Vec<JobSpec> = (0..600).map(|n| by_hand(&format!("job-{n}"))).collect();
    fixture.apply(&specs).await;
    for spec in &mut specs[..100] {
        spec.priority = 9;
    }
    fixture.apply(&specs).await;
    let filter = |action: &str| AuditFilter {
        actions: vec![action.to_owned()],
        ..any()
    };
    let created = list(fixture, &filter("job.create")).await;
    let objects: Vec<String> = created.into_iter().map(|e| e.entry.object).collect();
    let wanted: Vec<String> = specs.iter().rev().map(|s| s.name.to_string()).collect();
    assert_eq!(objects, wanted);
    assert_eq!(list(fixture, &filter("job.update")).await.len(), 100);
    assert_eq!(versions(fixture, "job-99").await.len(), 2);
    assert_eq!(versions(fixture, "job-100").await.len(), 1);
}

/// One entry in a second, from the given start on.
async fn record_each_second(fixture: &Fixture, entries: &[NewAuditEntry]) {
    for entry in entries {
        let written = fixture.store.record(std::slice::from_ref(entry)).await;
        written.expect("writes");
        fixture.clock.advance(1_000);
    }
}

/// Each filter lists its entries only.
pub async fn entries_are_filtered(fixture: &Fixture) {
    let (ann, bob) = (actor("ann"), Actor::new(ActorKind::Token, "of bob"));
    let mut failed = recorded(&bob, "session.login", "bob");
    failed.result = AuditResult::Refused;
    "wrong password".clone_into(&mut failed.detail);
    let mut elsewhere = recorded(&bob, "job.pause", "b");
    elsewhere.namespace = Some(name("billing"));
    let entries = [
        recorded(&ann, "job.pause", "a"),
        recorded(&ann, "job.resume", "a"),
        failed,
        elsewhere,
        recorded(&ann, "jobs.other", "a"),
    ];
    record_each_second(fixture, &entries).await;
    let found = async |change: fn(&mut AuditFilter)| {
        let mut filter = any();
        change(&mut filter);
        let listed = list(fixture, &filter).await;
        let mut found: Vec<usize> = listed
            .iter()
            .filter_map(|l| entries.iter().position(|entry| *entry == l.entry))
            .collect();
        found.reverse();
        found
    };
    assert_eq!(found(|_| {}).await, [0, 1, 2, 3, 4]);
    assert_eq!(
        found(|f| f.actors = vec!["token of bob".to_owned()]).await,
        [2, 3]
    );
    assert_eq!(
        found(|f| f.actions = vec!["job.pause".to_owned()]).await,
        [0, 3]
    );
    assert_eq!(
        found(|f| f.actions = vec!["job".to_owned()]).await,
        [0, 1, 3]
    );
    assert_eq!(found(|f| f.objects = vec!["a".to_owned()]).await, [0, 1, 4]);
    assert_eq!(found(|f| f.namespace = Some(name("billing"))).await, [3]);
    assert_eq!(found(|f| f.result = Some(AuditResult::Refused)).await, [2]);
    assert_eq!(
        found(|f| {
            f.actors = vec!["user ann".to_owned()];
            f.actions = vec!["job.pause".to_owned()];
        })
        .await,
        [0]
    );
}

/// The first time counts, the last one does not. Hours lie between some entries.
pub async fn entries_are_found_by_time(fixture: &Fixture) {
    let start = fixture.now();
    let at = |hours: u64| start.plus_ms(hours * 3_600_000);
    for hour in 0..6 {
        let entry = recorded(&actor("ann"), "job.pause", &hour.to_string());
        fixture.store.record(&[entry]).await.expect("writes");
        fixture.clock.advance(3_600_000);
    }
    let objects = async |from: Option<u64>, to: Option<u64>| {
        let filter = AuditFilter {
            since: from.map(at),
            until: to.map(at),
            ..any()
        };
        let found = list(fixture, &filter).await;
        let objects: Vec<String> = found.into_iter().map(|e| e.entry.object).collect();
        objects.concat()
    };
    assert_eq!(objects(None, None).await, "543210");
    assert_eq!(objects(Some(2), Some(4)).await, "32");
    assert_eq!(objects(Some(5), None).await, "5");
    assert_eq!(objects(None, Some(1)).await, "0");
    assert_eq!(objects(Some(6), Some(9)).await, "");
    let times = list(fixture, &any()).await;
    assert_eq!((times[5].at, times[0].at), (at(0), at(5)));
}

/// Pages of a list follow each other without gaps.
pub async fn entries_are_paged(fixture: &Fixture) {
    let entries: Vec<NewAuditEntry> = (0..25)
        .map(|n| recorded(&actor("ann"), "job.pause", &format!("job-{n}")))
        .collect();
    fixture.store.record(&entries).await.expect("writes");
    fixture.store.record(&[]).await.expect("writes nothing");
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let filter = AuditFilter {
            after,
            limit: 10,
            ..AuditFilter::default()
        };
        let page = list(fixture, &filter).await;
        assert!(page.len() <= 10);
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        seen.extend(page.into_iter().map(|entry| entry.entry));
    }
    seen.reverse();
    assert_eq!(seen, entries);
}

/// A value that is too long, and texts that databases cannot keep.
pub async fn odd_entries_are_kept_within_their_bounds(fixture: &Fixture) {
    let mut entry = recorded(&Actor::new(ActorKind::User, "a\0b"), "user.update", "o\0o");
    entry.before = Some("x".repeat(MAX_AUDIT_VALUE_BYTES));
    entry.after = Some("x".repeat(MAX_AUDIT_VALUE_BYTES + 1));
    entry.detail = "€".repeat(10_000);
    fixture
        .store
        .record(std::slice::from_ref(&entry))
        .await
        .expect("writes");
    let stored = list(fixture, &any()).await.remove(0).entry;
    assert_eq!(stored.before, entry.before);
    let cut: Value = serde_json::from_str(&stored.after.expect("a value")).expect("JSON");
    assert_eq!(cut["bytes"], MAX_AUDIT_VALUE_BYTES + 1);
    assert_eq!(cut["sha256"].as_str().map(str::len), Some(64));
    assert_eq!(
        (stored.actor.name.as_str(), stored.object.as_str()),
        ("a\u{fffd}b", "o\u{fffd}o")
    );
    assert_eq!(stored.detail, "€".repeat(1_024 / "€".len()));
}

/// Entries over the age are deleted, oldest first, and no more than the limit.
pub async fn old_entries_are_deleted(fixture: &Fixture) {
    let entries: Vec<NewAuditEntry> = (0..5)
        .map(|n| recorded(&actor("ann"), "job.pause", &n.to_string()))
        .collect();
    record_each_second(fixture, &entries).await;
    // The entries are 5 s to 1 s old.
    let prune = async |limit| {
        fixture
            .store
            .prune_audit(2_500, limit)
            .await
            .expect("prunes")
    };
    let left = async || {
        let found = list(fixture, &any()).await;
        let objects: Vec<String> = found.into_iter().map(|e| e.entry.object).collect();
        objects.concat()
    };
    assert_eq!(prune(2).await, 2);
    assert_eq!(left().await, "432");
    assert_eq!(prune(2).await, 1);
    assert_eq!(prune(2).await, 0);
    assert_eq!(left().await, "43");
}

/// Each change of a job keeps a version.
pub async fn versions_of_a_job_are_kept(fixture: &Fixture) {
    let mut spec = each_second("a");
    apply(fixture, &spec).await;
    fixture.clock.advance(1_000);
    spec.priority = 9;
    apply(fixture, &spec).await;
    fixture.clock.advance(1_000);
    set_enabled(fixture, "a", false).await;
    let found = versions(fixture, "a").await;
    let seen: Vec<_> = found
        .iter()
        .map(|v| (v.version, v.by.as_str(), v.enabled))
        .collect();
    assert_eq!(
        seen,
        [
            (3, "user bob", false),
            (2, "user ann", true),
            (1, "user ann", true)
        ]
    );
    assert_eq!(found[0].at, fixture.now());
    let priorities: Vec<u8> = found
        .iter()
        .map(|v| v.definition.as_ref().expect("readable").priority)
        .collect();
    assert_eq!(priorities, [9, 9, 5]);
    let paused = found[0].definition.as_ref().expect("readable");
    assert_eq!(paused.enabled, Some(false));
    let current = fixture.store.job(&name("a")).await.expect("exists");
    assert_eq!(current.job.version, 3);
    let older = fixture
        .store
        .job_versions(&name("a"), Order::Descending, Some(3), 1)
        .await;
    let older: Vec<u64> = older.expect("lists").iter().map(|v| v.version).collect();
    assert_eq!(older, [2]);
}

/// An earlier definition becomes a new version.
pub async fn an_earlier_version_can_be_applied_again(fixture: &Fixture) {
    let first = by_hand("a");
    apply(fixture, &first).await;
    let mut second = first.clone();
    second.priority = 9;
    apply(fixture, &second).await;
    let old = versions(fixture, "a").await.remove(1);
    apply(fixture, &old.definition.expect("readable")).await;
    let found = versions(fixture, "a").await;
    assert_eq!((found.len(), found[0].version), (3, 3));
    assert_eq!(found[0].definition, found[2].definition);
    let job = fixture.store.job(&name("a")).await.expect("exists").job;
    assert_eq!(job.spec.priority, first.priority);
}

/// The versions of a deleted job stay until another job has its name.
pub async fn a_deleted_job_keeps_its_versions_until_its_name_is_taken(fixture: &Fixture) {
    apply(fixture, &by_hand("a")).await;
    set_enabled(fixture, "a", false).await;
    let by = actor("ann");
    fixture
        .store
        .delete_job(&name("a"), &by)
        .await
        .expect("deletes");
    assert_eq!(versions(fixture, "a").await.len(), 2);
    apply(fixture, &by_hand("a")).await;
    let found = versions(fixture, "a").await;
    let numbers: Vec<u64> = found.iter().map(|v| v.version).collect();
    assert_eq!(numbers, [1]);
    let deleted = fixture.store.delete_job(&name("a"), &by).await;
    deleted.expect("deletes");
    apply(fixture, &by_hand("a")).await;
    let left = fixture
        .harness
        .sql("SELECT CAST(count(*) AS text) FROM job_version")
        .await;
    assert_eq!(left, "1");
}

/// Those of jobs that were deleted long ago, and no more than the limit. Other jobs keep theirs.
pub async fn old_versions_of_deleted_jobs_are_deleted(fixture: &Fixture) {
    let by = actor("ann");
    for job in ["a", "b", "kept", "recent"] {
        apply(fixture, &by_hand(job)).await;
        set_enabled(fixture, job, false).await;
    }
    let delete = async |job: &str| {
        let deleted = fixture.store.delete_job(&name(job), &by).await;
        deleted.expect("deletes");
    };
    delete("a").await;
    delete("b").await;
    fixture.clock.advance(1_000);
    delete("recent").await;
    let prune = async |limit: usize| {
        let pruned = fixture.store.prune_versions(500, limit).await;
        pruned.expect("prunes")
    };
    assert_eq!(prune(3).await, 3);
    assert_eq!(prune(3).await, 1);
    assert_eq!(prune(3).await, 0);
    for (job, left) in [("a", 0), ("b", 0), ("kept", 2), ("recent", 2)] {
        assert_eq!(versions(fixture, job).await.len(), left, "{job}");
    }
    // The name can be taken again, and the new job has versions of its own.
    apply(fixture, &by_hand("a")).await;
    assert_eq!(versions(fixture, "a").await.len(), 1);
    fixture.clock.advance(501);
    assert_eq!(prune(10).await, 2);
    assert_eq!(versions(fixture, "recent").await.len(), 0);
}

/// The oldest versions over the limit are deleted.
pub async fn versions_are_bounded(fixture: &Fixture) {
    apply(fixture, &by_hand("a")).await;
    apply(fixture, &by_hand("b")).await;
    let most = u64::try_from(MAX_JOB_VERSIONS).expect("a count");
    for number in 2..=most + 2 {
        set_enabled(fixture, "a", number % 2 == 1).await;
    }
    let found = versions(fixture, "a").await;
    assert_eq!(found.len(), MAX_JOB_VERSIONS);
    assert_eq!(found[0].version, most + 2);
    assert_eq!(found.last().map(|v| v.version), Some(3));
    assert_eq!(versions(fixture, "b").await.len(), 1);
}
