//! The worker against its promises, over the embedded broker.

mod absence;
mod answers;
mod contact;
mod control;
mod crash;
mod drain;
mod ends;
mod full_disk;
mod lanes;
mod letters;
mod link;
mod logs;
mod paused;
mod stores;
mod world;
