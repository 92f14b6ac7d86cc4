//! Which child jobs start because of the ends of a batch.
//!
//! A child with one parent is decided by the end of that parent alone. For one with several parents, the adapter reads
//! how the others stand in the same flow run. It does so too if the parent was repeated: the child may have fired before. It holds the locks of the parent that ended and of the child then. So of two
//! parents that end at the same time, the second transaction sees the first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::flow::{self, Start};
use cueline_model::{After, FireState, Job, Outcome, ParentState, RunId, RunKind, Timestamp};
use serde::Deserialize;

use super::convert::to_i64;
use super::definitions::JobsById;
use super::live_executors::LiveExecutors;
use super::new_run::{Fire, NewRun};
use super::report_batch::BatchWrites;

/// A fire of a job that others run after. All its shards have ended.
#[derive(Debug, Clone, Copy)]
pub struct EndedFire<'a> {
    /// The job that fired.
    pub job: i64,
    /// The run that becomes the parent of the child runs.
    pub run: i64,
    /// The flow run: the first run of the fire that it began with. It is the fire key of all child runs, so that each
    /// job fires at most once in a flow run.
    pub flow: i64,
    /// The fire time.
    pub fire_at: Timestamp,
    /// Succeeded or failed.
    pub state: FireState,
    /// What the parent run returned.
    pub output: Option<&'a str>,
    /// Whether the parent run has had several attempts. Its fire may have ended before, and have started children then.
    pub is_repeated: bool,
}

/// A run of the batch whose fire has succeeded or failed as a whole.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct FoundFire {
    /// The run.
    pub run: i64,
    /// See [`EndedFire::flow`].
    pub flow: i64,
    /// The fire time, in milliseconds.
    pub fire_at: i64,
    /// The code of a [`FireState`].
    pub state: i64,
}

impl From<(i64, i64, i64, i64)> for FoundFire {
    fn from((run, flow, fire_at, state): (i64, i64, i64, i64)) -> Self {
        Self {
            run,
            flow,
            fire_at,
            state,
        }
    }
}

impl<'a> EndedFire<'a> {
    /// The fires that ended with this batch, each once. If the batch ended several runs of a fire, the one with the
    /// highest id becomes the parent.
    pub fn in_batch(found: &[FoundFire], writes: &'a BatchWrites) -> Vec<Self> {
        let by_run: HashMap<i64, &FoundFire> = found.iter().map(|fire| (fire.run, fire)).collect();
        let mut fires = BTreeMap::new();
        for (run, end) in writes.parents() {
            let Some(found) = by_run.get(&run.id) else {
                continue;
            };
            let Some(state) = FireState::from_code(found.state) else {
                continue;
            };
            let fire = Self {
                job: run.job_id,
                run: run.id,
                flow: found.flow,
                fire_at: Timestamp::from_millis(found.fire_at),
                state,
                output: end.output.as_deref(),
                is_repeated: end.attempt > 1,
            };
            // `parents()` is ordered by run id, so the highest id overwrites the others.
            fires.insert((found.flow, run.job_id), fire);
        }
        fires.into_values().collect()
    }
}

/// The jobs of these fires, each once.
pub fn parent_jobs(fires: &[EndedFire<'_>]) -> Vec<i64> {
    let jobs: BTreeSet<i64> = fires.iter().map(|fire| fire.job).collect();
    jobs.into_iter().collect()
}

/// An enabled job that runs after another one.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct ChildJob {
    /// The job that it runs after.
    pub parent: i64,
    /// The job.
    pub id: i64,
    /// The version of its definition.
    pub version: i64,
    /// Number of its runs so far.
    pub run_count: i64,
    /// How many parents it has.
    pub parents: i64,
}

impl From<(i64, i64, i64, i64, i64)> for ChildJob {
    fn from((parent, id, version, run_count, parents): (i64, i64, i64, i64, i64)) -> Self {
        Self {
            parent,
            id,
            version,
            run_count,
            parents,
        }
    }
}

/// How a parent of a child stands in a flow run: flow run, child, parent, and the code of its fire's [`FireState`] if it
/// has fired. The row in which the parent is the child tells whether the child itself has fired.
pub type ParentRow = (i64, i64, i64, Option<i64>);

/// What a parent returned in a flow run: flow run, child, the parent's local name, and the output that was reported last.
pub type OutputRow = (i64, i64, String, Option<String>);

/// The most children whose parents' outputs are read at once. With 32 parents each, they are 32 MiB at most.
pub const OUTPUTS_AT_ONCE: usize = 16;

/// Children that may start.
#[derive(Debug)]
pub struct ChildStarts<'a>(Vec<ChildStart<'a>>);

#[derive(Debug)]
struct ChildStart<'a> {
    fire: EndedFire<'a>,
    child: ChildJob,
    job: &'a Arc<Job>,
    after: &'a After,
    has_fired: bool,
    /// Only of a join.
    parents: BTreeMap<i64, ParentState>,
    /// The parameter made of the outputs of several parents.
    outputs: Option<Outputs>,
}

impl ChildStart<'_> {
    fn key(&self) -> (i64, i64) {
        (self.fire.flow, self.child.id)
    }

    /// Whether the end of this parent alone does not decide.
    fn is_join(&self) -> bool {
        self.child.parents > 1 || self.fire.is_repeated
    }

    fn joins_outputs(&self) -> bool {
        self.child.parents > 1 && self.after.pass_output && self.after.waits_for_all()
    }

    fn starts(&self) -> bool {
        let parents = self.parents.values().copied();
        !self.has_fired && flow::start(self.after, parents) == Start::Now
    }
}

impl<'a> ChildStarts<'a> {
    /// The children that these fires may start. Children whose definition cannot be read are left out.
    pub fn new(fires: &[EndedFire<'a>], children: &[ChildJob], jobs: &'a JobsById) -> Self {
        let mut by_parent: HashMap<i64, Vec<&ChildJob>> = HashMap::new();
        for child in children {
            by_parent.entry(child.parent).or_default().push(child);
        }
        let mut starts: Vec<ChildStart<'a>> = Vec::new();
        let mut joins: HashMap<(i64, i64), usize> = HashMap::new();
        for fire in fires {
            for child in by_parent.get(&fire.job).into_iter().flatten() {
                let Some(job) = jobs.get(&child.id) else {
                    continue;
                };
                let after = job.spec.after.as_ref();
                let Some(after) = after.filter(|after| after.on.accepts(fire.state)) else {
                    continue;
                };
                let start = ChildStart {
                    fire: *fire,
                    child: **child,
                    job,
                    after,
                    has_fired: false,
                    parents: BTreeMap::new(),
                    outputs: None,
                };
                // Several parents of one child may end in a batch.
                let known = joins.get(&start.key()).filter(|_| start.is_join());
                if let Some(known) = known.and_then(|at| starts.get_mut(*at)) {
                    *known = start;
                } else {
                    joins.insert(start.key(), starts.len());
                    starts.push(start);
                }
            }
        }
        Self(starts)
    }

    /// Whether nothing starts.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Children that the end of one parent does not decide: flow run and child. The adapter passes their rows to
    /// [`read_parents`](Self::read_parents).
    pub fn joins(&self) -> Vec<(i64, i64)> {
        let joins = self.0.iter().filter(|start| start.is_join());
        joins.map(ChildStart::key).collect()
    }

    /// Takes over how the parents of the joins stand. Returns the parents that have not fired, as flow run and parent. The
    /// adapter passes those of them that a job leads to which has fired, to [`settle`](Self::settle).
    pub fn read_parents(&mut self, rows: &[ParentRow]) -> Vec<(i64, i64)> {
        type StateOfParent = (i64, Option<i64>);
        let mut of_join: HashMap<(i64, i64), Vec<StateOfParent>> = HashMap::new();
        for (flow, child, parent, state) in rows {
            let of_child = of_join.entry((*flow, *child)).or_default();
            of_child.push((*parent, *state));
        }
        let mut unfired = BTreeSet::new();
        for start in self.0.iter_mut().filter(|start| start.is_join()) {
            for (parent, state) in of_join.remove(&start.key()).unwrap_or_default() {
                let state = state.and_then(FireState::from_code);
                match state {
                    Some(_) if parent == start.child.id => start.has_fired = true,
                    None if parent == start.child.id => {}
                    Some(state) => {
                        start.parents.insert(parent, ParentState::Fired(state));
                    }
                    None => {
                        start.parents.insert(parent, ParentState::OutOfReach);
                        // For `any`, it makes no difference whether another parent may still fire.
                        if start.after.waits_for_all() {
                            unfired.insert((start.fire.flow, parent));
                        }
                    }
                }
            }
        }
        unfired.into_iter().collect()
    }

    /// Keeps the children that start. `ahead` are the parents, as flow run and parent, that may still fire.
    pub fn settle(&mut self, ahead: &[(i64, i64)]) {
        let ahead: BTreeSet<(i64, i64)> = ahead.iter().copied().collect();
        self.0.retain_mut(|start| {
            for (parent, state) in &mut start.parents {
                if *state == ParentState::OutOfReach && ahead.contains(&(start.fire.flow, *parent))
                {
                    *state = ParentState::Ahead;
                }
            }
            !start.is_join() || start.starts()
        });
    }

    /// The starting children that take the outputs of several parents: flow run and child.
    pub fn joined_outputs(&self) -> Vec<(i64, i64)> {
        let joined = self.0.iter().filter(|start| start.joins_outputs());
        joined.map(ChildStart::key).collect()
    }

    /// Takes over the outputs of the parents of some children.
    pub fn read_outputs(&mut self, rows: Vec<OutputRow>) {
        let mut of_child: HashMap<(i64, i64), BTreeMap<String, Option<String>>> = HashMap::new();
        for (flow, child, parent, output) in rows {
            let outputs = of_child.entry((flow, child)).or_default();
            outputs.insert(parent, output);
        }
        for start in &mut self.0 {
            if start.joins_outputs()
                && let Some(outputs) = of_child.remove(&start.key())
            {
                start.outputs = Some(Outputs::of_parents(outputs));
            }
        }
    }

    /// The runs of the children that start.
    pub fn into_runs(self, live: &mut LiveExecutors, now: Timestamp) -> Vec<NewRun> {
        let mut run_counts: HashMap<i64, i64> = HashMap::new();
        let mut runs = Vec::new();
        for start in self.0 {
            let (params, left_out) = match start.outputs {
                Some(outputs) => (Some(outputs.params), outputs.left_out),
                None if start.after.pass_output => (start.fire.output.map(str::to_owned), None),
                None => (None, None),
            };
            let fire = Fire {
                kind: RunKind::Child,
                key: Some(start.fire.flow),
                fire_at: start.fire.fire_at,
                due_at: now,
                claimed_by: None,
                parent: Some(RunId(start.fire.run)),
                params,
            };
            let run_count = run_counts
                .entry(start.child.id)
                .or_insert(start.child.run_count);
            let mut new_runs = NewRun::of_fire(start.job, *run_count, live, &fire);
            *run_count += to_i64(new_runs.len());
            if let Some(first) = new_runs.first_mut() {
                first.add_left_out(left_out);
            }
            runs.extend(new_runs);
        }
        runs
    }
}

/// The outputs of several parents as one parameter: a JSON object with a field for each parent.
#[derive(Debug, PartialEq, Eq)]
struct Outputs {
    params: String,
    /// Which outputs did not fit.
    left_out: Option<String>,
}

impl Outputs {
    /// An output that does not fit into the parameter is `null`, as that of a parent without one.
    fn of_parents(outputs: BTreeMap<String, Option<String>>) -> Self {
        let written = |output: &Option<String>| serde_json::json!(output).to_string();
        let fields = |name: &str| serde_json::json!(name).to_string().len() + 2;
        // What all names, with `null` for each output, take.
        let mut bytes = 1 + outputs.keys().map(|name| fields(name) + 4).sum::<usize>();
        let mut params = serde_json::Map::new();
        let mut left_out = Vec::new();
        for (name, output) in outputs {
            let more = written(&output).len().saturating_sub(4);
            if bytes + more > Outcome::MAX_TEXT_BYTES {
                left_out.push(name.clone());
                params.insert(name, serde_json::Value::Null);
            } else {
                bytes += more;
                params.insert(name, output.into());
            }
        }
        let named = left_out.join(", ");
        Self {
            params: serde_json::Value::Object(params).to_string(),
            left_out: (!left_out.is_empty()).then(|| {
                format!(
                    "the parameter has at most {} bytes, so it has no output of {named}",
                    Outcome::MAX_TEXT_BYTES
                )
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(outputs: &[(&str, Option<&str>)]) -> Outputs {
        let outputs = outputs
            .iter()
            .map(|(name, output)| ((*name).to_owned(), output.map(str::to_owned)));
        Outputs::of_parents(outputs.collect())
    }

    #[test]
    fn outputs_of_several_parents_are_fields_of_an_object() {
        let outputs = joined(&[("b", Some("2 \"x\"")), ("a", None)]);
        assert_eq!(outputs.params, r#"{"a":null,"b":"2 \"x\""}"#);
        assert_eq!(outputs.left_out, None);
    }

    #[test]
    fn outputs_that_do_not_fit_are_named() {
        let long = "x".repeat(Outcome::MAX_TEXT_BYTES - 30);
        let outputs = joined(&[
            ("a", Some(&long)),
            ("b", Some("1234567890")),
            ("c", Some("1")),
        ]);
        assert!(outputs.params.len() <= Outcome::MAX_TEXT_BYTES);
        assert!(outputs.params.ends_with(r#""b":null,"c":"1"}"#));
        let left_out = outputs.left_out.expect("one is left out");
        assert!(left_out.ends_with("no output of b"), "{left_out}");
    }

    /// The estimate of the size is exact or above, whatever has to be escaped.
    #[test]
    fn parameters_never_exceed_their_bound() {
        for length in 32_700..32_800 {
            let quotes = "\"".repeat(length);
            let outputs = joined(&[("a", Some(&quotes)), ("b", Some("1"))]);
            assert!(outputs.params.len() <= Outcome::MAX_TEXT_BYTES, "{length}");
        }
    }
}
