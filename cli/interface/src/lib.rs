//! What commands and processes of the `cueline` program have in common towards their user: failures, printed answers, and
//! files that they read. A process also announces itself here, and a command of the same user finds it.
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
