//! `cueline user …`, `cueline token …` and `cueline setup`: who may use a server.

pub(crate) mod args;
pub(crate) mod caller;
pub(crate) mod grant;
mod tokens;
mod users;

use cueline_api::view::UserView;
use cueline_interface::{Failure, Out};
use serde_json::json;

use self::args::{SetupArgs, TokenCommand, UserCommand};
use crate::client::{Api, read};
use crate::{keys, prompt};

/// Runs a command about users.
pub(crate) async fn user(api: &Api, out: Out, command: UserCommand) -> Result<(), Failure> {
    match command {
        UserCommand::List(args) => users::list(api, out, &args).await,
        UserCommand::Show(arg) => users::show(api, out, &arg).await,
        UserCommand::Create(args) => users::create(api, out, &args).await,
        UserCommand::Change(args) => users::change(api, out, &args).await,
        UserCommand::Delete(arg) => users::delete(api, out, &arg).await,
        UserCommand::Password(args) => users::password(api, out, &args).await,
    }
}

/// Runs a command about tokens. A new admin token needs no server.
pub(crate) async fn token(
    api: impl FnOnce() -> Result<Api, Failure>,
    out: Out,
    command: TokenCommand,
) -> Result<(), Failure> {
    match command {
        TokenCommand::New(args) => keys::token(out, &args),
        TokenCommand::List(args) => tokens::list(&api()?, out, &args).await,
        TokenCommand::Create(args) => tokens::create(&api()?, out, &args).await,
        TokenCommand::Revoke(arg) => tokens::revoke(&api()?, out, &arg).await,
    }
}

/// Creates the first user of a server.
pub(crate) async fn setup(api: &Api, out: Out, args: &SetupArgs) -> Result<(), Failure> {
    if !args.insecure_http {
        api.refuse_readable("the password of the first user")?;
    }
    let secret = prompt::secret(
        "Set-up secret, which the server printed: ",
        "--secret-file",
        args.secret_file.as_deref(),
    )?;
    let name = match &args.user {
        Some(name) => name.clone(),
        None => prompt::line("User: ", "--user")?,
    };
    let password = prompt::new_password("--password-file", args.password_file.as_deref())?;
    let body = json!({ "secret": secret.trim(), "name": name, "password": password });
    let answer = api.post(&["setup"], &body).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let user: UserView = read(answer)?;
    out.line(&format!(
        "user {} is created and may do everything; log in with `cueline login {} --user {}`",
        user.name,
        api.url(),
        user.name
    ))
}
