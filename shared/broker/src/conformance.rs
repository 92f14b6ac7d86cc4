//! The tests that every driver passes.
