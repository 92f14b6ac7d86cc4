//! Which limit of its job holds a run back. Pure.

use cueline_model::{Rate, RunId, Timestamp};
use cueline_store::{LimitKey, LimitPlace, LimitRule, LimitUsage};

/// The most runs that one sentence names. The number of the others follows.
const MAX_NAMED: usize = 3;

/// A limit without a place for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LimitReached {
    /// The rate allows no dispatch until then.
    Rate {
        key: LimitKey,
        rate: Rate,
        next: Timestamp,
    },
    /// Runs at work use all places.
    Concurrency {
        key: LimitKey,
        limit: u32,
        runs: Vec<RunId>,
    },
    /// It has a place, and an older run of another scheduler takes it.
    Behind { key: LimitKey, run: RunId },
}

/// The first limit that holds the run at this place back.
pub(super) fn reached(
    limits: &[LimitUsage],
    place: LimitPlace,
    now: Timestamp,
) -> Option<LimitReached> {
    limits.iter().find_map(|usage| {
        let (key, state) = (usage.limit.key.clone(), &usage.state);
        match usage.limit.rule {
            LimitRule::Rate(rate) => {
                let window = state.windows.get(&rate.per);
                if let Some(window) = window.filter(|window| window.free(now, rate) == 0) {
                    let next = window.next_place(now, rate);
                    return Some(LimitReached::Rate { key, rate, next });
                }
            }
            LimitRule::Concurrency(limit) => {
                if state.places.len() >= limit as usize {
                    let runs = state.places.clone();
                    return Some(LimitReached::Concurrency { key, limit, runs });
                }
            }
        }
        let older = state.turns.iter().map(|turn| (turn.until, turn.place));
        let older = older.filter(|(until, other)| *until > now && *other < place);
        let (_, first) = older.min_by_key(|(_, other)| *other)?;
        Some(LimitReached::Behind { key, run: first.2 })
    })
}

impl LimitReached {
    /// The word for the reason in the API.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Rate { .. } => "rate_limit",
            Self::Concurrency { .. } => "concurrency",
            Self::Behind { key, .. } => {
                if key.is_freed_by_ends() {
                    "concurrency"
                } else {
                    "rate_limit"
                }
            }
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Rate { key, rate, next } => format!(
                "{key}, {} per {}, is used up: next place at {next}",
                rate.count,
                rate.per.as_str()
            ),
            Self::Concurrency { key, limit, runs } => {
                let name = match key {
                    LimitKey::Concurrency(_, name) => name.as_str(),
                    _ => "",
                };
                let shown = runs.iter().take(MAX_NAMED);
                let mut shown: Vec<String> = shown.map(ToString::to_string).collect();
                if runs.len() > MAX_NAMED {
                    shown.push(format!("{} more", runs.len() - MAX_NAMED));
                }
                let noun = if runs.len() == 1 { "run" } else { "runs" };
                format!(
                    "concurrency key {name} is used by {} {noun}: {}; its limit is {limit}",
                    runs.len(),
                    shown.join(", ")
                )
            }
            Self::Behind { key, run } => format!("run {run} comes first in {key}"),
        }
    }

    /// The run to look at.
    pub(super) fn run(&self) -> Option<RunId> {
        match self {
            Self::Rate { .. } => None,
            Self::Concurrency { runs, .. } => runs.first().copied(),
            Self::Behind { run, .. } => Some(*run),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cueline_model::{Namespace, RatePer, RateWindow};
    use cueline_store::{LimitState, LimitTurn, LimitUse, NodeId};

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn keyed(limit: u32, places: &[i64]) -> LimitUsage {
        LimitUsage {
            limit: LimitUse {
                key: LimitKey::Concurrency(Namespace::default(), "db".to_owned()),
                rule: LimitRule::Concurrency(limit),
            },
            state: LimitState {
                places: places.iter().copied().map(RunId).collect(),
                ..LimitState::default()
            },
        }
    }

    fn text(usage: LimitUsage) -> Option<(&'static str, String)> {
        let found = reached(&[usage], LimitPlace(500, 4, RunId(9)), at(1_000))?;
        Some((found.word(), found.text()))
    }

    #[test]
    fn a_full_key_names_its_runs() {
        let (word, full) = text(keyed(2, &[3, 4])).expect("a reason");
        assert_eq!(word, "concurrency");
        assert_eq!(
            full,
            "concurrency key db is used by 2 runs: 3, 4; its limit is 2"
        );
        let many = text(keyed(1, &[1, 2, 3, 4, 5])).expect("a reason").1;
        assert!(many.contains("used by 5 runs: 1, 2, 3, 2 more"), "{many}");
        assert_eq!(text(keyed(3, &[3, 4])), None);
    }

    #[test]
    fn an_older_run_that_has_a_turn_is_named() {
        let turn = |at_ms, until| {
            let mut usage = keyed(3, &[3]);
            usage.state.turns.push(LimitTurn {
                node: NodeId(1),
                place: LimitPlace(at_ms, 4, RunId(7)),
                until: at(until),
            });
            text(usage).map(|found| found.1)
        };
        let first = "run 7 comes first in the concurrency limit of key db";
        assert_eq!(turn(400, 2_000).as_deref(), Some(first));
        assert_eq!(turn(600, 2_000), None, "a younger one");
        assert_eq!(turn(400, 900), None, "its turn is over");
    }

    #[test]
    fn a_rate_names_the_next_place() {
        let rate = Rate {
            count: 1,
            per: RatePer::Minute,
        };
        let mut window = RateWindow::default();
        window.add(at(0), rate.per);
        let usage = LimitUsage {
            limit: LimitUse {
                key: LimitKey::RateOfKey(Namespace::default(), "mail".to_owned()),
                rule: LimitRule::Rate(rate),
            },
            state: LimitState {
                windows: BTreeMap::from([(rate.per, window)]),
                ..LimitState::default()
            },
        };
        let (word, text) = text(usage).expect("a reason");
        assert_eq!(word, "rate_limit");
        let expected = "the rate limit of key mail, 1 per minute, is used up: next place at 1970-01-01T00:01:00";
        assert!(text.starts_with(expected), "{text}");
    }
}
