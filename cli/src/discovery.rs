//! Lets commands find the standalone server of the same user.
//!
//! The server writes its address and the path of its token file to
//! `${XDG_STATE_HOME:-$HOME/.local/state}/cueline/server.json`. The token itself is not in it. A stale file does no
//! harm: its address does not answer, and the command reports that.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A server's announcement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Discovered {
    pub(crate) url: String,
    /// The file that holds its admin token.
    pub(crate) token_file: PathBuf,
}

/// The path of the file; `None` for a user without a home.
pub(crate) fn path() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("cueline/server.json"))
}

/// Announces the server at `url` to the commands of this user. Does nothing for a user without a home.
pub(crate) fn write(url: &str, token_file: &Path) -> io::Result<()> {
    path().map_or(Ok(()), |path| write_at(&path, url, token_file))
}

/// The server that was announced last.
pub(crate) fn read() -> io::Result<Option<Discovered>> {
    path().map_or(Ok(None), |path| read_at(&path))
}

/// Removes the announcement of the server at `url`, unless another server was announced since. A stale file does no
/// harm.
pub(crate) fn remove_if(url: &str) {
    if let Some(path) = path()
        && let Err(error) = remove_at(&path, url)
    {
        tracing::debug!(%error, "failed to remove the discovery file; it is stale and does no harm");
    }
}

fn write_at(path: &Path, url: &str, token_file: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let found = Discovered {
        url: url.to_owned(),
        // Absolute, because commands run in any directory.
        token_file: std::path::absolute(token_file)?,
    };
    // A new file replaces the old one by a rename, so that no command reads half a file.
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(&serde_json::to_vec(&found)?)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}

fn read_at(path: &Path) -> io::Result<Option<Discovered>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove_at(path: &Path, url: &str) -> io::Result<()> {
    match read_at(path)? {
        Some(found) if found.url == url => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{read_at, remove_at, write_at};

    #[test]
    fn the_last_server_is_found_and_only_it_withdraws_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cueline/server.json");
        assert_eq!(read_at(&path).expect("no file is no error"), None);
        remove_at(&path, "http://one").expect("nothing to take back");

        write_at(&path, "http://one", "data/token".as_ref()).expect("written");
        write_at(&path, "http://two", "data/token".as_ref()).expect("written over");
        remove_at(&path, "http://one").expect("another one's is left alone");
        let found = read_at(&path).expect("readable").expect("there");
        assert_eq!(found.url, "http://two");
        assert!(found.token_file.is_absolute());

        remove_at(&path, "http://two").expect("taken back");
        assert_eq!(read_at(&path).expect("no file is no error"), None);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("server.json");
        std::fs::write(&path, "{\"url\":").expect("written");
        assert!(read_at(&path).is_err());
    }
}
