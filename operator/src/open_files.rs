//! The limit on open files of this process: each agent's connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as allowed. Many systems start with 1,024 for programs that use `select`, and let other
/// processes raise it.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(before = current, after = maximum, "may open more files"),
        Err(error) => {
            tracing::warn!(%error, limit = current, "cannot raise the limit of open files: each agent needs one");
        }
    }
}
