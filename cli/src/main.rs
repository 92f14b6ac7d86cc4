//! The `cueline` program.

use std::process::ExitCode;

/// Messages and rows are allocated on one thread and freed on another. The system's allocator takes locks for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cueline::main_with(std::env::args_os())
}
