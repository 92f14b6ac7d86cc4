//! The arguments of `cueline user`, `cueline token` and `cueline setup`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cueline_model::{DurationMs, Grant};

use super::grant;
use crate::keys::NewTokenArgs;
use crate::lists::{GroupArgs, PageArgs};

/// `cueline user …`
#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// List users
    List(UserListArgs),
    /// Show a user
    Show(UserArg),
    /// Create a user
    Create(CreateUserArgs),
    /// Change a user; what is not given stays as it is
    Change(ChangeUserArgs),
    /// Delete a user with all sessions and tokens
    Delete(UserArg),
    /// Set a user's password; all sessions of the user end, and the user's API tokens are revoked
    Password(PasswordArgs),
}

/// One user.
#[derive(Debug, Args)]
pub(crate) struct UserArg {
    /// The login name
    #[arg(value_name = "USER")]
    pub(crate) name: String,
}

/// `cueline user create`
#[derive(Debug, Args)]
pub(crate) struct CreateUserArgs {
    /// The login name
    #[arg(value_name = "USER")]
    pub(crate) name: String,
    /// The name that people see
    #[arg(long, value_name = "TEXT")]
    pub(crate) display_name: Option<String>,
    /// A role, such as viewer, author@billing or admin@billing/batch+scripts; may be given several times
    #[arg(long = "grant", value_name = "ROLE[@NAMESPACE[/GROUP]][+scripts]", value_parser = grant::parse)]
    pub(crate) grants: Vec<Grant>,
    /// File with the password, - for standard input; asked for by default
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Without a password: the user cannot log in by one
    #[arg(long, conflicts_with = "password_file")]
    pub(crate) no_password: bool,
}

/// `cueline user change`
#[derive(Debug, Args)]
pub(crate) struct ChangeUserArgs {
    /// The login name
    #[arg(value_name = "USER")]
    pub(crate) name: String,
    /// The name that people see
    #[arg(long, value_name = "TEXT")]
    pub(crate) display_name: Option<String>,
    /// A role, as for create; those given replace all present ones
    #[arg(long = "grant", value_name = "ROLE[@NAMESPACE[/GROUP]][+scripts]", value_parser = grant::parse)]
    pub(crate) grants: Vec<Grant>,
    /// Take all roles away
    #[arg(long, conflicts_with = "grants")]
    pub(crate) no_grants: bool,
    /// Let the user log in again
    #[arg(long)]
    pub(crate) enable: bool,
    /// Refuse the user's logins and tokens
    #[arg(long, conflicts_with = "enable")]
    pub(crate) disable: bool,
}

/// `cueline user password`
#[derive(Debug, Args)]
pub(crate) struct PasswordArgs {
    /// The login name
    #[arg(value_name = "USER")]
    pub(crate) name: String,
    /// File with the new password, - for standard input; asked for by default
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// File with the present password, which your own change needs; asked for by default
    #[arg(long, value_name = "FILE")]
    pub(crate) old_password_file: Option<PathBuf>,
    /// Leave the user's API tokens valid; by default they are revoked
    #[arg(long)]
    pub(crate) keep_tokens: bool,
}

/// `cueline token …`
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create an admin token for the start of servers, without a server
    New(NewTokenArgs),
    /// List API tokens
    List(TokenListArgs),
    /// Create an API token for a program
    Create(CreateTokenArgs),
    /// Revoke an API token at once
    Revoke(TokenArg),
}

/// `cueline token list`
#[derive(Debug, Args)]
pub(crate) struct TokenListArgs {
    /// Only tokens with this name, or whose names begin with what is before a * at the end; may be given several times
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Only tokens of this user; may be given several times
    #[arg(long = "owner", value_name = "USER")]
    pub(crate) owners: Vec<String>,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    /// Only tokens in this state; may be given several times
    #[arg(long = "state", value_name = "STATE", value_parser = ["valid", "expired", "revoked"])]
    pub(crate) states: Vec<String>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `cueline user list`
#[derive(Debug, Args)]
pub(crate) struct UserListArgs {
    /// Only users with this name, or whose names begin with what is before a * at the end; may be given several times
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) groups: GroupArgs,
    /// Only users in this state; may be given several times
    #[arg(long = "state", value_name = "STATE", value_parser = ["enabled", "disabled"])]
    pub(crate) states: Vec<String>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `cueline token create`
#[derive(Debug, Args)]
pub(crate) struct CreateTokenArgs {
    /// What it is for
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// A role, such as viewer, author@billing or admin@billing/batch+scripts; may be given several times
    #[arg(long = "grant", value_name = "ROLE[@NAMESPACE[/GROUP]][+scripts]", value_parser = grant::parse, required = true)]
    pub(crate) grants: Vec<Grant>,
    /// Without an owner: it stays valid when its creator is disabled or deleted
    #[arg(long)]
    pub(crate) program: bool,
    /// How long it is valid, such as 30m or 2d, or never; 90d by default
    #[arg(long, value_name = "DURATION", value_parser = validity)]
    pub(crate) valid: Option<String>,
    /// Where to write it; printed by default. An existing file is not overwritten
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// One API token.
#[derive(Debug, Args)]
pub(crate) struct TokenArg {
    /// The token's id, as `cueline token list` prints it
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// `cueline setup`
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// The login name of the first user, who may do everything; asked for by default
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// File with the secret that the server printed at its start, - for standard input; asked for by default
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// File with the password; asked for by default
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Send the password over http to another machine, although others could read it on the way
    #[arg(long)]
    pub(crate) insecure_http: bool,
}

/// How long a token is valid.
pub(crate) fn validity(text: &str) -> Result<String, String> {
    if text != "never" {
        text.parse::<DurationMs>()
            .map_err(|error| format!("{error}, or never"))?;
    }
    Ok(text.to_owned())
}
