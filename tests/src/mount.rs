//! Small file systems of a test's own: ones that can be full, or read-only. Only root may mount them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// A file system in memory; unmounted when dropped, also by a test that fails.
///
/// Drop it after the processes that use it: name it before them.
#[derive(Debug)]
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts one of so many KiB on `folder`, which is made. `None`, with the reason printed, where that is not allowed.
    pub fn mount(folder: &Path, kib: u32) -> Result<Option<Self>> {
        std::fs::create_dir_all(folder)?;
        let options = format!("size={kib}k,mode=0700");
        let said = mount(&["-t", "tmpfs", "-o", &options, "tmpfs"], folder)?;
        if said.is_empty() {
            return Ok(Some(Self(folder.to_owned())));
        }
        println!("skipped: a file system of the test's own cannot be mounted here: {said}");
        Ok(None)
    }

    /// From now on nothing can be written to it.
    pub fn make_read_only(&self) -> Result<()> {
        let said = mount(&["-o", "remount,ro"], &self.0)?;
        ensure!(said.is_empty(), "failed to make it read-only: {said}");
        Ok(())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily: a process that was only just killed may still have files open.
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.0.display());
        }
    }
}

/// Nothing if it worked, else why not.
fn mount(args: &[&str], folder: &Path) -> Result<String> {
    let output = Command::new("mount")
        .args(args)
        .arg(folder)
        .output()
        .context("failed to start mount")?;
    if output.status.success() {
        return Ok(String::new());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(format!("mount: {} {said}", output.status))
}
