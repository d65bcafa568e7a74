//! An agent process, tried from outside over real sockets.

mod bootstrap;
mod costs;
mod explain;
mod limits;
mod logs;
mod metrics;
mod process;
mod proxying;
mod snapshots;
mod support;
mod tls;
mod waits;
mod websocket;
