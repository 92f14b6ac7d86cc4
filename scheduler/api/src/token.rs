//! The administrator's token.

use std::fmt;
use std::sync::Arc;

/// The secret that opens `/api/v1`. It is compared in constant time and never printed.
#[derive(Clone)]
pub struct AdminToken(Arc<str>);

/// Why a text is not taken as a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It could be guessed.
    #[error("an admin token has at least {min} characters, this one has {0}", min = AdminToken::MIN_CHARS)]
    TooShort(usize),
    /// It could not be sent in a header.
    #[error("an admin token consists of visible ASCII characters without spaces")]
    Character,
}

impl AdminToken {
    /// The shortest token that is accepted.
    pub const MIN_CHARS: usize = 16;

    /// Takes `text` as the token; white space around it (a file's last newline) is no part of it.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(TokenError::Character);
        }
        if text.len() < Self::MIN_CHARS {
            return Err(TokenError::TooShort(text.len()));
        }
        Ok(Self(text.into()))
    }

    /// Whether `given` is the token. How long it takes tells only the length of `given`.
    pub fn matches(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        let mut differs = u8::from(own.len() != given.len());
        for (i, byte) in given.iter().enumerate() {
            differs = std::hint::black_box(differs | (byte ^ own[i % own.len()]));
        }
        differs == 0
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::{AdminToken, TokenError};

    #[test]
    fn only_the_whole_token_matches() {
        let token = AdminToken::new("0123456789abcdef\n").expect("a token");
        assert!(token.matches("0123456789abcdef"));
        for wrong in [
            "",
            "0",
            "0123456789abcde",
            "0123456789abcdefg",
            "0123456789abcdeF",
        ] {
            assert!(!token.matches(wrong), "{wrong:?}");
        }
        assert!(!token.matches("0123456789abcdef0123456789abcdef"));
    }

    #[test]
    fn it_does_not_print_itself() {
        let token = AdminToken::new("0123456789abcdef").expect("a token");
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn what_can_be_guessed_or_not_sent_is_refused() {
        assert_eq!(AdminToken::new("").err(), Some(TokenError::TooShort(0)));
        assert_eq!(
            AdminToken::new("short").err(),
            Some(TokenError::TooShort(5))
        );
        assert_eq!(
            AdminToken::new("0123456789 abcdef").err(),
            Some(TokenError::Character)
        );
        assert_eq!(
            AdminToken::new("0123456789äbcdef").err(),
            Some(TokenError::Character)
        );
    }
}
