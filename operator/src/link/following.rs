//! What an agent goes on to tell that was asked once: a line at each interval, until it is asked something else.
//!
//! A line is a status, or empty where the agent has nothing to tell beyond that it is there. To be told costs the operator
//! less than to ask: nothing is sent.

use std::time::Duration;

use tokio::time::Instant;

use super::vigil::Place;

/// No line is longer.
const LONGEST: usize = 1024 * 1024;
/// So many pieces and lines may come before another line could be due. The longest line comes in some hundred pieces.
const MOST_EARLY: u32 = 1000;

#[derive(Debug)]
pub(super) struct Following {
    every: Duration,
    /// How much later than it is due a line may come.
    limit: Duration,
    /// Where it is noticed that none comes.
    pub(super) place: Place,
    /// When a line came that was not early, and what came since before another one could be due.
    on_time_at: Instant,
    early: u32,
    /// What came of the next lines.
    pub(super) buffer: Vec<u8>,
}

impl Following {
    /// An agent was asked to tell `every` so often. A line may be late by `limit`.
    pub(super) fn new(every: Duration, limit: Duration, place: Place, now: Instant) -> Self {
        place.expect(now + every + limit);
        Self { every, limit, place, on_time_at: now, early: 0, buffer: Vec::new() }
    }

    /// Whether an agent that should report `every` so often need not be asked again: a request costs as much as some lines.
    pub(super) fn is_as_often_as(&self, every: Duration) -> bool {
        every.saturating_mul(4) <= self.every.saturating_mul(5)
            && self.every.saturating_mul(4) <= every.saturating_mul(5)
    }

    /// Something was added to the buffer.
    ///
    /// # Errors
    ///
    /// If that is more than anybody should listen to.
    pub(super) fn came(&mut self, now: Instant) -> Result<(), &'static str> {
        self.bear(now)?;
        // It may be the end of a line and a whole one.
        if self.buffer.len() > 2 * LONGEST { Err(TOO_LONG) } else { Ok(()) }
    }

    /// The next line; empty: it is there, and has nothing to tell. None if there is no whole one.
    ///
    /// # Errors
    ///
    /// If it is longer than any, or one of too many.
    pub(super) fn line(&mut self, now: Instant) -> Result<Option<Vec<u8>>, &'static str> {
        let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') else {
            return if self.buffer.len() > LONGEST { Err(TOO_LONG) } else { Ok(None) };
        };
        if end > LONGEST {
            return Err(TOO_LONG);
        }
        self.place.expect(now + self.every + self.limit);
        if self.is_early(now) {
            self.bear(now)?;
        } else {
            (self.on_time_at, self.early) = (now, 0);
        }
        let mut line = Vec::new();
        if end == 0 {
            // As nearly always. The memory stays for the next one.
            self.buffer.remove(0);
        } else {
            let rest = self.buffer.split_off(end + 1);
            line = std::mem::replace(&mut self.buffer, rest);
            line.truncate(end);
        }
        Ok(Some(line))
    }

    fn bear(&mut self, now: Instant) -> Result<(), &'static str> {
        self.early += u32::from(self.is_early(now));
        if self.early > MOST_EARLY { Err("it tells its status more often than it was asked to") } else { Ok(()) }
    }

    fn is_early(&self, now: Instant) -> bool {
        now.duration_since(self.on_time_at) < self.every / 2
    }
}

const TOO_LONG: &str = "it tells a status that is longer than any";

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::time::sleep;

    use super::*;
    use crate::link::vigil::Vigil;

    const EVERY: Duration = Duration::from_secs(10);
    const LIMIT: Duration = Duration::from_millis(1500);

    fn following(now: Instant) -> Following {
        Following::new(EVERY, LIMIT, Vigil::new().place(), now)
    }

    fn give(following: &mut Following, piece: &[u8], now: Instant) -> Result<Vec<Vec<u8>>, &'static str> {
        following.buffer.extend_from_slice(piece);
        following.came(now)?;
        std::iter::from_fn(|| following.line(now).transpose()).collect()
    }

    #[tokio::test]
    async fn lines_are_read_however_they_are_cut() {
        let now = Instant::now();
        let text = b"\n{\"a\":1}\n\n\n{\"b\":2}\n";
        let lines: [&[u8]; 5] = [b"", b"{\"a\":1}", b"", b"", b"{\"b\":2}"];
        for size in 1..=text.len() {
            let mut following = following(now);
            let mut read = Vec::new();
            for piece in text.chunks(size) {
                read.extend(give(&mut following, piece, now).unwrap());
            }
            assert_eq!(read, lines, "in pieces of {size}");
            assert!(following.buffer.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_is_late_an_interval_and_a_little_after_the_last_one() {
        let start = Instant::now();
        let mut following = following(start);
        for at in [9_u64, 12, 23] {
            sleep(start + Duration::from_secs(at) - Instant::now()).await;
            assert!(poll_fn(|context| Poll::Ready(following.place.poll_overdue(context).is_pending())).await, "{at} s");
            give(&mut following, b"\n", Instant::now()).unwrap();
        }
        sleep(Duration::from_secs(11)).await;
        give(&mut following, b"{", Instant::now()).unwrap();
        poll_fn(|context| following.place.poll_overdue(context)).await;
        let late = start.elapsed() - Duration::from_secs(23) - EVERY - LIMIT;
        assert!(late <= Duration::from_millis(200), "half a line is no sign of anything, and {late:?} are too long");
    }

    #[tokio::test]
    async fn who_tells_without_being_asked_is_not_listened_to_for_long() {
        let start = Instant::now();
        for (what, at_a_time) in [("one by one", 1), ("together", 100)] {
            let mut flood = following(start);
            let lines = vec![b'\n'; at_a_time];
            let ends = (0..MOST_EARLY).position(|_| give(&mut flood, &lines, start).is_err());
            let lines = ends.map(|pieces| pieces * at_a_time);
            assert!(lines.is_some_and(|lines| (400..=1000).contains(&lines)), "{what}: {lines:?}");
        }

        // On time for a day, and too early as well: as long as it is not too much.
        let mut twice = following(start);
        for turn in 1..10_000 {
            let now = start + EVERY * turn;
            give(&mut twice, b"\n", now).unwrap();
            give(&mut twice, b"\n", now).unwrap();
        }
        // A byte each millisecond that never becomes a line.
        let mut endless = following(start);
        let mut now = start;
        let ends = (0..2 * LONGEST).position(|_| {
            now += Duration::from_millis(1);
            give(&mut endless, b"a", now).is_err()
        });
        assert!(ends.is_some_and(|pieces| pieces <= LONGEST), "{ends:?}");
    }

    #[tokio::test]
    async fn no_line_is_longer_than_a_status_may_be() {
        let now = Instant::now();
        let mut long = vec![b'a'; LONGEST];
        long.push(b'\n');
        assert_eq!(give(&mut following(now), &long, now).unwrap()[0].len(), LONGEST);
        long.insert(0, b'a');
        assert_eq!(give(&mut following(now), &long, now), Err(TOO_LONG));
        long.truncate(LONGEST + 1);
        assert_eq!(give(&mut following(now), &long, now), Err(TOO_LONG), "although its end has not come");
    }

    #[tokio::test]
    async fn another_pace_is_one_that_differs_by_a_quarter() {
        let following = following(Instant::now());
        for (seconds, expected) in
            [(1, false), (7, false), (8, true), (10, true), (12, true), (13, false), (100, false)]
        {
            assert_eq!(following.is_as_often_as(Duration::from_secs(seconds)), expected, "{seconds} s");
        }
    }
}
