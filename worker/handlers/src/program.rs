//! Finds a program in the search path. The system could do it, but then a missing program has no clear error, and the fast way
//! to start a process is not available.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use cueline_worker::Failure;
use nix::unistd::{AccessFlags, access};

/// The file that runs for `program`. One with a `/` in its name is taken as it stands.
pub(crate) fn find(program: &str, path: &OsStr) -> Result<PathBuf, Failure> {
    if program.is_empty() {
        return Err(Failure::new("the program's name is empty"));
    }
    if program.contains('/') {
        return Ok(PathBuf::from(program));
    }
    std::env::split_paths(path)
        // By an old convention an empty part means the current directory. It is ignored.
        .filter(|dir| !dir.as_os_str().is_empty())
        .map(|dir| dir.join(program))
        .find(|file| runnable(file))
        .ok_or_else(|| {
            Failure::new(format!(
                "program {program:?} was not found in PATH ({})",
                path.to_string_lossy()
            ))
        })
}

fn runnable(file: &Path) -> bool {
    access(file, AccessFlags::X_OK).is_ok() && file.is_file()
}
