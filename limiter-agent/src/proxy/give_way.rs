//! Lets other connections of the worker proceed.

use std::{
    pin::pin,
    task::{Context, Poll},
};

use tokio::task::yield_now;

/// The number of bytes that a connection may read in one turn. A peer that sends faster than the agent reads would
/// otherwise stop all other connections of the worker.
pub(super) const TURN: usize = 256 * 1024;

/// Ends the turn of a task. The task continues when the worker has served all other tasks, sockets and timers.
///
/// A task that wakes itself continues before sockets and timers: the runtime looks for these only after 61 turns.
pub(super) fn give_way<T>(cx: &mut Context<'_>) -> Poll<T> {
    // The first poll hands the waker to the runtime.
    let _pending = pin!(yield_now()).poll(cx);
    Poll::Pending
}
