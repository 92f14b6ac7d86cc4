//! G1, G2: schedules fire until the end, each fire time has all its shards, and misfire policies do what they promise.

use std::collections::{BTreeMap, HashMap};

use super::Observations;
use super::records::halted_ms;
use crate::consistency::Run;
use crate::storm::job_kinds::{JobKind, MisfireRule};
use crate::storm::store_records::LedgerEntry;

/// Fires are planned ahead of time. Late in a storm, after all faults, a busy machine plans them at most this late.
const LAST_PART_MS: i64 = 5_000;

/// G1: a schedule fires from the apply until the pause. The other checks see gaps only between two runs.
pub(super) fn check_window(observed: &Observations, kinds: &[JobKind]) -> Vec<String> {
    let mut bounds = HashMap::<&str, (i64, i64)>::new();
    for run in observed.runs.iter().filter(|r| r.kind == "schedule") {
        let (first, last) = bounds.entry(&run.job).or_insert((run.fire_at, run.fire_at));
        *first = run.fire_at.min(*first);
        *last = run.fire_at.max(*last);
    }
    let mut violations = Vec::new();
    for kind in kinds {
        for name in kind.names() {
            let Some((first, last)) = bounds.get(name.as_str()) else {
                violations.push(format!("G1: {name} never fired"));
                continue;
            };
            let halted = halted_ms(observed, observed.scheduled_from, *first);
            let begin = observed.scheduled_from + kind.every_ms + LAST_PART_MS + halted;
            if *first > begin {
                violations.push(format!("G1: {name} first fired at {first}, after {begin}"));
            }
            let halted = halted_ms(observed, *last, observed.scheduled_until);
            let end = observed.scheduled_until - kind.every_ms - LAST_PART_MS - halted;
            if *last < end {
                violations.push(format!("G1: {name} last fired at {last}, before {end}"));
            }
        }
    }
    violations
}

/// G1, G2: each fire time of a job with shards has the shards 0 to n-1 of one number n, each once. `most` is the number
/// of executors.
pub(super) fn check_shards(runs: &[Run], kinds: &[JobKind], most: u64) -> Vec<String> {
    let mut fires = BTreeMap::<(&str, i64), Vec<&Run>>::new();
    for run in runs.iter().filter(|r| r.kind == "schedule") {
        fires
            .entry((run.job.as_str(), run.fire_at))
            .or_default()
            .push(run);
    }
    let mut violations = Vec::new();
    for ((job, fire_at), runs) in fires {
        let Some(kind) = kinds.iter().find(|kind| kind.has(job)) else {
            continue;
        };
        let total = runs.first().map_or(0, |run| run.shards);
        let fits = if kind.is_broadcast() {
            (1..=most).contains(&total)
        } else {
            total == kind.shards as u64
        };
        let mut shards: Vec<u64> = runs.iter().map(|run| run.shard).collect();
        shards.sort_unstable();
        let same = runs.iter().all(|run| run.shards == total);
        if !fits || !same || !shards.iter().copied().eq(0..total) {
            violations.push(format!(
                "G1, G2: fire time {fire_at} of {job} has shards {shards:?} of {total}"
            ));
        }
    }
    violations
}

/// G1: what each misfire policy promises, by the ledger.
pub(super) fn check_misfires(observed: &Observations, kinds: &[JobKind]) -> Vec<String> {
    let runs: HashMap<i64, &Run> = observed.runs.iter().map(|r| (r.id, r)).collect();
    let mut violations = Vec::new();
    for kind in kinds {
        let Some(rule) = kind.misfire else { continue };
        for name in kind.names() {
            let ledger = observed.ledgers.get(&name).map_or(&[][..], Vec::as_slice);
            let job = MisfireJob {
                name: &name,
                every_ms: kind.every_ms,
                rule,
                runs: &runs,
            };
            let found = job.check(ledger);
            violations.extend(found.into_iter().map(|v| format!("G1: {name}: {v}")));
        }
    }
    violations
}

/// A job with a short misfire grace.
struct MisfireJob<'a> {
    name: &'a str,
    every_ms: i64,
    rule: MisfireRule,
    runs: &'a HashMap<i64, &'a Run>,
}

/// A fire time and its run.
#[derive(Clone, Copy)]
struct Fired<'a> {
    at: i64,
    run: &'a Run,
}

impl Fired<'_> {
    fn is_skipped(&self) -> bool {
        self.run.state == "skipped" && self.run.message.contains("misfire policy")
    }
}

impl MisfireJob<'_> {
    fn check(&self, ledger: &[LedgerEntry]) -> Vec<String> {
        let mut violations = Vec::new();
        let mut fired = Vec::new();
        for entry in ledger {
            let run = entry.run.and_then(|run| self.runs.get(&run));
            match run {
                Some(run) if run.job == self.name => fired.push(Fired {
                    at: entry.fire_at,
                    run,
                }),
                _ => violations.push(format!("no run for fire time {}: {entry:?}", entry.fire_at)),
            }
        }
        if ledger.is_empty() {
            violations.push("its ledger is empty".to_owned());
        }
        for pair in ledger.windows(2) {
            if pair[1].fire_at - pair[0].fire_at != self.every_ms {
                violations.push(format!(
                    "the ledger goes from {} to {}",
                    pair[0].fire_at, pair[1].fire_at
                ));
            }
        }
        for group in fired.chunk_by(|a, b| a.run.id == b.run.id) {
            violations.extend(self.check_run(group));
        }
        violations.extend(self.check_plans(&fired));
        violations
    }

    /// How late the transaction that planned the run found its fire time.
    fn late_ms(run: &Run) -> i64 {
        run.created_at - run.fire_at
    }

    fn is_late(&self, run: &Run) -> bool {
        Self::late_ms(run) > self.rule.grace_ms
    }

    /// `group` has all fire times that name one run.
    fn check_run(&self, group: &[Fired]) -> Vec<String> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            return Vec::new();
        };
        let run = last.run;
        if !last.is_skipped() {
            let own = group.len() == 1 && run.fire_at == last.at;
            let wrong = (!own).then(|| format!("{} fire times for {run:?}", group.len()));
            return wrong.into_iter().collect();
        }
        let mut violations = Vec::new();
        if !run
            .message
            .contains(&format!("policy {}", self.rule.policy))
        {
            violations.push(format!("skipped by another policy: {run:?}"));
        }
        if span(&run.message) != group.len() || run.fire_at != last.at {
            violations.push(format!(
                "the ledger names it for {} fire times from {} to {}: {run:?}",
                group.len(),
                first.at,
                last.at
            ));
        }
        // A run that was planned in time is skipped if its scheduler died and another one found it too late.
        let found_ms = if run.message.contains("; it was ") {
            run.ended_at.unwrap_or(run.created_at) - run.fire_at
        } else {
            Self::late_ms(run)
        };
        if found_ms <= self.rule.grace_ms {
            violations.push(format!("skipped within its grace: {run:?}"));
        }
        violations
    }

    /// Each plan runs as many missed fire times as the policy says, the newest ones. One transaction plans a job, and
    /// its runs have one time of creation.
    fn check_plans(&self, fired: &[Fired]) -> Vec<String> {
        let most = match self.rule.policy {
            "skip" => 0,
            "fire_once" => 1,
            _ => self.rule.catch_up_limit,
        };
        let mut violations = Vec::new();
        for plan in fired.chunk_by(|a, b| a.run.created_at == b.run.created_at) {
            // A run that was planned in time and skipped later is not late by its creation.
            let missed: Vec<&Fired> = plan.iter().filter(|f| self.is_late(f.run)).collect();
            let ran = missed.iter().filter(|f| !f.is_skipped()).count();
            let expected = missed.len().min(most);
            let newest_ran = missed.iter().rev().take(expected).all(|f| !f.is_skipped());
            if ran != expected || !newest_ran {
                let (from, to) = (plan[0].at, plan[plan.len() - 1].at);
                violations.push(format!(
                    "{ran} of {} missed fire times ran, not the newest {expected}, from {from} to {to}",
                    missed.len()
                ));
            }
        }
        violations
    }
}

/// The number of fire times in `…; stands for 7 fire times since …`.
fn span(message: &str) -> usize {
    let count = message
        .split("stands for ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|count| count.parse().ok());
    count.unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::run;
    use super::*;
    use crate::storm::job_kinds::kinds;

    const AT: i64 = 100_000;

    fn kind(prefix: &str) -> Vec<JobKind> {
        let mut kinds = kinds();
        kinds.retain(|kind| kind.prefix == prefix);
        for kind in &mut kinds {
            kind.count = 1;
        }
        kinds
    }

    #[test]
    fn a_schedule_that_stops_early_or_begins_late_is_found() {
        let window = |fires: std::ops::Range<i64>| {
            let fires = fires.map(|n| run(n, "serial-0", AT + n * 500));
            let observed = Observations {
                runs: fires.collect(),
                scheduled_from: AT,
                scheduled_until: AT + 60_000,
                ..Observations::default()
            };
            check_window(&observed, &kind("serial")).len()
        };
        assert_eq!(window(0..120), 0);
        assert_eq!(window(0..100), 1, "stops early");
        assert_eq!(window(20..120), 1, "begins late");
        assert_eq!(window(0..0), 1, "never fires");
    }

    #[test]
    fn a_standstill_delays_the_first_and_the_last_fire_time() {
        let window = |standstills: Vec<(i64, i64)>| {
            let fires = (20..100).map(|n| run(n, "serial-0", AT + n * 500));
            let observed = Observations {
                runs: fires.collect(),
                scheduled_from: AT,
                scheduled_until: AT + 60_000,
                standstills,
                ..Observations::default()
            };
            check_window(&observed, &kind("serial")).len()
        };
        let (early, late) = ((AT + 1_000, AT + 7_000), (AT + 52_000, AT + 58_000));
        assert_eq!(window(vec![]), 2);
        assert_eq!(window(vec![early, late]), 0);
        assert_eq!(window(vec![(AT + 20_000, AT + 30_000)]), 2, "elsewhere");
    }

    #[test]
    fn a_fire_time_has_each_shard_once() {
        let shards = |job: &str, shards: &[(u64, u64)]| {
            let runs: Vec<Run> = shards
                .iter()
                .map(|(shard, shards)| Run {
                    shard: *shard,
                    shards: *shards,
                    ..run(1, job, AT)
                })
                .collect();
            check_shards(&runs, &kinds(), 3).len()
        };
        assert_eq!(shards("broadcast-0", &[(0, 3), (1, 3), (2, 3)]), 0);
        assert_eq!(shards("broadcast-0", &[(1, 2), (0, 2)]), 0);
        assert_eq!(shards("broadcast-0", &[(0, 3), (1, 3)]), 1, "one missing");
        assert_eq!(shards("broadcast-0", &[(0, 2), (0, 2)]), 1, "one twice");
        assert_eq!(shards("broadcast-0", &[(0, 2), (1, 3)]), 1, "two totals");
        let four = [(0, 4), (1, 4), (2, 4), (3, 4)];
        assert_eq!(shards("broadcast-0", &four), 1, "too many");
        assert_eq!(shards("sharded-0", &[(0, 2), (1, 2)]), 1, "too few");
        assert_eq!(shards("serial-0", &[(0, 1)]), 0);
        assert_eq!(shards("serial-0", &[(0, 1), (0, 1)]), 1, "two runs");
    }

    /// A plan at AT + 5,250 of the fire times from AT to AT + 5,000, every 500 ms. The first 9 were missed. `skipped`
    /// is the number of missed fire times that one run stands for.
    fn plan(policy: &str, skipped: i64) -> (Vec<Run>, Vec<LedgerEntry>) {
        let prefix = match policy {
            "skip" => "misfire-skip",
            "fire_once" => "misfire-once",
            _ => "misfire-catch",
        };
        let of = |id: i64, fire: i64| Run {
            created_at: AT + 5_250,
            ..run(id, &format!("{prefix}-0"), AT + fire * 500)
        };
        let mut runs = Vec::new();
        let mut ledger = Vec::new();
        if skipped > 0 {
            runs.push(Run {
                state: "skipped".to_owned(),
                message: format!(
                    "skipped by misfire policy {policy}; the newest was 1250 ms late; stands for {skipped} fire times since 1970"
                ),
                ..of(100, skipped - 1)
            });
        }
        for fire in 0..=10 {
            let id = if fire < skipped { 100 } else { fire };
            if fire >= skipped {
                runs.push(of(fire, fire));
            }
            ledger.push(LedgerEntry {
                fire_at: AT + fire * 500,
                run: Some(id),
            });
        }
        (runs, ledger)
    }

    fn misfires(policy: &str, (runs, ledger): (Vec<Run>, Vec<LedgerEntry>)) -> usize {
        let mut kinds = kinds();
        kinds.retain(|kind| kind.misfire.is_some_and(|rule| rule.policy == policy));
        kinds[0].count = 1;
        let name = kinds[0].names().next().expect("a job");
        let observed = Observations {
            runs,
            ledgers: [(name, ledger)].into(),
            ..Observations::default()
        };
        check_misfires(&observed, &kinds).len()
    }

    #[test]
    fn each_policy_runs_what_it_promises() {
        // 9 fire times are more than a second late: skip runs none of them, fire_once one, catch_up four.
        for (policy, right) in [("skip", 9), ("fire_once", 8), ("catch_up", 5)] {
            assert_eq!(misfires(policy, plan(policy, right)), 0, "{policy}");
            let more = misfires(policy, plan(policy, right - 1));
            assert_eq!(more, 1, "{policy} ran one too many");
        }
        assert_eq!(misfires("fire_once", plan("fire_once", 9)), 1);
        assert_eq!(misfires("catch_up", plan("catch_up", 6)), 1);
    }

    #[test]
    fn a_fire_time_within_its_grace_is_not_skipped() {
        let (mut runs, ledger) = plan("skip", 9);
        runs[0].created_at = AT + 4_500;
        assert_eq!(misfires("skip", (runs, ledger)), 1);
    }

    #[test]
    fn the_ledger_has_each_fire_time_once_and_with_its_run() {
        let (runs, mut ledger) = plan("skip", 9);
        ledger.remove(10);
        assert_eq!(misfires("skip", (runs.clone(), ledger.clone())), 0);
        ledger.remove(9);
        ledger[8].run = None;
        assert!(misfires("skip", (runs.clone(), ledger)) > 0, "no run");
        let (_, mut ledger) = plan("skip", 9);
        ledger.remove(9);
        assert_eq!(misfires("skip", (runs.clone(), ledger)), 1, "a gap");
        let (_, mut ledger) = plan("skip", 9);
        ledger[8].run = Some(9);
        assert!(misfires("skip", (runs.clone(), ledger)) > 0, "another run");
        assert_eq!(misfires("skip", (runs, Vec::new())), 1, "empty");
    }
}
