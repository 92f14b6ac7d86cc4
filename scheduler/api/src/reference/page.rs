//! The reference page: one HTML text without anything from elsewhere. Its script reads the document and shows it.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page, with the policy that allows its own style and script and nothing else.
pub(super) static PAGE: LazyLock<Page> = LazyLock::new(|| Page {
    html: include_str!("page.html")
        .replace("/*STYLE*/", STYLE)
        .replace("/*SCRIPT*/", SCRIPT),
    policy: format!(
        "default-src 'none'; style-src '{}'; script-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT)
    ),
});

/// A page and its Content-Security-Policy.
pub(super) struct Page {
    /// The page.
    pub(super) html: String,
    /// The value of the header `Content-Security-Policy`.
    pub(super) policy: String,
}

/// How a Content-Security-Policy names an inline text.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_names_exactly_the_style_and_the_script_of_the_page() {
        for (tag, text) in [("style", STYLE), ("script", SCRIPT)] {
            let inline = format!("<{tag}>{text}</{tag}>");
            assert_eq!(PAGE.html.matches(&inline).count(), 1, "{tag}");
            assert_eq!(PAGE.html.matches(&format!("<{tag}")).count(), 1, "{tag}");
            let directive = format!("{tag}-src '{}'", hash(text));
            assert!(PAGE.policy.contains(&directive), "{}", PAGE.policy);
        }
        assert!(!PAGE.policy.contains("unsafe"), "{}", PAGE.policy);
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for elsewhere in [
            "http://",
            "https://",
            " src=",
            "@import",
            "url(",
            "innerHTML",
        ] {
            assert!(!PAGE.html.contains(elsewhere), "{elsewhere}");
        }
    }
}
