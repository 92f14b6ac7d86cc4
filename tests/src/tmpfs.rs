//! Small file systems for tests that fill a disk or make it read-only. Only root can mount them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow};

/// A file system in memory. Dropping it unmounts it, even if the test fails.
///
/// Declare it before the processes that use it, because variables are dropped in reverse order.
#[derive(Debug)]
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts a file system of `kib` KiB on `folder`, which it creates. If mounting is not allowed, prints the reason
    /// and returns `None`.
    pub fn mount(folder: &Path, kib: u32) -> Result<Option<Self>> {
        std::fs::create_dir_all(folder)?;
        let options = format!("size={kib}k,mode=0700");
        match mount(&["-t", "tmpfs", "-o", &options, "tmpfs"], folder)? {
            Ok(()) => Ok(Some(Self(folder.to_owned()))),
            Err(refusal) => {
                println!("skipped: a tmpfs cannot be mounted here: {refusal}");
                Ok(None)
            }
        }
    }

    /// Makes it read-only.
    pub fn make_read_only(&self) -> Result<()> {
        mount(&["-o", "remount,ro"], &self.0)?
            .map_err(|refusal| anyhow!("failed to make a file system read-only: {refusal}"))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Unmount lazily: a process that was just killed may still have files open.
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.0.display());
        }
    }
}

/// Runs `mount`. Returns its error message if it refuses.
fn mount(args: &[&str], folder: &Path) -> Result<Result<(), String>> {
    let output = Command::new("mount")
        .args(args)
        .arg(folder)
        .output()
        .context("failed to start mount")?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(Err(format!("mount: {} {message}", output.status)))
}
