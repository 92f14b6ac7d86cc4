//! The header `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header): a caller that has got no answer sends the
//! request again with the same key, and nothing is created twice.
//!
//! Handlers that create something read it. Other requests may have it too: repeating them changes nothing more.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use cueline_store::MAX_IDEMPOTENCY_KEY_BYTES;

use crate::body::Fields;
use crate::problem::{FieldProblem, Problem};

/// The name of the header, for messages.
const NAME: &str = "Idempotency-Key";

/// The key of a request, if it has one.
pub(crate) struct IdempotencyKey(pub(crate) Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut values = parts.headers.get_all(NAME).iter();
        let Some(value) = values.next() else {
            return Ok(Self(None));
        };
        let parsed = if values.next().is_some() {
            Err("given more than once; give it once".to_owned())
        } else {
            parse(value.as_bytes())
        };
        match parsed {
            Ok(key) => Ok(Self(Some(key))),
            Err(message) => Err(Problem::malformed_fields(vec![FieldProblem::new(
                NAME, message,
            )])),
        }
    }
}

impl IdempotencyKey {
    /// The key of a request whose body may have one too. Records a problem with the field `name` if they differ.
    pub(crate) fn or_field(
        self,
        fields: &mut Fields,
        name: &str,
        of_body: Option<String>,
    ) -> Option<String> {
        if let (Some(of_header), Some(of_body)) = (&self.0, &of_body)
            && of_header != of_body
        {
            let message =
                format!("another key than in the header {NAME}; give one of them, or the same");
            fields.record_unfit(name, message);
        }
        self.0.or(of_body)
    }
}

/// Reads a key: a structured field's string, `"8e03978e"`, or the same without quotation marks.
fn parse(value: &[u8]) -> Result<String, String> {
    let value = value.trim_ascii();
    let key = match value.strip_prefix(b"\"") {
        Some(rest) => quoted(rest)?,
        None => bare(value)?,
    };
    match key.len() {
        0 => Err(format!(
            "is empty; give 1 to {MAX_IDEMPOTENCY_KEY_BYTES} characters"
        )),
        1..=MAX_IDEMPOTENCY_KEY_BYTES => Ok(key),
        length => Err(format!(
            "it has {length} characters; give at most {MAX_IDEMPOTENCY_KEY_BYTES}"
        )),
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

fn not_printable() -> String {
    "a character that is not printable ASCII; give only such characters".to_owned()
}

fn bare(text: &[u8]) -> Result<String, String> {
    if text.contains(&b'"') {
        return Err("a quotation mark inside; put the key between quotation marks".to_owned());
    }
    if !text.iter().copied().all(is_printable) {
        return Err(not_printable());
    }
    Ok(text.iter().copied().map(char::from).collect())
}

/// What follows the first quotation mark (RFC 8941, section 4.2.5).
fn quoted(text: &[u8]) -> Result<String, String> {
    let mut key = String::new();
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' if bytes.next().is_some() => {
                return Err("text after the second quotation mark; leave it out".to_owned());
            }
            b'"' => return Ok(key),
            b'\\' => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => key.push(char::from(escaped)),
                _ => {
                    return Err(
                        "a backslash before another character than \" and \\; write it twice"
                            .to_owned(),
                    );
                }
            },
            byte if is_printable(byte) => key.push(char::from(byte)),
            _ => return Err(not_printable()),
        }
    }
    Err("no second quotation mark; put the key between two".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_have_quotation_marks() {
        for (text, key) in [
            ("\"8e03978e\"", "8e03978e"),
            (" 8e03978e ", "8e03978e"),
            (r#""a \"b\" \\ c""#, r#"a "b" \ c"#),
            ("order 17, part 2", "order 17, part 2"),
            (r"a\b", r"a\b"),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(key.to_owned()), "{text}");
        }
        let longest = "k".repeat(MAX_IDEMPOTENCY_KEY_BYTES);
        assert_eq!(parse(longest.as_bytes()), Ok(longest.clone()));
        let in_marks = format!("\"{longest}\"");
        assert_eq!(parse(in_marks.as_bytes()), Ok(longest));
    }

    #[test]
    fn a_malformed_key_is_refused() {
        let too_long = "k".repeat(MAX_IDEMPOTENCY_KEY_BYTES + 1);
        for text in [
            "",
            "\"\"",
            "\"a",
            "a\"b",
            "\"a\" b",
            "\"a\";x=1",
            r#""a\n""#,
            "\"a\\",
            "a\tb",
            "\u{e9}",
            "\"\u{e9}\"",
            too_long.as_str(),
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
