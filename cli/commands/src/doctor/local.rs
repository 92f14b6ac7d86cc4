//! Files on this machine: the discovery file, the token file and the data directory.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use cueline_interface::discovery::{self, Discovered};

use super::check::{Check, Level};

const FREE_WARN_BYTES: u64 = 1 << 30;
const FREE_BAD_BYTES: u64 = 100 << 20;

/// Finds the server that announced itself on this machine, and checks its token file.
pub(super) fn announced_server(checks: &mut Vec<Check>) -> Option<Discovered> {
    let found = match discovery::read() {
        Ok(found) => found?,
        Err(error) => {
            let file = discovery::path().unwrap_or_default();
            checks.push(Check::problem(
                Level::Warn,
                "discovery",
                format!("failed to read {}: {error}", file.display()),
                "delete the file; a standalone server writes it when it starts",
            ));
            return None;
        }
    };
    let file = found.token_file.display();
    match std::fs::metadata(&found.token_file) {
        Ok(metadata) => {
            let mode = metadata.permissions().mode() & 0o777;
            let for_others = mode & 0o077;
            if for_others == 0 {
                checks.push(Check::ok(
                    "token",
                    format!("{file} is readable by its owner only"),
                ));
            } else {
                checks.push(Check::problem(
                    Level::Warn,
                    "token",
                    format!("{file} has mode {mode:03o}: others on this machine can read it"),
                    format!("chmod 600 {file}"),
                ));
            }
        }
        Err(error) => checks.push(Check::problem(
            Level::Warn,
            "token",
            format!("failed to look at {file}: {error}"),
            "run this as the user who started the server, or set CUELINE_TOKEN",
        )),
    }
    Some(found)
}

/// Checks whether the data directory is writable and has space.
pub(super) async fn check_data_dir(data: PathBuf, checks: &mut Vec<Check>) {
    let shown = data.display().to_string();
    let looked = tokio::task::spawn_blocking(move || {
        let probe = data.join(format!(".doctor-{}", std::process::id()));
        std::fs::write(&probe, b"x").and_then(|()| std::fs::remove_file(&probe))?;
        let space = nix::sys::statvfs::statvfs(&data)?;
        std::io::Result::Ok(
            space
                .blocks_available()
                .saturating_mul(space.fragment_size()),
        )
    });
    let free = match looked.await {
        Ok(Ok(free)) => free,
        Ok(Err(error)) => {
            checks.push(Check::problem(
                Level::Bad,
                "data",
                format!("{shown} cannot be written to: {error}"),
                "give the server's user the right to write there, or name another directory",
            ));
            return;
        }
        Err(_) => return,
    };
    let text = format!("{shown} is writable, {} MiB free", free >> 20);
    let hint = "make room on that file system: without it the server cannot write";
    checks.push(match free {
        0..FREE_BAD_BYTES => Check::problem(Level::Bad, "data", text, hint),
        FREE_BAD_BYTES..FREE_WARN_BYTES => Check::problem(Level::Warn, "data", text, hint),
        _ => Check::ok("data", text),
    });
}
