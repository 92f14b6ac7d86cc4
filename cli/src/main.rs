//! The cueline binary
fn main() {}
