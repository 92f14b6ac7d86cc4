//! Database files that only their owner can read.

use std::fs::OpenOptions;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Creates `file` if it does not exist, and denies access to all other users.
///
/// Databases hold scripts, environments and parameters. SQLite gives the files beside a database the same mode.
pub(super) fn keep_private(file: &Path) -> Result<(), String> {
    let private = || {
        let opened = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(file)?;
        let mut mode = opened.metadata()?.permissions();
        if mode.mode() & 0o077 != 0 {
            mode.set_mode(mode.mode() & 0o700);
            opened.set_permissions(mode)?;
        }
        std::io::Result::Ok(())
    };
    private().map_err(|error| {
        format!(
            "{}: failed to deny access to other users: {error}",
            file.display()
        )
    })
}
