//! The file descriptors that this process may use. Each connection needs one, and one for the app if it has a request.
//!
//! The kernel always assigns the lowest free number. So a high number of a new connection shows that few descriptors are
//! left, and the agent needs no counter.

use std::{
    fmt::Display,
    io,
    os::fd::{AsFd, AsRawFd},
    sync::OnceLock,
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use weir_client::agent::{ConnectionSlots, Rank};
use weir_core::Time;
use weir_enforce::Sample;

/// The descriptors that the agent needs for itself: standard streams, files, stores, keys, and those of each runtime.
const OWN: usize = 32;
const OWN_OF_WORKER: usize = 4;

/// The part of all descriptors that stays free for the agent's own ports, and the largest such number. As many stay
/// free for client connections. Otherwise connections to the app could take all descriptors.
const RESERVED_PART: usize = 8;
const MOST_RESERVED: usize = 2048;

/// The limit of this process, after [`raise`].
static LIMIT: OnceLock<OpenFiles> = OnceLock::new();

/// The pause after a failed accept. The shorter pause applies if an evicted connection frees its descriptor now.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const EVICTION_PAUSE: Duration = Duration::from_millis(5);

/// The limit on the descriptors of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenFiles {
    limit: usize,
}

/// Raises the limit of this process to the allowed maximum, as programs in Go do. Container runtimes start programs with
/// 1,024, for programs that use `select`, and let them raise the limit.
pub(crate) fn raise() -> OpenFiles {
    *LIMIT.get_or_init(|| {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let mut limit = current;
        if current != maximum {
            match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
                Ok(()) => limit = maximum,
                Err(error) => tracing::warn!(%error, "cannot raise the limit on open files"),
            }
        }
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        tracing::info!(limit, before = current, "open files");
        OpenFiles { limit }
    })
}

/// Whether a connection to the app uses a descriptor that is reserved for clients or for the agent's own ports.
pub(crate) fn is_short_for_app(connection: &impl AsFd) -> bool {
    is_beyond(connection, |all| 2 * all.reserved())
}

fn is_beyond(connection: &impl AsFd, reserved: impl Fn(OpenFiles) -> usize) -> bool {
    let Some(all) = LIMIT.get() else { return false };
    let number = usize::try_from(connection.as_fd().as_raw_fd()).unwrap_or_default();
    number >= all.limit - reserved(*all)
}

/// Whether a call failed because the process, or the whole system, has no free descriptor.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Makes room on a port that accepts more connections than there are descriptors for.
#[derive(Debug, Default)]
pub(crate) struct Shortage(Sample);

impl Shortage {
    /// Lets a new connection take the place of another one, if it uses a descriptor that is reserved for the agent's
    /// own ports.
    pub(crate) fn accepted(&self, connection: &impl AsFd, slots: &ConnectionSlots, now: Time) {
        if is_beyond(connection, OpenFiles::reserved) {
            slots.shrink();
            self.warn(now, &"the rest is reserved for the other ports");
        }
    }

    /// Evicts an idle connection after a failed accept. Returns the time after which to try again.
    pub(crate) fn failed(&self, error: &io::Error, slots: &ConnectionSlots, now: Time) -> Duration {
        if !is_exhausted(error) {
            tracing::warn!(%error, "cannot accept a connection");
            return ACCEPT_PAUSE;
        }
        slots.shrink();
        self.warn(now, error);
        if slots.make_room(Rank::Idle) { EVICTION_PAUSE } else { ACCEPT_PAUSE }
    }

    fn warn(&self, now: Time, reason: &dyn Display) {
        if let Some(unlogged) = self.0.take(now) {
            tracing::warn!(%reason, unlogged, "too few open files: new connections evict idle ones");
        }
    }
}

impl OpenFiles {
    fn reserved(self) -> usize {
        (self.limit / RESERVED_PART).min(MOST_RESERVED)
    }

    /// The largest number of client connections of which each can need `each` descriptors.
    pub(crate) fn most_connections(self, workers: usize, each: usize) -> usize {
        let taken = OWN + OWN_OF_WORKER * (workers + 1) + each * self.reserved();
        (self.limit.saturating_sub(taken) / each).max(1)
    }

    /// The number of client connections to serve: `wanted`, or as many as the descriptors allow.
    pub(crate) fn fit(self, wanted: usize, workers: usize, each: usize) -> usize {
        let most = self.most_connections(workers, each);
        if wanted > most {
            tracing::warn!(
                wanted,
                used = most,
                limit = self.limit,
                "too few open files for --max-connections: raise the hard limit (ulimit -Hn), or set --max-connections"
            );
        }
        wanted.min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_and_the_reserves_fit_into_the_limit() {
        for (limit, workers, each, most) in [
            (1024, 2, 2, 362),
            (1024, 2, 1, 852),
            (256, 2, 2, 74),
            (64, 64, 2, 1),
            (524_288, 2, 2, 260_074),
            (usize::MAX, 2, 1, usize::MAX - 2092),
        ] {
            let open_files = OpenFiles { limit };
            assert_eq!(open_files.most_connections(workers, each), most, "{limit}");
            assert_eq!(open_files.fit(100, workers, each), most.min(100), "{limit}");
        }
    }
}
