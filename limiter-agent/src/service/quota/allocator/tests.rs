//! Simulates data planes and a limit. The limit, the data planes and the check of what they hold share no code with the
//! allocator.

use std::collections::{BTreeMap, VecDeque};

use weir_fuzz::Random;

use super::*;

const TICK: u64 = 100;
const REPORTS: u64 = 5_000;

/// A token bucket in millionths of a token.
struct Limited {
    per_second: u64,
    burst: u64,
    level: u64,
    charged: u64,
}

impl Limited {
    fn new(per_second: u64, burst: u64) -> Self {
        Self { per_second, burst, level: burst * 1_000_000, charged: 0 }
    }

    fn pass_a_millisecond(&mut self) {
        self.level = (self.level + self.per_second * 1_000).min(self.burst * 1_000_000);
    }

    fn charge(&mut self, units: u64) -> bool {
        let is_enough = units * 1_000_000 <= self.level;
        if is_enough {
            self.level -= units * 1_000_000;
            self.charged += units;
        }
        is_enough
    }

    fn standing(&self) -> Standing {
        let period = Duration::from_secs(1);
        Standing::Limited(Limit { requests: self.per_second, period, capacity: self.burst })
    }
}

/// A data plane with one bucket. It behaves like Envoy, and denies requests without an assignment.
#[derive(Default)]
struct DataPlane {
    stream: Option<StreamId>,
    is_subscribed: bool,
    /// The assignment in force, and the millisecond in which it expires.
    held: Option<(Assignment, u64)>,
    left: u64,
    allowed: u64,
    denied: u64,
    admitted: u64,
    refused: u64,
    /// Messages in flight, with the millisecond of their arrival. `None` abandons the bucket.
    inbox: VecDeque<(u64, Option<Assignment>)>,
    reports: VecDeque<(u64, Usage)>,
    phase: u64,
    /// No message passes before this millisecond.
    stalled_until: u64,
    /// Requests per 1,000 s, and the part of the next request that is due.
    load: u64,
    due: u64,
}

impl DataPlane {
    fn receive(&mut self, now: u64) {
        while self.inbox.front().is_some_and(|(at, _)| *at <= now && self.stalled_until <= now) {
            match self.inbox.pop_front().expect("a message").1 {
                None => (self.held, self.left, self.is_subscribed, self.allowed, self.denied) = (None, 0, false, 0, 0),
                Some(assignment) => {
                    let is_same = |held: &(Assignment, u64)| match (held.0, assignment) {
                        (
                            Assignment::Tokens { tokens: a, number: b, .. },
                            Assignment::Tokens { tokens: c, number: d, .. },
                        ) => (a, b) == (c, d),
                        _ => false,
                    };
                    let is_kept = self.held.as_ref().is_some_and(is_same);
                    let life = match assignment {
                        Assignment::Tokens { tokens, life, .. } => {
                            self.left = if is_kept { self.left } else { tokens.into() };
                            life
                        }
                        Assignment::AllowAll { life } | Assignment::DenyAll { life } => {
                            self.left = 0;
                            life
                        }
                    };
                    self.held = Some((assignment, now + u64::try_from(life.as_millis()).expect("short")));
                }
            }
        }
        if self.held.as_ref().is_some_and(|(_, until)| *until <= now) {
            (self.held, self.left) = (None, 0);
        }
    }

    fn request(&mut self, now: u64, delay: u64) {
        let is_admitted = self.left > 0;
        if is_admitted {
            self.left -= 1;
            (self.allowed, self.admitted) = (self.allowed + 1, self.admitted + 1);
        } else {
            (self.denied, self.refused) = (self.denied + 1, self.refused + 1);
        }
        if !std::mem::replace(&mut self.is_subscribed, true) {
            self.report(now, delay);
        }
    }

    fn report(&mut self, now: u64, delay: u64) {
        let usage = Usage { allowed: std::mem::take(&mut self.allowed), denied: std::mem::take(&mut self.denied) };
        self.reports.push_back((now + delay, usage));
    }

    /// The tokens that this data plane has or may still receive.
    fn may_use(&self) -> u64 {
        let of = |(_, message): &(u64, Option<Assignment>)| match message {
            Some(Assignment::Tokens { tokens, .. }) => u64::from(*tokens),
            _ => 0,
        };
        self.left + self.inbox.iter().map(of).sum::<u64>()
    }
}

struct World {
    allocator: Allocator,
    limit: Limited,
    planes: Vec<DataPlane>,
    now: u64,
    delay: u64,
    burst: u64,
}

impl World {
    fn new(per_second: u64, burst: u64, planes: usize) -> Self {
        let plane = |index| DataPlane { phase: index as u64 * 777 % REPORTS, ..DataPlane::default() };
        let planes = (0..planes).map(plane).collect();
        Self {
            allocator: Allocator::default(),
            limit: Limited::new(per_second, burst),
            planes,
            now: 0,
            delay: 2,
            burst,
        }
    }

    fn bucket() -> Bucket {
        Bucket { domain: "shop".into(), entries: BTreeMap::from([("key".to_owned(), "ann".to_owned())]) }
    }

    fn time(&self) -> Time {
        Time::from_nanos((self.now + 1) * 1_000_000)
    }

    fn millisecond(&mut self) {
        self.now += 1;
        self.limit.pass_a_millisecond();
        let (now, delay) = (self.now, self.delay);
        let time = self.time();
        for plane in &mut self.planes {
            plane.receive(now);
            plane.due += plane.load;
            while plane.due >= 1_000_000 {
                plane.due -= 1_000_000;
                plane.request(now, delay);
            }
            if plane.is_subscribed && now % REPORTS == plane.phase {
                plane.report(now, delay);
            }
            while plane.reports.front().is_some_and(|(at, _)| *at <= now && plane.stalled_until <= now) {
                let (_, usage) = plane.reports.pop_front().expect("a report");
                let stream = *plane.stream.get_or_insert_with(|| self.allocator.open());
                self.allocator.report(stream, Self::bucket(), usage, time).expect("one bucket");
            }
        }
        if now.is_multiple_of(TICK) {
            self.check_timers();
            (0..self.planes.len()).for_each(|index| self.tick(index));
        }
        self.check();
    }

    fn tick(&mut self, index: usize) {
        let (time, arrival) = (self.time(), self.now + self.delay);
        let plane = &mut self.planes[index];
        let Some(stream) = plane.stream else { return };
        let Expired { idle, due, .. } = self.allocator.expired(stream, time, usize::MAX);
        for _ in idle {
            plane.inbox.push_back((arrival, None));
        }
        for bucket in due {
            let (standing, remaining) = (self.limit.standing(), self.limit.level / 1_000_000);
            let Some(wanted) = self.allocator.wanted(stream, &bucket, (standing, remaining), time) else { continue };
            let units = wanted.min(remaining);
            let units = if units > 0 && self.limit.charge(units) { units } else { 0 };
            if let Some(assignment) = self.allocator.charged(stream, &bucket, (standing, units), time) {
                plane.inbox.push_back((arrival, Some(assignment)));
            }
        }
    }

    /// No bucket needs something before its timer expires.
    fn check_timers(&self) {
        let (now, streams) = (self.time(), self.planes.iter().filter_map(|plane| plane.stream));
        let timers =
            streams.flat_map(|stream| self.allocator.streams[&stream].iter().map(move |timer| (stream, timer)));
        for (stream, (timer, bucket)) in timers {
            let member = &self.allocator.buckets[bucket][&stream];
            assert_eq!(*timer, member.timer);
            assert!(*timer <= now || !member.is_due(now) && !member.is_idle(now), "{member:?} at {now:?}");
        }
    }

    /// What was admitted and what may still be admitted is at most what the limit admits.
    fn check(&self) {
        let admitted: u64 = self.planes.iter().map(|plane| plane.admitted + plane.may_use()).sum();
        assert!(
            admitted <= self.limit.charged,
            "{admitted} of {} units in millisecond {}",
            self.limit.charged,
            self.now
        );
        let most = self.burst + self.limit.per_second * self.now / 1_000;
        assert!(admitted <= most, "{admitted} of {most} in millisecond {}", self.now);
    }

    fn run(&mut self, milliseconds: u64) {
        (0..milliseconds).for_each(|_| self.millisecond());
    }

    /// Runs, and returns what each data plane admitted and refused in this time.
    fn measure(&mut self, milliseconds: u64) -> Vec<(u64, u64)> {
        let of = |world: &Self| world.planes.iter().map(|plane| (plane.admitted, plane.refused)).collect::<Vec<_>>();
        let before = of(self);
        self.run(milliseconds);
        let difference = |((a, b), (c, d)): ((u64, u64), (u64, u64))| (a - c, b - d);
        of(self).into_iter().zip(before).map(difference).collect()
    }
}

const fn per_second(requests: u64) -> u64 {
    requests * 1_000
}

/// Streams come, leave, stall, and lose messages, while the load of each data plane changes.
#[test]
fn data_planes_never_hold_more_than_the_limit_admits() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (rate, burst) = ([5, 100, 2_000][random.below(3)], [1, 10, 1_000][random.below(3)]);
        let mut world = World::new(rate, burst, 1 + random.below(5));
        for _ in 0..60 {
            let index = random.below(world.planes.len());
            let now = world.now;
            let plane = &mut world.planes[index];
            match random.below(8) {
                0 => plane.stalled_until = now + random.below(20_000) as u64,
                1 => {
                    if let Some(stream) = plane.stream.take() {
                        world.allocator.close(stream);
                    }
                }
                2 => drop(plane.inbox.pop_back()),
                3 => drop(plane.reports.pop_back()),
                4 => world.delay = random.below(300) as u64,
                _ => plane.load = [0, per_second(1), per_second(rate / 2), per_second(rate * 3)][random.below(4)],
            }
            world.run(random.below(3_000) as u64);
        }
    }
}

#[test]
fn under_overload_the_whole_limit_is_used_and_shared_by_demand() {
    for (rate, burst) in [(100, 100), (100, 10), (5_000, 5_000)] {
        let mut world = World::new(rate, burst, 3);
        for (plane, times) in world.planes.iter_mut().zip([6, 2, 0]) {
            plane.load = per_second(rate * times / 2);
        }
        world.run(20_000);
        let parts = world.measure(60_000);
        let all: u64 = parts.iter().map(|(admitted, _)| admitted).sum();
        assert!(all * 100 >= 95 * rate * 60, "{parts:?} of {}", rate * 60);
        assert!(parts[0].0 > parts[1].0 * 2 && parts[1].0 * 12 > all, "{rate} with {burst}: {parts:?}");
        // A new data plane gets a part, too.
        world.planes[2].load = per_second(rate * 4);
        world.run(20_000);
        let parts = world.measure(60_000);
        assert!(parts[2].0 * 100 >= 25 * rate * 60, "{parts:?}");
    }
}

#[test]
fn below_the_limit_requests_pass_wherever_they_arrive() {
    let mut world = World::new(1_000, 1_000, 2);
    world.planes[0].load = per_second(600);
    world.run(15_000);
    let (admitted, refused) = world.measure(60_000)[0];
    assert!(refused * 100 <= admitted, "{refused} of {admitted}");
    (world.planes[0].load, world.planes[1].load) = (0, per_second(600));
    world.run(15_000);
    let (admitted, refused) = world.measure(60_000)[1];
    assert!(refused * 100 <= admitted, "{refused} of {admitted}");
}

#[test]
fn an_idle_bucket_is_abandoned_and_costs_nothing() {
    let mut world = World::new(100, 100, 1);
    world.planes[0].load = per_second(50);
    world.run(20_000);
    world.planes[0].load = 0;
    world.run(30_000);
    assert!(!world.planes[0].is_subscribed && world.allocator.buckets() == 0);
    let charged = world.limit.charged;
    world.run(30_000);
    assert_eq!(world.limit.charged, charged);
    world.planes[0].load = per_second(50);
    world.run(200);
    assert!(world.planes[0].left > 0, "the first request asks for tokens");
}

/// A report can cross the message that abandons its bucket. Then the data plane never reports the bucket again.
#[test]
fn a_bucket_that_is_not_reported_again_costs_little() {
    for denied in [0, 1] {
        let mut one = One::new(0);
        one.report(0, denied, at(0));
        let mut all = 0;
        for second in 0..60 {
            all += one.assign(limit(100, 1), 100, at(second * 1_000)).0.unwrap_or(0);
        }
        assert!(all <= 20 * 100 && one.allocator.buckets() == 0, "{all} units with {denied} requests");
    }
}

struct One {
    allocator: Allocator,
    stream: StreamId,
    bucket: Bucket,
}

impl One {
    fn new(allowed: u64) -> Self {
        let mut allocator = Allocator::default();
        let (stream, bucket) = (allocator.open(), World::bucket());
        let usage = Usage { allowed, denied: 0 };
        allocator.report(stream, bucket.clone(), usage, at(0)).expect("one bucket");
        Self { allocator, stream, bucket }
    }

    fn assign(&mut self, standing: Standing, remaining: u64, now: Time) -> (Option<u64>, Option<Assignment>) {
        if self.allocator.expired(self.stream, now, usize::MAX).due.is_empty() {
            return (None, None);
        }
        let wanted = self.allocator.wanted(self.stream, &self.bucket, (standing, remaining), now);
        let Some(units) = wanted else { return (None, None) };
        (wanted, self.allocator.charged(self.stream, &self.bucket, (standing, units.min(remaining)), now))
    }

    fn report(&mut self, allowed: u64, denied: u64, now: Time) {
        self.allocator.report(self.stream, self.bucket.clone(), Usage { allowed, denied }, now).expect("known");
    }
}

fn at(milliseconds: u64) -> Time {
    Time::from_nanos((1_000_000 + milliseconds) * 1_000_000)
}

fn limit(requests: u64, seconds: u64) -> Standing {
    Standing::Limited(Limit { requests, period: Duration::from_secs(seconds), capacity: requests })
}

fn tokens(assignment: Option<Assignment>) -> u64 {
    match assignment {
        Some(Assignment::Tokens { tokens, .. }) => tokens.into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_without_a_token_are_charged_before_the_next_tokens() {
    let mut one = One::new(1);
    let (wanted, assignment) = one.assign(limit(1_000, 60), 1_000, at(0));
    let first = tokens(assignment);
    assert_eq!(wanted, Some(first + 1), "the data plane admitted the first request");
    one.report(first + 20, 0, at(1_000));
    let (wanted, assignment) = one.assign(limit(1_000, 60), 1_000, at(2_000));
    assert_eq!(wanted, Some(tokens(assignment) + 20));
    // What is lost was charged, so it pays for requests.
    one.report(0, 0, at(7_000));
    let mut again = One::new(0);
    again.assign(limit(1_000, 60), 1_000, at(0));
    again.report(0, 90, at(1_000));
    let lost = tokens(again.assign(limit(1_000, 60), 1_000, at(2_000)).1);
    again.report(lost, 0, at(3_000));
    let (wanted, assignment) = again.assign(limit(1_000, 60), 1_000, at(4_000));
    assert_eq!(wanted, Some(tokens(assignment)));
}

#[test]
fn debts_have_a_bound() {
    let mut one = One::new(0);
    one.assign(limit(10, 60), 10, at(0));
    one.report(1_000_000, 0, at(1_000));
    one.assign(limit(10, 60), 0, at(2_000));
    let (wanted, _) = one.assign(limit(10, 60), 10, at(3_000));
    assert!(wanted.is_some_and(|wanted| wanted <= 20), "{wanted:?}");
}

#[test]
fn a_change_of_the_rules_is_sent_at_once_and_only_if_it_concerns_the_bucket() {
    let mut one = One::new(0);
    assert!(tokens(one.assign(limit(100, 60), 100, at(0)).1) > 0);
    let same = |one: &mut One, standing, now| {
        one.allocator.rules_changed(one.stream, now);
        one.assign(standing, 100, now)
    };
    assert_eq!(same(&mut one, limit(100, 60), at(150)), (None, None));
    assert!(tokens(same(&mut one, limit(50, 60), at(300)).1) > 0);
    assert!(matches!(same(&mut one, Standing::Denied, at(450)).1, Some(Assignment::DenyAll { .. })));
    assert!(matches!(same(&mut one, Standing::Unlimited, at(600)).1, Some(Assignment::AllowAll { .. })));
    // Requests that were admitted without a limit are never charged.
    let (wanted, assignment) = same(&mut one, limit(100, 60), at(750));
    assert_eq!(wanted, Some(tokens(assignment)));
    one.report(1_000, 0, at(1_000));
    let (wanted, assignment) = one.assign(limit(100, 60), 100, at(2_000));
    assert_eq!(wanted, Some(tokens(assignment)));
}

#[test]
fn an_exhausted_limit_is_sent_once() {
    let mut one = One::new(0);
    assert!(matches!(one.assign(limit(10, 3_600), 0, at(0)).1, Some(Assignment::DenyAll { .. })));
    one.report(0, 50, at(5_000));
    assert_eq!(one.assign(limit(10, 3_600), 0, at(6_000)).1, None);
    assert!(tokens(one.assign(limit(10, 3_600), 8, at(8_000)).1) > 0);
}

#[test]
fn buckets_have_a_bound_and_leave_with_their_stream() {
    let mut allocator = Allocator::default();
    let stream = allocator.open();
    let of =
        |number: usize| Bucket { entries: BTreeMap::from([("n".to_owned(), number.to_string())]), ..World::bucket() };
    for number in 0..MAX_BUCKETS {
        assert_eq!(allocator.report(stream, of(number), Usage::default(), at(0)), Ok(()));
    }
    let refused = of(MAX_BUCKETS);
    assert_eq!(allocator.report(stream, refused.clone(), Usage::default(), at(0)), Err(TooManyBuckets(refused)));
    assert_eq!(allocator.report(stream, of(0), Usage::default(), at(0)), Ok(()));
    allocator.close(stream);
    assert_eq!((allocator.streams(), allocator.buckets(), allocator.buckets.len()), (0, 0, 0));
}

#[test]
fn the_buckets_of_all_data_planes_have_a_bound() {
    let mut allocator = Allocator::default();
    let of = |stream: usize, number: usize, length: usize| {
        let value = format!("{stream}-{number}-{:x<length$}", "");
        Bucket { entries: BTreeMap::from([("n".to_owned(), value)]), ..World::bucket() }
    };
    let streams: Vec<_> = (0..5).map(|_| allocator.open()).collect();
    let mut accepted = 0;
    for (at_stream, &stream) in streams.iter().enumerate() {
        let refused = of(0, 0, MAX_BUCKET_BYTES);
        assert_eq!(allocator.report(stream, refused.clone(), Usage::default(), at(0)), Err(TooManyBuckets(refused)));
        let reports = (0..MAX_BUCKETS).map(|number| of(at_stream, number, 10));
        accepted +=
            reports.filter(|bucket| allocator.report(stream, bucket.clone(), Usage::default(), at(0)).is_ok()).count();
    }
    assert!((29_000..31_000).contains(&accepted), "{accepted}");
    allocator.close(streams[0]);
    assert_eq!(allocator.report(streams[4], of(9, 0, 10), Usage::default(), at(0)), Ok(()));
    streams.into_iter().for_each(|stream| allocator.close(stream));
    assert_eq!((allocator.memory, allocator.buckets.len()), (0, 0));
}

#[test]
fn reported_numbers_are_not_trusted() {
    let mut one = One::new(u64::MAX);
    for second in 1..5 {
        one.report(u64::MAX, u64::MAX, at(second));
        one.assign(limit(u32::MAX.into(), 1), u64::MAX, at(second * 1_000));
    }
}

#[test]
fn many_large_buckets_are_assigned_in_several_turns() {
    const BUCKETS: usize = 1_000;
    const MOST_MEMORY: usize = 100_000;
    let mut allocator = Allocator::default();
    let stream = allocator.open();
    for number in 0..BUCKETS {
        let entries = BTreeMap::from([("n".to_owned(), format!("{number:04000}"))]);
        let bucket = Bucket { entries, ..World::bucket() };
        allocator.report(stream, bucket, Usage { allowed: 0, denied: 1 }, at(0)).expect("there is room");
    }
    let (mut assigned, mut turns) = (0, 0);
    let mut has_more = true;
    while has_more {
        let expired = allocator.expired(stream, at(1), MOST_MEMORY);
        assert!(!expired.due.is_empty() && expired.due.len() * 2 * 4_000 <= MOST_MEMORY);
        for bucket in &expired.due {
            allocator.charged(stream, bucket, (Standing::Unlimited, 0), at(1)).expect("an assignment");
        }
        (assigned, turns, has_more) = (assigned + expired.due.len(), turns + 1, expired.has_more);
    }
    assert!(assigned == BUCKETS && turns > 80, "{assigned} in {turns} turns");
    assert!(allocator.expired(stream, at(1), MOST_MEMORY).due.is_empty());
}
