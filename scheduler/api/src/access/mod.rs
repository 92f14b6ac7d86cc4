//! Who may do what over the API: authentication and authorisation as one layer that denies by default.
//!
//! [`check`] is around all routes. It finds the [`Caller`] by a token or a session, and looks into the one table of
//! [rules]. Where the right depends on objects that only the handler knows, the handler asks the [`Caller`]: lists leave
//! out what it may not read, and an apply is checked definition by definition.

mod authenticate;
mod authorise;
mod caller;
pub(crate) mod cookie;
mod definitions;
pub(crate) mod grants;
mod layer;
mod logins;
pub(crate) mod password;
mod refusal_budget;
mod refusals;
mod rules;
mod secret;
mod setup;
mod throttle;

pub(crate) use authorise::may_read_job;
pub(crate) use caller::{Caller, Identity, actor};
pub(crate) use definitions::check_apply;
pub(crate) use layer::check;
pub(crate) use logins::Logins;
pub(crate) use refusals::Refusals;
pub(crate) use secret::{ApiTokenText, Secret};
pub use setup::SetupSecret;
