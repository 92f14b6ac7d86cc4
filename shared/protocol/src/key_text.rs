//! Keys and ids as text.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::sign_error::SignError;

/// The hexadecimal digits of the id of a key or a token.
const ID_DIGITS: usize = 16;

/// Reads 32 bytes in base64.
pub(crate) fn key_bytes(text: &str) -> Result<[u8; 32], SignError> {
    let bytes = BASE64.decode(text.trim()).map_err(|_| SignError::Key)?;
    bytes.try_into().map_err(|_| SignError::Key)
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Whether `text` is an id: 16 lower-case hexadecimal digits.
pub(crate) fn is_id(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == ID_DIGITS && text.bytes().all(digit)
}
