//! `cueline import`: creates jobs from what another scheduler has, and reports each difference and each refusal.

mod crontab;
mod job_file;
mod quartz;
mod systemd;
mod xxl;

use std::collections::HashMap;

use cueline_interface::{Failure, Out, Paint, say};
use cueline_model::schedule::CronSchedule;
use cueline_model::{GroupName, JobName, JobSpec, Namespace, ScriptName, ScriptSpec, import};
use serde_json::json;

use crate::client::{Api, read};
use crate::context::chosen;
use crate::context::server_args::ServerArgs;
use crate::human;
use crate::import_args::{ImportCommand, TargetArgs};
use crate::job;
use crate::script;

/// Imports. What changes nothing on the server needs none.
pub(crate) async fn run(
    server: &ServerArgs,
    out: Out,
    command: &ImportCommand,
) -> Result<(), Failure> {
    let target = match command {
        ImportCommand::Crontab(args) => &args.target,
        ImportCommand::Quartz(args) => &args.target,
        ImportCommand::Systemd(args) => &args.target,
        ImportCommand::Xxl(args) => &args.target,
    };
    let api = if target.dry_run || target.write.is_some() {
        None
    } else {
        Some(Api::new(server)?)
    };
    let namespace = match &api {
        Some(api) => api.namespace().clone(),
        None => chosen::namespace(server)?,
    };
    let mut found = Found::new(target, namespace)?;
    match command {
        ImportCommand::Crontab(args) => crontab::read_all(args, &mut found)?,
        ImportCommand::Quartz(args) => quartz::read_all(args, &mut found).await?,
        ImportCommand::Systemd(args) => systemd::read_all(args, &mut found)?,
        ImportCommand::Xxl(args) => xxl::read_all(args, &mut found)?,
    }
    if let Some(path) = &target.write {
        job_file::write(path, &found.specs(), &found.scripts)?;
    }
    if out.is_json() {
        return run_json(api.as_ref(), out, &found).await;
    }
    found.print(out)?;
    match (&api, &target.write) {
        (_, Some(path)) => {
            let count = found.jobs.len();
            out.line(&format!("{count} jobs written to {}", path.display()))?;
        }
        (None, None) => out.line("nothing was applied: dry run")?,
        (Some(_), None) if found.jobs.is_empty() => {}
        (Some(api), None) => {
            if !found.scripts.is_empty() {
                let saved = script::send(api, &found.scripts, false).await?;
                script::print_applied(out, &read(saved)?)?;
            }
            job::apply(api, out, &found.specs(), false).await?;
        }
    }
    found.verdict()
}

/// Without `api`, nothing is applied.
async fn run_json(api: Option<&Api>, out: Out, found: &Found) -> Result<(), Failure> {
    let notes: Vec<_> = found
        .notes
        .iter()
        .map(|(kind, place, message)| json!({ "kind": kind, "place": place, "message": message }))
        .collect();
    let refused: Vec<_> = found
        .refused
        .iter()
        .map(|(place, message)| json!({ "place": place, "message": message }))
        .collect();
    let specs = found.specs();
    let applied = match api {
        Some(api) if !specs.is_empty() => {
            script::send(api, &found.scripts, false).await?;
            Some(job::send(api, out, &specs, false).await?)
        }
        _ => None,
    };
    let mut answer = json!({
        "jobs": specs,
        "warnings": notes,
        "refused": refused,
        "answer": applied,
    });
    if !found.scripts.is_empty() {
        answer["scripts"] = json!(found.scripts);
    }
    out.json(&answer)?;
    found.verdict()
}

/// The results for everything that was read.
struct Found {
    group: GroupName,
    /// Whether jobs keep the group that they come with.
    keeps_groups: bool,
    namespace: Namespace,
    timezone: String,
    /// What could become a job: "lines", "timers".
    things: &'static str,
    jobs: Vec<(String, JobSpec)>,
    scripts: Vec<ScriptSpec>,
    refused: Vec<(String, String)>,
    /// Kind, place and message.
    notes: Vec<(&'static str, String, String)>,
    /// The place of each name.
    seen: HashMap<String, String>,
}

impl Found {
    fn new(target: &TargetArgs, namespace: Namespace) -> Result<Self, Failure> {
        let group = target.group.as_ref().map_or("default", GroupName::as_str);
        let group = GroupName::in_namespace(&namespace, group)
            .map_err(|error| Failure::bad_input(format!("--group: {error}")))?;
        Ok(Self {
            group,
            keeps_groups: false,
            namespace,
            timezone: timezone(target.tz.as_deref())?,
            things: "lines",
            jobs: Vec::new(),
            scripts: Vec::new(),
            refused: Vec::new(),
            notes: Vec::new(),
            seen: HashMap::new(),
        })
    }

    /// Takes a job into the namespace, or refuses it.
    fn take(&mut self, place: String, job: Result<JobSpec, String>) {
        let job = job.and_then(|job| self.placed(job));
        match job {
            Ok(job) => match self.seen.insert(job.name.to_string(), place.clone()) {
                None => self.jobs.push((place, job)),
                Some(first) => {
                    let reason = format!("{first} already has its name {:?}", job.name.as_str());
                    self.refused.push((place, reason));
                }
            },
            Err(reason) => self.refused.push((place, reason)),
        }
    }

    fn take_all(&mut self, entries: Vec<import::Entry>) {
        for entry in entries {
            let notes = entry
                .notes
                .iter()
                .map(|note| (note.kind(), entry.place.clone(), note.message().to_owned()));
            self.notes.extend(notes);
            self.take(entry.place, entry.job);
        }
    }

    /// Takes the scripts of jobs that were taken. Those of others have no use.
    fn take_scripts(&mut self, scripts: Vec<ScriptSpec>) -> Result<(), Failure> {
        for script in scripts {
            let name = ScriptName::in_namespace(&self.namespace, script.name.local())
                .map_err(|error| Failure::bad_input(format!("{}: {error}", script.name)))?;
            let is_used =
                |(_, job): &(String, JobSpec)| job.script().is_some_and(|(used, _)| used == name);
            if self.jobs.iter().any(is_used) {
                self.scripts.push(ScriptSpec { name, ..script });
            }
        }
        Ok(())
    }

    /// The job in the namespace, with its group and its parents there.
    fn placed(&self, job: JobSpec) -> Result<JobSpec, String> {
        let namespace = &self.namespace;
        let name = |local: &str| {
            JobName::in_namespace(namespace, local).map_err(|error| error.to_string())
        };
        let group = if self.keeps_groups {
            GroupName::in_namespace(namespace, job.group.local()).map_err(|e| e.to_string())?
        } else {
            self.group.clone()
        };
        let mut after = job.after.clone();
        for parent in after.iter_mut().flat_map(|after| after.names_mut()) {
            *parent = name(parent.local())?;
        }
        Ok(JobSpec {
            name: name(job.name.local())?,
            group,
            after,
            ..job
        })
    }

    fn print(&self, out: Out) -> Result<(), Failure> {
        for (place, job) in &self.jobs {
            let (name, when) = (&job.name, human::schedule(job));
            let what = human::handler(&job.handler);
            out.line(&format!(
                "{place}: {} {name}  {when}  {what}",
                out.paint("job", Paint::Good)
            ))?;
        }
        for script in &self.scripts {
            let (name, language) = (&script.name, script.language);
            let lines = script.text.lines().count();
            let word = out.paint("script", Paint::Good);
            out.line(&format!("{word} {name}  {language}  {lines} lines"))?;
        }
        for (kind, place, message) in &self.notes {
            say(&format!("{kind}: {place}: {message}"));
        }
        for (place, reason) in &self.refused {
            say(&format!("refused: {place}: {reason}"));
        }
        Ok(())
    }

    fn specs(&self) -> Vec<JobSpec> {
        self.jobs.iter().map(|(_, job)| job.clone()).collect()
    }

    fn verdict(&self) -> Result<(), Failure> {
        let things = self.things;
        let all = self.jobs.len() + self.refused.len();
        match self.refused.len() {
            0 => Ok(()),
            refused => Err(Failure::BadInput {
                messages: vec![format!("{refused} of {all} {things} were refused")],
                summary: Some(format!(
                    "hint: write job definitions for these by hand, or correct the {things} and import again: \
                     importing twice changes nothing"
                )),
            }),
        }
    }
}

/// The given time zone, or this machine's, because other schedulers use their machine's local time.
fn timezone(given: Option<&str>) -> Result<String, Failure> {
    let zone = match given {
        Some(zone) => zone.to_owned(),
        None => jiff::tz::TimeZone::system()
            .iana_name()
            .unwrap_or("UTC")
            .to_owned(),
    };
    CronSchedule::parse("* * * * *", &zone, None, None)
        .map(|_| zone)
        .map_err(|error| Failure::bad_input(format!("--tz: {}", error.with_suggestion())))
}
