//! The certificate that new connections get, and the duty that takes over changed files.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Duty, Next};
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::config::server_config;
use super::files::{Content, TlsError, TlsFiles};

/// How often the files are compared with what is in use.
const CHECK_EVERY: Duration = Duration::from_secs(30);

/// The certificate that new connections get. Clones share it.
#[derive(Clone)]
pub struct Tls(watch::Receiver<Arc<ServerConfig>>);

/// Takes over changed files. Run it as a [`Duty`] for as long as the server.
///
/// Files that cannot be used change nothing: the certificate before them stays in use, and an error is logged once.
pub struct TlsReload {
    files: TlsFiles,
    in_use: Content,
    /// What was logged last about files that cannot be used.
    failure: Option<TlsError>,
    current: watch::Sender<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files. It blocks, so call it before the server begins to serve.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or used.
    pub fn open(files: TlsFiles) -> Result<(Self, TlsReload), TlsError> {
        let in_use = files.read()?;
        let config = server_config(&files, &in_use)?;
        let (sender, receiver) = watch::channel(Arc::new(config));
        let reload = TlsReload {
            files,
            in_use,
            failure: None,
            current: sender,
        };
        Ok((Self(receiver), reload))
    }

    /// Makes the handshake of one connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.borrow().clone())
    }
}

impl TlsReload {
    /// Reads the files, and takes them over if they have changed and can be used.
    pub async fn check(&mut self) {
        let files = self.files.clone();
        // Reading may wait for a disk.
        let read = tokio::task::spawn_blocking(move || files.read()).await;
        // The content decides and not the modification time. A copy may keep an old time, and reading costs little.
        let changed = match read {
            // Nothing has changed, or a change was undone.
            Ok(Ok(content)) if content == self.in_use => {
                self.failure = None;
                return;
            }
            Ok(read) => read,
            // The runtime is shutting down.
            Err(_) => return,
        };
        let loaded = changed.and_then(|content| {
            let config = server_config(&self.files, &content)?;
            Ok((content, config))
        });
        match loaded {
            Ok((content, config)) => self.take_over(content, config),
            Err(error) => self.report(error),
        }
    }

    fn take_over(&mut self, content: Content, config: ServerConfig) {
        self.in_use = content;
        self.failure = None;
        self.current.send_replace(Arc::new(config));
        tracing::info!(
            file = %self.files.certificate.display(),
            "TLS files have changed; new connections use them"
        );
    }

    fn report(&mut self, error: TlsError) {
        if self.failure.as_ref() == Some(&error) {
            return;
        }
        tracing::error!(
            file = %error.path().display(),
            error = error.problem(),
            "changed TLS files were not taken over, and the certificate before them stays in use; correct the file"
        );
        self.failure = Some(error);
    }
}

impl Duty for TlsReload {
    type Error = Infallible;

    fn name(&self) -> &'static str {
        "tls_reload"
    }

    async fn activate(&mut self) -> Result<Next, Infallible> {
        self.check().await;
        Ok(Next::After(CHECK_EVERY))
    }
}

// What they hold has the private key in it.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

impl fmt::Debug for TlsReload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsReload")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}
