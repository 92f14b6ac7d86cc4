//! The worker against its promises, over the embedded broker.

mod answers;
mod control;
mod crash;
mod drain;
mod ends;
mod full_disk;
mod lanes;
mod letters;
mod logs;
mod world;
