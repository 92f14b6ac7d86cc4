//! Built-in handlers: shell, command and http
