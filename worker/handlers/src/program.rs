//! Finds a program in the search path. The system could do this too. Its error for a missing program is unclear, and
//! it cannot use the fast way to start a process.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use cueline_worker::Failure;
use nix::unistd::{AccessFlags, access};

/// The file that runs for `program`. A name with a `/` is used unchanged.
pub(crate) fn find(program: &str, path: &OsStr) -> Result<PathBuf, Failure> {
    if program.is_empty() {
        return Err(Failure::new("the program's name is empty"));
    }
    if program.contains('/') {
        return Ok(PathBuf::from(program));
    }
    std::env::split_paths(path)
        // An empty part means the current directory by an old convention. It is ignored, because any file there could
        // take the place of a program.
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
