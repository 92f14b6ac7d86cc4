//! Store adapter on SQLite
