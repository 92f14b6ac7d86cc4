//! Where a benchmark puts its files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A directory that is deleted at the end.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// In `parent`, or where the system keeps what is temporary.
    pub(super) fn new(parent: Option<&Path>, name: &str) -> Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = parent.join(format!("cueline-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("--data: failed to make {}", path.display()))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.path) {
            eprintln!("failed to delete {}: {e}", self.path.display());
        }
    }
}
