//! An agent process, tried from outside over real sockets.

mod bootstrap;
mod costs;
mod drain;
mod explain;
mod http2;
mod jwks;
mod limits;
mod logs;
mod metrics;
mod process;
mod proxying;
mod slow;
mod smuggling;
mod snapshots;
mod support;
mod tls;
mod waits;
mod websocket;
