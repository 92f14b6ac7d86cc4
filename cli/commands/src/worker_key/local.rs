//! `cueline worker-key show` and `rotate`: the key file of a worker on this machine. No secret is printed.

use cueline_interface::{Failure, Out};
use cueline_worker::{KeyFile, KeyFileError, WorkerKey};
use serde_json::{Value, json};

use super::args::LocalKeyArg;

pub(super) fn show(out: Out, arg: &LocalKeyArg) -> Result<(), Failure> {
    let file = key_file(arg)?;
    let key = file.read().map_err(|error| refused(&error))?;
    let next = file.read_next().map_err(|error| refused(&error))?;
    if out.is_json() {
        let next = next.as_ref().map(public_json);
        return out.json(&json!({ "file": file.path(), "key": public_json(&key), "next": next }));
    }
    let line = |what: &str, key: &WorkerKey| {
        let public = key.public();
        out.line(&format!("{what:<8} {}  {public}", public.id()))
    };
    line("key", &key)?;
    next.map_or(Ok(()), |next| line("next key", &next))
}

pub(super) fn rotate(out: Out, arg: &LocalKeyArg) -> Result<(), Failure> {
    let file = key_file(arg)?;
    let next = file.create_next().map_err(|error| refused(&error))?;
    let path = file.next_path();
    if out.is_json() {
        return out.json(&json!({ "file": path, "key": public_json(&next) }));
    }
    out.line(&format!(
        "{} has the key {}; restart the worker, and it replaces the present one",
        path.display(),
        next.public().id()
    ))
}

fn key_file(arg: &LocalKeyArg) -> Result<KeyFile, Failure> {
    match (&arg.file, &arg.state_dir) {
        (Some(file), None) => Ok(KeyFile::new(file)),
        (None, Some(directory)) => Ok(KeyFile::in_state_dir(directory)),
        _ => Err(Failure::bad_input(
            "give either the key file or the worker's --state-dir",
        )),
    }
}

fn public_json(key: &WorkerKey) -> Value {
    let public = key.public();
    json!({ "id": public.id(), "public": public })
}

fn refused(error: &KeyFileError) -> Failure {
    match error {
        KeyFileError::Random(_) => Failure::failed(error.to_string()),
        _ => Failure::bad_input(error.to_string()),
    }
}
