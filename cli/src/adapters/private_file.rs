//! Database files that only their owner can read.

use std::path::Path;

use cueline_runtime::private_files;

/// Creates `file` if it does not exist, and denies access to all other users.
///
/// Databases hold scripts, environments and parameters. SQLite gives the files beside a database the same mode.
pub(super) fn keep_private(file: &Path) -> Result<(), String> {
    private_files::open(file).map(drop).map_err(|error| {
        format!(
            "{}: failed to deny access to other users: {error}",
            file.display()
        )
    })
}
