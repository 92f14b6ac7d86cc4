//! `job apply --prune`: deletes the jobs that the files own and do not have any more.
//!
//! Files own the jobs with one label, in the namespaces of the files and of the command. All jobs of the files have to have
//! it. So nothing is deleted that the files could not have made.

use std::collections::{BTreeSet, HashSet};

use cueline_api::view::JobView;
use cueline_interface::{Failure, Out};
use cueline_model::{JobName, JobSpec, Namespace};

use super::{Confirmation, confirm, counted, jobs, named};
use crate::client::Api;
use crate::namespaces::AllNamespaces;

/// The label of the jobs that some files own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prune {
    key: String,
    value: String,
}

impl std::str::FromStr for Prune {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok(Self {
                key: key.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err(
                "give the label of all jobs that the files own as KEY=VALUE, such as repository=billing"
                    .to_owned(),
            ),
        }
    }
}

impl Prune {
    /// Refuses files with jobs that they would not own.
    pub(crate) fn check(&self, specs: &[JobSpec]) -> Result<(), Failure> {
        let Self { key, value } = self;
        let others = specs.iter().filter(|spec| !self.owns(spec));
        let messages: Vec<String> = others
            .take(20)
            .map(|spec| {
                format!(
                    "job {:?}: labels.{key}: {value:?} is expected, because --prune names it",
                    spec.name.as_str()
                )
            })
            .collect();
        if messages.is_empty() {
            return Ok(());
        }
        Err(Failure::BadInput {
            messages,
            summary: Some("nothing was applied".to_owned()),
        })
    }

    fn owns(&self, spec: &JobSpec) -> bool {
        spec.labels.get(&self.key) == Some(&self.value)
    }

    /// Deletes the owned jobs that `specs` do not have, after a question.
    pub(crate) async fn run(
        &self,
        api: &Api,
        out: Out,
        specs: &[JobSpec],
        confirmation: Confirmation,
    ) -> Result<(), Failure> {
        let chosen = self.unnamed(api, specs).await?;
        if chosen.is_empty() {
            return Ok(());
        }
        let names = chosen.iter().map(|job| job.job.spec.name.as_str());
        let question = format!("{}: {}", counted(chosen.len(), "job"), named(names));
        let about = "not in the files";
        if confirmation.dry_run {
            return out.line(&format!("would delete {question} ({about})"));
        }
        if !confirm(out, confirmation, &format!("delete {question}, {about}?"))? {
            return Ok(());
        }
        let tally = jobs::delete(out, jobs::deletions(api, &chosen)?).await?;
        tally.print(out, "deleted", "job")
    }

    async fn unnamed(&self, api: &Api, specs: &[JobSpec]) -> Result<Vec<JobView>, Failure> {
        let kept: HashSet<&JobName> = specs.iter().map(|spec| &spec.name).collect();
        let label = format!("{}={}", self.key, self.value);
        let mut chosen = Vec::new();
        for namespace in namespaces(api.namespace(), specs) {
            let api = api.in_namespace(&namespace);
            let query = [("label", label.clone())];
            let found = jobs::select(&api, &query, AllNamespaces::default()).await?;
            let unnamed = found
                .into_iter()
                .filter(|job| self.owns(&job.job.spec) && !kept.contains(&job.job.spec.name));
            chosen.extend(unnamed);
        }
        Ok(chosen)
    }
}

fn namespaces(own: &Namespace, specs: &[JobSpec]) -> BTreeSet<Namespace> {
    let of_specs = specs.iter().map(|spec| spec.name.namespace());
    of_specs.chain([own.clone()]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(name: &str, labels: &serde_json::Value) -> JobSpec {
        serde_json::from_value(json!({
            "name": name,
            "group": "default",
            "schedule": { "every": "1h" },
            "handler": { "native": "x" },
            "labels": labels,
        }))
        .expect("a definition")
    }

    #[test]
    fn a_label_has_a_key_and_a_value() {
        for bad in ["", "a", "a=", "=b"] {
            assert!(bad.parse::<Prune>().is_err(), "{bad}");
        }
        let expected = Prune {
            key: "a".to_owned(),
            value: "b=c".to_owned(),
        };
        assert_eq!("a=b=c".parse(), Ok(expected));
    }

    #[test]
    fn files_with_jobs_that_they_would_not_own_are_refused() {
        let prune: Prune = "repository=billing".parse().expect("a label");
        let owned = spec("a", &json!({ "repository": "billing", "x": "y" }));
        assert_eq!(prune.check(std::slice::from_ref(&owned)), Ok(()));
        for labels in [json!({}), json!({ "repository": "other" })] {
            let refused = prune.check(&[owned.clone(), spec("b", &labels)]);
            let failure = refused.expect_err("is refused");
            assert!(failure.message().contains("job \"b\""), "{failure:?}");
        }
    }

    #[test]
    fn the_namespaces_are_those_of_the_files_and_of_the_command() {
        let name = |text: &str| text.parse::<Namespace>().expect("a name");
        let mut other = spec("a", &json!({}));
        other.name = "team/a".parse().expect("a name");
        let found = namespaces(&name("own"), &[other, spec("b", &json!({}))]);
        let expected = [name("default"), name("own"), name("team")];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}
