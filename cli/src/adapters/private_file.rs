//! Files that only their owner may read.

use std::fs::OpenOptions;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Scripts, environments and parameters are in databases: only their owner may read them, whatever the directory allows. What SQLite
/// puts beside them gets the same mode.
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
    private().map_err(|error| format!("{}: failed to keep it from others: {error}", file.display()))
}
