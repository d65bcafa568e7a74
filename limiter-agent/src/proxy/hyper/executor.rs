//! The executor that hyper uses for the tasks of an HTTP/2 connection to the app.

use std::{
    cell::RefCell,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hyper::rt::Executor;
use tokio::task::spawn_local;

use crate::proxy::stalled_uploads::{CURRENT, Stall, Upload};

/// Runs hyper's tasks on the connection's own thread, and ends the task of an upload that the agent has given up.
///
/// hyper polls a body once before it starts a task for it. So the upload of a new task is the one that was entered last.
#[derive(Clone, Copy, Debug)]
pub(super) struct AppTasks;

impl<F: Future<Output = ()> + 'static> Executor<F> for AppTasks {
    fn execute(&self, task: F) {
        match CURRENT.try_with(RefCell::take) {
            Ok(Some(upload)) => spawn_local(Watched { task: Box::pin(task), upload, waits: None, stall: None }),
            _ => spawn_local(task),
        };
    }
}

/// A task that sends an upload.
struct Watched<F> {
    task: Pin<Box<F>>,
    upload: Arc<Upload>,
    /// The result of [`ReadProgress::waits`](crate::proxy::read_progress::ReadProgress::waits) when the pause began.
    waits: Option<u64>,
    stall: Option<Stall>,
}

impl<F: Future<Output = ()>> Future for Watched<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.task.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let waits = this.upload.progress.waits();
        if waits != this.waits {
            (this.waits, this.stall) = (waits, None);
        }
        if waits.is_some() {
            ready!(this.stall.get_or_insert_with(|| Stall::new(&this.upload)).poll_given_up(cx));
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
