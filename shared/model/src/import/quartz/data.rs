//! Job data maps as parameters.

use std::collections::BTreeMap;

use serde_json::json;

use crate::import::Draft;

/// A job data map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Data {
    /// There is none.
    #[default]
    None,
    /// Its entries.
    Entries(BTreeMap<String, String>),
    /// It cannot be read, for this reason.
    Unreadable(String),
}

impl Data {
    /// The data of a column: the text form of Java's `Properties`, which Quartz writes with `useProperties`. Serialised
    /// Java objects are not read.
    pub fn from_column(bytes: Option<&[u8]>) -> Self {
        /// The first bytes of each serialised Java object.
        const STREAM_MAGIC: [u8; 2] = [0xac, 0xed];
        match bytes {
            None | Some([]) => Self::None,
            Some(bytes) if bytes.starts_with(&STREAM_MAGIC) => {
                Self::Unreadable(format!("a serialised Java object of {} bytes", bytes.len()))
            }
            // Java writes properties in ISO 8859-1.
            Some(bytes) => {
                match properties(&bytes.iter().copied().map(char::from).collect::<String>()) {
                    Ok(entries) if entries.is_empty() => Self::None,
                    Ok(entries) => Self::Entries(entries),
                    Err(reason) => Self::Unreadable(reason),
                }
            }
        }
    }
}

/// The data of the job and, over it, that of the trigger become the parameter: a JSON object of texts.
pub(super) fn read(draft: &mut Draft, job: &Data, trigger: &Data) -> Result<(), String> {
    let mut entries = BTreeMap::new();
    for (owner, data) in [("job", job), ("trigger", trigger)] {
        match data {
            Data::None => {}
            Data::Entries(own) => entries.extend(own.clone()),
            Data::Unreadable(reason) => draft.left_out(format!(
                "the data of the {owner}: {reason}; write what the handler needs into params, \
                 or let Quartz write text (useProperties = true) and import again"
            )),
        }
    }
    if !entries.is_empty() {
        let text = serde_json::to_string(&json!(entries)).map_err(|error| error.to_string())?;
        draft.set("params", text);
    }
    Ok(())
}

/// The text form of Java's `Properties`: `key=value` lines, comments, continued lines and escapes.
fn properties(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mut whole = line.trim_start().to_owned();
        if whole.is_empty() || whole.starts_with(['#', '!']) {
            continue;
        }
        // An odd number of backslashes at the end continues the line.
        while whole.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1 {
            whole.pop();
            match lines.next() {
                Some(next) => whole.push_str(next.trim_start()),
                None => break,
            }
        }
        let (key, value) = split(&whole);
        found.insert(unescaped(key)?, unescaped(value)?);
    }
    Ok(found)
}

/// Splits a line at the first `=`, `:` or blank that no backslash precedes.
fn split(line: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let end = line.char_indices().find(|(_, c)| {
        let ends = !is_escaped && (matches!(c, '=' | ':') || c.is_ascii_whitespace());
        is_escaped = !is_escaped && *c == '\\';
        ends
    });
    let (key, rest) = line.split_at(end.map_or(line.len(), |(at, _)| at));
    let rest = rest.trim_start();
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, value.trim_start())
}

fn unescaped(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut units: Vec<u16> = Vec::new();
    let mut chars = text.chars();
    let error = || format!("{text:?} has an escape that Java does not write");
    while let Some(c) = chars.next() {
        if c == '\\' {
            match chars.next() {
                Some('u') => {
                    let hex: String = chars.by_ref().take(4).collect();
                    units.push(u16::from_str_radix(&hex, 16).map_err(|_| error())?);
                }
                Some('n') => push(&mut plain, &mut units, '\n')?,
                Some('r') => push(&mut plain, &mut units, '\r')?,
                Some('t') => push(&mut plain, &mut units, '\t')?,
                Some('f') => push(&mut plain, &mut units, '\u{c}')?,
                Some(other) => push(&mut plain, &mut units, other)?,
                None => return Err(error()),
            }
        } else {
            push(&mut plain, &mut units, c)?;
        }
    }
    flush(&mut plain, &mut units)?;
    Ok(plain)
}

fn push(plain: &mut String, units: &mut Vec<u16>, c: char) -> Result<(), String> {
    flush(plain, units)?;
    plain.push(c);
    Ok(())
}

/// Two `\u` escapes may be one character.
fn flush(plain: &mut String, units: &mut Vec<u16>) -> Result<(), String> {
    let text = String::from_utf16(units).map_err(|_| "half a character".to_owned())?;
    plain.push_str(&text);
    units.clear();
    Ok(())
}
