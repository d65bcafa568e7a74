//! Decides how many units of a limit each data plane gets, and when. A pure machine: the caller passes events and the
//! time, charges the limits, and sends the assignments.
//!
//! A data plane is one stream. It holds *tokens*: each token was charged to the limits before it was sent, admits one
//! request, and is never sent again. The next assignment of a bucket replaces the tokens that are left. So even
//! if messages are delayed or lost, data planes admit at most what the limits admitted. The protocol has no
//! acknowledgements, so the machine cannot know which tokens are left, and never gives tokens back to a limit.
//!
//! Each data plane of a bucket gets a part of what the limits admit now, by its share of the demand. A request that a
//! data plane admitted without a token is charged before its next tokens.

mod member;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use weir_core::Time;

use self::member::Member;

/// The maximum number of buckets of one data plane.
pub(super) const MAX_BUCKETS: usize = 10_000;

/// The maximum size of a bucket's keys and values, in bytes.
pub(super) const MAX_BUCKET_BYTES: usize = 4096;

/// The maximum memory for the buckets of all data planes, in bytes: about 30,000 different buckets.
const MAX_MEMORY: usize = 96 * 1024 * 1024;

/// The memory for a bucket without its keys and values, and for each of its data planes, in bytes: rounded up.
const MEMORY_OF_BUCKET: usize = 3072;
const MEMORY_OF_MEMBER: usize = 256;

/// The memory for the actions of a bucket without its keys and values, in bytes: rounded up. Tokens need two actions.
const MEMORY_OF_ACTIONS: usize = 2048;

/// The part of a limit that is spread evenly over all data planes of a bucket, in percent. The rest follows demand.
const EVEN_PERCENT: u128 = 3;

/// The divisor of what a limit has saved for the data planes of a bucket that need it next.
const SAVINGS: u64 = 8;

/// A domain, and the entries of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Bucket {
    pub(super) domain: Arc<str>,
    pub(super) entries: BTreeMap<String, String>,
}

/// A data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StreamId(u64);

/// The requests of a bucket since the last report of its data plane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

/// How the rules treat a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Unlimited,
    Denied,
    Limited(Limit),
}

/// The tightest limit of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) requests: u64,
    pub(super) period: Duration,
    /// The number of requests that the limit admits at the same time if it is at full credit.
    pub(super) capacity: u64,
}

/// What a data plane gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Assignment {
    AllowAll {
        life: Duration,
    },
    DenyAll {
        life: Duration,
    },
    Tokens {
        tokens: u32,
        life: Duration,
        /// Differs from the number of the last assignment, so that a data plane can distinguish new tokens
        /// from old ones.
        number: u32,
    },
}

/// There is no room for this bucket: the data plane has [`MAX_BUCKETS`], all together use [`MAX_MEMORY`], or the bucket has
/// more than [`MAX_BUCKET_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TooManyBuckets(pub(super) Bucket);

/// The state of all buckets of all data planes of this process.
#[derive(Debug, Default)]
pub(super) struct Allocator {
    opened: u64,
    /// The buckets of each data plane by [`Member::timer`], so that an idle bucket costs nothing.
    streams: HashMap<StreamId, BTreeSet<(Time, Arc<Bucket>)>>,
    buckets: HashMap<Arc<Bucket>, BTreeMap<StreamId, Member>>,
    /// The memory that the buckets use, as estimated.
    memory: usize,
}

/// The buckets of a data plane whose timer has expired.
#[derive(Debug, Default)]
pub(super) struct Expired {
    /// Removed, because they got no request during their last assignment. The caller sends the data plane an `abandon`
    /// action for each of them.
    pub(super) idle: Vec<Arc<Bucket>>,
    /// These may need an assignment. For each of them, the caller reads the standing, asks [`Allocator::wanted`],
    /// charges the limits and calls [`Allocator::charged`].
    pub(super) due: Vec<Arc<Bucket>>,
    /// Whether the timers of more buckets have expired.
    pub(super) has_more: bool,
}

impl Allocator {
    /// Adds a data plane.
    pub(super) fn open(&mut self) -> StreamId {
        self.opened += 1;
        let stream = StreamId(self.opened);
        self.streams.insert(stream, BTreeSet::new());
        stream
    }

    /// Removes a data plane. It can use its tokens until they expire.
    pub(super) fn close(&mut self, stream: StreamId) {
        for (_, bucket) in self.streams.remove(&stream).unwrap_or_default() {
            self.remove(stream, &bucket);
        }
    }

    /// Takes a report of a data plane. The first report of a bucket asks for assignments.
    pub(super) fn report(
        &mut self,
        stream: StreamId,
        bucket: Bucket,
        usage: Usage,
        now: Time,
    ) -> Result<(), TooManyBuckets> {
        if self.change(stream, &bucket, now, |member| member.report(usage, now)).is_some() {
            return Ok(());
        }
        let buckets = self.streams.entry(stream).or_default();
        if buckets.len() >= MAX_BUCKETS {
            return Err(TooManyBuckets(bucket));
        }
        let known = self.buckets.get_key_value(&bucket).map(|(known, _)| Arc::clone(known));
        let size = bucket.size();
        let memory = MEMORY_OF_MEMBER + if known.is_some() { 0 } else { MEMORY_OF_BUCKET + size };
        if size > MAX_BUCKET_BYTES || self.memory + memory > MAX_MEMORY {
            return Err(TooManyBuckets(bucket));
        }
        self.memory += memory;
        let bucket = known.unwrap_or_else(|| Arc::new(bucket));
        let member = Member::new(usage, now);
        buckets.insert((member.timer, Arc::clone(&bucket)));
        self.buckets.entry(bucket).or_default().insert(stream, member);
        Ok(())
    }

    /// The rules have changed, so each bucket is due.
    pub(super) fn rules_changed(&mut self, stream: StreamId, now: Time) {
        let buckets: Vec<_> = self.streams.get(&stream).into_iter().flatten().cloned().collect();
        for (_, bucket) in buckets {
            self.change(stream, &bucket, now, |member| member.is_stale = true);
        }
    }

    /// Returns the buckets of a data plane that need something now, those with the earliest timers first. Their actions take
    /// at most `most_memory`, which must suffice for one bucket.
    pub(super) fn expired(&mut self, stream: StreamId, now: Time, most_memory: usize) -> Expired {
        let (mut all, mut memory) = (Expired::default(), 0);
        let timers = self.streams.get(&stream).into_iter().flatten().take_while(|(timer, _)| *timer <= now);
        let timers = timers.take_while(|(_, bucket)| {
            memory += MEMORY_OF_ACTIONS + 2 * bucket.size();
            all.has_more = memory > most_memory;
            !all.has_more
        });
        for (timer, bucket) in timers.cloned().collect::<Vec<_>>() {
            let Some(member) = self.buckets.get(&bucket).and_then(|members| members.get(&stream)) else { continue };
            if member.is_idle(now) {
                self.remove(stream, &bucket);
                if let Some(buckets) = self.streams.get_mut(&stream) {
                    buckets.remove(&(timer, Arc::clone(&bucket)));
                }
                all.idle.push(bucket);
            } else if member.is_due(now) {
                all.due.push(bucket);
            } else {
                self.change(stream, &bucket, now, |_| {});
            }
        }
        all
    }

    /// Returns the number of units to charge for a bucket with this standing. `remaining` is the number of units that
    /// the limits admit now, and 0 if only a store knows it. `None` if the last assignment stays in force.
    pub(super) fn wanted(
        &mut self,
        stream: StreamId,
        bucket: &Bucket,
        (standing, remaining): (Standing, u64),
        now: Time,
    ) -> Option<u64> {
        let members = self.buckets.get_mut(bucket)?;
        if !members.get_mut(&stream)?.is_new_for(standing, now) {
            return None;
        }
        let Standing::Limited(limit) = standing else { return Some(0) };
        let count = u64::try_from(members.len()).unwrap_or(u64::MAX);
        let remaining = if remaining > 0 { remaining } else { limit.earned_in(limit.interval()) }.min(u32::MAX.into());
        let weight = |member: &Member| u128::from(member.weight(&limit, count));
        let total: u128 = members.values().map(weight).sum();
        let member = members.get(&stream)?;
        let need = member.need(&limit, count, remaining);
        // With others, a data plane gets its part of what the limit earned since its last assignment, and little of
        // what the limit has saved. If it got its part of all that remains, the first data plane of each turn would get
        // too much.
        let earned = limit.earned_in(member.since_assignment(now)).min(u32::MAX.into());
        let available =
            if count == 1 { remaining } else { earned + remaining.saturating_sub(earned).div_ceil(SAVINGS) };
        let parts = EVEN_PERCENT * total / u128::from(count) + (100 - EVEN_PERCENT) * weight(member);
        let fair = (u128::from(available) * parts).div_ceil(100 * total);
        let tokens = need.min(u64::try_from(fair).unwrap_or(u64::MAX)).max(1);
        Some(tokens.saturating_add(member.unpaid()))
    }

    /// Records that these units were charged for a bucket, and returns the assignment to send. `None` if the last
    /// assignment stays in force.
    pub(super) fn charged(
        &mut self,
        stream: StreamId,
        bucket: &Bucket,
        (standing, units): (Standing, u64),
        now: Time,
    ) -> Option<Assignment> {
        self.change(stream, bucket, now, |member| member.charged(standing, units, now)).flatten()
    }

    /// The number of data planes.
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The number of buckets, each counted once for each of its data planes.
    pub(super) fn buckets(&self) -> usize {
        self.streams.values().map(BTreeSet::len).sum()
    }

    /// Changes a bucket of a data plane, and sets its timer. `None` if the data plane does not have the bucket.
    fn change<T>(
        &mut self,
        stream: StreamId,
        bucket: &Bucket,
        now: Time,
        change: impl FnOnce(&mut Member) -> T,
    ) -> Option<T> {
        let known = Arc::clone(self.buckets.get_key_value(bucket)?.0);
        let member = self.buckets.get_mut(bucket)?.get_mut(&stream)?;
        let changed = change(member);
        let (before, next) = (member.timer, member.next_look(now));
        if before != next {
            member.timer = next;
            let timers = self.streams.entry(stream).or_default();
            timers.remove(&(before, Arc::clone(&known)));
            timers.insert((next, known));
        }
        Some(changed)
    }

    fn remove(&mut self, stream: StreamId, bucket: &Bucket) {
        if let Some(members) = self.buckets.get_mut(bucket) {
            if members.remove(&stream).is_some() {
                self.memory -= MEMORY_OF_MEMBER;
            }
            if members.is_empty() {
                self.buckets.remove(bucket);
                self.memory -= MEMORY_OF_BUCKET + bucket.size();
            }
        }
    }
}

impl Bucket {
    /// The size of the keys and values, in bytes.
    fn size(&self) -> usize {
        self.entries.iter().map(|(key, value)| key.len() + value.len()).sum()
    }
}
