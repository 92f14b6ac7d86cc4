//! A NATS server.
