//! Decides how many units each question gets. The counter is a function of the questions and their times: it does no
//! I/O and reads no clock; [`FleetCounter`](super::FleetCounter) does.
//!
//! ```text
//! Collecting ── all pods have sent their levels, or 10 s ──► Settling ── all of them are present, or 5 s ──► Counting
//! ```
//!
//! In the phases Collecting and Settling, the counter does two things: it raises its counts to the levels that agents
//! report, and charges the units that their shares used. If a pod was missing at the end, or its levels were
//! incomplete, its agent may have used units that the counter does not know. Then all limits that this agent can have
//! used count as used up at the end of Settling. If the levels were incomplete, these are the limits of the pod's
//! policies. If the pod was missing, they are the limits of its namespace, because its agent can have policies that the
//! plan no longer gives to it.

use std::{
    collections::{HashMap, hash_map},
    sync::Arc,
    time::Duration,
};

use weir_seats::{
    Absent, EncodedTake, Key, ReservedUnits, Value,
    model::{self, take},
    part,
};
use weir_wire::{Answer, LevelsSent, Outcome, Question};

use super::{
    Usage,
    pods::Pods,
    room::Room,
    unknown::{UnknownUse, UsedUp},
};
use crate::{leader::Term, plan::CountedRule};

/// With fewer keys than this, the machine does not look for keys to forget.
const FEW_KEYS: usize = 1_024;
/// The shortest time between two searches of a full table.
const BETWEEN_SEARCHES: u64 = 1_000_000;
/// The time between two sweeps of a small table, and for each key of a large one, in microseconds.
const BETWEEN_SWEEPS: u64 = 10_000_000;
const SWEEP_PER_KEY: u64 = 500;
/// The time for which a new term waits for the levels of agents.
const COLLECTING: u64 = 10_000_000;
/// The time for which a new term waits for agents that have sent their levels.
const SETTLING: u64 = 5_000_000;
/// The clocks of a new leader and of the previous leader can differ by this time. If they differ more, the change of
/// leaders frees at most one burst.
const MARGIN: u64 = 1_000_000;

/// The counts of one term. Times are arguments, so a simulation can use it, too.
#[derive(Debug)]
pub struct Counter {
    term: Term,
    /// The begin of the term, as time since boot and in microseconds of Unix time. The counter's clock continues from
    /// there with the monotonic clock.
    began: (Duration, u64),
    /// How far the clock of the previous leader is ahead of this one, as agents report, at most [`MARGIN`].
    previous_is_ahead: u64,
    phase: Phase,
    /// True once the engine has planned all pods that it knows.
    is_planned: bool,
    /// The rules that agents can have used before the counter began to count: the names of their counters and policies.
    /// When the counter counts, these are only the rules whose limits count as used up since that time. They are rules of
    /// the first contents of a term, so their number has the bound of these contents.
    earlier: Arc<HashMap<String, Arc<str>>>,
    /// The pods because of which these limits count as used up.
    unknown: Arc<UnknownUse>,
    pods: Pods,
    keys: HashMap<Key, Entry>,
    room: Room,
    /// The number of keys above which the machine looks for keys to forget.
    enough: usize,
    search_at: u64,
    sweep_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Agents send the levels that they know, and use their shares.
    Collecting,
    /// All levels are known, since this time. Agents end their shares.
    Settling(u64),
    /// The counter answers questions, since this time.
    Counting(u64),
}

#[derive(Debug)]
struct Entry {
    value: Value,
    /// The time from which the key is at full credit again.
    full_at: u64,
    reserved: ReservedUnits,
    /// The sum of absent times and parts for which units of this value are reserved.
    absent_sum: u128,
    /// The number of times for which the logs of the value have memory.
    times: usize,
    /// True if the value must still be raised to what counts as used up, if a pod was missing.
    is_unraised: bool,
}

/// The reason why a question is not counted, for people.
type Refusal = String;

impl Counter {
    /// Returns the counter of a term that begins at `now`.
    pub fn new(term: Term, now: Duration, unix_micros: u64) -> Self {
        Self {
            term,
            began: (now, unix_micros),
            previous_is_ahead: 0,
            phase: Phase::Collecting,
            is_planned: false,
            earlier: Arc::default(),
            unknown: Arc::default(),
            pods: Pods::default(),
            keys: HashMap::new(),
            room: Room::default(),
            enough: 0,
            search_at: 0,
            sweep_at: 0,
        }
    }

    /// The counter's time in microseconds of Unix time. It never goes back.
    fn time(&self, now: Duration) -> u64 {
        let (began, unix) = self.began;
        unix.saturating_add(micros(now.saturating_sub(began)))
    }

    /// Returns true if the counter answers questions.
    pub fn is_counting(&self) -> bool {
        matches!(self.phase, Phase::Counting(_))
    }

    /// Returns true if the term has begun and the counter does not answer questions yet.
    pub fn is_starting(&self, now: Duration) -> bool {
        !self.is_counting() && self.term.is_current(now)
    }

    /// Returns true if the counter has collected the levels, so that agents can end their shares.
    pub fn has_levels(&self) -> bool {
        self.phase != Phase::Collecting
    }

    /// The number of keys.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The number of pods whose agents may decide with their share.
    pub fn absent(&self) -> usize {
        self.pods.totals.absent
    }

    /// Returns what the counter keeps.
    pub fn usage(&mut self, now: Duration) -> Usage {
        let at = self.advance(now);
        // Otherwise, a table that does not grow would keep keys at full credit. The work per second is bounded.
        if at >= self.sweep_at {
            self.forget(at);
            self.pods.forget(self.room.policies().cloned().collect());
            self.sweep_at = at + BETWEEN_SWEEPS.max(SWEEP_PER_KEY * self.keys.len() as u64);
        }
        let used_up = match self.phase {
            Phase::Counting(since) if !self.earlier.is_empty() => {
                Some(UsedUp { since, rules: self.earlier.clone(), unknown: self.unknown.clone() })
            }
            _ => None,
        };
        let (policies, leaving) = (self.pods.sharing().collect(), self.pods.leaving(at));
        Usage { policies, keys: self.room.keys_of_rules(), used_up, leaving }
    }

    /// Sets the rules of scope Fleet that a pod has. A pod without rules is not expected. It keeps the shares of policies
    /// that it lost, for some time, until its agent acknowledges that. If its agent has never run, it has used nothing, so
    /// the counter waits for this agent, and keeps its share free, only after it has started.
    pub fn expect(&mut self, pod: &str, rules: &[CountedRule], has_run: bool, now: Duration) {
        let at = self.advance(now);
        if !(self.is_counting() && self.is_planned) {
            for CountedRule { counters, policy, .. } in rules {
                if !self.earlier.contains_key(counters) {
                    Arc::make_mut(&mut self.earlier).insert(counters.clone(), policy.clone());
                }
            }
        }
        self.pods.expect(pod, rules, has_run, self.has_levels(), at);
    }

    /// Sets the name of an expected pod for people. Without a name, they see `pod`.
    pub fn name(&mut self, pod: &str, name: &Arc<str>) {
        self.pods.name(pod, name);
    }

    /// Records that an expected pod is being deleted. No new channel to its agent will be opened, so a new term does not
    /// wait for its levels. Its share is kept free while it has no channel, until it is gone. If its agent has not run yet, `has_run` is false.
    pub fn leave(&mut self, pod: &str, has_run: bool, now: Duration) {
        let at = self.advance(now);
        self.pods.leave(pod, has_run, at);
        self.advance(now);
    }

    /// Records that a pod is gone.
    pub fn gone(&mut self, pod: &str, now: Duration) {
        let at = self.advance(now);
        self.pods.gone(pod, at);
    }

    /// Records that the engine has planned all pods that it knows.
    pub fn planned(&mut self, now: Duration) {
        self.is_planned = true;
        self.advance(now);
    }

    /// Registers a new channel to a pod, and returns its number. While the counter collects, it waits for the levels of
    /// this agent, even if the kubelet has not reported yet that the agent runs.
    pub fn connected(&mut self, pod: &str, now: Duration) -> u64 {
        let at = self.advance(now);
        self.pods.connected(pod, self.has_levels(), at)
    }

    /// Records a message from a pod. Without another one within `silence`, the pod counts as cut off.
    pub fn record_message(&mut self, pod: &str, channel: u64, silence: Duration, now: Duration) {
        let at = self.advance(now);
        self.pods.record_message(pod, channel, at + micros(silence), at);
    }

    /// Returns true if the agent must get empty answers now, which end its share.
    pub fn release(&mut self, pod: &str, channel: u64, now: Duration) -> bool {
        let at = self.advance(now);
        self.has_levels() && self.term.is_current(now) && self.pods.release(pod, channel, at)
    }

    /// Records that a pod has sent the levels that it knows.
    pub fn levels_sent(&mut self, pod: &str, channel: u64, sent: LevelsSent, now: Duration) {
        let at = self.advance(now);
        if !sent.is_complete && !self.is_counting() {
            self.pods.levels_are_incomplete(pod);
        }
        let ahead = sent.time.and_then(|time| time.checked_sub(at)).filter(|ahead| *ahead <= MARGIN);
        self.previous_is_ahead = self.previous_is_ahead.max(ahead.unwrap_or(0));
        self.pods.levels_sent(pod, channel, sent.releases, at);
        self.advance(now);
    }

    /// Records that an agent has acknowledged a content with these rules.
    pub fn acknowledged(&mut self, pod: &str, channel: u64, rules: &[CountedRule], now: Duration) {
        let at = self.advance(now);
        self.pods.acknowledged(pod, channel, rules, at);
    }

    /// Records the end of a channel.
    pub fn ended(&mut self, pod: &str, channel: u64, now: Duration) {
        let at = self.advance(now);
        self.pods.ended(pod, channel, at);
    }

    /// Handles the passage of time, and returns the counter's time.
    pub fn advance(&mut self, now: Duration) -> u64 {
        let (mut at, began) = (self.time(now), self.began.1);
        self.pods.advance(at);
        if self.phase == Phase::Collecting {
            let has_all = self.is_planned && self.pods.totals.unknown == 0;
            if has_all || at >= began + COLLECTING {
                at = self.continue_previous_clock(at);
                self.phase = Phase::Settling(at);
            }
        }
        if let Phase::Settling(since) = self.phase
            && (self.pods.totals.arriving == 0 || at >= since + SETTLING)
        {
            self.phase = Phase::Counting(at);
            let unknown = self.pods.unknown_use();
            // Without a plan, no pod is known, so all of them can be missing.
            if self.is_planned {
                Arc::make_mut(&mut self.earlier).retain(|_, policy| unknown.contains(policy));
                self.unknown = Arc::new(unknown);
            }
        }
        at
    }

    /// Moves the clock to the time of the previous leader. Without this step, the counter could charge the units of
    /// shares to an earlier window, and the later window would have all its units again.
    fn continue_previous_clock(&mut self, at: u64) -> u64 {
        let ahead = std::mem::take(&mut self.previous_is_ahead);
        let at = at + ahead;
        self.began.1 += ahead;
        if ahead > 0 {
            // The levels were compared with the earlier time.
            for entry in self.keys.values_mut() {
                entry.value.delay(ahead, at);
                entry.full_at = entry.value.full_at();
            }
        }
        at
    }

    /// Answers questions of a pod with these rules. Questions with the number 0 get no answer.
    pub fn answer(&mut self, questions: &[Question], rules: [&[CountedRule]; 2], now: Duration) -> Vec<Answer> {
        let at = self.advance(now);
        let mut answers = Vec::new();
        if !self.term.is_current(now) {
            // The next leader will count. An answer would show that this one counts the pod as present.
            return answers;
        }
        for question in questions {
            let outcome = self.count(question, rules, at).unwrap_or_else(Outcome::Refused);
            if question.id != 0 {
                answers.push(Answer { id: question.id, outcome });
            }
        }
        answers
    }

    fn count(&mut self, question: &Question, rules: [&[CountedRule]; 2], now: u64) -> Result<Outcome, Refusal> {
        let rule = rule(rules, question).ok_or("the pod has no such rule")?;
        let (key, mut encoded) = EncodedTake::read(question).map_err(|field| format!("invalid {field}"))?;
        // A level can come from an earlier leader, whose clock differed. A counter that answers questions already knows
        // every earlier level, so it needs no margin.
        encoded.rebase_seen(now, if self.is_counting() { 0 } else { MARGIN });
        let mut owed = 0;
        if question.id == 0 {
            // A report takes nothing.
            (encoded.requests, encoded.prefetch, encoded.credit, encoded.returned) = (0, 0, 0, None);
            owed = std::mem::take(&mut encoded.owed);
            encoded.keep_ban();
        } else if !self.is_counting() {
            return Ok(Outcome::NotYet);
        }
        let (absent, sum, since) = self.pods.absence(&rule.policy, now);
        self.make_room(&key, &encoded, rule, now)?;
        let is_counting = self.is_counting();
        let used_up_at = match self.phase {
            Phase::Counting(since) if self.earlier.contains_key(&rule.counters) => Some(since),
            _ => None,
        };
        let entry = match self.keys.entry(key) {
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hash_map::Entry::Vacant(entry) => entry.insert(Entry {
                value: Value::new(encoded.stamp, &encoded.limits, used_up_at.unwrap_or(now)),
                full_at: now,
                times: 0,
                reserved: ReservedUnits::default(),
                // A key that counts as used up refills since that time, and the shares take their part of this.
                absent_sum: used_up_at
                    .map_or(sum, |at| sum.saturating_sub(share_times(&absent, now - at.max(since).min(now)))),
                is_unraised: true,
            }),
        };
        entry.bring_up(&encoded, used_up_at, now);
        if let Phase::Counting(since) = self.phase {
            encoded.settle_seen(since, now);
        } else {
            entry.raise(&encoded, now);
            encoded.seen = None;
        }
        if is_counting {
            let elapsed = sum.saturating_sub(entry.absent_sum);
            entry.reserved.update(&mut entry.value, Absent { programs: &absent, elapsed, since }, now);
            entry.absent_sum = sum;
        }
        let model::Transition { answer, value, full_at } = entry.reserved.take(&entry.value, &encoded, now);
        (entry.value, entry.full_at) = (value, full_at);
        if owed > 0 {
            entry.value.owe(now, owed);
            entry.full_at = entry.value.full_at();
        }
        let before = std::mem::replace(&mut entry.times, entry.value.memory());
        self.room.set_times(&rule.counters, before, entry.times);
        Ok(Outcome::Counted(answer.message()))
    }

    /// Makes room for a key of a rule, which the caller then adds, or for more times in its logs. Forgets keys at full
    /// credit.
    fn make_room(&mut self, key: &Key, encoded: &EncodedTake, rule: &CountedRule, now: u64) -> Result<(), Refusal> {
        let mut lack = self.lacks(key, encoded, rule);
        let is_full = lack.is_some() && now >= self.search_at;
        if is_full || (self.keys.len() > self.enough.max(FEW_KEYS) && !self.keys.contains_key(key)) {
            self.forget(now);
            lack = self.lacks(key, encoded, rule);
        }
        if let Some(refusal) = lack {
            return Err(refusal);
        }
        // The key itself can be forgotten now.
        if !self.keys.contains_key(key) {
            self.room.add_key(rule);
        }
        Ok(())
    }

    /// Returns the bound that leaves no room for a question. A report of a known key always has room.
    fn lacks(&self, key: &Key, encoded: &EncodedTake, rule: &CountedRule) -> Option<Refusal> {
        let (is_new, needs_times) = match self.keys.get(key) {
            Some(entry) => (false, encoded.requests > 0 && entry.value.can_grow()),
            None => (true, Value::new(encoded.stamp, &encoded.limits, 0).can_grow()),
        };
        self.room.lacks(rule, is_new, needs_times)
    }

    /// Forgets keys at full credit.
    fn forget(&mut self, now: u64) {
        let room = &mut self.room;
        self.keys.retain(|key, entry| {
            let keeps = entry.full_at > now;
            if !keeps {
                room.remove_key(rule_of(key.counters()).0, entry.times);
            }
            keeps
        });
        self.enough = 2 * self.keys.len();
        self.search_at = now + BETWEEN_SEARCHES;
    }
}

impl Entry {
    /// Raises the value to a level that an agent knows. The level can have older terms than the value.
    fn raise(&mut self, encoded: &EncodedTake, now: u64) {
        let Some(seen) = &encoded.seen else { return };
        if encoded.stamp == self.value.stamp {
            return self.value.raise_latest(seen);
        }
        let mut older = Value::new(encoded.stamp, &encoded.limits, now);
        older.raise_latest(seen);
        let newer = EncodedTake { stamp: self.value.stamp, limits: self.value.limits.to_vec(), ..encoded.emptied() };
        let converted = take(Some(&older), &newer, now).value;
        self.value.raise_latest(&converted.marks(now));
    }

    /// Brings the value to the newest terms, and to what counts as used up.
    fn bring_up(&mut self, encoded: &EncodedTake, used_up_at: Option<u64>, now: u64) {
        if self.value.stamp < encoded.stamp {
            self.value = take(Some(&self.value), &encoded.emptied(), now).value;
        }
        if let Some(at) = used_up_at.filter(|_| std::mem::take(&mut self.is_unraised)) {
            self.value.use_up(at);
        }
    }
}

/// Returns the sum of the parts of these pods, multiplied by this time.
fn share_times(absent: &[(u32, u32)], time: u64) -> u128 {
    absent.iter().map(|&(pods, sharers)| part(sharers) * u128::from(pods) * u128::from(time)).sum()
}

/// Returns the name of the rule's own counters, and whether these are the counters of a descriptor's
/// limit. Their name is that of the rule's counters, `@`, and the limit.
fn rule_of(counters: &str) -> (&str, bool) {
    counters.split_once('@').map_or((counters, false), |(rule, _)| (rule, true))
}

/// Returns the rule of a question. Limits that are newer than all of the pod's limits are refused.
fn rule<'a>(rules: [&'a [CountedRule]; 2], question: &Question) -> Option<&'a CountedRule> {
    let (counters, is_brought) = rule_of(&question.counters);
    let mut known = rules.into_iter().filter_map(|rules| {
        let index = rules.binary_search_by(|rule| rule.counters.as_str().cmp(counters)).ok()?;
        rules.get(index)
    });
    known.find(|rule| question.stamp <= rule.stamp && (rule.accepts_limits || !is_brought))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "counter_tests.rs"]
mod tests;
