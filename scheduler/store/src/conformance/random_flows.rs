//! Random graphs of jobs, random outcomes in random order, against a slow and obvious model.

use std::collections::{BTreeMap, BTreeSet};

use cueline_model::{
    AfterOn, AttemptEvent, JobSpec, Outcome, OutcomeKind, Parents, Route, RunId, policy::spread,
};

use super::fixture::{Fixture, after, attempt, by_hand, name, report};
use crate::{ClaimedRun, NodeId};

const GRAPHS: u64 = 12;
const FLOW_RUNS: usize = 3;

/// Pseudo-random numbers from a fixed seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        usize::try_from(spread(self.0) % sides as u64).expect("a small number")
    }
}

/// A job of the graph, with the numbers of its parents.
struct Node {
    parents: Vec<usize>,
    all: bool,
    on: AfterOn,
    shards: usize,
}

struct Graph {
    seed: u64,
    nodes: Vec<Node>,
}

/// A flow run: where it begins, and how each shard of each job ends if it runs.
struct FlowRun {
    begins: usize,
    outcomes: Vec<Vec<OutcomeKind>>,
}

impl Graph {
    fn random(seed: u64, dice: &mut Dice) -> Self {
        let jobs = 3 + dice.roll(6);
        let mut nodes: Vec<Node> = Vec::new();
        for job in 0..jobs {
            let mut parents = BTreeSet::new();
            for _ in 0..job.min(1 + dice.roll(3)) {
                parents.insert(dice.roll(job));
            }
            nodes.push(Node {
                parents: parents.into_iter().collect(),
                all: dice.roll(3) > 0,
                on: [
                    AfterOn::Success,
                    AfterOn::Success,
                    AfterOn::Failure,
                    AfterOn::Always,
                ][dice.roll(4)],
                shards: 1 + dice.roll(5) / 4,
            });
        }
        Self { seed, nodes }
    }

    fn name(&self, job: usize) -> String {
        format!("g{}-j{job}", self.seed)
    }

    fn specs(&self) -> Vec<JobSpec> {
        let specs = self.nodes.iter().enumerate();
        specs
            .map(|(job, node)| {
                let own = self.name(job);
                let names = node.parents.iter().map(|p| name(&self.name(*p))).collect();
                let mut spec = match (node.parents.len(), node.all) {
                    (0, _) => by_hand(&own),
                    (_, true) => after(&own, Parents::All(names), node.on),
                    (_, false) => after(&own, Parents::Any(names), node.on),
                };
                if node.shards > 1 {
                    spec.route = Route::Sharded(vec![String::new(); node.shards]);
                }
                spec
            })
            .collect()
    }

    fn flow_run(&self, dice: &mut Dice) -> FlowRun {
        const KINDS: [OutcomeKind; 8] = [
            OutcomeKind::Succeeded,
            OutcomeKind::Succeeded,
            OutcomeKind::Succeeded,
            OutcomeKind::Succeeded,
            OutcomeKind::Failed,
            OutcomeKind::Lost,
            OutcomeKind::Discarded,
            OutcomeKind::Cancelled,
        ];
        let begins = dice
            .roll(self.nodes.len() * 2)
            .saturating_sub(self.nodes.len());
        let outcomes = self.nodes.iter().map(|node| {
            let shards = 0..node.shards;
            shards.map(|_| KINDS[dice.roll(KINDS.len())]).collect()
        });
        FlowRun {
            begins,
            outcomes: outcomes.collect(),
        }
    }

    /// The jobs that fire, by going through all jobs until none is added.
    fn expected(&self, flow_run: &FlowRun) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([flow_run.begins]);
        let mut fired = reached.clone();
        for _ in &self.nodes {
            for (job, node) in self.nodes.iter().enumerate() {
                if node.parents.iter().any(|p| reached.contains(p)) {
                    reached.insert(job);
                }
            }
        }
        for _ in &self.nodes {
            for (job, node) in self.nodes.iter().enumerate() {
                let fits = |parent: &usize| {
                    fired.contains(parent) && ended_as(&flow_run.outcomes[*parent], node.on)
                };
                let mut parents = node.parents.iter().filter(|p| reached.contains(p));
                let starts = if node.all {
                    parents.clone().count() > 0 && parents.all(fits)
                } else {
                    parents.any(fits)
                };
                if starts {
                    fired.insert(job);
                }
            }
        }
        fired
    }
}

/// Whether shards that end so start a child.
fn ended_as(shards: &[OutcomeKind], on: AfterOn) -> bool {
    let failed = |kind: &OutcomeKind| matches!(kind, OutcomeKind::Failed | OutcomeKind::Lost);
    let succeeded = |kind: &OutcomeKind| *kind == OutcomeKind::Succeeded;
    if !shards.iter().all(|kind| failed(kind) || succeeded(kind)) {
        return false;
    }
    let has_failed = shards.iter().any(failed);
    match on {
        AfterOn::Success => !has_failed,
        AfterOn::Failure => has_failed,
        AfterOn::Always => true,
    }
}

/// Each job fires as often as the model says, with each of its shards. A failure names its seed.
pub async fn random_flows_run_as_the_model_says(fixture: &Fixture) {
    let node = fixture.node().await;
    for seed in 1..=GRAPHS {
        let mut dice = Dice(seed << 32);
        let graph = Graph::random(seed, &mut dice);
        fixture.apply(&graph.specs()).await;
        let flow_runs: Vec<FlowRun> = (0..FLOW_RUNS).map(|_| graph.flow_run(&mut dice)).collect();
        let fired = play(fixture, node, &graph, &flow_runs, &mut dice).await;
        for (at, flow_run) in flow_runs.iter().enumerate() {
            let expected = graph.expected(flow_run).into_iter();
            let expected: BTreeMap<usize, usize> =
                expected.map(|job| (job, graph.nodes[job].shards)).collect();
            assert_eq!(
                fired[at], expected,
                "seed {seed}, flow run {at} from {}",
                flow_run.begins
            );
        }
    }
}

/// Runs all flow runs at once. Returns the number of runs of each job of each.
async fn play(
    fixture: &Fixture,
    node: NodeId,
    graph: &Graph,
    flow_runs: &[FlowRun],
    dice: &mut Dice,
) -> Vec<BTreeMap<usize, usize>> {
    let mut flow_of: BTreeMap<RunId, usize> = BTreeMap::new();
    for (at, flow_run) in flow_runs.iter().enumerate() {
        let runs = fixture.trigger(&graph.name(flow_run.begins)).await;
        flow_of.extend(runs.into_iter().map(|run| (run, at)));
    }
    let mut fired = vec![BTreeMap::new(); flow_runs.len()];
    let mut live: Vec<(usize, usize, ClaimedRun)> = Vec::new();
    loop {
        for run in fixture.claim(node).await {
            fixture.publish(node, &run).await;
            let parent = fixture.run(run.id).await.parent;
            let flow = flow_of[&parent.unwrap_or(run.id)];
            flow_of.insert(run.id, flow);
            let own = run.job.spec.name.as_str();
            let mut jobs = 0..graph.nodes.len();
            let job = jobs
                .find(|job| graph.name(*job) == own)
                .expect("of the graph");
            *fired[flow].entry(job).or_default() += 1;
            live.push((flow, job, run));
        }
        if live.is_empty() {
            return fired;
        }
        let mut reports = Vec::new();
        for _ in 0..=dice.roll(live.len()) {
            let (flow, job, run) = live.swap_remove(dice.roll(live.len()));
            let shard = usize::try_from(run.shard.index).expect("a small number");
            let kind = flow_runs[flow].outcomes[job][shard];
            let outcome = Outcome::new(kind, fixture.now());
            reports.push(report(attempt(&run), AttemptEvent::Ended { outcome }));
        }
        fixture.ingest(&reports).await;
    }
}
