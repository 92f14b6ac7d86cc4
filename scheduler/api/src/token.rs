//! The admin token.

use std::fmt;
use std::sync::Arc;

/// The secret that grants access to `/api/v1`. It is compared in constant time and never printed.
#[derive(Clone)]
pub struct AdminToken(Arc<str>);

impl AdminToken {
    /// Uses `text` as the token, without surrounding white space such as a file's last newline. No request matches an
    /// empty token.
    pub fn new(text: &str) -> Self {
        Self(text.trim().into())
    }

    /// Whether `given` is the token. The time taken depends only on the length of `given`.
    pub fn matches(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        if own.is_empty() {
            return false;
        }
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

impl From<String> for AdminToken {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::AdminToken;

    #[test]
    fn only_the_whole_token_matches() {
        let token = AdminToken::new("0123456789abcdef\n");
        assert!(token.matches("0123456789abcdef"));
        for wrong in [
            "",
            "0",
            "0123456789abcde",
            "0123456789abcdefg",
            "0123456789abcdeF",
            "0123456789abcdef0123456789abcdef",
        ] {
            assert!(!token.matches(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn an_empty_token_matches_nothing() {
        let token = AdminToken::new(" \n");
        assert!(!token.matches(""));
        assert!(!token.matches("a"));
    }

    #[test]
    fn it_does_not_print_itself() {
        let token = AdminToken::new("0123456789abcdef");
        assert!(!format!("{token:?}").contains("0123"));
    }
}
