//! Why there is no client for `https`.

use std::error::Error;
use std::{fmt, io};

/// Why TLS could not be set up.
#[derive(Debug)]
pub enum TlsSetupError {
    /// The process lacks descriptors or memory for the certificates of this machine's authorities.
    Shortage(io::Error),
    /// What is wrong with the set-up of this machine.
    Unusable(String),
}

impl fmt::Display for TlsSetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed to set up TLS: ")?;
        match self {
            Self::Shortage(error) => write!(f, "certificates of authorities: {error}"),
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

impl Error for TlsSetupError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Shortage(error) => Some(error),
            Self::Unusable(_) => None,
        }
    }
}
