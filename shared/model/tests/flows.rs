//! A flow run by [`flow::start`], end by end in any order, against a slow and obvious model of the whole.

use std::collections::{BTreeMap, BTreeSet};

use cueline_model::flow::{self, Start};
use cueline_model::{After, AfterOn, FireState, ParentState, Parents};
use proptest::prelude::*;
use proptest::sample::Index;

/// A job with the numbers of its parents. A parent has a lower number.
#[derive(Debug, Clone)]
struct Node {
    parents: BTreeSet<usize>,
    after: After,
}

#[derive(Debug, Clone)]
struct Case {
    nodes: Vec<Node>,
    begins: usize,
    /// How each job ends if it fires.
    ends: Vec<FireState>,
    /// Which of the live jobs ends next, again and again.
    order: Vec<Index>,
}

const MAX_JOBS: usize = 9;

fn node(number: usize) -> impl Strategy<Value = Node> {
    let on = prop_oneof![
        3 => Just(AfterOn::Success),
        1 => Just(AfterOn::Failure),
        1 => Just(AfterOn::Always),
    ];
    let parents = proptest::collection::vec(any::<Index>(), 0..4);
    (parents, any::<bool>(), on).prop_map(move |(parents, all, on)| {
        let name = "p".parse().expect("a name");
        Node {
            parents: match number {
                0 => BTreeSet::new(),
                n => parents.iter().map(|index| index.index(n)).collect(),
            },
            after: After {
                parents: if all {
                    Parents::All(vec![name])
                } else {
                    Parents::Any(vec![name])
                },
                on,
                pass_output: false,
            },
        }
    })
}

prop_compose! {
    fn case()(
        jobs in 1..=MAX_JOBS,
        nodes in (0..MAX_JOBS).map(node).collect::<Vec<_>>(),
        begins: Index,
        ends in proptest::collection::vec(
            prop_oneof![
                4 => Just(FireState::Succeeded),
                2 => Just(FireState::Failed),
                1 => Just(FireState::Stopped),
            ],
            MAX_JOBS,
        ),
        order in proptest::collection::vec(any::<Index>(), MAX_JOBS),
    ) -> Case {
        Case { nodes: nodes[..jobs].to_vec(), begins: begins.index(jobs), ends, order }
    }
}

impl Case {
    /// Whether a job that has fired leads to this one.
    fn is_ahead(&self, job: usize, fired: &BTreeMap<usize, FireState>) -> bool {
        let parents = &self.nodes[job].parents;
        parents
            .iter()
            .any(|parent| fired.contains_key(parent) || self.is_ahead(*parent, fired))
    }

    /// One end after the other. Returns the order in which the jobs fired.
    fn play(&self) -> Vec<usize> {
        let mut fired = BTreeMap::from([(self.begins, FireState::Live)]);
        let mut order = vec![self.begins];
        let mut live = vec![self.begins];
        for turn in 0.. {
            if live.is_empty() {
                break;
            }
            let next = self.order[turn % self.order.len()].index(live.len());
            let ended = live.swap_remove(next);
            fired.insert(ended, self.ends[ended]);
            for (job, node) in self.nodes.iter().enumerate() {
                if !node.parents.contains(&ended) || fired.contains_key(&job) {
                    continue;
                }
                let parents = node.parents.iter().map(|parent| match fired.get(parent) {
                    Some(state) => ParentState::Fired(*state),
                    None if self.is_ahead(*parent, &fired) => ParentState::Ahead,
                    None => ParentState::OutOfReach,
                });
                if flow::start(&node.after, parents.collect::<Vec<_>>()) == Start::Now {
                    fired.insert(job, FireState::Live);
                    order.push(job);
                    live.push(job);
                }
            }
        }
        order
    }

    /// The jobs that fire: parents come before children, so one pass over all jobs is enough.
    fn expected(&self) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([self.begins]);
        let mut fired = BTreeSet::from([self.begins]);
        for (job, node) in self.nodes.iter().enumerate() {
            let parents: Vec<usize> = node
                .parents
                .iter()
                .copied()
                .filter(|parent| reached.contains(parent))
                .collect();
            if parents.is_empty() {
                continue;
            }
            reached.insert(job);
            let fits = |parent: &usize| {
                let wanted = match node.after.on {
                    AfterOn::Success => &[FireState::Succeeded][..],
                    AfterOn::Failure => &[FireState::Failed],
                    AfterOn::Always => &[FireState::Succeeded, FireState::Failed],
                };
                fired.contains(parent) && wanted.contains(&self.ends[*parent])
            };
            let starts = match node.after.parents {
                Parents::All(_) => parents.iter().all(fits),
                Parents::Any(_) => parents.iter().any(fits),
            };
            if starts {
                fired.insert(job);
            }
        }
        fired
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Whatever the order of the ends: the same jobs fire, each once, and none before a parent.
    #[test]
    fn the_same_jobs_fire_in_every_order(case in case()) {
        let order = case.play();
        let fired: BTreeSet<usize> = order.iter().copied().collect();
        prop_assert_eq!(fired.len(), order.len(), "each once");
        prop_assert_eq!(&fired, &case.expected());
        for (at, job) in order.iter().enumerate().skip(1) {
            let before = &order[..at];
            prop_assert!(case.nodes[*job].parents.iter().any(|parent| before.contains(parent)));
        }
    }
}
