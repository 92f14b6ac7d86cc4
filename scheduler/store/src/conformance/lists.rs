//! Lists of jobs and runs: each filter in each order and with several sizes of pages, compared with a simple model in memory.

use cueline_model::{AccessScope, JobName, JobSpec, OutcomeKind, RunKind, RunState};

use super::fixture::{Fixture, START, actor, attempt, by_hand, each_second, mark, name, refused};
use crate::{
    ErrorKind, JobFilter, JobPosition, JobSort, LabelFilter, MAX_SCANNED, NameFilter, Order, Run,
    RunFilter, is_within,
};

pub(super) const ORDERS: [Order; 2] = [Order::Ascending, Order::Descending];
pub(super) const SIZES: [usize; 3] = [1, 2, 100];

fn spec(job: &str, group: &str, labels: &[(&str, &str)]) -> JobSpec {
    let mut spec = each_second(job);
    spec.group = name(group);
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    spec.labels = labels.iter().map(owned).collect();
    spec
}

fn label(key: &str, value: Option<&str>) -> LabelFilter {
    LabelFilter {
        key: key.to_owned(),
        value: value.map(str::to_owned),
    }
}

/// Jobs of several namespaces and groups, one of them paused.
async fn jobs(fixture: &Fixture) -> Vec<JobSpec> {
    let specs = vec![
        spec("a", "g", &[("team", "x")]),
        spec("a-b", "g", &[]),
        spec("b", "h", &[("team", "y"), ("tier", "1")]),
        spec("team/a", "team/g", &[("team", "x"), ("tier", "2")]),
        spec("team/b", "team/h", &[]),
        spec("team-b/a", "team-b/g", &[("team", "x")]),
        spec("z", "g", &[("tier", "1")]),
    ];
    fixture.apply(&specs).await;
    fixture
        .store
        .set_job_enabled(&name("b"), false, &actor("me"))
        .await
        .expect("pauses");
    specs
}

/// All jobs of a list, page by page.
async fn listed_jobs(fixture: &Fixture, filter: &JobFilter) -> Vec<JobName> {
    let mut filter = filter.clone();
    let mut found = Vec::new();
    loop {
        let page = fixture.store.list_jobs(&filter).await.expect("lists");
        assert!(page.jobs.len() <= filter.limit);
        found.extend(page.jobs.iter().map(|s| s.job.spec.name.clone()));
        if page.next.is_none() {
            return found;
        }
        filter.after = page.next;
    }
}

fn job_fits(filter: &JobFilter, spec: &JobSpec) -> bool {
    let names = &filter.names;
    filter
        .namespace
        .as_ref()
        .is_none_or(|own| spec.name.is_in(own))
        && is_within(filter.within.as_deref(), &spec.group)
        && (names.is_empty()
            || names
                .iter()
                .any(|wanted| wanted.matches(spec.name.as_str())))
        && (filter.groups.is_empty() || filter.groups.contains(&spec.group))
        && filter
            .labels
            .iter()
            .all(|label| label.matches(&spec.labels))
        && filter
            .enabled
            .is_none_or(|enabled| enabled == (spec.name.as_str() != "b"))
}

/// A namespace, names, groups, labels, states and scopes, alone and together.
pub async fn jobs_are_listed_by_every_filter(fixture: &Fixture) {
    let mut specs = jobs(fixture).await;
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    let changes: [fn(&mut JobFilter); 16] = [
        |_| {},
        |f| f.namespace = Some(name("default")),
        |f| f.namespace = Some(name("team")),
        |f| f.namespace = Some(name("none")),
        |f| f.names = vec![NameFilter::Prefix("a".to_owned())],
        |f| f.names = vec![NameFilter::Exact("a".to_owned())],
        |f| {
            f.names = vec![
                NameFilter::Prefix("team".to_owned()),
                NameFilter::Exact("team/a".to_owned()),
            ];
        },
        |f| f.groups = vec![name("g")],
        |f| f.groups = vec![name("team/g"), name("g")],
        |f| f.labels = vec![label("team", None)],
        |f| f.labels = vec![label("team", Some("x"))],
        |f| f.labels = vec![label("team", Some("x")), label("tier", None)],
        |f| f.enabled = Some(false),
        |f| f.enabled = Some(true),
        |f| {
            f.within = Some(vec![
                AccessScope::Group(name("h")),
                AccessScope::Group(name("g")),
            ]);
        },
        |f| {
            f.within = Some(vec![
                AccessScope::Namespace(name("team")),
                AccessScope::Group(name("g")),
            ]);
            f.labels = vec![label("team", Some("x"))];
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        for order in ORDERS {
            for limit in SIZES {
                let mut filter = JobFilter {
                    sort: JobSort::Name(order),
                    limit,
                    ..JobFilter::default()
                };
                change(&mut filter);
                let fitting = specs.iter().filter(|spec| job_fits(&filter, spec));
                let mut expected: Vec<JobName> = fitting.map(|spec| spec.name.clone()).collect();
                if order == Order::Descending {
                    expected.reverse();
                }
                let found = listed_jobs(fixture, &filter).await;
                assert_eq!(found, expected, "filter {index}, {order:?}, by {limit}");
            }
        }
    }
}

/// The earliest first, or the latest first; jobs without a next fire time come after them.
pub async fn jobs_without_a_next_fire_time_come_last(fixture: &Fixture) {
    for (job, ms) in [("c", 0), ("a", 250), ("b", 250)] {
        fixture.clock.advance(ms);
        fixture.apply(&[each_second(job)]).await;
    }
    fixture.apply(&[by_hand("y")]).await;
    fixture.apply(&[by_hand("x")]).await;
    for (order, expected) in [
        (Order::Ascending, ["c", "a", "b", "y", "x"]),
        (Order::Descending, ["b", "a", "c", "x", "y"]),
    ] {
        for limit in SIZES {
            let filter = JobFilter {
                sort: JobSort::NextFire(order),
                limit,
                ..JobFilter::default()
            };
            let found = listed_jobs(fixture, &filter).await;
            let found: Vec<&str> = found.iter().map(JobName::as_str).collect();
            let mut sorted = found.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, ["a", "b", "c", "x", "y"], "{order:?} by {limit}");
            // Ids and fire times are those of the order of creation, unless the store rounds fire times.
            assert_eq!(found[3..], expected[3..], "{order:?} by {limit}");
        }
    }
    let fires = async |order| {
        let filter = JobFilter {
            sort: JobSort::NextFire(order),
            limit: 3,
            ..JobFilter::default()
        };
        let page = fixture.store.list_jobs(&filter).await.expect("lists");
        page.jobs.iter().map(|s| s.next_fire).collect::<Vec<_>>()
    };
    assert!(fires(Order::Ascending).await.is_sorted());
    assert!(fires(Order::Descending).await.iter().rev().is_sorted());
}

/// A job that ends a page may be deleted, and jobs may be added. The others are listed once.
pub async fn a_list_of_jobs_goes_on_while_jobs_change(fixture: &Fixture) {
    fixture.apply(&["a", "b", "c", "d"].map(by_hand)).await;
    let mut filter = JobFilter {
        limit: 2,
        ..JobFilter::default()
    };
    let first = fixture.store.list_jobs(&filter).await.expect("lists");
    fixture
        .store
        .delete_job(&name("b"), &actor("me"))
        .await
        .expect("deletes");
    fixture.apply(&["aa", "bb"].map(by_hand)).await;
    filter.after = first.next;
    let rest = listed_jobs(fixture, &filter).await;
    assert_eq!(rest, ["bb", "c", "d"].map(name::<JobName>));
    filter.after = Some(JobPosition {
        next_fire: None,
        id: cueline_model::JobId(1 << 40),
    });
    let unknown = fixture.store.list_jobs(&filter).await;
    refused(unknown, ErrorKind::Invalid, "never was a job");
}

/// All runs of a list, page by page.
async fn listed_runs(fixture: &Fixture, filter: &RunFilter) -> Vec<i64> {
    let mut filter = filter.clone();
    let mut found = Vec::new();
    loop {
        let page = fixture.store.list_runs(&filter).await.expect("lists");
        assert!(page.runs.len() <= filter.limit);
        found.extend(page.runs.iter().map(|run| run.id.0));
        if page.next.is_none() {
            return found;
        }
        filter.after = page.next;
    }
}

fn run_fits(filter: &RunFilter, specs: &[JobSpec], run: &Run) -> bool {
    let Some(spec) = specs.iter().find(|spec| spec.name == run.job) else {
        return false;
    };
    let executors = &filter.executors;
    filter
        .namespace
        .as_ref()
        .is_none_or(|own| run.job.is_in(own))
        && is_within(filter.within.as_deref(), &spec.group)
        && (filter.jobs.is_empty() || filter.jobs.contains(&run.job))
        && (filter.groups.is_empty() || filter.groups.contains(&spec.group))
        && filter
            .labels
            .iter()
            .all(|label| label.matches(&spec.labels))
        && (filter.states.is_empty() || filter.states.contains(&run.state))
        && (filter.kinds.is_empty() || filter.kinds.contains(&run.kind))
        && (executors.is_empty() || run.executor.as_ref().is_some_and(|e| executors.contains(e)))
        && filter.since.is_none_or(|since| run.created_at >= since)
        && filter.until.is_none_or(|until| run.created_at < until)
}

/// Runs in several states, of several kinds and executors, over some hours.
async fn runs(fixture: &Fixture) -> (Vec<JobSpec>, Vec<Run>) {
    let node = fixture.node().await;
    let specs = jobs(fixture).await;
    for round in 0..4 {
        fixture.clock.advance(3_600_000);
        for job in ["a", "team/a", "z"] {
            fixture.trigger(job).await;
        }
        let mut claimed = fixture.fire(node).await.runs;
        claimed.extend(fixture.claim(node).await);
        for (index, run) in claimed.iter().enumerate().skip(round) {
            let executor = if index % 2 == 0 { "e1" } else { "e2" };
            let marks = [mark(run, executor)];
            let begun = fixture.store.begin_dispatch(node, &marks);
            begun.await.expect("begins");
            if index % 3 == 0 {
                let attempts = [attempt(run)];
                let confirmed = fixture.store.confirm_dispatch(&attempts);
                confirmed.await.expect("confirms");
            } else if index % 3 == 1 {
                fixture
                    .end_by_scheduler(attempt(run), OutcomeKind::Cancelled)
                    .await;
            }
        }
    }
    let all = RunFilter {
        limit: 1_000,
        ..RunFilter::default()
    };
    let runs = fixture.store.runs(&all).await.expect("lists");
    assert!(runs.len() > 20, "{} runs", runs.len());
    (specs, runs)
}

/// A namespace, jobs, groups, labels, states, kinds, executors and scopes, alone and together.
pub async fn runs_are_listed_by_every_filter(fixture: &Fixture) {
    let (specs, all) = runs(fixture).await;
    let changes: [fn(&mut RunFilter); 16] = [
        |_| {},
        |f| f.namespace = Some(name("default")),
        |f| f.namespace = Some(name("team")),
        |f| f.jobs = vec![name("a")],
        |f| f.jobs = vec![name("a"), name("team/a"), name("b")],
        |f| f.groups = vec![name("g")],
        |f| f.groups = vec![name("team/g"), name("team-b/g")],
        |f| f.labels = vec![label("team", Some("x"))],
        |f| f.states = vec![RunState::Scheduled],
        |f| f.states = vec![RunState::Cancelled, RunState::Queued, RunState::Dispatching],
        |f| f.states = vec![RunState::Succeeded, RunState::Cancelled],
        |f| f.kinds = vec![RunKind::Manual],
        |f| f.executors = vec![name("e2")],
        |f| f.within = Some(vec![AccessScope::Group(name("team/g"))]),
        |f| {
            f.within = Some(vec![AccessScope::Namespace(name("default"))]);
            f.states = vec![RunState::Cancelled];
            f.kinds = vec![RunKind::Schedule];
        },
        |f| {
            f.namespace = Some(name("team"));
            f.executors = vec![name("e1"), name("e2")];
            f.labels = vec![label("tier", None)];
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        for order in ORDERS {
            for limit in SIZES {
                let mut filter = RunFilter {
                    order,
                    limit,
                    ..RunFilter::default()
                };
                change(&mut filter);
                let fitting = all.iter().filter(|run| run_fits(&filter, &specs, run));
                let mut expected: Vec<i64> = fitting.map(|run| run.id.0).collect();
                if order == Order::Ascending {
                    expected.reverse();
                }
                let found = listed_runs(fixture, &filter).await;
                assert_eq!(found, expected, "filter {index}, {order:?}, by {limit}");
            }
        }
    }
}

/// The first time counts, the last one does not. The times are those of days and of hours.
pub async fn runs_are_found_by_the_time_of_their_creation(fixture: &Fixture) {
    let (specs, mut all) = runs(fixture).await;
    fixture.clock.advance(3 * 24 * 3_600_000);
    fixture.trigger("a").await;
    let newest = RunFilter {
        limit: 1,
        ..RunFilter::default()
    };
    all.insert(
        0,
        fixture.store.runs(&newest).await.expect("lists").remove(0),
    );
    let at = |hours: u64| Some(START.plus_ms(hours * 3_600_000));
    for (since, until) in [
        (at(2), None),
        (None, at(2)),
        (at(2), at(3)),
        (at(3), at(60)),
        (at(60), at(100)),
        (at(200), None),
    ] {
        for order in ORDERS {
            for limit in SIZES {
                for jobs in [vec![], vec![name("a")]] {
                    let filter = RunFilter {
                        jobs,
                        since,
                        until,
                        order,
                        limit,
                        ..RunFilter::default()
                    };
                    let fitting = all.iter().filter(|run| run_fits(&filter, &specs, run));
                    let mut expected: Vec<i64> = fitting.map(|run| run.id.0).collect();
                    if order == Order::Ascending {
                        expected.reverse();
                    }
                    let found = listed_runs(fixture, &filter).await;
                    assert_eq!(
                        found, expected,
                        "{since:?} to {until:?}, {order:?}, by {limit}"
                    );
                }
            }
        }
    }
}

/// Jobs with a label that few have: a page stops after a bounded number of jobs, and the pages together have all.
pub async fn a_rare_match_ends_a_page_early(fixture: &Fixture) {
    let count = MAX_SCANNED + 50;
    let mut specs: Vec<JobSpec> = (0..count)
        .map(|n| by_hand(&format!("job-{n:05}")))
        .collect();
    for rare in [10, count - 1] {
        specs[rare]
            .labels
            .insert("rare".to_owned(), "yes".to_owned());
    }
    for part in specs.chunks(1_000) {
        fixture.apply(part).await;
    }
    let mut filter = JobFilter {
        labels: vec![label("rare", None)],
        limit: 100,
        ..JobFilter::default()
    };
    let first = fixture.store.list_jobs(&filter).await.expect("lists");
    assert_eq!(first.jobs.len(), 1);
    filter.after = Some(first.next.expect("there may be more"));
    let last = fixture.store.list_jobs(&filter).await.expect("lists");
    assert_eq!((last.jobs.len(), last.next), (1, None));
}
