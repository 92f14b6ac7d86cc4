//! The file of a worker's key: one line with a prefix, which tells it from other secrets.
//!
//! A new key waits in a second file until schedulers accept it. Renaming that file then replaces the old key.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cueline_protocol::origin::WorkerKey;
use cueline_runtime::private_files;
use rand::TryRng as _;

use super::text_file;

/// The beginning of the line.
const PREFIX: &str = "cueline-worker-key:";
/// The name of the file in a state directory.
const FILE_NAME: &str = "worker.key";

/// Why the file of a worker's key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read or written.
    #[error("failed to {action} {}: {error}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file has something else.
    #[error("{} is not a worker's key; one line {PREFIX}… is expected", .0.display())]
    NoKey(PathBuf),
    /// The key is already being replaced.
    #[error("{} exists: the key is already being replaced; start the worker to finish that", .0.display())]
    NextExists(PathBuf),
    /// The system has no random bytes.
    #[error("failed to get random bytes from the system: {0}")]
    Random(String),
}

/// The file of a worker's key, and the file of the next one beside it.
#[derive(Debug, Clone)]
pub struct KeyFile(PathBuf);

impl KeyFile {
    /// A file with this path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The file `worker.key` in a state directory.
    pub fn in_state_dir(directory: &Path) -> Self {
        Self(directory.join(FILE_NAME))
    }

    /// Where the key is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where the next key waits: the path with `.next` behind it.
    pub fn next_path(&self) -> PathBuf {
        let mut path = self.0.clone().into_os_string();
        path.push(".next");
        path.into()
    }

    /// Reads the key. Makes one, which only this user can read, if there is no file. Makes its directory too.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`] if the file cannot be read or made, or has no key.
    pub fn read_or_create(&self) -> Result<WorkerKey, KeyFileError> {
        match self.read() {
            Err(KeyFileError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => {}
            read => return read,
        }
        match create(&self.0, &new_key()?) {
            // Another process was faster. Its key is valid.
            Err(KeyFileError::Io { error, .. }) if error.kind() == ErrorKind::AlreadyExists => {}
            created => created?,
        }
        self.read()
    }

    /// Reads the key.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`] if the file cannot be read, or has no key.
    pub fn read(&self) -> Result<WorkerKey, KeyFileError> {
        read(&self.0)
    }

    /// Reads the next key, if there is one.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`] if its file cannot be read, or has no key.
    pub fn read_next(&self) -> Result<Option<WorkerKey>, KeyFileError> {
        match read(&self.next_path()) {
            Ok(key) => Ok(Some(key)),
            Err(KeyFileError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the next key. The worker asks schedulers at its next start to accept it.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`] if there is no present key, if there already is a next one, or if its file cannot be made.
    pub fn create_next(&self) -> Result<WorkerKey, KeyFileError> {
        self.read()?;
        let (path, key) = (self.next_path(), new_key()?);
        match create(&path, &key) {
            Err(KeyFileError::Io { error, .. }) if error.kind() == ErrorKind::AlreadyExists => {
                Err(KeyFileError::NextExists(path))
            }
            created => created.map(|()| key),
        }
    }

    /// Replaces the key by the next one.
    ///
    /// # Errors
    ///
    /// [`KeyFileError::Io`] if the file cannot be renamed.
    pub fn adopt_next(&self) -> Result<(), KeyFileError> {
        let next = self.next_path();
        let renamed = fs::rename(&next, &self.0).and_then(|()| sync_directory(&self.0));
        renamed.map_err(failed("rename", &next))
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyFileError {
    let path = path.to_owned();
    move |error| KeyFileError::Io {
        action,
        path,
        error,
    }
}

fn read(path: &Path) -> Result<WorkerKey, KeyFileError> {
    let text = text_file::read(path).map_err(failed("read", path))?;
    text.as_deref()
        .unwrap_or_default()
        .trim()
        .strip_prefix(PREFIX)
        .and_then(|key| WorkerKey::from_base64(key).ok())
        .ok_or_else(|| KeyFileError::NoKey(path.to_owned()))
}

/// Makes the file, complete or not at all. Fails if it exists.
fn create(path: &Path, key: &WorkerKey) -> Result<(), KeyFileError> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    let linked = private_files::create_dir(directory_of(path))
        .and_then(|()| write(&unfinished, key))
        .and_then(|()| fs::hard_link(&unfinished, path))
        .and_then(|()| sync_directory(path));
    // What is left behind is removed by the next process that has this id.
    let _ = fs::remove_file(&unfinished);
    linked.map_err(failed("create", path))
}

fn write(path: &Path, key: &WorkerKey) -> io::Result<()> {
    // A process that was killed may have left it behind, with the same process id.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{PREFIX}{}", key.to_base64())?;
    file.sync_all()
}

/// Makes a new name in the file's directory durable.
fn sync_directory(file: &Path) -> io::Result<()> {
    File::open(directory_of(file))?.sync_all()
}

fn directory_of(file: &Path) -> &Path {
    let parent = file.parent().filter(|path| !path.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

fn new_key() -> Result<WorkerKey, KeyFileError> {
    let mut seed = [0; 32];
    rand::rngs::SysRng
        .try_fill_bytes(&mut seed)
        .map_err(|error| KeyFileError::Random(error.to_string()))?;
    Ok(WorkerKey::from_seed(seed))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it exists").permissions().mode() & 0o777
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_key_is_made_once_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = KeyFile::in_state_dir(folder.path());
        let made = file.read_or_create().expect("made");
        assert_eq!(mode(file.path()), 0o600);
        let read = file.read_or_create().expect("read");
        assert_eq!(read.public(), made.public());
        assert_eq!(names(folder.path()), ["worker.key"]);
        let other = KeyFile::new(folder.path().join("other"));
        let other = other.read_or_create().expect("made");
        assert_ne!(other.public(), made.public());
    }

    #[test]
    fn the_next_key_waits_until_it_is_adopted() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = KeyFile::in_state_dir(folder.path());
        assert!(file.create_next().is_err(), "there is no key to replace");
        let first = file.read_or_create().expect("made");
        assert!(file.read_next().expect("readable").is_none());
        let next = file.create_next().expect("made");
        assert_eq!(mode(&file.next_path()), 0o600);
        assert!(matches!(
            file.create_next(),
            Err(KeyFileError::NextExists(_))
        ));
        assert_eq!(file.read().expect("a key").public(), first.public());
        let waiting = file.read_next().expect("readable").expect("a key");
        assert_eq!(waiting.public(), next.public());
        file.adopt_next().expect("renamed");
        assert_eq!(file.read().expect("a key").public(), next.public());
        assert_eq!(names(folder.path()), ["worker.key"]);
    }

    #[test]
    fn another_file_is_refused_and_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = KeyFile::in_state_dir(folder.path());
        for text in ["", "cueline-secret-key:AAAA", "cueline-worker-key:AAAA"] {
            fs::write(file.path(), text).expect("written");
            let refused = file.read_or_create();
            assert!(matches!(refused, Err(KeyFileError::NoKey(_))), "{text}");
            assert_eq!(fs::read_to_string(file.path()).expect("read"), text);
        }
    }
}
