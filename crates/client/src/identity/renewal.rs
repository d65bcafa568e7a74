//! Decides when to request the next certificate: after two thirds of the current one's life, and shortly after a
//! failure. An operator that connects to the agent (a *call*) is probably reachable. So a call ends the backoff that
//! follows an unreachable service.
//!
//! The module reads the clock every few seconds instead of sleeping until the due time, because the clock can be set
//! and certificates depend on it. The operator checks an agent's certificate by its own clock, so an agent whose clock
//! is set back must not renew later.

use std::{convert::Infallible, fmt::Display, time::Duration};

use rand::Rng;
use tokio::time::sleep;

/// The interval at which the clock is read.
const CLOCK_INTERVAL: Duration = Duration::from_secs(5);

/// The first and the longest delay after a failure. Each delay is twice the previous one.
const FIRST_DELAY: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// After a failure, a call from the operator shortens the wait to no less than this.
const CALLED_DELAY: Duration = Duration::from_millis(500);

/// The largest random time by which a renewal is early, as a share of the certificate's life. Without this spread,
/// agents that started together would always renew together.
const SPREAD: f64 = 0.1;

/// The source of certificates, and the clock for their dates.
pub(super) trait Issuer: Send {
    /// The reason why no certificate was issued.
    type Error: Display + Sync;

    /// Requests a certificate and puts it in use. Returns its expiry in seconds of Unix time.
    fn obtain(&mut self) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Returns when the operator calls, and so is probably reachable again. `failure` is the reason for the last failed
    /// attempt.
    fn called(&self, failure: &Self::Error) -> impl Future<Output = ()> + Send;

    /// Seconds of Unix time.
    fn now(&self) -> u64;
}

/// Obtains certificates, one after the other, forever.
pub(super) async fn keep(mut issuer: impl Issuer) -> Infallible {
    let mut failures = 0;
    loop {
        let asked = issuer.now();
        match issuer.obtain().await {
            Ok(not_after) if not_after > issuer.now() => {
                failures = 0;
                let due = due(asked, not_after, rand::rng().random_range(0.0..SPREAD));
                let mut left = Duration::from_secs(due.saturating_sub(issuer.now()));
                while !left.is_zero() {
                    let pause = left.clamp(Duration::from_secs(1), CLOCK_INTERVAL);
                    sleep(pause).await;
                    let now = issuer.now();
                    if now < asked {
                        // The clock was ahead, and the issuer's clock may have been ahead too when it dated the
                        // certificate. Then the certificate is not valid yet for peers with a correct clock.
                        break;
                    }
                    left = left.saturating_sub(pause).min(Duration::from_secs(due.saturating_sub(now)));
                }
            }
            Ok(not_after) => {
                tracing::error!(
                    not_after,
                    "the new certificate has already expired by this machine's clock: correct the clock"
                );
                sleep(delay(&mut failures)).await;
            }
            Err(error) => {
                let delay = delay(&mut failures);
                tracing::warn!(%error, again_in = ?delay, "cannot get a certificate for the control port, trying again");
                let called = async {
                    sleep(CALLED_DELAY).await;
                    issuer.called(&error).await;
                };
                tokio::select! {
                    () = sleep(delay) => {}
                    () = called => {}
                }
            }
        }
    }
}

/// The time at which to request the next certificate.
fn due(asked: u64, not_after: u64, early: f64) -> u64 {
    let life = Duration::from_secs(not_after.saturating_sub(asked));
    asked + life.mul_f64(2.0 / 3.0 - early).as_secs().max(1)
}

/// A random duration between half of a delay and all of it.
fn delay(failures: &mut u32) -> Duration {
    let most = FIRST_DELAY.saturating_mul(1 << (*failures).min(16)).min(LONGEST_DELAY);
    *failures = failures.saturating_add(1);
    most.mul_f64(rand::rng().random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const START: u64 = 1_800_000_000;
    const HOUR: u64 = 3600;
    const NOBODY: &str = "nobody there";

    /// The result of a request at a given second: for how many seconds the certificate is valid.
    type Answer = fn(u64) -> Result<u64, &'static str>;

    struct Scripted<'a> {
        answer: Answer,
        start: Instant,
        /// The time at which the test sets the clock, and the offset that it adds.
        set: Option<(u64, i64)>,
        /// The time from which the operator calls repeatedly.
        calls_since: Option<u64>,
        /// The times of the requests, in seconds after the start.
        asked: &'a mut Vec<u64>,
    }

    impl Issuer for Scripted<'_> {
        type Error = &'static str;

        async fn obtain(&mut self) -> Result<u64, &'static str> {
            let moment = self.start.elapsed().as_secs();
            self.asked.push(moment);
            (self.answer)(moment).map(|life| self.now() + life)
        }

        async fn called(&self, failure: &&'static str) {
            match self.calls_since {
                Some(since) if *failure == NOBODY => {
                    tokio::time::sleep_until(self.start + Duration::from_secs(since)).await;
                }
                _ => std::future::pending().await,
            }
        }

        fn now(&self) -> u64 {
            let real = self.start.elapsed().as_secs();
            let ahead = self.set.filter(|(since, _)| real >= *since).map_or(0, |(_, ahead)| ahead);
            (START + real).saturating_add_signed(ahead)
        }
    }

    /// Runs on paused time for a number of seconds; returns the times of the requests.
    async fn asked(seconds: u64, set: Option<(u64, i64)>, answer: Answer) -> Vec<u64> {
        asked_and_called(seconds, set, None, answer).await
    }

    async fn asked_and_called(
        seconds: u64,
        set: Option<(u64, i64)>,
        calls_since: Option<u64>,
        answer: Answer,
    ) -> Vec<u64> {
        let mut asked = Vec::new();
        let issuer = Scripted { answer, start: Instant::now(), set, calls_since, asked: &mut asked };
        assert!(
            tokio::time::timeout(Duration::from_secs(seconds), keep(issuer)).await.is_err(),
            "`keep` never returns"
        );
        asked
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
        let asked = asked(20 * 24 * HOUR, None, |_| Ok(24 * HOUR)).await;
        let pauses: Vec<u64> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!((30..=36).contains(&asked.len()), "{asked:?}");
        let (least, most) = (24 * HOUR * 56 / 100, 16 * HOUR + 10);
        assert!(pauses.iter().all(|pause| (least..=most).contains(pause)), "{pauses:?}");
        assert!(
            pauses.iter().collect::<std::collections::BTreeSet<_>>().len() > 1,
            "the pauses do not vary: {pauses:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_with_growing_pauses() {
        let asked = asked(600, None, |_| Err(NOBODY)).await;
        assert!(asked.iter().filter(|moment| **moment <= 4).count() >= 4, "{asked:?}");
        assert!((20..=60).contains(&asked.len()), "{asked:?}");
        let pauses = asked.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(pauses.max() <= Some(31), "{asked:?}");
    }

    /// An operator that was unreachable for an hour calls at the end of this hour.
    #[tokio::test(start_paused = true)]
    async fn a_call_from_the_operator_ends_the_backoff() {
        fn from_the_end_of_the_hour(moment: u64) -> Result<u64, &'static str> {
            if moment < HOUR { Err(NOBODY) } else { Ok(24 * HOUR) }
        }
        for _ in 0..20 {
            let asked = asked_and_called(HOUR + 60, None, Some(HOUR), from_the_end_of_the_hour).await;
            let last = asked.last().copied().unwrap_or_default();
            assert!((HOUR..=HOUR + 1).contains(&last), "the last request was at {last}, and the call at {HOUR}");
        }
    }

    /// Endless calls shorten the wait to half a second. After a refusal they do not shorten it.
    #[tokio::test(start_paused = true)]
    async fn endless_calls_shorten_the_backoff_only_to_its_minimum() {
        let unreachable = asked_and_called(600, None, Some(0), |_| Err(NOBODY)).await;
        assert!((600..=1_300).contains(&unreachable.len()), "{}", unreachable.len());
        let refused = asked_and_called(600, None, Some(0), |_| Err("no")).await;
        assert!((20..=60).contains(&refused.len()), "{refused:?}");
    }

    /// The operator is down from the 13th to the 19th hour. The first renewal, between 13.4 and 16 hours after the
    /// start, always falls into this period. The certificate of 24 hours is still valid when the operator returns.
    #[tokio::test(start_paused = true)]
    async fn certificates_survive_an_operator_that_is_down_for_a_quarter_of_their_life() {
        fn gone(moment: u64) -> bool {
            (13 * HOUR..19 * HOUR).contains(&moment)
        }
        let asked = asked(10 * 24 * HOUR, None, |moment| if gone(moment) { Err("down") } else { Ok(24 * HOUR) }).await;
        let good: Vec<u64> = asked.into_iter().filter(|moment| !gone(*moment)).collect();
        assert!(good.windows(2).all(|pair| pair[1] - pair[0] < 24 * HOUR), "{good:?}");
        assert!(
            good.iter().any(|moment| (19 * HOUR..19 * HOUR + 60).contains(moment)),
            "no renewal soon after the operator returned: {good:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_certificate_counts_as_a_failure() {
        let asked = asked(600, None, |_| Ok(0)).await;
        assert!((20..=60).contains(&asked.len()), "{asked:?}");
    }

    /// The test sets the clock forward by two days.
    #[tokio::test(start_paused = true)]
    async fn a_clock_set_forward_is_noticed_within_seconds() {
        let moments = asked(200, Some((100, 48 * 3600)), |_| Ok(24 * HOUR)).await;
        assert!(moments.len() == 2 && (100..=106).contains(&moments[1]), "{moments:?}");
    }

    /// The clock was a month ahead when the certificate was issued. Until the certificate's start date, the operator
    /// would not accept it.
    #[tokio::test(start_paused = true)]
    async fn a_clock_set_back_before_the_certificate_was_issued_is_noticed_within_seconds() {
        let moments = asked(200, Some((100, -30 * 24 * 3600)), |_| Ok(24 * HOUR)).await;
        assert!(moments.len() == 2 && (100..=106).contains(&moments[1]), "{moments:?}");
    }

    /// The peers' clocks did not change, so for them the certificate expires at the same time as before.
    #[tokio::test(start_paused = true)]
    async fn a_clock_set_back_by_an_hour_does_not_delay_the_renewal() {
        let moments = asked(10 * HOUR, Some((100, -3600)), |_| Ok(HOUR)).await;
        assert!(moments.len() >= 15, "{moments:?}");
        assert!(moments.windows(2).all(|pair| pair[1] - pair[0] <= HOUR * 2 / 3 + 10), "{moments:?}");
    }
}
