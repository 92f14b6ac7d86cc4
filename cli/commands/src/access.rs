//! Commands about keys and people, about the servers that commands know, and about the API.

use clap::Subcommand;
use cueline_interface::{Deferred, Failure, Out};

use crate::accounts::args::{SetupArgs, TokenCommand, UserCommand};
use crate::client::Api;
use crate::context::args::ContextCommand;
use crate::keys::KeyCommand;
use crate::login::{LoginArgs, LogoutArgs};
use crate::opaque::opaque;
use crate::worker_key::args::WorkerKeyCommand;
use crate::{Running, ServerArgs, in_no_namespace};
use crate::{accounts, context, keys, login, worker_key};

#[derive(Debug, Subcommand)]
enum Command {
    /// Create and show the keys that sign triggers
    #[command(subcommand)]
    Key(Deferred<KeyCommand>),
    /// Log in to a server: store a token for it as a context
    Login(Deferred<LoginArgs>),
    /// Revoke the token of a context, and forget it
    Logout(Deferred<LogoutArgs>),
    /// Show who sends requests to which server, and what they may do
    Whoami,
    /// List, choose, show, rename and delete contexts: servers that commands know by name
    #[command(subcommand)]
    Context(Deferred<ContextCommand>),
    /// List, show, create, change and delete users; set their passwords
    #[command(subcommand)]
    User(Deferred<UserCommand>),
    /// List, create and revoke API tokens; create an admin token
    #[command(subcommand)]
    Token(Deferred<TokenCommand>),
    /// Create the first user of a server
    Setup(Deferred<SetupArgs>),
    /// Enrol workers, and list, revoke, allow and replace their keys
    #[command(subcommand)]
    WorkerKey(Deferred<WorkerKeyCommand>),
    /// Print the OpenAPI document of the API
    Openapi,
}

opaque! {
    /// Commands about keys and people, about the servers that commands know, and about the API.
    pub struct AccessCommand(Command);
}

impl AccessCommand {
    /// Runs the command with the server that `server` names.
    pub fn run(self, server: ServerArgs, out: Out) -> Running {
        Box::pin(run(self.0, server, out))
    }
}

async fn run(command: Command, server: ServerArgs, out: Out) -> Result<(), Failure> {
    let api = || Api::new(&server);
    match command {
        Command::Key(Deferred(command)) => keys::run(out, &command),
        Command::Login(Deferred(args)) => login::login(out, &server, &args).await,
        Command::Logout(Deferred(args)) => login::logout(out, &server, &args).await,
        Command::Whoami => login::whoami(out, &server).await,
        Command::Context(Deferred(command)) => context::run(out, &server, command),
        Command::User(Deferred(command)) => {
            accounts::user(&in_no_namespace(api)?, out, command).await
        }
        Command::Token(Deferred(command)) => {
            accounts::token(|| in_no_namespace(api), out, command).await
        }
        Command::Setup(Deferred(args)) => accounts::setup(&in_no_namespace(api)?, out, &args).await,
        Command::WorkerKey(Deferred(command)) => worker_key::run(api, out, command).await,
        Command::Openapi => out.text(cueline_api::openapi_json()),
    }
}
