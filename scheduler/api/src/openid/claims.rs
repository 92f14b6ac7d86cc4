//! What a verified login says about a person: names and groups. Pure.

use cueline_store::{MAX_DISPLAY_NAME_BYTES, MAX_LOGIN_NAME_BYTES};
use openidconnect::AdditionalClaims;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// All claims that the standard does not define.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct OtherClaims {
    #[serde(flatten)]
    pub(super) all: Map<String, Value>,
}

impl AdditionalClaims for OtherClaims {}

/// Who has logged in, by the word of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The provider's unchanging id of the person.
    pub(crate) subject: String,
    /// The login name of a new user. `None` if no claim can be one.
    pub(crate) name: Option<String>,
    /// The name that people see; may be empty.
    pub(crate) display_name: String,
    /// The values of the groups claim. Empty if there is none.
    pub(crate) groups: Vec<String>,
}

/// The first of these texts that the store takes as a login name: letters and digits of any language, `-`, `_`, `.`, `@` and
/// `+`, which starts with a letter, a digit or `_`.
pub(super) fn login_name<'c>(
    candidates: impl IntoIterator<Item = Option<&'c str>>,
) -> Option<String> {
    let fits = |name: &&str| {
        let is_allowed = |c: char| c.is_alphanumeric() || "-_.@+".contains(c);
        let is_start = |c: char| c.is_alphanumeric() || c == '_';
        name.len() <= MAX_LOGIN_NAME_BYTES
            && name.starts_with(is_start)
            && name.chars().all(is_allowed)
    };
    let found = candidates.into_iter().flatten().find(fits);
    found.map(str::to_owned)
}

/// A name that people see: without control characters, and cut to what the store takes.
pub(super) fn display_name(name: &str) -> String {
    let mut shown = String::new();
    for c in name.trim().chars().filter(|c| !c.is_control()) {
        if shown.len() + c.len_utf8() > MAX_DISPLAY_NAME_BYTES {
            break;
        }
        shown.push(c);
    }
    shown
}

/// The texts in the claim `name`: a text, or a list of texts. `None` if there is no such claim.
///
/// A claim whose name has dots is found by its whole name first. Otherwise each dot leads into an object, as in
/// `realm_access.roles`.
pub(super) fn groups(claims: &Map<String, Value>, name: &str) -> Option<Vec<String>> {
    let claim = claims.get(name).or_else(|| nested(claims, name))?;
    match claim {
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(list) => {
            let texts = list.iter().filter_map(Value::as_str);
            Some(texts.map(str::to_owned).collect())
        }
        Value::Null => None,
        // Nothing follows from a claim of another kind.
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => Some(Vec::new()),
    }
}

fn nested<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    let mut names = path.split('.');
    let first = claims.get(names.next()?)?;
    names.try_fold(first, |value, name| value.as_object()?.get(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(claims: &Value, name: &str) -> Option<Vec<String>> {
        groups(claims.as_object().expect("an object"), name)
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn groups_are_a_text_or_a_list_of_texts() {
        let claims = json!({
            "groups": ["a", 1, "b", null],
            "role": "admin",
            "none": null,
            "count": 7,
            "realm_access": { "roles": ["x"] },
            "https://example.com/groups": ["y"],
        });
        assert_eq!(of(&claims, "groups"), Some(texts(&["a", "b"])));
        assert_eq!(of(&claims, "role"), Some(texts(&["admin"])));
        assert_eq!(of(&claims, "count"), Some(texts(&[])));
        assert_eq!(of(&claims, "realm_access"), Some(texts(&[])));
        assert_eq!(of(&claims, "realm_access.roles"), Some(texts(&["x"])));
        assert_eq!(
            of(&claims, "https://example.com/groups"),
            Some(texts(&["y"]))
        );
        for missing in ["none", "other", "realm_access.groups", "role.x", "."] {
            assert_eq!(of(&claims, missing), None, "{missing}");
        }
    }

    #[test]
    fn the_first_claim_that_can_be_a_login_name_is_taken() {
        let long = "x".repeat(MAX_LOGIN_NAME_BYTES + 1);
        let name = login_name([
            None,
            Some(""),
            Some("Jane Doe"),
            Some("-jane"),
            Some(long.as_str()),
            Some("jané@x.org"),
        ]);
        assert_eq!(name.as_deref(), Some("jané@x.org"));
        assert_eq!(login_name([Some("a/b"), None]), None);
    }

    #[test]
    fn a_display_name_is_cut_between_characters_and_has_no_control_characters() {
        assert_eq!(display_name(" Jane\u{7}\nDoe "), "JaneDoe");
        let long = "é".repeat(200);
        assert_eq!(display_name(&long).len(), MAX_DISPLAY_NAME_BYTES);
    }
}
