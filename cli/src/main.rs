//! The `cueline` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    cueline::main_with(std::env::args_os())
}
