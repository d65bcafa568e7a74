//! Memcached. A rule with one fixed window and without a ban uses one command. Every other rule uses compare-and-swap.
//!
//! Memcached runs no scripts and does not report its time. So each caller uses its own time. If the clocks of the
//! callers differ, a limit can admit up to `rate * difference` more. Memcached has no replicas: a server that restarts
//! loses its counters.
//!
//! - A rule with one fixed window and without a ban has a counter for each window. The command `ma` adds the requested
//!   units and returns the sum, in one round trip. What the window does not grant is subtracted at once, in a second
//!   round trip. Between the two round trips, the counter is too high, never too low: another question can then be
//!   refused although its units are free, and its program does not ask for this key again before the window ends. So a
//!   refused question whose counter shows this is asked once more. If a program does not receive the first answer, the
//!   units that it requested stay counted until the window ends. If the server drops the counter between the two round
//!   trips, because its memory is full, the second round trip can subtract from a new counter, at most the units of one
//!   question. Seats are never given back, because the counter can have expired in the meantime. If more units are
//!   credited than the window has charged, while another question is between its two round trips, the rest of the
//!   credit cancels units that this question is about to subtract. Then the window forgets units that it granted
//!   between these round trips, at most this rest.
//! - Every other rule has the same value as in Redis. The command `mg` reads it, the model decides, and `ms` writes it
//!   if it has not changed. If it has changed, the question starts again.

mod codec;
mod pipe;

use std::{sync::Arc, time::Duration};

use weir_core::Strategy;
use weir_seats::{
    EncodedReply, EncodedTake, Key, Next, Reply, StoreError, StoreTerms, Take, Value,
    model::{Transition, take},
    state::start_of,
    terms::StoreLimit,
};

use self::{
    codec::{Response, WriteIf, decrement, delete, get, increment, set},
    pipe::Pipe,
};
use crate::connection::StoreConnection;

/// The extra seconds for which a value is kept: the clocks of callers can differ, and Memcached counts whole seconds.
const SLACK: u64 = 60;

/// A store in Memcached 1.6.10 or later. The first question opens the connection, on the tokio runtime of the caller.
#[derive(Debug)]
pub struct MemcachedStore {
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    endpoint: String,
    connection: Arc<StoreConnection<Pipe>>,
}

/// The error for an invalid list of servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMemcached {
    /// The list is empty.
    #[error("a store must have at least one server")]
    NoServer,
    /// A server has no host or no valid port.
    #[error("{0:?} is not a server: write host:port")]
    Server(String),
}

impl MemcachedStore {
    /// Creates a store at these servers, each as `host:port`. Each counter is on one of them, so all callers must have
    /// the same list of servers.
    ///
    /// # Errors
    ///
    /// See [`InvalidMemcached`].
    pub fn new(servers: &[String]) -> Result<Self, InvalidMemcached> {
        if servers.is_empty() {
            return Err(InvalidMemcached::NoServer);
        }
        let server = |endpoint: &String| match endpoint.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Server { endpoint: endpoint.clone(), connection: Arc::default() })
            }
            _ => Err(InvalidMemcached::Server(endpoint.clone())),
        };
        Ok(Self { servers: servers.iter().map(server).collect::<Result<_, _>>()? })
    }

    /// Asks the store. `clock` returns the caller's time in microseconds since the Unix epoch. It is called after each
    /// read of the counter, so that a question that starts again does not decide in the past.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; [`StoreError::Unsupported`] for [`Strategy::SlidingWindowLog`], [`Strategy::LeakyBucket`] and
    /// requests with patience; [`StoreError::Late`] after `deadline`, even if other callers change the value all the
    /// time.
    pub async fn take(
        &self,
        key: &Key,
        question: &Take<'_>,
        clock: impl Fn() -> u64,
        deadline: Duration,
    ) -> Result<Reply, StoreError> {
        let encoded = question.encode().ok_or(StoreError::Cost)?;
        if let Some(reason) = unsupported(&encoded) {
            return Err(StoreError::Unsupported(reason));
        }
        let server = self.server(key);
        let answer = async {
            match encoded.limits[..] {
                [limit] if limit.strategy == Strategy::FixedWindow && encoded.ban.is_none() => {
                    server.add(key, &encoded, &limit, clock()).await
                }
                _ => server.swap(key, &encoded, &clock).await,
            }
        };
        let answer = server.connection.by(deadline, answer, || server.connection.disconnect());
        answer.await?.reply(&encoded).ok_or(StoreError::Garbled)
    }

    /// Forgets the count of a key: its value, and the counters of its windows at `now`, the caller's time in microseconds
    /// since the Unix epoch.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; [`StoreError::Late`] after `deadline`.
    pub async fn forget(&self, key: &Key, terms: &StoreTerms, now: u64, deadline: Duration) -> Result<(), StoreError> {
        let server = self.server(key);
        let windows = terms.raw().iter().map(|limit| window(key, limit, start_of(limit, now)));
        let names: Vec<_> = windows.chain([key.as_str().to_owned()]).collect();
        let forgotten = async {
            let pipe = server.pipe().await?;
            for name in &names {
                server.call(&pipe, delete(name)).await?;
            }
            Ok(())
        };
        server.connection.by(deadline, forgotten, || server.connection.disconnect()).await
    }

    /// Selects the server of a counter by rendezvous hashing (Thaler and Ravishankar, 1998), so that few counters move
    /// if a server is added.
    fn server(&self, key: &Key) -> &Server {
        let weight = |server: &&Server| hash(&[server.endpoint.as_bytes(), key.as_str().as_bytes()]);
        self.servers.iter().max_by_key(weight).unwrap_or(&self.servers[0])
    }
}

impl Server {
    async fn pipe(&self) -> Result<Pipe, StoreError> {
        self.connection.get(|| Pipe::open(self.endpoint.clone())).await
    }

    async fn call(&self, pipe: &Pipe, command: Vec<u8>) -> Result<Response, StoreError> {
        let answer = pipe.call(command).await;
        let is_last = answer.as_ref().map_or_else(|error| matches!(error, StoreError::Lost(_)), Response::loses_order);
        if is_last {
            self.connection.disconnect();
        }
        match answer? {
            Response::Failed(text) => Err(StoreError::Refused(text)),
            answer => Ok(answer),
        }
    }

    /// Changes a counter. Returns its new value, or `None` if it does not exist.
    async fn count(&self, pipe: &Pipe, command: Vec<u8>) -> Result<Option<u64>, StoreError> {
        match self.call(pipe, command).await? {
            Response::Value { data, .. } => {
                let text = std::str::from_utf8(&data).ok();
                text.and_then(|text| text.trim_end().parse().ok()).map(Some).ok_or(StoreError::Garbled)
            }
            Response::Missing => Ok(None),
            _ => Err(StoreError::Garbled),
        }
    }

    /// Adds the requested units to the counter of the window, and subtracts those that the window does not grant.
    async fn add(
        &self,
        key: &Key,
        encoded: &EncodedTake,
        limit: &StoreLimit,
        now: u64,
    ) -> Result<EncodedReply, StoreError> {
        let start = start_of(limit, now);
        let is_possible = encoded.cost <= limit.requests;
        let requests = if is_possible { encoded.requests } else { 0 };
        let seen = encoded.seen.as_ref().map_or(0, |seen| if seen[0][0] == start { seen[0][1] } else { 0 });
        // The free part of the window is known only from the last answer. Seats that other programs need are lost, so at
        // most an eighth of the whole window and a quarter of the free part are taken in advance.
        let prefetch = encoded.prefetch.min(limit.requests / 8).min(limit.requests.saturating_sub(seen) / 4);
        let prefetch = if is_possible { prefetch } else { 0 };
        let seconds = (start + limit.period - now).div_ceil(1_000_000) + SLACK;
        let name = window(key, limit, start);
        // All commands use one connection: a server that restarts has another counter, from which nothing is subtracted.
        let pipe = self.pipe().await?;
        if encoded.credit > 0 {
            // A window without a counter has charged nothing.
            self.count(&pipe, decrement(&name, encoded.credit)).await?;
        }
        let (mut owed, mut is_repeated) = (encoded.owed, false);
        let (before, granted, prefetched) = loop {
            let more = owed + requests * encoded.cost + prefetch;
            let command = increment(&name, more, seen + more, expiry(seconds, now));
            let sum = self.count(&pipe, command).await?.ok_or(StoreError::Garbled)?;
            let before = sum.saturating_sub(more) + owed;
            let free = limit.requests.saturating_sub(before);
            let granted = requests.min(free / encoded.cost);
            let is_served = granted == encoded.requests;
            let prefetched = if is_served { prefetch.min(free - granted * encoded.cost) } else { 0 };
            let refused = more - owed - granted * encoded.cost - prefetched;
            if refused == 0 {
                break (before, granted, prefetched);
            }
            let counted = self.count(&pipe, decrement(&name, refused)).await?;
            // Units that another question is about to subtract have made the counter too high: they are free again, or the
            // counter is still above the limit.
            let may_be_free = |sum| sum + encoded.cost <= limit.requests || sum > limit.requests;
            if is_repeated || granted > 0 || requests == 0 || !counted.is_some_and(may_be_free) {
                break (before, granted, prefetched);
            }
            (owed, is_repeated) = (0, true);
        };
        let served = before + granted * encoded.cost;
        Ok(EncodedReply {
            granted,
            prefetched,
            time: now,
            birth: 0,
            next: match granted == encoded.requests {
                true => Next::Now,
                false if !is_possible => Next::Never,
                false => Next::At(start + limit.period),
            },
            stamp: encoded.stamp,
            limits: None,
            marks: [vec![[start, before, 0]], vec![[start, served, 0]], vec![[start, served + prefetched, 0]]],
            banned_since: 0,
            reserved: 0,
        })
    }

    /// Reads the value, decides, and writes the new value if the stored one has not changed in the meantime. Otherwise
    /// it starts again.
    async fn swap(
        &self,
        key: &Key,
        encoded: &EncodedTake,
        clock: &impl Fn() -> u64,
    ) -> Result<EncodedReply, StoreError> {
        loop {
            let pipe = self.pipe().await?;
            let (stored, write_if) = match self.call(&pipe, get(key.as_str())).await? {
                // Without version numbers, no write with a condition succeeds.
                Response::Value { cas: Some(0), .. } => {
                    return Err(StoreError::Refused("Memcached runs without CAS: remove its option -C".to_owned()));
                }
                Response::Value { data, cas: Some(cas) } => {
                    // An invalid value counts as missing, and is replaced.
                    let text = String::from_utf8(data).unwrap_or_default();
                    (Value::parse(&text), WriteIf::Unchanged(cas))
                }
                Response::Missing => (None, WriteIf::Missing),
                _ => return Err(StoreError::Garbled),
            };
            let now = clock();
            let Transition { answer, value, full_at } = take(stored.as_ref(), encoded, now);
            let is_needless = stored.is_none() && full_at <= now;
            if stored.as_ref() == Some(&value) || is_needless {
                return Ok(answer);
            }
            let seconds = full_at.saturating_sub(now).div_ceil(1_000_000) + SLACK;
            let command = set(key.as_str(), value.text().as_bytes(), write_if, expiry(seconds, now));
            match self.call(&pipe, command).await? {
                Response::Done => return Ok(answer),
                Response::Missing | Response::Changed => {}
                _ => return Err(StoreError::Garbled),
            }
        }
    }
}

/// The name of the counter of a window.
fn window(key: &Key, limit: &StoreLimit, start: u64) -> String {
    format!("{}.{}.{start}", key.as_str(), limit.period)
}

/// Returns the part of a question that Memcached does not support, if any.
fn unsupported(encoded: &EncodedTake) -> Option<&'static str> {
    let is = |strategy| encoded.limits.iter().any(|limit| limit.strategy == strategy);
    if is(Strategy::SlidingWindowLog) {
        return Some("SlidingWindowLog: choose SlidingWindowCounter, or Redis");
    }
    if is(Strategy::LeakyBucket) {
        return Some("LeakyBucket: choose Gcra, or Redis");
    }
    (encoded.patience > 0).then_some("requests that wait: refuse them, or choose Redis")
}

/// Converts a lifetime in seconds to the expiry that Memcached expects. Memcached reads more than thirty days as Unix
/// time, which must fit 31 bits. Zero means that the value never expires.
fn expiry(seconds: u64, now: u64) -> u64 {
    const THIRTY_DAYS: u64 = 30 * 86_400;
    if seconds <= THIRTY_DAYS {
        return seconds;
    }
    let moment = now / 1_000_000 + seconds;
    if i32::try_from(moment).is_ok() { moment } else { 0 }
}

/// FNV-1a with a final mixing step, because FNV-1a mixes the last bytes badly. The result is the same on every machine.
fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().copied().flatten();
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mixed = (hash ^ (hash >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_store_is_refused() {
        let new = |servers: &[&str]| {
            MemcachedStore::new(&servers.iter().map(ToString::to_string).collect::<Vec<_>>()).map(|_| ())
        };
        assert_eq!(new(&[]), Err(InvalidMemcached::NoServer));
        assert_eq!(new(&["a:1", "b"]), Err(InvalidMemcached::Server("b".to_owned())));
        assert_eq!(new(&["a:1", "[::1]:11211"]), Ok(()));
    }

    #[test]
    fn values_live_as_long_as_they_are_needed() {
        let now = 1_790_000_000_000_000;
        assert_eq!([60, 2_592_000].map(|seconds| expiry(seconds, now)), [60, 2_592_000]);
        assert_eq!([2_592_001, 900_000_000].map(|seconds| expiry(seconds, now)), [1_792_592_001, 0]);
    }

    /// Counters are spread evenly. A new server takes counters from each other server, and no counter moves between old
    /// servers.
    #[test]
    fn counters_are_spread_and_stay() {
        let names = ["a:1", "b:1", "c:1", "d:1"].map(str::to_owned);
        let (three, four) = (MemcachedStore::new(&names[..3]), MemcachedStore::new(&names));
        let (three, four) = (three.expect("a store"), four.expect("a store"));
        let mut counts = [0; 4];
        for hash in 0..4_000 {
            let key = Key::new("limits", hash).expect("a key");
            let (before, after) = (&three.server(&key).endpoint, &four.server(&key).endpoint);
            assert!(before == after || *after == names[3]);
            counts[names.iter().position(|name| name == after).expect("one of them")] += 1;
        }
        assert!(counts.iter().all(|&count| (800..1_200).contains(&count)), "{counts:?}");
    }
}
