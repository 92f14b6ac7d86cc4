//! The broker on RabbitMQ.
