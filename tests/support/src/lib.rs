//! What tests of every crate share. It depends on no other crate of ours, so that each of them can have it as a dev-dependency.

mod eventually;

pub use eventually::{NotWithin, SOON, Wait, eventually, eventually_blocking, try_eventually};
