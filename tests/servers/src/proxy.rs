//! A TCP proxy that delays, stalls or cuts connections.
