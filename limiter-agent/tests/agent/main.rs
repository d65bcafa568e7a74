//! An agent process, tried from outside over real sockets.

mod bootstrap;
mod limits;
mod metrics;
mod process;
mod proxying;
mod snapshots;
mod support;
mod tls;
mod websocket;
