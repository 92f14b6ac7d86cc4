//! Reads a page of documentation as steps of one shell, and compares what they print with what the page shows. Pure.
//!
//! In a block ` ```console `, a line that begins with `$ ` is a command. Its next lines belong to it after a `\` at the end, or
//! if they begin with `> `. The other lines are its output. All commands run in one shell, one after the other. A command
//! with `error: ` in its output must fail, and every other one must succeed.
//!
//! A comment of HTML before a block, or anywhere for the ports, is a directive:
//!
//! | directive | meaning |
//! | --- | --- |
//! | `<!-- ports: 7800 7801 -->` | the ports of the page; the test uses free ones in their place |
//! | `<!-- file: NAME -->` | the block is the text of a file, which is written at this point |
//! | `<!-- provided -->` | the block is not run, because the test has done it |
//!
//! In an output, the line `…` stands for any lines, and `…` within a line for any text. Times, durations, ids, keys, secrets,
//! versions and numbers of runs may differ; see `normal.rs`. Tables may have columns of other widths.

mod comparison;
mod normal;
mod page;
mod ports;

pub use comparison::difference;
pub use page::{Action, Page, Step};
pub use ports::Ports;
