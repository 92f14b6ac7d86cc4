//! Where a page begins, as an opaque text: base64url of a version, the list, its order, and the key of an entry.
//!
//! A key has numbers, or names that the list has shown. So a cursor tells its reader nothing new, and it needs no
//! signature: a key that no list has given selects a page that another `after` could select as well.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The form of cursors.
const VERSION: u8 = 1;

/// The longest cursor. Keys have at most two names and a number.
const MAX_BYTES: usize = 2_048;

/// The text of a cursor.
pub(super) fn encode(list: &str, sort: &str, key: &impl Serialize) -> String {
    // Keys are numbers and texts, which always have a JSON form.
    let json = serde_json::to_vec(&(VERSION, list, sort, key)).unwrap_or_default();
    URL_SAFE_NO_PAD.encode(json)
}

/// Whether the text looks like a cursor, as the OpenAPI document describes it.
pub(super) fn is_well_formed(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=MAX_BYTES).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// The key in a cursor of this list and order.
pub(super) fn decode<K: DeserializeOwned>(list: &str, sort: &str, text: &str) -> Result<K, String> {
    let malformed =
        || "not a `next` of this list; give that of the previous page unchanged".to_owned();
    if text.len() > MAX_BYTES {
        return Err(malformed());
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| malformed())?;
    let cursor: (u8, String, String, Value) =
        serde_json::from_slice(&bytes).map_err(|_| malformed())?;
    let (version, of_list, of_sort, key) = cursor;
    if version != VERSION {
        return Err(
            "another version of the server has given it; begin with the first page".to_owned(),
        );
    }
    if of_list != list {
        return Err(format!(
            "belongs to the list of {}; give a `next` of this one",
            of_list.escape_debug()
        ));
    }
    if of_sort != sort {
        return Err(format!(
            "belongs to sort={}, and the list is in the order {sort}; give the same sort, or begin with the first page",
            of_sort.escape_debug()
        ));
    }
    serde_json::from_value(key).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &str, sort: &str, text: &str) -> Result<(i64, String), String> {
        decode(list, sort, text)
    }

    #[test]
    fn a_cursor_is_read_again_by_its_list_and_order() {
        let key = (7, "é/+".to_owned());
        let text = encode("jobs", "-name", &key);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        assert!(text.chars().all(is_plain), "{text}");
        assert!(is_well_formed(&text), "{text}");
        assert_eq!(read("jobs", "-name", &text), Ok(key));
    }

    #[test]
    fn a_cursor_of_another_list_order_or_version_is_refused() {
        let text = encode("jobs", "name", &(7, "a"));
        let error = read("runs", "name", &text).expect_err("is refused");
        assert!(error.contains("list of jobs"), "{error}");
        let error = read("jobs", "-name", &text).expect_err("is refused");
        assert!(error.contains("sort=name"), "{error}");
        let newer = URL_SAFE_NO_PAD.encode(r#"[2,"jobs","name",[7,"a"]]"#);
        let error = read("jobs", "name", &newer).expect_err("is refused");
        assert!(error.contains("version"), "{error}");
    }

    #[test]
    fn what_no_server_has_given_is_refused() {
        let other_key = encode("jobs", "name", &"a");
        let long = "A".repeat(MAX_BYTES + 4);
        for text in [
            "", "x", "7", "a b", "bnVsbA", "WzFd", "é", &other_key, &long,
        ] {
            let error = read("jobs", "name", text).expect_err("is refused");
            assert!(error.contains("previous page"), "{text:?}: {error}");
        }
        for malformed in ["", "a b", "é", "a+b", "YQ==", &long] {
            assert!(!is_well_formed(malformed), "{malformed:?}");
        }
    }
}
