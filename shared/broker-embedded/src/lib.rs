//! Broker driver that keeps its queues in one SQLite file, for one process
