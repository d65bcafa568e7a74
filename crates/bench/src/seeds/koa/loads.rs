//! The loads, and what each of them finds.

use std::{
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use tokio::runtime::Builder;

use super::{
    LARGE, Limit, RATE, SMALL,
    contenders::{Contender, PROCESSES, Running},
    oracle,
};
use crate::{
    clock,
    proxy::{Connection, Wrk},
    seeds::clients::{Answers, OpenLoopClient, run_step},
    stats::{float, percentiles_ms},
};

/// As in the document.
const THREADS: usize = 12;
const CONNECTIONS: usize = 1_200;
/// The longest time until a contender admits the first request of a load, and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
/// Open connections of an open-loop client to each process before the first request.
const OPEN: usize = 300;

pub(super) struct Load {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    limit: Limit,
    seconds: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One process, which refuses nearly all requests of closed-loop clients.
    Refused,
    /// One process, which admits all.
    Admitted,
    /// The same as refused, with all processes.
    RefusedByAll,
    /// So many tenths of the limit, from open-loop clients of all processes.
    Open { tenths: u64 },
}

pub(super) const LOADS: [Load; 5] = [
    Load { name: "refused", kind: Kind::Refused, limit: SMALL, seconds: 5 },
    Load { name: "admitted", kind: Kind::Admitted, limit: LARGE, seconds: 3 },
    Load { name: "refused by two processes", kind: Kind::RefusedByAll, limit: SMALL, seconds: 3 },
    Load { name: "three times the limit", kind: Kind::Open { tenths: 30 }, limit: RATE, seconds: 3 },
    Load { name: "0.8 of the limit", kind: Kind::Open { tenths: 8 }, limit: RATE, seconds: 3 },
];

impl Kind {
    pub(super) fn takes_part(self, contender: Contender) -> bool {
        match self {
            Self::Admitted => true,
            Self::Refused => contender.has_limit(),
            Self::RefusedByAll | Self::Open { .. } => contender.shares_limit(),
        }
    }
}

/// The figures of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) per_second: f64,
    /// In milliseconds. With several processes, those of the slowest.
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    /// Requests without an answer within wrk's 5 s, or with a broken connection.
    pub(super) failed: f64,
    pub(super) admitted: f64,
    /// Of what the limit allows, or of the requests if they are fewer; in percent.
    pub(super) share: f64,
    pub(super) excess: f64,
    /// To the store, per request.
    pub(super) trips: f64,
    /// Of the store, per request, in microseconds.
    pub(super) store_cpu: f64,
}

/// What clients counted.
#[derive(Clone, Copy, Debug)]
struct Counted {
    requests: u64,
    /// Requests without an answer. They are not among `requests`.
    failed: u64,
    seconds: f64,
    latencies: [f64; 3],
}

impl Load {
    pub(super) fn run(&self, running: &Running, quick: bool, folder: &Path) -> anyhow::Result<Sample> {
        let seconds = if quick { 1 } else { self.seconds };
        let all = match self.kind {
            Kind::Refused | Kind::Admitted => 1,
            Kind::RefusedByAll | Kind::Open { .. } => PROCESSES,
        };
        let (listen, apps) = (&running.listen[..all], &running.apps[..all]);
        warm_up(listen, self.limit.path)?;
        let key = fresh_key();
        oracle::start(apps)?;
        let before = running.redis.work()?;
        let counted = match self.kind {
            Kind::Open { tenths } => self.open(listen, &key, tenths, seconds)?,
            Kind::Refused | Kind::Admitted | Kind::RefusedByAll => self.closed(listen, &key, seconds, folder)?,
        };
        ensure!(counted.requests > 0, "no request was answered");
        let after = running.redis.work()?;
        let admitted = oracle::read(apps, self.limit)?;
        let possible = counted.requests.min(self.limit.most(micros(counted.seconds)));
        Ok(Sample::new(counted, admitted, possible, (after.trips - before.trips, after.cpu.saturating_sub(before.cpu))))
    }

    fn closed(&self, listen: &[SocketAddr], key: &str, seconds: u64, folder: &Path) -> anyhow::Result<Counted> {
        let run = |place: usize, address: &SocketAddr| -> anyhow::Result<Counted> {
            let folder = folder.join(format!("wrk-{place}"));
            std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
            let load = Wrk {
                url: &format!("http://{address}{}", self.limit.path),
                threads: THREADS / listen.len(),
                connections: CONNECTIONS / listen.len(),
                length: Duration::from_secs(seconds),
                header: "x-key",
                prefix: key,
                keys: 1,
                hang: 0,
                seed: 0,
                folder: &folder,
            }
            .run()?;
            let latencies = [load.p50, load.p95, load.p99].map(|micros| micros / 1e3);
            Ok(Counted { requests: load.served + load.refused, failed: load.failed, seconds: load.seconds, latencies })
        };
        let counted: Vec<_> = std::thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> =
                listen.iter().enumerate().map(|(place, address)| scope.spawn(move || run(place, address))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        counted.into_iter().collect::<anyhow::Result<Vec<_>>>()?.into_iter().reduce(Counted::and).context("a process")
    }

    fn open(&self, listen: &[SocketAddr], key: &str, tenths: u64, seconds: u64) -> anyhow::Result<Counted> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let mut clients: Vec<_> = listen.iter().map(|address| OpenLoopClient::new(*address, self.limit.path)).collect();
        for client in &mut clients {
            client.use_keys("x-key", std::iter::once(key.to_owned()))?;
            runtime.block_on(client.open(OPEN))?;
        }
        let each = self.limit.per_second() * tenths / 10 / listen.len() as u64;
        let length = Duration::from_secs(seconds);
        let answers = run_step(&runtime, &clients, u32::try_from(each).context("a rate")?, length);
        let broken: usize = answers.iter().map(|answers| answers.broken).sum();
        let times: Vec<_> = answers.iter().flat_map(Answers::all).collect();
        let (requests, failed, seconds) = (times.len() as u64, broken as u64, length.as_secs_f64());
        Ok(Counted { requests, failed, seconds, latencies: percentiles_ms(times) })
    }
}

impl Counted {
    fn and(self, other: Self) -> Self {
        let latencies = std::array::from_fn(|place| self.latencies[place].max(other.latencies[place]));
        let [requests, failed] = [self.requests + other.requests, self.failed + other.failed];
        Self { requests, failed, seconds: self.seconds.max(other.seconds), latencies }
    }
}

impl Sample {
    fn new(counted: Counted, admitted: oracle::Admitted, possible: u64, (trips, cpu): (u64, Duration)) -> Self {
        let requests = float(counted.requests);
        let [p50, p95, p99] = counted.latencies;
        Self {
            per_second: requests / counted.seconds,
            p50,
            p95,
            p99,
            failed: float(counted.failed),
            admitted: float(admitted.count),
            share: 100.0 * float(admitted.count.min(possible)) / float(possible),
            excess: float(admitted.excess),
            trips: float(trips) / requests,
            store_cpu: cpu.as_secs_f64() * 1e6 / requests,
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few seconds")]
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

/// A key that was never used before.
fn fresh_key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("key-{}-", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Opens the connections to the apps and to Redis, with another key than the load. After a load that used all cores, an
/// agent can consider Redis as lost. This waits until the contender admits a new key again.
fn warm_up(listen: &[SocketAddr], path: &str) -> anyhow::Result<()> {
    for address in listen {
        let mut connection = Connection::open(*address)?;
        let started = clock::now();
        loop {
            let request = format!("GET {path} HTTP/1.1\r\nhost: app\r\nx-key: {}\r\n\r\n", fresh_key());
            let statuses = connection.ask_all(&[request])?;
            if statuses == [200] {
                break;
            }
            ensure!(clock::since(started) < PATIENCE, "the first requests got {statuses:?} for {PATIENCE:?}");
            clock::sleep(PAUSE);
        }
    }
    Ok(())
}
