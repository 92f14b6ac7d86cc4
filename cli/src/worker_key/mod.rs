//! `cueline worker-key …`: the keys with which workers seal what they send.

mod local;

use crate::args::WorkerKeyCommand;
use crate::failure::Failure;
use crate::output::Out;

pub(crate) fn run(out: Out, command: &WorkerKeyCommand) -> Result<(), Failure> {
    match command {
        WorkerKeyCommand::Show(arg) => local::show(out, arg),
        WorkerKeyCommand::Rotate(arg) => local::rotate(out, arg),
    }
}
