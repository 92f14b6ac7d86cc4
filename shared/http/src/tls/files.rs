//! The TLS files of a server, and errors that name one of them.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The largest file that is read. The certificates of all public authorities together are smaller.
const MAX_BYTES: u64 = 1024 * 1024;

/// The files that make a server speak TLS, all of them PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by those that signed it.
    pub certificate: PathBuf,
    /// The private key of the certificate, not encrypted.
    pub key: PathBuf,
    /// The certificates of the authorities that sign those of clients. With it, a client needs a certificate.
    pub client_ca: Option<PathBuf>,
}

/// Which of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// The server's certificate.
    Certificate,
    /// Its private key.
    Key,
    /// The authorities of the clients' certificates.
    ClientCa,
}

/// A file that cannot be used. The text has nothing of a file's content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", .path.display())]
pub struct TlsError {
    file: TlsFile,
    path: PathBuf,
    problem: String,
}

impl TlsError {
    /// Which file.
    pub fn file(&self) -> TlsFile {
        self.file
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is wrong with it.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

/// The bytes of the files. It has no `Debug`, because the key is one of them.
#[derive(PartialEq, Eq)]
pub(super) struct Content {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) client_ca: Option<Vec<u8>>,
}

impl TlsFiles {
    pub(super) fn read(&self) -> Result<Content, TlsError> {
        let of = |file, path: &Path| read(path).map_err(|problem| refuse(file, path, problem));
        let client_ca = self.client_ca.as_deref();
        let client_ca = client_ca.map(|path| of(TlsFile::ClientCa, path));
        Ok(Content {
            certificate: of(TlsFile::Certificate, &self.certificate)?,
            key: of(TlsFile::Key, &self.key)?,
            client_ca: client_ca.transpose()?,
        })
    }

    pub(super) fn refuse_certificate(&self, problem: String) -> TlsError {
        refuse(TlsFile::Certificate, &self.certificate, problem)
    }

    pub(super) fn refuse_key(&self, problem: String) -> TlsError {
        refuse(TlsFile::Key, &self.key, problem)
    }

    pub(super) fn refuse_client_ca(&self, problem: String) -> TlsError {
        let path = self.client_ca.as_deref().unwrap_or(Path::new(""));
        refuse(TlsFile::ClientCa, path, problem)
    }
}

fn refuse(file: TlsFile, path: &Path, problem: String) -> TlsError {
    TlsError {
        file,
        path: path.to_owned(),
        problem,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("failed to read: {error}");
    // Checked before opening, because opening a pipe without a writer blocks forever.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err("is not a file".to_owned());
    }
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(failed)?.take(MAX_BYTES + 1);
    file.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("has more than {MAX_BYTES} bytes"));
    }
    Ok(bytes)
}
