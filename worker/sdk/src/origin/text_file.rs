//! Small files with one line of text: a key, a token.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// The most bytes that are read. The rest of a file is ignored: valid lines are much shorter.
const MAX_BYTES: u64 = 1_024;

/// Reads the beginning of a file. `None` if the path is something else, such as a directory or a pipe.
pub(super) fn read(path: &Path) -> io::Result<Option<String>> {
    // Checked before opening, because opening a pipe without a writer blocks forever.
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut text = String::new();
    File::open(path)?
        .take(MAX_BYTES)
        .read_to_string(&mut text)?;
    Ok(Some(text))
}
