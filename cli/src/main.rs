//! The `cueline` program.

use std::process::ExitCode;

/// Messages and rows are allocated on one thread and freed on another, which the system's allocator pays for with locks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cueline::main_with(std::env::args_os())
}
