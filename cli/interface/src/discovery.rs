//! Lets commands find the standalone server of the same user.
//!
//! The server writes its address, the path of its token file and the path of its socket to
//! `${XDG_STATE_HOME:-$HOME/.local/state}/cueline/server.json`. The token itself is not in it.
//!
//! Commands talk to the announced server over the socket only. The announcement may be stale, and another user's program
//! may listen on the address now. It would receive the token. The socket belongs to the server's user, which commands
//! check.

use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cueline_runtime::private_files;
use nix::unistd::{Uid, geteuid};
use serde::{Deserialize, Serialize};

/// A server's announcement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovered {
    /// The address of the server.
    pub url: String,
    /// The file that holds its admin token.
    pub token_file: PathBuf,
    /// The Unix socket on which it answers.
    pub socket: PathBuf,
}

impl Discovered {
    /// Why the socket cannot be the server's. `None` if it may be.
    pub fn socket_problem(&self) -> Option<String> {
        let socket = self.socket.display();
        let owner = match std::fs::symlink_metadata(&self.socket) {
            Ok(metadata) => Uid::from_raw(metadata.uid()),
            Err(error) => return Some(format!("failed to look at its socket {socket}: {error}")),
        };
        let own = geteuid();
        (owner != own && !own.is_root())
            .then(|| format!("its socket {socket} belongs to another user (user id {owner})"))
    }
}

/// The path of the file; `None` for a user without a home.
pub fn path() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("cueline/server.json"))
}

/// Announces a server to the commands of this user. Does nothing for a user without a home.
pub fn write(url: &str, token_file: &Path, socket: &Path) -> io::Result<()> {
    path().map_or(Ok(()), |path| write_at(&path, url, token_file, socket))
}

/// The server that was announced last.
pub fn read() -> io::Result<Option<Discovered>> {
    path().map_or(Ok(None), |path| read_at(&path))
}

/// Removes the announcement of the server with this socket, unless another server was announced since.
pub fn remove_if(socket: &Path) {
    if let Some(path) = path()
        && let Err(error) = remove_at(&path, socket)
    {
        tracing::debug!(%error, "failed to remove the discovery file; it is stale and does no harm");
    }
}

fn write_at(path: &Path, url: &str, token_file: &Path, socket: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    private_files::create_dir(folder)?;
    let found = Discovered {
        url: url.to_owned(),
        // Absolute, because commands run in any directory.
        token_file: std::path::absolute(token_file)?,
        socket: std::path::absolute(socket)?,
    };
    // A new file replaces the old one by a rename, so that no command reads half a file.
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = private_files::open(&beside)?;
    // An earlier process with this id may have left it behind.
    file.set_len(0)?;
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

fn remove_at(path: &Path, socket: &Path) -> io::Result<()> {
    match read_at(path)? {
        Some(found) if found.socket == socket => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::{read_at, remove_at, write_at};

    #[test]
    fn the_last_server_is_found_and_only_it_withdraws_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cueline/server.json");
        assert_eq!(read_at(&path).expect("no file is no error"), None);
        remove_at(&path, "/one/s".as_ref()).expect("nothing to take back");

        let write =
            |url: &str, socket: &str| write_at(&path, url, "data/token".as_ref(), socket.as_ref());
        write("http://one", "/one/s").expect("written");
        write("http://two", "/two/s").expect("written over");
        remove_at(&path, "/one/s".as_ref()).expect("another one's is left alone");
        let found = read_at(&path).expect("readable").expect("there");
        assert_eq!(found.url, "http://two");
        assert!(found.token_file.is_absolute());

        let mode = std::fs::metadata(&path).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600);

        remove_at(&path, "/two/s".as_ref()).expect("taken back");
        assert_eq!(read_at(&path).expect("no file is no error"), None);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("server.json");
        std::fs::write(&path, "{\"url\":").expect("written");
        assert!(read_at(&path).is_err());
    }

    #[test]
    fn a_socket_that_is_missing_or_of_another_user_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let found = |socket: std::path::PathBuf| super::Discovered {
            url: "http://127.0.0.1:1".to_owned(),
            token_file: folder.path().join("token"),
            socket,
        };
        let missing = found(folder.path().join("api.sock")).socket_problem();
        assert!(missing.is_some_and(|why| why.contains("api.sock")));
        std::fs::write(folder.path().join("own"), "").expect("written");
        assert_eq!(found(folder.path().join("own")).socket_problem(), None);
        if nix::unistd::geteuid().is_root() {
            println!("not checked: root may use the socket of any user");
        } else {
            let others = found("/".into()).socket_problem();
            assert!(others.is_some_and(|why| why.contains("another user")));
        }
    }
}
