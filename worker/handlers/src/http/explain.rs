//! Explains why a request failed.

use std::error::Error as StdError;
use std::io::ErrorKind;

use super::CONNECT_TIMEOUT;
use super::RefusedAddress;
use crate::shortage::Shortage;

/// Explains an error in words, without the URL, because the URL may carry a secret.
pub(super) fn explain(target: &str, error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut chain = Vec::new();
    let (mut kind, mut refused) = (None, None);
    let mut next: Option<&(dyn StdError + 'static)> = Some(&error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<std::io::Error>();
        kind = io
            .map(std::io::Error::kind)
            .filter(|kind| *kind != ErrorKind::Other)
            .or(kind);
        refused = cause
            .downcast_ref::<RefusedAddress>()
            .map(ToString::to_string)
            .or(refused);
        let text = cause.to_string();
        if chain.last() != Some(&text) {
            chain.push(text);
        }
        // `source` of an I/O error skips the error that it wraps, so `get_ref` is used.
        next = match io.and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => cause.source(),
        };
    }
    let deepest = chain.last().map_or("", String::as_str);
    let mentions = |words: &str| chain.iter().any(|c| c.contains(words));
    if let Some(refused) = refused {
        refused
    } else if mentions("dns error") {
        format!("host not found: {target} ({deepest})")
    } else if error.is_timeout() {
        format!("timed out: no connection to {target} within {CONNECT_TIMEOUT:?}")
    } else if kind == Some(ErrorKind::ConnectionRefused) {
        format!("connection refused by {target}")
    } else if error.is_connect() && kind == Some(ErrorKind::InvalidData) || mentions("certificate")
    {
        format!("TLS with {target} failed: {deepest}")
    } else {
        format!("the request to {target} failed: {}", chain.join(": "))
    }
}

/// The lack of the machine among the causes of an error.
pub(super) fn shortage(error: &(dyn StdError + 'static)) -> Option<Shortage> {
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<std::io::Error>();
        if let Some(shortage) = io.and_then(Shortage::of) {
            return Some(shortage);
        }
        // As in `explain`.
        next = match io.and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => cause.source(),
        };
    }
    None
}
