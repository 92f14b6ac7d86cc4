//! Harness and scenarios
