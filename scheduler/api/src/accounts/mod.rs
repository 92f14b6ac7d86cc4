//! Users, sessions and API tokens: logs in and out, sets the first user up, and manages accounts.

pub(crate) mod login;
pub(crate) mod openid;
mod openid_user;
mod refusal;
pub(crate) mod setup;
pub(crate) mod tokens;
pub(crate) mod user_list;
pub(crate) mod users;

/// The longest login name, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// The longest name that people see, and the longest name of a token, in bytes.
const MAX_TEXT_BYTES: usize = 256;
