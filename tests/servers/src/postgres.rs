//! A PostgreSQL server.
