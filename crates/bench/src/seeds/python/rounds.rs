//! One round of one contender: sends the same list of requests several times, each time with unused keys.

use std::{
    cmp::Ordering,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::clients::{Answer, Clients};
use crate::{
    clock,
    stats::{float, percentiles_ms},
};

pub(super) const PERCENTILES: [&str; 3] = ["P50", "P95", "P99"];

/// These in milliseconds.
pub(super) type Latencies = [f64; 3];

/// The figures of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Requests a second, refused ones included.
    pub(super) per_second: f64,
    /// All requests, including those before the first list that counts.
    pub(super) sent: f64,
    pub(super) all: Latencies,
    pub(super) served: Latencies,
    pub(super) refused: Latencies,
    pub(super) lists: u64,
    /// Lists of which more or fewer requests were served than the limit says.
    pub(super) wrong: u64,
    /// Lists of which more requests were served.
    pub(super) exceeding: u64,
}

/// How many requests of a list were served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    Exactly,
    Fewer,
    More,
}

impl Admitted {
    /// Compares the number of served requests with what the limit says.
    pub(super) fn of(served: usize, exact: usize) -> Self {
        match served.cmp(&exact) {
            Ordering::Equal => Self::Exactly,
            Ordering::Less => Self::Fewer,
            Ordering::Greater => Self::More,
        }
    }
}

/// What a round has counted.
#[derive(Clone, Copy, Default)]
struct Counts {
    sent: usize,
    lists: u64,
    wrong: u64,
    exceeding: u64,
}

/// What is sent in a round.
pub(super) struct Round<'a> {
    /// Of the processes, which get the same number of connections.
    pub(super) addresses: &'a [SocketAddr],
    pub(super) connections: usize,
    pub(super) length: Duration,
    /// Makes the list of requests for a key of its own.
    pub(super) list: &'a dyn Fn(&str) -> Vec<Vec<u8>>,
    /// Compares the answers to a list with what the limit says.
    pub(super) admitted: &'a dyn Fn(&[Answer]) -> Admitted,
}

/// A key that was never used before.
pub(super) fn fresh_key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("key-{}", NEXT.fetch_add(1, Relaxed))
}

impl Round<'_> {
    pub(super) fn run(&self) -> anyhow::Result<Sample> {
        let mut clients = Clients::connect(self.addresses, self.connections)?;
        // The first list opens the connections to the app.
        let mut sent = clients.run(&(self.list)(&fresh_key()))?.len();
        let (mut answers, mut time) = (Vec::new(), Duration::ZERO);
        let (mut lists, mut wrong, mut exceeding) = (0, 0, 0);
        while time < self.length {
            let list = (self.list)(&fresh_key());
            let started = clock::now();
            let answered = clients.run(&list)?;
            time += clock::since(started);
            sent += list.len();
            lists += 1;
            let admitted = (self.admitted)(&answered);
            wrong += u64::from(admitted != Admitted::Exactly);
            exceeding += u64::from(admitted == Admitted::More);
            answers.extend(answered);
        }
        Ok(Sample::new(&answers, time, Counts { sent, lists, wrong, exceeding }))
    }
}

impl Sample {
    fn new(answers: &[Answer], time: Duration, counts: Counts) -> Self {
        let of = |is_counted: &dyn Fn(&Answer) -> bool| {
            percentiles_ms(answers.iter().filter(|answer| is_counted(answer)).map(Answer::latency).collect())
        };
        Self {
            per_second: float(answers.len()) / time.as_secs_f64(),
            sent: float(counts.sent),
            all: of(&|_| true),
            served: of(&Answer::is_served),
            refused: of(&|answer| !answer.is_served()),
            lists: counts.lists,
            wrong: counts.wrong,
            exceeding: counts.exceeding,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_and_refused_are_separate() {
        let now = clock::now();
        let answer =
            |status, millis| Answer { request: 0, sent: now, received: now + Duration::from_millis(millis), status };
        let sample = Sample::new(
            &[answer(200, 4), answer(429, 1), answer(200, 4)],
            Duration::from_millis(500),
            Counts::default(),
        );
        assert!((sample.per_second - 6.0).abs() < 1e-9);
        assert!((sample.served[0] - 4.0).abs() < 1e-9 && (sample.refused[0] - 1.0).abs() < 1e-9);
        assert!((sample.all[2] - 4.0).abs() < 1e-9);
    }
}
