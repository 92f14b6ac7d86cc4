//! Why a signature is invalid, or a key cannot be read.

/// Why a signature is invalid, or a key cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The trigger has no signature.
    #[error("the trigger is not signed")]
    Missing,
    /// No trusted key made the signature.
    #[error(
        "the signature was made by none of the {0} keys that this worker trusts, or the trigger was changed"
    )]
    Mismatch(usize),
    /// A key is not 32 bytes in base64.
    #[error("a key must be 32 bytes in base64")]
    Key,
    /// A line of a file is no public key.
    #[error(
        "line {0} is not a public key; a line cueline-public-key:… is expected, as `cueline key public FILE` prints it"
    )]
    PublicKeyLine(usize),
}
