//! Reads field types that several sections share.

use std::collections::BTreeMap;

use super::reader::{Fields, Reader, join, shorten};
use super::{Node, Value};
use crate::name::NameError;
use crate::secret::{SecretName, TextOrSecret};

/// The longest text, except for scripts and names.
pub(super) const MAX_TEXT_BYTES: usize = 64 * 1024;

/// Reads the value of `key` with `read`, if it is present.
pub(super) fn optional<T>(
    r: &mut Reader,
    f: &Fields<'_>,
    key: &str,
    read: impl FnOnce(&mut Reader, &Node, &str) -> Option<T>,
) -> Option<T> {
    let (node, path) = f.get(key)?;
    read(r, node, &path)
}

/// Reads the value of `key` with `read`. A missing key is a problem of `whole`.
pub(super) fn required<T>(
    r: &mut Reader,
    f: &Fields<'_>,
    whole: &Node,
    key: &str,
    what: &str,
    read: impl FnOnce(&mut Reader, &Node, &str) -> Option<T>,
) -> Option<T> {
    if f.get(key).is_none() {
        r.refuse(
            whole.line,
            &f.path_of(key),
            format!("missing; {what} is expected"),
        );
    }
    optional(r, f, key, read)
}

/// Reads a local name. `qualify` puts it into the job's namespace.
pub(super) fn local<T>(
    r: &mut Reader,
    node: &Node,
    path: &str,
    qualify: impl FnOnce(&str) -> Result<T, NameError>,
) -> Option<T> {
    if let Value::Text(text) = &node.value
        && text.contains('/')
    {
        let message = format!(
            "{:?} given; a name without '/' is expected. The field `namespace` has the namespace of the job, its group and its parents",
            shorten(text)
        );
        r.refuse(node.line, path, message);
        return None;
    }
    name(r, node, path, qualify)
}

/// Reads a name with `parse`.
pub(super) fn name<T>(
    r: &mut Reader,
    node: &Node,
    path: &str,
    parse: impl FnOnce(&str) -> Result<T, NameError>,
) -> Option<T> {
    let Value::Text(text) = &node.value else {
        r.mismatch(node, path, "a name");
        return None;
    };
    match parse(text) {
        Ok(name) => Some(name),
        Err(error) => {
            r.refuse(node.line, path, format!("{:?}: {error}", shorten(text)));
            None
        }
    }
}

/// A table of texts.
pub(super) fn text_map(
    r: &mut Reader,
    node: &Node,
    path: &str,
    what: &str,
) -> Option<BTreeMap<String, String>> {
    map(r, node, path, what, |r, value, field| {
        r.scalar_text(value, field, MAX_TEXT_BYTES)
    })
}

/// A table of texts and secrets.
pub(super) fn secret_map(
    r: &mut Reader,
    node: &Node,
    path: &str,
    what: &str,
) -> Option<BTreeMap<String, TextOrSecret>> {
    map(r, node, path, what, |r, value, field| match value.value {
        Value::Map(_) => secret(r, value, field),
        _ => r
            .scalar_text(value, field, MAX_TEXT_BYTES)
            .map(TextOrSecret::Text),
    })
}

/// A text or a secret.
pub(super) fn text_or_secret(r: &mut Reader, node: &Node, path: &str) -> Option<TextOrSecret> {
    if let Value::Map(_) = node.value {
        return secret(r, node, path);
    }
    let text = r.text(node, path, MAX_TEXT_BYTES)?;
    Some(TextOrSecret::Text(text.to_owned()))
}

/// Reads `{ secret = "name" }`.
fn secret(r: &mut Reader, node: &Node, path: &str) -> Option<TextOrSecret> {
    let f = r.fields(node, path, &["secret"], &[])?;
    let name = |r: &mut Reader, node: &Node, path: &str| {
        let text = r.text(node, path, MAX_TEXT_BYTES)?;
        match text.parse::<SecretName>() {
            Ok(name) => Some(name),
            Err(e) => {
                r.refuse(node.line, path, format!("{:?} given: {e}", shorten(text)));
                None
            }
        }
    };
    let name = required(r, &f, node, "secret", "the name of a secret", name);
    name.map(TextOrSecret::from)
}

fn map<T>(
    r: &mut Reader,
    node: &Node,
    path: &str,
    what: &str,
    read: impl Fn(&mut Reader, &Node, &str) -> Option<T>,
) -> Option<BTreeMap<String, T>> {
    let Value::Map(entries) = &node.value else {
        r.mismatch(node, path, "a table of texts");
        return None;
    };
    let mut map = BTreeMap::new();
    for (key, value) in entries {
        if r.is_full() {
            break;
        }
        let field = join(path, &shorten(key));
        if key.is_empty() || key.contains(['\0', '=', '\n', '\r']) {
            r.refuse(
                value.line,
                &field,
                format!("{:?} cannot be the name of {what}: an empty text, '=', NUL and line breaks are not allowed", shorten(key)),
            );
        } else if let Some(text) = read(r, value, &field)
            && map.insert(key.clone(), text).is_some()
        {
            r.refuse(value.line, &field, "given twice; one value is expected");
        }
    }
    Some(map)
}
