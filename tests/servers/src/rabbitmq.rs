//! A RabbitMQ server.
