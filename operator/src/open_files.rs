//! How many files this process may have open: each agent's connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as this process may. Many systems begin with 1,024, for the sake of programs that use
/// `select`, and let each process that does not have more.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(before = current, after = maximum, "may open more files"),
        Err(error) => {
            tracing::warn!(%error, limit = current, "cannot raise the number of open files: one agent needs one");
        }
    }
}
