//! The graph of all jobs and their parents, as it will be after an apply.

use std::collections::{HashMap, HashSet};

use cueline_model::JobName;

/// The most jobs before a job: its parents, their parents, and so on. It bounds the search for jobs that lead to a
/// parent, which the end of a run may need.
pub(super) const MAX_BEFORE: usize = 1_000;

/// A job that is refused, and why.
type Refused<'a> = (&'a JobName, String);

/// Jobs with their parents.
#[derive(Debug, Default)]
pub(super) struct ParentGraph<'a> {
    names: Vec<&'a JobName>,
    by_name: HashMap<&'a JobName, usize>,
    parents: Vec<Vec<usize>>,
    children: Vec<Vec<usize>>,
    waits_for_all: Vec<bool>,
}

impl<'a> ParentGraph<'a> {
    /// Adds a link.
    pub(super) fn link(&mut self, child: &'a JobName, parent: &'a JobName, waits_for_all: bool) {
        let (child, parent) = (self.node(child), self.node(parent));
        self.parents[child].push(parent);
        self.children[parent].push(child);
        self.waits_for_all[child] = waits_for_all;
    }

    fn node(&mut self, name: &'a JobName) -> usize {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let at = self.names.len();
        self.names.push(name);
        self.by_name.insert(name, at);
        self.parents.push(Vec::new());
        self.children.push(Vec::new());
        self.waits_for_all.push(false);
        at
    }

    /// Checks the applied jobs, and those after them, whose jobs before them change too.
    pub(super) fn check(&self, applied: &[&'a JobName]) -> Result<(), Refused<'a>> {
        let applied: Vec<usize> = applied
            .iter()
            .filter_map(|name| self.by_name.get(name).copied())
            .collect();
        let mut acyclic = vec![false; self.names.len()];
        for start in &applied {
            self.refuse_cycle(*start, &mut acyclic)?;
        }
        let mut changed: Vec<usize> = reach(&applied, &self.children).into_iter().collect();
        changed.sort_unstable();
        for job in changed {
            self.check_job(job)?;
        }
        Ok(())
    }

    /// Follows the parents of a job. `acyclic` marks jobs that are known to lead to no cycle.
    fn refuse_cycle(&self, start: usize, acyclic: &mut [bool]) -> Result<(), Refused<'a>> {
        // The jobs from `start` on, each with the number of its parents that were followed.
        let mut path: Vec<(usize, usize)> = vec![(start, 0)];
        let mut on_path = HashSet::from([start]);
        while let Some((job, followed)) = path.last_mut() {
            let Some(parent) = self.parents[*job].get(*followed).copied() else {
                acyclic[*job] = true;
                on_path.remove(job);
                path.pop();
                continue;
            };
            *followed += 1;
            if acyclic[parent] {
                continue;
            }
            if !on_path.insert(parent) {
                let cycle = path.iter().map(|(job, _)| *job);
                let cycle = cycle.skip_while(|job| *job != parent);
                let names: Vec<&str> = cycle
                    .chain([parent])
                    .map(|job| self.names[job].local())
                    .collect();
                let problem = format!("`after` forms a cycle: {}", names.join(" after "));
                return Err((self.names[start], problem));
            }
            path.push((parent, 0));
        }
        Ok(())
    }

    fn check_job(&self, job: usize) -> Result<(), Refused<'a>> {
        let parents = &self.parents[job];
        let before = reach(parents, &self.parents).len();
        if before > MAX_BEFORE {
            let problem = format!(
                "{before} jobs would run before it; at most {MAX_BEFORE} are accepted, counted through all parents"
            );
            return Err((self.names[job], problem));
        }
        if !self.waits_for_all[job] || parents.len() < 2 {
            return Ok(());
        }
        let mut common: Option<HashSet<usize>> = None;
        for parent in parents {
            let above = reach(&[*parent], &self.parents);
            let shared: HashSet<usize> = match common {
                None => above,
                Some(common) => common.intersection(&above).copied().collect(),
            };
            if shared.is_empty() {
                let others: Vec<&str> = parents
                    .iter()
                    .filter(|other| *other != parent)
                    .map(|other| self.names[*other].local())
                    .collect();
                let problem = format!(
                    "`after.all` waits for {:?} and for {}, and no job leads to all of them, so no flow run has \
                     them together; give them a common parent, or use `after.any`",
                    self.names[*parent].local(),
                    others.join(", "),
                );
                return Err((self.names[job], problem));
            }
            common = Some(shared);
        }
        Ok(())
    }
}

/// These jobs, and all jobs that `next` leads to.
fn reach(from: &[usize], next: &[Vec<usize>]) -> HashSet<usize> {
    let mut found: HashSet<usize> = from.iter().copied().collect();
    let mut open = from.to_vec();
    while let Some(job) = open.pop() {
        for other in &next[job] {
            if found.insert(*other) {
                open.push(*other);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> JobName {
        text.parse().expect("a name")
    }

    /// Checks `applied` in a graph of (child, parent), all of which wait for all.
    fn check(links: &[(&str, &str)], applied: &[&str]) -> Result<(), (String, String)> {
        let links: Vec<(JobName, JobName)> = links
            .iter()
            .map(|(child, parent)| (name(child), name(parent)))
            .collect();
        let applied: Vec<JobName> = applied.iter().map(|job| name(job)).collect();
        let mut graph = ParentGraph::default();
        for (child, parent) in &links {
            graph.link(child, parent, true);
        }
        let applied: Vec<&JobName> = applied.iter().collect();
        let checked = graph.check(&applied);
        checked.map_err(|(job, problem)| (job.as_str().to_owned(), problem))
    }

    #[test]
    fn diamonds_and_fan_ins_are_no_cycles() {
        let diamond = [("b", "a"), ("c", "a"), ("d", "b"), ("d", "c"), ("d", "a")];
        assert_eq!(check(&diamond, &["a", "b", "c", "d"]), Ok(()));
        assert_eq!(check(&diamond, &["unlinked"]), Ok(()));
    }

    #[test]
    fn a_cycle_beside_a_diamond_is_found() {
        let links = [("b", "a"), ("c", "a"), ("d", "b"), ("d", "c"), ("a", "d")];
        let (job, problem) = check(&links, &["a"]).expect_err("is refused");
        assert_eq!(job, "a");
        assert_eq!(problem, "`after` forms a cycle: a after d after b after a");
    }

    #[test]
    fn what_waits_for_all_has_a_job_that_leads_to_all() {
        let (job, problem) = check(&[("c", "a"), ("c", "b")], &["c"]).expect_err("is refused");
        assert_eq!(job, "c");
        assert!(problem.contains(r#"waits for "b" and for a,"#), "{problem}");
        // One of the parents may be the job that leads to the others.
        assert_eq!(check(&[("c", "a"), ("c", "b"), ("b", "a")], &["c"]), Ok(()));
    }

    #[test]
    fn a_change_above_a_job_is_checked_for_that_job_too() {
        // b was after a; without that link, d waits for all of two jobs that nothing joins.
        let links = [("c", "a"), ("d", "b"), ("d", "c")];
        let (job, _) = check(&links, &["b"]).expect_err("is refused");
        assert_eq!(job, "d");
        assert_eq!(check(&links, &["unrelated"]), Ok(()));
    }

    #[test]
    fn jobs_before_a_job_are_bounded() {
        let names: Vec<String> = (0..=MAX_BEFORE + 1).map(|n| format!("j{n}")).collect();
        let chain = |jobs: usize| -> Vec<(&str, &str)> {
            let links = names.windows(2).take(jobs);
            links
                .map(|pair| (pair[1].as_str(), pair[0].as_str()))
                .collect()
        };
        assert_eq!(check(&chain(MAX_BEFORE), &["j0"]), Ok(()));
        let (job, problem) = check(&chain(MAX_BEFORE + 1), &["j0"]).expect_err("is refused");
        assert_eq!(job, names[MAX_BEFORE + 1]);
        assert!(problem.contains("1001 jobs"), "{problem}");
    }
}
