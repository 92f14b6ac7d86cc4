//! The identity of a worker: the executor that it is, and the key that proves it.
//!
//! The driver of the broker needs its seal before the worker is built, so it is made before both.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use cueline_broker::DeadLetterSeal;
use cueline_model::{ExecutorId, NameError};
use cueline_protocol::origin::{EnrolmentToken, InvalidEnrolmentToken, Sealer, WorkerKey};

use super::dead_letters::DeadLetterSealer;
use super::key_file::{KeyFile, KeyFileError};
use super::rotation::KeyRotation;
use super::sealing::Origin;
use super::text_file;

/// Why the identity of a worker cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The group or the name is invalid.
    #[error("failed to name the worker: {field}: {given:?}: {error}")]
    Name {
        /// `group` or `name`.
        field: &'static str,
        /// The given text.
        given: String,
        /// What is wrong with it.
        error: NameError,
    },
    /// The file of the key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The file of the enrolment token cannot be read.
    #[error("failed to read the enrolment token {}: {error}", .path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file has something else.
    #[error("{}: {error}; `cueline worker-key token --out FILE` makes one", .path.display())]
    NoToken {
        /// The file.
        path: PathBuf,
        /// The form of a token.
        error: InvalidEnrolmentToken,
    },
}

/// The executor that a worker is, with the key that proves it to schedulers.
///
/// Schedulers must accept the key once: by an enrolment token, or because an operator allows it. A next key beside the
/// key, which `cueline worker-key rotate` makes, replaces it as soon as schedulers accept that.
///
/// ```no_run
/// use cueline_broker::{Broker, BrokerOptions};
/// use cueline_broker_nats::{NatsDriver, NatsOptions};
/// use cueline_worker::{Worker, WorkerIdentity};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let identity = WorkerIdentity::open("billing", "billing-1", "/var/lib/billing")?
///     .enrol_token_file(std::env::var_os("CUELINE_ENROL_TOKEN_FILE"))?;
/// let options = NatsOptions {
///     seal_dead_letters: Some(identity.dead_letter_seal()),
///     ..NatsOptions::default()
/// };
/// let driver = NatsDriver::connect("nats://127.0.0.1:4222", options).await?;
/// let broker = Broker::new(driver, BrokerOptions::default());
/// let worker = Worker::builder("billing").identity(identity).broker(broker);
/// # worker.build()?.run_until_signal().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WorkerIdentity {
    state_dir: Option<PathBuf>,
    sealer: Sealer,
    letters: DeadLetterSealer,
    enrolment: Option<EnrolmentToken>,
    rotation: Option<KeyRotation>,
}

impl WorkerIdentity {
    /// Reads the key from `worker.key` in the state directory. Makes file and directory, for this user alone, if they
    /// are missing. The [builder](crate::Builder::identity) then uses the directory for the journal too.
    ///
    /// # Errors
    ///
    /// - [`IdentityError::Name`] if the group or the name is invalid.
    /// - [`IdentityError::Key`] if a key file cannot be read or made, or has no key.
    pub fn open(
        group: &str,
        name: &str,
        state_dir: impl Into<PathBuf>,
    ) -> Result<Self, IdentityError> {
        let executor = ExecutorId {
            group: parse("group", group)?,
            name: parse("name", name)?,
        };
        let state_dir = state_dir.into();
        let identity = Self::with_key_file(executor, &KeyFile::in_state_dir(&state_dir))?;
        Ok(Self {
            state_dir: Some(state_dir),
            ..identity
        })
    }

    /// Reads the key from a file of its own, or makes it. The journal stays in the builder's
    /// [`state_dir`](crate::Builder::state_dir).
    ///
    /// # Errors
    ///
    /// [`KeyFileError`] if a key file cannot be read or made, or has no key.
    pub fn with_key_file(executor: ExecutorId, file: &KeyFile) -> Result<Self, KeyFileError> {
        let identity = Self::new(executor, file.read_or_create()?);
        let next = file.read_next()?;
        let rotation = next.map(|next| identity.rotation_to(next, file.clone()));
        Ok(Self {
            rotation,
            ..identity
        })
    }

    /// Uses a key that is kept elsewhere.
    pub fn new(executor: ExecutorId, key: WorkerKey) -> Self {
        let sealer = Sealer::new(executor, key);
        Self {
            state_dir: None,
            letters: DeadLetterSealer::new(sealer.clone()),
            sealer,
            enrolment: None,
            rotation: None,
        }
    }

    /// Reads the enrolment token from this file, if one is given. See [`enrolment`](Self::enrolment).
    ///
    /// # Errors
    ///
    /// [`IdentityError::TokenFile`] if the file cannot be read, [`IdentityError::NoToken`] if it has no token.
    pub fn enrol_token_file(self, path: Option<impl Into<PathBuf>>) -> Result<Self, IdentityError> {
        let token = path.map(|path| read_token(path.into())).transpose()?;
        Ok(self.enrolment(token))
    }

    /// Asks schedulers to accept the key because the worker knows this token. The worker repeats that with each
    /// heartbeat, and keeps its reports, until they accept it. Default: none, for a key that they already accept.
    #[must_use]
    pub fn enrolment(mut self, token: Option<EnrolmentToken>) -> Self {
        self.enrolment = token;
        self
    }

    /// The executor that the worker is.
    pub fn executor(&self) -> &ExecutorId {
        self.sealer.executor()
    }

    /// Seals the triggers that the worker refuses. The options of the broker's driver take it as `seal_dead_letters`.
    pub fn dead_letter_seal(&self) -> DeadLetterSeal {
        self.letters.seal()
    }

    pub(crate) fn state_dir(&self) -> Option<PathBuf> {
        self.state_dir.clone()
    }

    pub(crate) fn into_origin(self) -> Origin {
        Origin::new(Some(self.sealer), self.enrolment, self.rotation)
    }

    /// Seals with the next key, and makes it the key of the next start, when schedulers accept it.
    fn rotation_to(&self, next: WorkerKey, file: KeyFile) -> KeyRotation {
        let letters = self.letters.clone();
        let sealer = Sealer::new(self.executor().clone(), next.clone());
        KeyRotation::new(next, move || {
            letters.replace(sealer.clone());
            if let Err(error) = file.adopt_next() {
                tracing::error!(%error, "failed to store that the worker's next key replaced its key; rename the file with the next key before the next start");
            }
        })
    }
}

fn parse<T: FromStr<Err = NameError>>(field: &'static str, text: &str) -> Result<T, IdentityError> {
    text.parse().map_err(|error| IdentityError::Name {
        field,
        given: text.to_owned(),
        error,
    })
}

fn read_token(path: PathBuf) -> Result<EnrolmentToken, IdentityError> {
    let text = match text_file::read(&path) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) => return Err(IdentityError::TokenFile { path, error }),
    };
    text.parse::<EnrolmentToken>()
        .map_err(|error| IdentityError::NoToken { path, error })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use cueline_broker::{Broker, BrokerOptions};
    use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};

    use super::*;
    use crate::Worker;

    fn open(state_dir: &Path) -> WorkerIdentity {
        WorkerIdentity::open("billing", "one", state_dir).expect("opens")
    }

    #[test]
    fn each_start_opens_the_key_that_the_first_one_made_for_its_user_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        let first = open(&state).sealer.public_key();
        let metadata = fs::metadata(state.join("worker.key")).expect("it was made");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        let second = open(&state);
        assert_eq!(second.sealer.public_key(), first);
        assert!(second.rotation.is_none());
        let next = KeyFile::in_state_dir(&state).create_next().expect("made");
        let rotation = open(&state).rotation.expect("a next key");
        assert_eq!(rotation.key.public(), next.public());
    }

    #[test]
    fn a_wrong_name_is_refused_before_a_key_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        let refused = WorkerIdentity::open("billing", "-one", &state);
        let message = refused.expect_err("a wrong name").to_string();
        assert!(message.contains(r#"name: "-one""#), "{message}");
        assert!(!state.exists());
    }

    #[test]
    fn errors_about_the_enrolment_token_name_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("enrol.token");
        let read = |path: Option<&Path>| open(folder.path()).enrol_token_file(path);
        assert!(read(None).expect("optional").enrolment.is_none());
        let missing = read(Some(&file)).expect_err("no file");
        assert!(matches!(missing, IdentityError::TokenFile { .. }));
        fs::write(&file, "cueline-enrol:0101010101010101:hunter2").expect("written");
        let wrong = read(Some(&file)).expect_err("no token");
        assert!(matches!(wrong, IdentityError::NoToken { .. }));
        let no_file = read(Some(folder.path())).expect_err("a directory");
        for error in [missing, wrong] {
            let message = error.to_string();
            assert!(message.contains(&file.display().to_string()), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
        assert!(matches!(no_file, IdentityError::NoToken { .. }));
        let token = EnrolmentToken::new([1; 8], [2; 32]);
        fs::write(&file, format!("{}\n", token.to_text())).expect("written");
        let read = read(Some(&file)).expect("a token").enrolment;
        assert_eq!(read.expect("a token").to_text(), token.to_text());
    }

    #[tokio::test]
    async fn the_builder_takes_name_and_state_directory_from_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("broker.db");
        let driver = EmbeddedDriver::open(&path, EmbeddedOptions::default()).await;
        let broker = Broker::new(driver.expect("opens"), BrokerOptions::default());
        let state = folder.path().join("state");
        let builder = || {
            Worker::builder("billing")
                .identity(open(&state))
                .allow_unverified_native()
        };
        let settings = builder().broker(broker).settings().expect("valid");
        assert_eq!(settings.executor.to_string(), "billing/one");
        assert_eq!(settings.state_dir, state);
        let other = builder().name("two").settings().expect_err("another name");
        let message = other.to_string();
        assert!(
            message.contains(r#"identity: "billing/one""#) && message.contains("billing/two"),
            "{message}"
        );
    }
}
