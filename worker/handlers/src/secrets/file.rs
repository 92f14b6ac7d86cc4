//! Reads a secret from a file, as container platforms mount them.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::MAX_VALUE_BYTES;

/// The content of a file, or `None` if there is no such file. It may be on a slow volume, so a blocking thread reads it.
pub(super) async fn read(path: PathBuf) -> Result<Option<Vec<u8>>, String> {
    let read = tokio::task::spawn_blocking(move || {
        read_now(&path).map_err(|problem| format!("{} {problem}", path.display()))
    });
    read.await
        .unwrap_or_else(|e| Err(format!("the read was interrupted: {e}")))
}

fn read_now(path: &Path) -> Result<Option<Vec<u8>>, String> {
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
