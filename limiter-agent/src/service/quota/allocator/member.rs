//! One bucket of one data plane: its demand, and the tokens that it holds.

use std::time::Duration;

use weir_core::Time;

use super::{Assignment, Limit, Standing, Usage};

/// The time for which tokens should suffice. Envoy reports every 5 s.
const HORIZON: Duration = Duration::from_secs(5);

/// A data plane that has reported nothing for this time gets no tokens.
const SILENCE: Duration = Duration::from_secs(15);

/// The bounds of the time between two assignments of a bucket.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);
const MOST_INTERVAL: Duration = Duration::from_secs(1);

/// The bounds of the time to live of tokens, in seconds.
const LEAST_LIFE: u64 = 10;
const MOST_LIFE: u64 = 3600;

/// The time to live of an assignment that depends on no limit.
const BLANKET_LIFE: Duration = Duration::from_secs(60);

/// The time before the end of an assignment at which the next one is due.
const RENEW: Duration = Duration::from_secs(2);

/// The maximum number of tokens beyond the expected demand, for buckets with few requests.
const MOST_HEADROOM: u64 = 8;

/// A number of requests per million seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rate(u64);

/// One bucket of one data plane.
#[derive(Debug)]
pub(super) struct Member {
    /// `None` before the second report, because the first one covers no time.
    demand: Option<Rate>,
    reported: Time,
    /// The standing for which the assignment in force was made. `None` before the first assignment.
    standing: Option<Standing>,
    /// When the assignment in force was sent, when the last one was tried, and when it expires.
    sent: Time,
    tried: Option<Time>,
    until: Time,
    /// The tokens of the assignment in force.
    tokens: u64,
    /// The part of these tokens that is used, as estimated from the reports.
    used: u64,
    /// The requests that were reported since the assignment was sent, admitted or refused.
    asked: u64,
    /// The number of the last assignment of tokens.
    number: u32,
    /// Charged tokens that no report has shown as used. They may be lost.
    unreported: u64,
    /// Requests that the data plane admitted without a token.
    unpaid: u64,
    /// Whether the next report can contain requests that an earlier assignment without a limit admitted.
    was_unlimited: bool,
    /// Whether the rules have changed since the last assignment.
    pub(super) is_stale: bool,
    /// Before this time, the bucket is neither idle nor due.
    pub(super) timer: Time,
}

impl Member {
    pub(super) fn new(usage: Usage, now: Time) -> Self {
        // A report about several requests may come from a data plane that had assignments of another stream, which were
        // charged.
        let unpaid = u64::from(usage.allowed == 1);
        let asked = usage.allowed.saturating_add(usage.denied);
        Self {
            // A report without requests can have crossed the message that abandons the bucket.
            demand: (asked == 0).then_some(Rate(0)),
            reported: now,
            standing: None,
            sent: now,
            tried: None,
            until: now,
            tokens: 0,
            used: 0,
            asked,
            number: 0,
            unreported: 0,
            unpaid,
            was_unlimited: false,
            is_stale: false,
            timer: now,
        }
    }

    pub(super) fn report(&mut self, Usage { allowed, denied }: Usage, now: Time) {
        let asked = allowed.saturating_add(denied);
        let latest = Rate::of(asked, now.duration_since(self.reported));
        // A data plane that needs more gets it immediately. One that needs less may only pause.
        self.demand = Some(match self.demand {
            Some(known) if known > latest && asked > 0 => Rate(known.0.midpoint(latest.0)),
            _ => latest,
        });
        // A part of the report can be about earlier tokens.
        let used = Rate::of(allowed, now.duration_since(self.reported));
        let used = used.requests_in(now.duration_since(self.sent.max(self.reported)));
        self.used = self.used.saturating_add(used.min(allowed));
        self.reported = now;
        self.asked = self.asked.saturating_add(asked);
        if self.standing != Some(Standing::Unlimited) && !std::mem::take(&mut self.was_unlimited) {
            let paid = allowed.min(self.unreported);
            self.unreported -= paid;
            self.unpaid = self.unpaid.saturating_add(allowed - paid);
        }
    }

    pub(super) fn is_idle(&self, now: Time) -> bool {
        self.idle_at().is_some_and(|idle| idle <= now)
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.due_at(now).is_some_and(|due| due <= now)
    }

    /// Returns the time at which the bucket is idle or due if nothing changes until then.
    pub(super) fn next_look(&self, now: Time) -> Time {
        let next = self.due_at(now).into_iter().chain(self.idle_at()).min();
        next.expect("an assignment without requests ends, and one with requests is due before its end")
    }

    fn idle_at(&self) -> Option<Time> {
        (self.standing.is_some() && self.asked == 0).then_some(self.until)
    }

    /// Returns the time at which the bucket needs an assignment if nothing changes until then. `None` if it needs none.
    fn due_at(&self, now: Time) -> Option<Time> {
        let Some(standing) = self.standing else { return Some(self.not_before(LEAST_INTERVAL)) };
        if self.is_stale {
            return Some(self.not_before(LEAST_INTERVAL));
        }
        let ends = (self.asked > 0).then(|| self.until.saturating_sub(RENEW).max(self.not_before(LEAST_INTERVAL)));
        let needed = match standing {
            Standing::Unlimited => None,
            // A ban ends without a change of the rules.
            Standing::Denied => Some(self.not_before(MOST_INTERVAL)),
            Standing::Limited(limit) => {
                let demand = self.demand.unwrap_or_else(|| limit.rate());
                // Half of the headroom of the demand, which covers the next tokens' way to the data plane.
                let last = demand.requests_in(LEAST_INTERVAL) + demand.requests_in(HORIZON).isqrt();
                let enough = self.tokens.saturating_sub(self.used).saturating_sub(last);
                let is_silent = now.duration_since(self.reported) > SILENCE;
                let time = if is_silent { None } else { demand.time_of(enough) };
                time.map(|time| {
                    self.sent.max(self.reported).saturating_add(time).max(self.not_before(limit.interval()))
                })
            }
        };
        ends.into_iter().chain(needed).min()
    }

    /// Returns the end of this interval after the last attempt.
    fn not_before(&self, interval: Duration) -> Time {
        self.tried.map_or(Time::from_nanos(0), |tried| tried.saturating_add(interval))
    }

    /// Returns whether this standing needs another assignment: the rules have changed for the bucket, or it is due.
    pub(super) fn is_new_for(&mut self, standing: Standing, now: Time) -> bool {
        self.is_stale = false;
        self.standing != Some(standing) || self.is_due(now)
    }

    /// Returns a number in proportion to the demand of this data plane, one of `count`. Never 0.
    pub(super) fn weight(&self, limit: &Limit, count: u64) -> u64 {
        self.demand_of(limit, count).0 + 1
    }

    /// A data plane whose demand is unknown is expected to need its even part of the limit.
    fn demand_of(&self, limit: &Limit, count: u64) -> Rate {
        self.demand.unwrap_or_else(|| Rate(limit.rate().0 / count))
    }

    /// Returns the number of tokens that this data plane needs, if `available` units can be charged.
    pub(super) fn need(&self, limit: &Limit, count: u64, available: u64) -> u64 {
        let time = if self.demand.is_some() { HORIZON } else { limit.interval() };
        let expected = self.demand_of(limit, count).requests_in(time);
        // The number of random requests in a time is within three standard deviations in 99.7 % of all cases.
        let headroom = MOST_HEADROOM.min(available / 8).max(1);
        expected.saturating_add(3 * expected.isqrt()).saturating_add(headroom)
    }

    pub(super) fn since_assignment(&self, now: Time) -> Duration {
        now.duration_since(self.sent)
    }

    pub(super) fn unpaid(&self) -> u64 {
        self.unpaid
    }

    /// Pays for admitted requests first, and makes tokens of the other units.
    pub(super) fn charged(&mut self, standing: Standing, units: u64, now: Time) -> Option<Assignment> {
        self.tried = Some(now);
        let (life, most_unpaid) = match standing {
            Standing::Limited(limit) => (limit.life(), limit.capacity),
            Standing::Unlimited | Standing::Denied => (BLANKET_LIFE, 0),
        };
        // What was admitted without the service can be far more than a limit admits. It must not block the bucket for
        // hours.
        self.unpaid = self.unpaid.min(most_unpaid);
        let paid = units.min(self.unpaid);
        self.unpaid -= paid;
        // A data plane counts tokens in 32 bits.
        let tokens = u32::try_from(units - paid).unwrap_or(u32::MAX);
        let ends = self.asked > 0 && self.until.duration_since(now) <= RENEW;
        if tokens == 0 && self.standing == Some(standing) && !ends {
            return None;
        }
        self.was_unlimited = self.standing == Some(Standing::Unlimited) && standing != Standing::Unlimited;
        self.standing = Some(standing);
        self.sent = now;
        self.until = now.saturating_add(life);
        self.tokens = tokens.into();
        (self.used, self.asked) = (0, 0);
        self.unreported = self.unreported.saturating_add(tokens.into());
        Some(match standing {
            Standing::Unlimited => Assignment::AllowAll { life },
            Standing::Limited(_) if tokens > 0 => {
                self.number = self.number % 999_999_999 + 1;
                Assignment::Tokens { tokens, life, number: self.number }
            }
            Standing::Denied | Standing::Limited(_) => Assignment::DenyAll { life },
        })
    }
}

impl Limit {
    fn rate(&self) -> Rate {
        Rate::of(self.requests, self.period)
    }

    /// Returns the number of requests that the limit admits in this time on average.
    pub(super) fn earned_in(&self, time: Duration) -> u64 {
        self.rate().requests_in(time)
    }

    /// Returns the time between two assignments. A limit admits at most its capacity at the same time, so a limit
    /// with a small capacity is charged more often.
    pub(super) fn interval(&self) -> Duration {
        let nanos = self.period.as_nanos() * u128::from(self.capacity) / u128::from(self.requests.max(1)) / 2;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).clamp(LEAST_INTERVAL, MOST_INTERVAL)
    }

    /// Returns the time to live of tokens, in whole seconds because Envoy ignores the rest.
    fn life(&self) -> Duration {
        Duration::from_secs((self.period.as_secs() / 10).clamp(LEAST_LIFE, MOST_LIFE))
    }
}

impl Rate {
    const TIME: u128 = 1_000_000_000_000_000;

    /// A thousand million requests per second. A data plane can report any number, so the rate has a bound.
    const MOST: u64 = 1_000_000_000_000_000;

    /// Two reports can follow each other immediately. The rate of such a short interval means little, so a shorter
    /// interval counts as `LEAST_INTERVAL`.
    fn of(requests: u64, time: Duration) -> Self {
        let nanos = time.max(LEAST_INTERVAL).as_nanos();
        let rate = u64::try_from(u128::from(requests) * Self::TIME / nanos).unwrap_or(Self::MOST);
        Self(rate.min(Self::MOST))
    }

    /// Returns the shortest time that contains this number of requests. `None` if there are no requests.
    fn time_of(self, requests: u64) -> Option<Duration> {
        (self.0 > 0).then(|| {
            let nanos = (u128::from(requests) * Self::TIME).div_ceil(self.0.into());
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        })
    }

    fn requests_in(self, time: Duration) -> u64 {
        u64::try_from(u128::from(self.0) * time.as_nanos() / Self::TIME).unwrap_or(u64::MAX)
    }
}
