//! `cueline worker-key …`: the keys of workers, and the tokens that enrol them.

mod admin;
pub(crate) mod args;
mod local;

use cueline_interface::{Failure, Out};

use self::args::WorkerKeyCommand;
use crate::client::Api;

pub(crate) async fn run(
    api: impl FnOnce() -> Result<Api, Failure>,
    out: Out,
    command: WorkerKeyCommand,
) -> Result<(), Failure> {
    match command {
        WorkerKeyCommand::Token(args) if args.offline => admin::new_token_file(out, &args),
        WorkerKeyCommand::Token(args) => admin::create_token(&api()?, out, &args).await,
        WorkerKeyCommand::Tokens(args) => admin::tokens(&api()?, out, &args).await,
        WorkerKeyCommand::DeleteToken(args) => admin::delete_token(&api()?, out, &args).await,
        WorkerKeyCommand::List(args) => admin::list(&api()?, out, &args).await,
        WorkerKeyCommand::Revoke(args) => admin::set(&api()?, out, &args, "revoke").await,
        WorkerKeyCommand::Allow(args) => admin::set(&api()?, out, &args, "allow").await,
        WorkerKeyCommand::Show(arg) => local::show(out, &arg),
        WorkerKeyCommand::Rotate(arg) => local::rotate(out, &arg),
    }
}
