//! What the commands and the processes of the `cueline` program have in common towards their user: failures, the printing
//! of answers, the files that they read, and how a command finds a server of the same user.
//!
//! A crate of its own, so that its code lies together: a process that serves maps little of the code of commands.

mod deferred;
pub mod discovery;
mod failure;
pub mod jobfile;
mod output;
pub mod secret_file;
pub mod suggest;
pub mod url;

pub use deferred::{Deferred, whole};
pub use failure::{BadInput, Failure, Hinted, say, with_causes};
pub use output::{Out, OutputFormat, Paint, cell};
