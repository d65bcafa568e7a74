//! The executor that hyper uses for the tasks of a connection.

use hyper::rt::Executor;

/// Runs hyper's tasks on the connection's own thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnThisThread;

impl<F: Future + 'static> Executor<F> for OnThisThread
where
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}
