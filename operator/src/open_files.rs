//! Raises the limit on open files of this process: each agent's connection is an open file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to the allowed maximum. Many systems start with 1,024 for programs that use `select`, and let other
/// processes raise the limit.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        tracing::info!(limit = current, "open files");
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::info!(limit = maximum, before = current, "open files"),
        Err(error) => {
            tracing::warn!(%error, limit = current, "cannot raise the limit of open files: each agent needs one");
        }
    }
}
