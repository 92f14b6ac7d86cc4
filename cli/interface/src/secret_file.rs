//! Small files that hold one secret: an address with a password, a token, a key.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The largest file that is read.
const MAX_BYTES: u64 = 64 * 1024;

/// Reads a file of text, without the white space around it.
pub fn read(path: &Path) -> Result<String, String> {
    let name = path.display();
    let failed = |error: std::io::Error| format!("{name}: failed to read: {error}");
    // Checked before opening, because opening a pipe without a writer blocks forever.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(format!("{name}: is not a file"));
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("{name}: has more than {MAX_BYTES} bytes"));
    }
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("{name}: is empty"));
    }
    Ok(text.to_owned())
}

/// A warning if users other than the file's owner can read it.
///
/// It is no error. In a container, secrets are often readable by all users, and this process is the only user.
pub fn permission_warning(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    let name = path.display();
    (mode & 0o077 != 0).then(|| {
        format!("{name}: others on this machine can read this secret; run: chmod 600 {name}")
    })
}
