//! An agent process, tried from outside over real sockets.

mod limits;
mod process;
mod proxying;
mod snapshots;
mod support;
