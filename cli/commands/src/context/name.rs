//! Names of contexts.

use std::fmt;
use std::str::FromStr;

/// The longest name, in bytes. It is part of a file's name.
const MAX_BYTES: usize = 64;

/// The name of a context: letters and digits of ASCII, `-`, `_` and `.`, and first a letter or a digit. It is safe in a
/// file's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ContextName(String);

impl ContextName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A name for the server at this host, with other characters replaced.
    pub(crate) fn of_host(host: &str, port: Option<u16>) -> Option<Self> {
        let port = port.map_or_else(String::new, |port| format!("-{port}"));
        let safe = |c: char| if is_allowed(c) { c } else { '-' };
        let host: String = host.chars().map(safe).collect();
        let host = host.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        format!("{host}{port}").parse().ok()
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

impl FromStr for ContextName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(first) = text.chars().next() else {
            return Err("the name of a context must not be empty".to_owned());
        };
        if text.len() > MAX_BYTES {
            return Err(format!(
                "the name of a context has at most {MAX_BYTES} bytes, this one has {}",
                text.len()
            ));
        }
        if let Some(bad) = text.chars().find(|c| !is_allowed(*c)) {
            return Err(format!(
                "{bad:?} is not allowed in the name of a context: use letters from a to z, digits, '-', '_' and '.'"
            ));
        }
        if !first.is_ascii_alphanumeric() {
            return Err(format!(
                "the name of a context starts with a letter or a digit, not with {first:?}"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ContextName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::ContextName;

    #[test]
    fn a_name_is_safe_in_the_name_of_a_file() {
        for good in ["prod", "a-b_c.d", "1"] {
            assert_eq!(good.parse::<ContextName>().expect("a name").as_str(), good);
        }
        let long = "x".repeat(65);
        for bad in ["", "..", ".hidden", "a/b", "a b", "-x", "ä", &long] {
            assert!(bad.parse::<ContextName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_gives_a_name() {
        let name = |host: &str, port| ContextName::of_host(host, port).map(|name| name.to_string());
        assert_eq!(name("a.example", None).as_deref(), Some("a.example"));
        assert_eq!(name("127.0.0.1", Some(80)).as_deref(), Some("127.0.0.1-80"));
        assert_eq!(name("[::1]", Some(80)).as_deref(), Some("1-80"));
        assert_eq!(name("[::]", None), None);
    }
}
