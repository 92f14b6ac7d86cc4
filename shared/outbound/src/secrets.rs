//! Reads the values of secrets, from a directory and from variables. No message contains a value.

use std::env::VarError;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cueline_model::SecretName;

/// The longest value. It is less than half of the longest log line, so that a line is never one unfinished value.
pub const MAX_VALUE_BYTES: u64 = 32 * 1024;

/// The variable of a secret is this prefix and the name in upper case, with `_` for `.` and `-`.
const VARIABLE_PREFIX: &str = "CUELINE_SECRET_";

/// The value in a directory that has one file for each secret, under its name. `None` if there is no such file. It may be on
/// a slow volume, so a blocking thread reads it.
///
/// # Errors
///
/// The file and what is wrong with it: other users can use it, or it has no text.
pub async fn of_directory(dir: &Path, name: &SecretName) -> Result<Option<String>, String> {
    let path = dir.join(name.as_str());
    let shown = path.display().to_string();
    let read = tokio::task::spawn_blocking(move || read_file(&path));
    let read = read
        .await
        .unwrap_or_else(|e| Err(format!("the read was interrupted: {e}")));
    let value = read.and_then(|bytes| bytes.map(text).transpose());
    value.map_err(|problem| format!("{shown} {problem}"))
}

/// The value in the variable of a secret. `None` if it is not set.
///
/// # Errors
///
/// The variable and what is wrong with its value.
pub fn of_environment(name: &SecretName) -> Result<Option<String>, String> {
    let variable = variable(name);
    match std::env::var(&variable) {
        Ok(value) if !value.is_empty() => text(value.into_bytes())
            .map(Some)
            .map_err(|problem| format!("{variable} {problem}")),
        Err(VarError::NotUnicode(_)) => Err(format!("{variable} is not UTF-8 text")),
        _ => Ok(None),
    }
}

/// The variable of a secret.
pub fn variable(name: &SecretName) -> String {
    let name = name.as_str().to_ascii_uppercase().replace(['.', '-'], "_");
    format!("{VARIABLE_PREFIX}{name}")
}

/// Checks a value, and cuts the line end that editors and programs add.
///
/// # Errors
///
/// What is wrong with it.
pub fn text(bytes: Vec<u8>) -> Result<String, String> {
    if bytes.len() as u64 > MAX_VALUE_BYTES {
        return Err(format!("has more than {} KiB", MAX_VALUE_BYTES / 1024));
    }
    let mut text = String::from_utf8(bytes).map_err(|_| "is not UTF-8 text")?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if text.contains('\0') {
        return Err("has a NUL character".to_owned());
    }
    Ok(text)
}

fn read_file(path: &PathBuf) -> Result<Option<Vec<u8>>, String> {
    let failed = |error: std::io::Error| format!("could not be read: {error}");
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    // Checked before opening, because opening a pipe without a writer blocks forever.
    if !metadata.is_file() {
        return Err("is not a file".to_owned());
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(format!(
            "has mode {mode:03o}, so every user of the machine can use it; give it mode 400 or 440"
        ));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_VALUE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_is_cut() {
        for (bytes, value) in [
            (&b"secret"[..], "secret"),
            (b"secret\n", "secret"),
            (b"secret\r\n", "secret"),
            (b"secret\n\n", "secret\n"),
            (b" secret ", " secret "),
            (b"a\nb\n", "a\nb"),
        ] {
            assert_eq!(text(bytes.to_vec()).as_deref(), Ok(value));
        }
    }

    #[test]
    fn unusable_values_are_refused() {
        let long = vec![b'x'; 32 * 1024 + 1];
        for (bytes, problem) in [
            (&b""[..], "is empty"),
            (b"\n", "is empty"),
            (b"a\0b", "has a NUL character"),
            (b"\xff", "is not UTF-8 text"),
            (&long, "has more than 32 KiB"),
        ] {
            assert_eq!(text(bytes.to_vec()), Err(problem.to_owned()));
        }
    }

    #[test]
    fn variables_have_the_prefix() {
        let of = |name: &str| variable(&name.parse().expect("a name"));
        assert_eq!(of("db-password.prod"), "CUELINE_SECRET_DB_PASSWORD_PROD");
    }
}
