//! Writes jobs as a job file, as a person would: only what differs from the defaults.

use std::io::Write as _;
use std::path::Path;

use cueline_interface::Failure;
use cueline_model::{JobSpec, ScriptSpec, decode};
use serde_json::{Map, Value, json};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table};

/// Writes a file that does not exist yet.
pub(super) fn write(path: &Path, jobs: &[JobSpec], scripts: &[ScriptSpec]) -> Result<(), Failure> {
    if path.extension().is_none_or(|ext| ext != "toml") {
        return Err(Failure::bad_input(format!(
            "--write {}: a name that ends with .toml is expected",
            path.display()
        )));
    }
    let failed = |error: std::io::Error| {
        Failure::failed(format!("failed to write {}: {error}", path.display()))
    };
    let text = text(jobs, scripts)?;
    let mut file = std::fs::File::create_new(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

/// The text of a job file with these jobs and scripts.
fn text(jobs: &[JobSpec], scripts: &[ScriptSpec]) -> Result<String, Failure> {
    let failed = |error: String| Failure::failed(format!("failed to write the jobs: {error}"));
    let defaults = defaults().map_err(failed)?;
    let fields = |value: Result<Value, serde_json::Error>| match value {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(failed("a definition is no object".to_owned())),
        Err(error) => Err(failed(error.to_string())),
    };
    let mut document = DocumentMut::new();
    if !scripts.is_empty() {
        let mut tables = ArrayOfTables::new();
        for script in scripts {
            let fields = fields(serde_json::to_value(script))?;
            tables.push(table(fields, &Map::new()));
        }
        document.insert("script", Item::ArrayOfTables(tables));
    }
    let mut tables = ArrayOfTables::new();
    for job in jobs {
        let fields = fields(serde_json::to_value(job))?;
        tables.push(table(fields, &defaults));
    }
    document.insert("job", Item::ArrayOfTables(tables));
    Ok(document.to_string())
}

/// The fields of a job that says nothing itself.
fn defaults() -> Result<Map<String, Value>, String> {
    let least =
        json!({ "name": "job", "schedule": { "manual": true }, "handler": { "native": "job" } });
    let job = decode::job(&least.into()).map_err(|problems| format!("{problems:?}"))?;
    match serde_json::to_value(job) {
        Ok(Value::Object(mut fields)) => {
            for own in ["name", "schedule", "handler"] {
                fields.remove(own);
            }
            Ok(fields)
        }
        Ok(other) => Err(other.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

fn table(fields: Map<String, Value>, defaults: &Map<String, Value>) -> Table {
    let mut table = Table::new();
    for (key, value) in fields {
        let value = match (defaults.get(&key), value) {
            (Some(default), value) if *default == value => continue,
            (Some(Value::Object(default)), Value::Object(own)) => Value::Object(
                own.into_iter()
                    .filter(|(key, value)| default.get(key) != Some(value))
                    .collect(),
            ),
            (_, value) => value,
        };
        if let Some(value) = written(value) {
            table.insert(&key, Item::Value(value));
        }
    }
    table
}

fn written(value: Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(flag) => flag.into(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64()?.into(),
        },
        Value::String(text) => text.into(),
        Value::Array(items) => items
            .into_iter()
            .filter_map(written)
            .collect::<Array>()
            .into(),
        Value::Object(fields) => fields
            .into_iter()
            .filter_map(|(key, value)| Some((key, written(value)?)))
            .collect::<InlineTable>()
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cueline_interface::jobfile;

    #[test]
    fn a_written_file_reads_as_the_same_jobs() {
        let definitions = [
            json!({
                "name": "a", "group": "reports", "description": "two\nlines",
                "schedule": { "cron": "0 0 12 ? * MON#1", "timezone": "Europe/Berlin" },
                "misfire": { "policy": "skip", "grace": "1m" }, "block": { "parallel": 100 },
                "jitter": "5m", "labels": { "mailto": "ops@example.com" }, "enabled": false,
                "handler": { "shell": { "script": "echo \"a\"\n", "env": { "A": "'1'" }, "clear_env": true } },
            }),
            json!({ "name": "b", "schedule": { "every": "10s" }, "handler": { "command": ["/bin/x", "y z"] } }),
        ];
        let jobs: Vec<JobSpec> = definitions
            .into_iter()
            .map(|definition| decode::job(&definition.into()).expect("a definition"))
            .collect();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.toml");
        let namespace = cueline_model::Namespace::default();
        let script = json!({ "name": "s", "language": "bash", "text": "echo \"a\"\n\tb\n" });
        let script = decode::script(&script.into(), &namespace).expect("a script");
        let scripts = [script];
        write(&path, &jobs, &scripts).expect("a file");
        let read = jobfile::read(&path, &namespace).expect("is read");
        assert_eq!(read.jobs, jobs);
        assert_eq!(read.scripts, scripts);
        let text = std::fs::read_to_string(&path).expect("a text");
        assert!(
            !text.contains("dispatch_deadline"),
            "defaults are left out: {text}"
        );
        assert!(write(&path, &[], &[]).is_err(), "an existing file is kept");
        assert!(write(&folder.path().join("jobs.yaml"), &[], &[]).is_err());
    }
}
