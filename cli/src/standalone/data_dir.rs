//! The data directory: its lock and its secrets.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cueline_protocol::SigningKey;
use cueline_runtime::private_files;
use rand::TryRng as _;

/// A data directory that this process owns until it ends.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    token: String,
    key: SigningKey,
    _lock: File,
}

impl DataDir {
    /// Creates the directory if it does not exist, takes its lock, and reads or creates its secrets.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if path.exists() && !path.is_dir() {
            bail!(
                "--data {}: is not a directory; give a directory, or a path where one can be created",
                path.display()
            );
        }
        private_files::create_dir(path).with_context(|| {
            format!("--data {}: failed to create the directory", path.display())
        })?;
        let path = path
            .canonicalize()
            .with_context(|| format!("--data {}: failed to find the directory", path.display()))?;
        let lock = take_lock(&path)?;
        private_files::create_dir(&path.join("executors"))
            .with_context(|| format!("--data {}: failed to write there", path.display()))?;
        let token = secret(&path.join("admin.token"), || Ok(hex(&random()?)))?;
        let key = secret(&path.join("signing.key"), || {
            Ok(SigningKey::from_seed(random()?).to_base64())
        })?;
        let key = SigningKey::from_base64(&key).with_context(|| {
            format!(
                "{}: is not a signing key; restore it from a backup, or delete it and a new one is created",
                path.join("signing.key").display()
            )
        })?;
        Ok(Self {
            path,
            token,
            key,
            _lock: lock,
        })
    }

    /// The directory, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The admin token.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// The file with the admin token.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.path.join("admin.token")
    }

    /// The socket on which the API answers the commands of this user.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("api.sock")
    }

    /// The key that signs triggers.
    pub(crate) fn key(&self) -> &SigningKey {
        &self.key
    }
}

fn take_lock(path: &Path) -> Result<File> {
    let file = path.join("lock");
    let mut lock = private_files::open(&file)
        .with_context(|| format!("--data {}: failed to write there", path.display()))?;
    match lock_soon(&lock) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = lock.read_to_string(&mut pid);
            let owner = if pid.is_empty() {
                "another process".to_owned()
            } else {
                format!("process {pid}")
            };
            bail!(
                "--data {}: in use by {owner}; each cueline standalone needs a data directory of its own",
                path.display()
            );
        }
        Err(TryLockError::Error(e)) => {
            return Err(e).with_context(|| format!("--data {}: failed to lock it", path.display()));
        }
    }
    lock.set_len(0)
        .and_then(|()| lock.write_all(std::process::id().to_string().as_bytes()))
        .with_context(|| format!("--data {}: failed to write there", path.display()))?;
    Ok(lock)
}

/// Waits a few milliseconds for the lock. A server may be killed while it starts a process. The forked process inherits
/// the lock and holds it until it executes its program, and a supervisor may start the next server meanwhile.
fn lock_soon(lock: &File) -> Result<(), TryLockError> {
    const TRIES: u32 = 40;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(25);
    for _ in 0..TRIES {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    lock.try_lock()
}

/// Reads a secret. The first start creates it, readable by its owner only.
fn secret(file: &Path, make: impl FnOnce() -> Result<String>) -> Result<String> {
    match fs::read_to_string(file) {
        Ok(text) if !text.trim().is_empty() => {
            let mode = fs::metadata(file)?.permissions().mode();
            if mode & 0o077 != 0 {
                bail!(
                    "{}: other users can read this secret (mode {:o}); run: chmod 600 {}",
                    file.display(),
                    mode & 0o777,
                    file.display()
                );
            }
            return Ok(text.trim().to_owned());
        }
        // An empty file means that the last start was killed between creating and filling it.
        Ok(_) => fs::remove_file(file)
            .with_context(|| format!("failed to replace the empty {}", file.display()))?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(e).with_context(|| format!("failed to read {}", file.display())),
    }
    let text = make()?;
    let failed = || format!("failed to write {}", file.display());
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .with_context(failed)?;
    out.write_all(text.as_bytes())
        .and_then(|()| out.sync_all())
        .with_context(failed)?;
    Ok(text)
}

fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .context("failed to get random bytes from the system")?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
