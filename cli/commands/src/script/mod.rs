//! `cueline script …`: scripts with their versions.

pub(crate) mod args;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cueline_api::view::{
    AppliedScriptView, ScriptList, ScriptRef, ScriptVersionView, ScriptVersions, ScriptView,
    ScriptsApplied,
};
use cueline_interface::{Failure, Out, Paint, cell, jobfile};
use cueline_model::handler::Interpreter;
use cueline_model::{Namespace, ScriptName, ScriptSpec};
use cueline_store::Change;
use reqwest::Method;
use serde_json::{Value, json};
use similar::TextDiff;

use self::args::{
    ScriptApplyArgs, ScriptCommand, ScriptDiffArgs, ScriptRestoreArgs, ScriptSaveArgs,
    ScriptShowArgs,
};
use crate::client::{Api, read};
use crate::human::{one_line, relative};

/// The most bytes of scripts in one request. The server accepts 4 MiB.
const MAX_REQUEST_BYTES: usize = 3 * 1024 * 1024;

pub(crate) async fn run(api: &Api, out: Out, command: ScriptCommand) -> Result<(), Failure> {
    match command {
        ScriptCommand::List => list(api, out).await,
        ScriptCommand::Show(args) => show(api, out, &args).await,
        ScriptCommand::Save(args) => save(api, out, &args).await,
        ScriptCommand::Apply(args) => apply_files(api, out, &args).await,
        ScriptCommand::Diff(args) => diff(api, out, &args).await,
        ScriptCommand::History(arg) => history(api, out, &arg.name).await,
        ScriptCommand::Restore(args) => restore(api, out, &args).await,
        ScriptCommand::Delete(arg) => {
            let answer = api.delete(&["scripts", &arg.name]).await?;
            if out.is_json() {
                return out.json(&answer);
            }
            let deleted: ScriptRef = read(answer)?;
            out.line(&format!("script {} is deleted", deleted.name))
        }
    }
}

async fn list(api: &Api, out: Out) -> Result<(), Failure> {
    let answer = api.get(&["scripts"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let found: ScriptList = read(answer)?;
    let mut table = out.table(&[
        "SCRIPT", "LANGUAGE", "VERSION", "SAVED BY", "REMARK", "JOBS",
    ]);
    for script in &found.scripts {
        let newest = &script.newest;
        table.add_row(vec![
            cell(script.name.local(), None),
            cell(newest.language.as_str(), None),
            cell(newest.version.to_string(), None),
            cell(one_line(&newest.by, 40), None),
            cell(one_line(&newest.remark, 60), None),
            cell(script.jobs.len().to_string(), None),
        ]);
    }
    out.print_table(
        &table,
        "there are no scripts; `cueline script save NAME -f FILE` creates one",
    )
}

async fn version(api: &Api, name: &str, version: i64) -> Result<Value, Failure> {
    let number = version.to_string();
    api.get(&["scripts", name, "versions", &number], &[]).await
}

async fn show(api: &Api, out: Out, args: &ScriptShowArgs) -> Result<(), Failure> {
    let (answer, shown, jobs) = if let Some(number) = args.version {
        let answer = version(api, &args.name, number).await?;
        let shown: ScriptVersionView = read(answer.clone())?;
        (answer, shown, None)
    } else {
        let answer = api.get(&["scripts", &args.name], &[]).await?;
        let script: ScriptView = read(answer.clone())?;
        (answer, script.newest, Some(script.jobs))
    };
    let text = shown.text.as_deref().unwrap_or_default();
    if args.text {
        return out.text(text);
    }
    if out.is_json() {
        return out.json(&answer);
    }
    let mut lines = vec![
        ("name", args.name.clone()),
        ("version", shown.version.to_string()),
        ("language", shown.language.to_string()),
        (
            "saved",
            format!("{} by {}", shown.at, one_line(&shown.by, 60)),
        ),
    ];
    if !shown.remark.is_empty() {
        lines.push(("remark", one_line(&shown.remark, 100)));
    }
    if let Some(jobs) = jobs {
        let job = |user: &cueline_api::view::ScriptUserView| match user.version {
            Some(version) => format!("{} (version {version})", user.job.local()),
            None => user.job.local().to_owned(),
        };
        let jobs: Vec<String> = jobs.iter().map(job).collect();
        let jobs = if jobs.is_empty() {
            "–".to_owned()
        } else {
            jobs.join(", ")
        };
        lines.push(("jobs", jobs));
    }
    for (label, text) in lines {
        out.line(&format!("{:<9} {text}", out.paint(label, Paint::Dim)))?;
    }
    out.line(&out.paint("text", Paint::Dim))?;
    out.line(text.strip_suffix('\n').unwrap_or(text))
}

/// The language that the ending of a file says.
fn language_of(file: &Path) -> Option<Interpreter> {
    Some(match file.extension()?.to_str()? {
        "sh" | "bash" => Interpreter::Bash,
        "py" => Interpreter::Python3,
        "js" | "mjs" | "cjs" => Interpreter::Node,
        "php" => Interpreter::Php,
        "ps1" => Interpreter::Pwsh,
        _ => return None,
    })
}

async fn save(api: &Api, out: Out, args: &ScriptSaveArgs) -> Result<(), Failure> {
    let text = jobfile::read_script(&args.file).map_err(Failure::bad_input)?;
    let present: Option<ScriptView> = match api.get(&["scripts", &args.name], &[]).await {
        Ok(answer) => Some(read(answer)?),
        Err(_) if args.if_version.is_none() => None,
        Err(failure) => return Err(failure),
    };
    let language = match (&args.language, &present) {
        (Some(language), _) => Value::from(language.as_str()),
        (None, Some(script)) => Value::from(script.newest.language.as_str()),
        (None, None) => match language_of(&args.file) {
            Some(language) => Value::from(language.as_str()),
            None => {
                return Err(Failure::bad_input(format!(
                    "{}: its ending says no language; give --language bash, sh, python3, node, php or pwsh",
                    args.file.display()
                )));
            }
        },
    };
    let body = json!({ "language": language, "text": text, "remark": args.remark });
    let path = ["scripts", args.name.as_str()];
    // The server compares when it saves, so a save by somebody else in between is noticed.
    let expected = args.if_version.zip(present.map(|script| script.id));
    let etag = expected.map(|(version, id)| format!("\"{id}-{version}\""));
    let answer = api.change_if(Method::PUT, &path, Some(&body), etag).await?;
    print_saved(out, answer, "saved")
}

fn print_saved(out: Out, answer: Value, done: &str) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let saved: AppliedScriptView = read(answer)?;
    let version = saved.version.unwrap_or_default();
    out.line(&match saved.change {
        Change::Unchanged => {
            format!(
                "script {} has this text already, as version {version}",
                saved.name
            )
        }
        Change::Created | Change::Updated => {
            format!("script {} is {done} as version {version}", saved.name)
        }
    })
}

async fn restore(api: &Api, out: Out, args: &ScriptRestoreArgs) -> Result<(), Failure> {
    let body = json!({ "version": args.version, "remark": args.remark });
    let path = ["scripts", args.name.as_str(), "restore"];
    let answer = api.post(&path, &body).await?;
    print_saved(out, answer, "restored")
}

async fn history(api: &Api, out: Out, name: &str) -> Result<(), Failure> {
    let answer = api.get(&["scripts", name, "versions"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let found: ScriptVersions = read(answer)?;
    let mut table = out.table(&["VERSION", "WHEN", "BY", "LANGUAGE", "BYTES", "REMARK"]);
    for version in &found.versions {
        table.add_row(vec![
            cell(version.version.to_string(), None),
            cell(relative(version.at, found.now), None),
            cell(one_line(&version.by, 40), None),
            cell(version.language.as_str(), None),
            cell(version.bytes.to_string(), None),
            cell(one_line(&version.remark, 60), None),
        ]);
    }
    out.print_table(&table, "there are no versions")
}

async fn diff(api: &Api, out: Out, args: &ScriptDiffArgs) -> Result<(), Failure> {
    let from: ScriptVersionView = read(version(api, &args.name, args.from).await?)?;
    let to: ScriptVersionView = if let Some(number) = args.to {
        read(version(api, &args.name, number).await?)?
    } else {
        let answer = api.get(&["scripts", &args.name], &[]).await?;
        read::<ScriptView>(answer)?.newest
    };
    let text = |version: &ScriptVersionView| version.text.clone().unwrap_or_default();
    let (before, after) = (text(&from), text(&to));
    let lines = unified(&before, &after, (from.version, to.version));
    if out.is_json() {
        return out.json(&json!({
            "name": args.name, "from": from.version, "to": to.version,
            "language": [from.language, to.language], "diff": lines,
        }));
    }
    if from.language != to.language {
        out.line(&format!("language {} → {}", from.language, to.language))?;
    }
    if lines.is_empty() && from.language == to.language {
        return out.line("no differences");
    }
    for line in lines.lines() {
        let paint = match line.as_bytes().first() {
            Some(b'+') => Paint::Good,
            Some(b'-') => Paint::Bad,
            _ => Paint::Dim,
        };
        out.line(&out.paint(line, paint))?;
    }
    Ok(())
}

/// A unified diff; empty if the texts are the same.
fn unified(before: &str, after: &str, (from, to): (i64, i64)) -> String {
    let diff = TextDiff::from_lines(before, after);
    diff.unified_diff()
        .header(&format!("version {from}"), &format!("version {to}"))
        .to_string()
}

async fn apply_files(api: &Api, out: Out, args: &ScriptApplyArgs) -> Result<(), Failure> {
    let found =
        jobfile::read_all(&args.files, api.namespace()).map_err(|error| Failure::BadInput {
            messages: error.messages,
            summary: Some("nothing was saved".to_owned()),
        })?;
    let answer = send(api, &found.scripts, args.dry_run).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    print_applied(out, &read(answer)?)
}

/// The newest versions of scripts, in the form of job files.
pub(crate) async fn definitions(api: &Api, names: &BTreeSet<ScriptName>) -> Result<Value, Failure> {
    let mut scripts = Vec::with_capacity(names.len());
    for name in names {
        let api = api.in_namespace(&name.namespace());
        let answer = api.get(&["scripts", name.local()], &[]).await?;
        let ScriptView { name, newest, .. } = read(answer)?;
        scripts.push(ScriptSpec {
            name,
            language: newest.language,
            text: newest.text.unwrap_or_default(),
            remark: newest.remark,
        });
    }
    Ok(json!(scripts))
}

/// Prints what an apply changed.
pub(crate) fn print_applied(out: Out, answer: &ScriptsApplied) -> Result<(), Failure> {
    let mut counts = [0_usize; 3];
    for one in &answer.applied {
        let (index, word, paint) = match one.change {
            Change::Created => (0, "created", Paint::Good),
            Change::Updated => (1, "changed", Paint::Warn),
            Change::Unchanged => (2, "unchanged", Paint::Dim),
        };
        counts[index] += 1;
        if one.change != Change::Unchanged {
            let word = out.paint(word, paint);
            out.line(&format!("{word:<9} script {}", one.name))?;
        }
    }
    let [created, changed, unchanged] = counts;
    let would = if answer.dry_run {
        " (nothing was changed: dry run)"
    } else {
        ""
    };
    out.line(&format!(
        "scripts: {created} created, {changed} changed, {unchanged} unchanged{would}"
    ))
}

/// Sends scripts, those of each namespace in requests of their own. Returns one answer in the order of `specs`.
pub(crate) async fn send(api: &Api, specs: &[ScriptSpec], dry_run: bool) -> Result<Value, Failure> {
    let mut parts: BTreeMap<Namespace, Vec<(usize, Value)>> = BTreeMap::new();
    for (position, spec) in specs.iter().enumerate() {
        let value = serde_json::to_value(spec)
            .map_err(|error| Failure::failed(format!("failed to send the script: {error}")))?;
        let part = parts.entry(spec.name.namespace()).or_default();
        part.push((position, value));
    }
    let mut applied = vec![Value::Null; specs.len()];
    for (namespace, part) in parts {
        let api = api.in_namespace(&namespace);
        for request in requests(part) {
            let (positions, scripts): (Vec<usize>, Vec<Value>) = request.into_iter().unzip();
            let body = json!({ "scripts": scripts, "dry_run": dry_run });
            let mut answer = api.post(&["scripts", "apply"], &body).await?;
            let Some(Value::Array(found)) = answer.get_mut("applied").map(Value::take) else {
                continue;
            };
            for (position, one) in positions.into_iter().zip(found) {
                applied[position] = one;
            }
        }
    }
    Ok(json!({ "dry_run": dry_run, "applied": applied }))
}

/// Cuts a list of scripts into requests that the server accepts.
fn requests(scripts: Vec<(usize, Value)>) -> Vec<Vec<(usize, Value)>> {
    let mut requests: Vec<Vec<(usize, Value)>> = Vec::new();
    let mut room = 0;
    for (position, script) in scripts {
        let bytes = script.to_string().len();
        if bytes > room {
            room = MAX_REQUEST_BYTES;
            requests.push(Vec::new());
        }
        room = room.saturating_sub(bytes);
        if let Some(last) = requests.last_mut() {
            last.push((position, script));
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_shows_the_lines_that_differ() {
        let lines = unified("a\nb\nc\n", "a\nB\nc\n", (3, 4));
        assert_eq!(
            lines,
            "--- version 3\n+++ version 4\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
        );
        assert_eq!(unified("a\n", "a\n", (1, 2)), "");
    }

    #[test]
    fn many_long_scripts_are_sent_in_several_requests() {
        let long = |n: usize| (n, json!({ "text": "x".repeat(1024 * 1024) }));
        let sent = requests((0..7).map(long).collect());
        let counts: Vec<usize> = sent.iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 2, 2, 1]);
        let order: Vec<usize> = sent.into_iter().flatten().map(|(n, _)| n).collect();
        assert_eq!(order, (0..7).collect::<Vec<_>>());
    }

    #[test]
    fn the_ending_of_a_file_says_the_language() {
        for (file, language) in [
            ("a.py", Some(Interpreter::Python3)),
            ("a.b.sh", Some(Interpreter::Bash)),
            ("a.txt", None),
            ("a", None),
        ] {
            assert_eq!(language_of(Path::new(file)), language, "{file}");
        }
    }
}
