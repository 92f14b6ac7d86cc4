//! Users, sessions and API tokens: logs in and out, sets the first user up, and manages accounts.

pub(crate) mod login;
pub(crate) mod setup;
pub(crate) mod tokens;
pub(crate) mod users;

use crate::body::Fields;

/// The longest login name, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// The longest name that people see, and the longest name of a token, in bytes.
const MAX_TEXT_BYTES: usize = 256;

/// The login name of a new user. It is in paths, commands and logs, so it has only characters that mean nothing there.
fn new_name(fields: &mut Fields) -> String {
    let name = fields.required_text("name", MAX_NAME_BYTES);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@+".contains(c);
    if let Some(bad) = name.chars().find(|c| !is_allowed(*c)) {
        fields.record(
            "name",
            format!(
                "{bad:?} is not allowed in a login name: use letters from a to z, digits, '-', '_', '.', '@' and '+'"
            ),
        );
    }
    name
}
