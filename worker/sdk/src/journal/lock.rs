//! The lock of the state directory: one worker at a time.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use cueline_runtime::private_files;

use super::error::JournalError;

/// A worker may be killed while it starts a process. The forked process inherits the lock and holds it until it
/// executes its program. That takes a few milliseconds, and a supervisor may start the next worker meanwhile.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(25);

/// Creates the directory if it does not exist, and locks it until the returned file is dropped.
pub(super) fn lock(directory: &Path) -> Result<File, JournalError> {
    let failed_at = |path: &Path| {
        let path = path.to_owned();
        move |source| JournalError::Open { path, source }
    };
    private_files::create_dir(directory).map_err(failed_at(directory))?;
    let path = directory.join("worker.lock");
    let file = private_files::open(&path).map_err(failed_at(&path))?;
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(source)) => return Err(failed_at(&path)(source)),
        }
    }
    Err(JournalError::Locked(path))
}
