//! Registry and router against a small model of all routes.

mod machine;
mod model;
