//! Ports that no two test programs use at once.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use nix::unistd::geteuid;

/// Ports below the range that systems use for outgoing connections. Otherwise a client of a killed server could get the
/// server's port, connect to itself, and keep the server from starting again.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// The locks of this process's ports. The system releases them when the process ends, however it ends.
static LOCKS: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A free port on the loopback address. No other test program gets it while this process runs, so a server that was
/// killed finds its port free when it starts again.
pub fn free_port() -> Result<u16> {
    let folder = lock_folder()?;
    for _ in 0..1_000 {
        let random = RandomState::new().hash_one(std::process::id());
        let port = PORTS.start + u16::try_from(random % PORTS.len() as u64)?;
        let Some(lock) = lock(&folder, port)? else {
            continue;
        };
        // A program that takes no locks may use it.
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
            locks.push(lock);
            return Ok(port);
        }
    }
    bail!("there is no free port in {PORTS:?}")
}

/// The folder with one file for each port. Each user has a folder, because users may not open each other's files.
fn lock_folder() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("cueline-test-ports-{}", geteuid()));
    fs::create_dir_all(&folder)
        .with_context(|| format!("failed to create {}", folder.display()))?;
    Ok(folder)
}

/// Locks a port until the file is closed. `None` if it is locked already, also by this process.
fn lock(folder: &Path, port: u16) -> Result<Option<File>> {
    let path = folder.join(port.to_string());
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .with_context(|| format!("failed to open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => {
            Err(e).with_context(|| format!("failed to lock {}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_belongs_to_one_program_also_while_its_server_is_away() {
        let port = free_port().unwrap();
        let server = TcpListener::bind(("127.0.0.1", port)).unwrap();
        drop(server);
        // A lock belongs to an open file, so another process would see the same.
        let again = lock(&lock_folder().unwrap(), port).unwrap();
        assert!(again.is_none(), "another program could take port {port}");
        TcpListener::bind(("127.0.0.1", port)).unwrap();
    }
}
