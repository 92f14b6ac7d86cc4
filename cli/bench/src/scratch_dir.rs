//! The directory of a benchmark's files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A directory that is deleted when dropped.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    path: PathBuf,
}

impl ScratchDir {
    /// Creates it in `parent`, or in the system's temporary directory.
    pub(crate) fn new(parent: Option<&Path>, name: &str) -> Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = parent.join(format!("cueline-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("--data: failed to create {}", path.display()))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.path) {
            eprintln!("failed to delete {}: {e}", self.path.display());
        }
    }
}
