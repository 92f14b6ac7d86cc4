//! Quotas of namespaces: decisions inside a transaction, and their rows.

use std::collections::BTreeMap;

use cueline_model::{JobSpec, Namespace};

use super::convert::{parse_name, to_i64, to_u64};
use crate::{
    ErrorKind, MAX_NAMESPACES_WITH_QUOTAS, MAX_QUOTA, NamespaceSummary, QuotaLoad, Quotas,
    StoreError,
};

/// Stored quotas: version, jobs, waiting runs, triggers per minute.
pub type QuotaRow = (i64, Option<i64>, Option<i64>, Option<i64>);

/// A listed namespace: name, version, jobs, waiting runs, triggers per minute, and the numbers of its jobs and waiting runs.
pub type SummaryRow = (String, i64, Option<i64>, Option<i64>, Option<i64>, i64, i64);

/// A namespace with quotas: name, version, jobs, waiting runs, triggers per minute.
pub type NamedQuotaRow = (String, i64, Option<i64>, Option<i64>, Option<i64>);

fn quotas_of((_, jobs, waiting, triggers): QuotaRow) -> Quotas {
    Quotas {
        max_jobs: jobs.map(to_u64),
        max_waiting_runs: waiting.map(to_u64),
        max_triggers_per_minute: triggers.map(to_u64),
    }
}

/// The values of the columns, in the order of [`QuotaRow`].
pub fn columns(quotas: &Quotas) -> [Option<i64>; 3] {
    [
        quotas.max_jobs.map(to_i64),
        quotas.max_waiting_runs.map(to_i64),
        quotas.max_triggers_per_minute.map(to_i64),
    ]
}

/// A listed namespace from its row.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for an unreadable name.
pub fn summary(row: SummaryRow) -> Result<NamespaceSummary, StoreError> {
    let (name, version, max_jobs, max_waiting, max_triggers, jobs, waiting) = row;
    Ok(NamespaceSummary {
        namespace: parse_name(&name)?,
        quotas: quotas_of((version, max_jobs, max_waiting, max_triggers)),
        version: to_u64(version),
        jobs: to_u64(jobs),
        waiting_runs: to_u64(waiting),
    })
}

/// Whether waiting runs have to be counted at all.
pub fn limits_waiting_runs(rows: &[NamedQuotaRow]) -> bool {
    rows.iter().any(|(.., waiting, _)| waiting.is_some())
}

/// Namespaces with quotas. `waiting` has the numbers of waiting runs by namespace.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for an unreadable name.
pub fn quota_loads(
    rows: Vec<NamedQuotaRow>,
    waiting: Vec<(String, i64)>,
) -> Result<Vec<QuotaLoad>, StoreError> {
    let waiting: BTreeMap<String, i64> = waiting.into_iter().collect();
    rows.into_iter()
        .map(|(name, version, jobs, max_waiting, triggers)| {
            let counted = waiting.get(&name).filter(|_| max_waiting.is_some());
            Ok(QuotaLoad {
                namespace: parse_name(&name)?,
                quotas: quotas_of((version, jobs, max_waiting, triggers)),
                waiting_runs: counted.copied().map_or(0, to_u64),
            })
        })
        .collect()
}

/// What a call that sets quotas writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaChange {
    /// The quotas before; `None` if there were none.
    pub before: Option<Quotas>,
    /// The quotas to write; `None` to delete the row.
    pub after: Option<Quotas>,
    /// Their version; 0 if the row is deleted.
    pub version: u64,
}

/// Decides how `wanted` changes the stored row. `None` if it changes nothing. `others` is the number of other namespaces
/// with quotas.
///
/// # Errors
///
/// As [`Namespaces::set_quotas`](crate::Namespaces::set_quotas).
pub fn change_quotas(
    namespace: &Namespace,
    stored: Option<QuotaRow>,
    wanted: &Quotas,
    if_version: Option<u64>,
    others: i64,
) -> Result<Option<QuotaChange>, StoreError> {
    let values = [
        ("max_jobs", wanted.max_jobs),
        ("max_waiting_runs", wanted.max_waiting_runs),
        ("max_triggers_per_minute", wanted.max_triggers_per_minute),
    ];
    if let Some((name, value)) = values
        .into_iter()
        .find_map(|(name, value)| Some((name, value.filter(|value| *value > MAX_QUOTA)?)))
    {
        return Err(StoreError::invalid(format!(
            "failed to set quotas: {name} is {value}; give at most {MAX_QUOTA}"
        )));
    }
    let version = stored.map_or(0, |row| to_u64(row.0));
    if let Some(expected) = if_version.filter(|expected| *expected != version) {
        return Err(StoreError::new(
            ErrorKind::Conflict,
            format!(
                "failed to set quotas: those of namespace {namespace} have version {version}, and not {expected}; read them again"
            ),
        ));
    }
    let before = stored.map(quotas_of);
    let after = Some(*wanted).filter(|quotas| !quotas.is_empty());
    if before == after {
        return Ok(None);
    }
    if before.is_none() && others >= to_i64(MAX_NAMESPACES_WITH_QUOTAS) {
        return Err(StoreError::new(
            ErrorKind::Conflict,
            format!(
                "failed to set quotas: {MAX_NAMESPACES_WITH_QUOTAS} namespaces have quotas; delete those of another one"
            ),
        ));
    }
    let version = if after.is_some() { version + 1 } else { 0 };
    Ok(Some(QuotaChange {
        before,
        after,
        version,
    }))
}

/// The number of new jobs in each namespace.
pub fn new_jobs_by_namespace(new_jobs: &[&JobSpec]) -> BTreeMap<Namespace, u64> {
    let mut counts = BTreeMap::new();
    for spec in new_jobs {
        *counts.entry(spec.name.namespace()).or_default() += 1;
    }
    counts
}

/// Refuses new jobs beyond the quota. `limit` and `present` are as stored.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] with the quota, its value, the present and the requested number.
pub fn check_max_jobs(
    namespace: &Namespace,
    limit: i64,
    present: i64,
    requested: u64,
) -> Result<(), StoreError> {
    let (limit, present) = (to_u64(limit), to_u64(present));
    if present.saturating_add(requested) <= limit {
        return Ok(());
    }
    Err(StoreError::new(
        ErrorKind::Conflict,
        format!(
            "failed to apply jobs: quota max_jobs of namespace {namespace} is {limit}; it has {present} jobs, and the request would create {requested} more. Delete jobs, or ask an administrator of all namespaces for a higher quota"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team() -> Namespace {
        "team-a".parse().expect("a namespace")
    }

    fn jobs(most: u64) -> Quotas {
        Quotas {
            max_jobs: Some(most),
            ..Quotas::default()
        }
    }

    #[test]
    fn quotas_are_written_changed_and_deleted() {
        let change = |stored, wanted: &Quotas| change_quotas(&team(), stored, wanted, None, 0);
        let none = Quotas::default();
        assert_eq!(change(None, &none).expect("fits"), None);
        let row = Some((3, Some(5), None, None));
        assert_eq!(change(row, &jobs(5)).expect("fits"), None);
        let versions = |stored, wanted: &Quotas| {
            let change = change(stored, wanted).expect("fits").expect("a change");
            (change.before, change.after, change.version)
        };
        assert_eq!(versions(None, &jobs(5)), (None, Some(jobs(5)), 1));
        assert_eq!(versions(row, &jobs(6)), (Some(jobs(5)), Some(jobs(6)), 4));
        assert_eq!(versions(row, &none), (Some(jobs(5)), None, 0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let row = Some((3, Some(5), None, None));
        let most = to_i64(MAX_NAMESPACES_WITH_QUOTAS);
        for (stored, wanted, if_version, others, kind) in [
            (None, jobs(MAX_QUOTA + 1), None, 0, ErrorKind::Invalid),
            (row, jobs(6), Some(2), 0, ErrorKind::Conflict),
            (None, jobs(6), Some(1), 0, ErrorKind::Conflict),
            (None, jobs(6), None, most, ErrorKind::Conflict),
        ] {
            let refused = change_quotas(&team(), stored, &wanted, if_version, others);
            assert_eq!(refused.expect_err("is refused").kind(), kind);
        }
        let changed = change_quotas(&team(), row, &jobs(MAX_QUOTA), Some(3), most);
        assert!(changed.expect("an existing row may change").is_some());
        let first = change_quotas(&team(), None, &jobs(1), Some(0), most - 1);
        assert!(first.expect("there is room for one").is_some());
    }

    #[test]
    fn jobs_up_to_the_quota_are_accepted() {
        let check = |limit, present, requested| check_max_jobs(&team(), limit, present, requested);
        assert!(check(10, 8, 2).is_ok());
        let error = check(10, 8, 3).expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let text = error.to_string();
        for part in ["max_jobs", "team-a", "is 10", "has 8 jobs", "3 more"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(check(5, 8, 1).is_err(), "a quota below the present number");
    }

    #[test]
    fn waiting_runs_are_those_of_a_namespace_with_that_quota() {
        let rows = vec![
            ("a".to_owned(), 1, None, Some(5), None),
            ("b".to_owned(), 1, Some(5), None, None),
            ("c".to_owned(), 1, None, Some(5), Some(7)),
        ];
        assert!(limits_waiting_runs(&rows));
        assert!(!limits_waiting_runs(&rows[1..2]));
        let waiting = vec![
            ("a".to_owned(), 3),
            ("b".to_owned(), 4),
            ("z".to_owned(), 9),
        ];
        let loads = quota_loads(rows, waiting).expect("readable");
        let counts: Vec<u64> = loads.iter().map(|load| load.waiting_runs).collect();
        assert_eq!(counts, [3, 0, 0]);
        assert_eq!(loads[2].quotas.max_triggers_per_minute, Some(7));
    }
}
