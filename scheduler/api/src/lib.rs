//! REST interface of the scheduler
