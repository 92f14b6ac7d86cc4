//! The texts of scripts that jobs run.

use std::sync::Arc;

use cueline_model::Job;
use cueline_model::handler::Interpreter;
use cueline_model::script::ScriptBody;

use super::convert::corrupt;
use crate::StoreError;

/// The version that a job runs: job, script, version.
pub type UseRow = (i64, i64, i64);

/// A text that jobs run: script, version, language, text.
pub type BodyRow = (i64, i64, String, String);

/// A language, by its stored word.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for an unknown word.
pub fn language(word: &str) -> Result<Interpreter, StoreError> {
    let mut all = Interpreter::ALL.into_iter();
    let found = all.find(|(known, _)| *known == word);
    found.map(|(_, language)| language).ok_or_else(|| {
        let cause = format!("unknown language {word:?}");
        corrupt("failed to read a script", cause)
    })
}

/// The jobs of these that use a script.
pub fn with_scripts(jobs: &[Arc<Job>]) -> Vec<i64> {
    let with = jobs.iter().filter(|job| job.spec.script().is_some());
    with.map(|job| job.id.0).collect()
}

/// A body from its row.
///
/// # Errors
///
/// As [`language`].
pub fn script_body(row: BodyRow) -> Result<((i64, i64), Arc<ScriptBody>), StoreError> {
    let (script, version, word, text) = row;
    let body = ScriptBody {
        version,
        language: language(&word)?,
        text: text.into(),
    };
    Ok(((script, version), Arc::new(body)))
}
