//! The pods that can use a share of a limit: which of them are expected, and which are cut off from the counter.
//!
//! A pod is *present* from the moment its agent has confirmed that it asks the counter, until its channel ends or is
//! silent. All other expected pods are *absent*: their agents may decide with their share.
//!
//! ```text
//!                LevelsSent              empty Answers                 LevelsSent
//! channel ──────────────────► Ready ──────────────────► Released ──────────────────► Present
//!          levels of all keys   ▲    with all levels       │      units of the share     │
//!                               └──────────────────────────┴─────────────────────────────┘
//!                                            no message for some time
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use weir_seats::part;
use weir_wire::NEW_POD;

use super::unknown::{FewPods, UnknownUse};
use crate::plan::CountedRule;

/// The time for which a new pod does not count as absent.
const NEW: u64 = NEW_POD.as_secs() * 1_000_000;

/// The time for which a pod keeps its share of a policy that it lost, if its agent does not acknowledge that. The agent
/// still has the policy. If the policy is created again within this time, agents and counter keep its counts.
const LOST: u64 = 60_000_000;

/// The time after which a pod that is being deleted, and has no channel, is shown to users.
const LONG_LEAVING: u64 = 60_000_000;

/// The pods of one term. Times are microseconds of the counter's clock.
#[derive(Debug, Default)]
pub(super) struct Pods {
    pods: HashMap<Arc<str>, Pod>,
    policies: HashMap<Arc<str>, Absence>,
    /// The times at which pods must be judged again.
    timers: BTreeSet<(u64, Arc<str>)>,
    /// The pods that are being deleted.
    leaving: BTreeSet<Arc<str>>,
    channels: u64,
    /// The pods whose agents could not send all levels that they knew, before the counter counts.
    incomplete: HashMap<Arc<str>, Incomplete>,
    pub(super) totals: Totals,
}

/// A pod with incomplete levels.
#[derive(Debug, Default)]
struct Incomplete {
    /// The name for people, if it is known.
    name: Option<Arc<str>>,
    /// The policies that its agent had, even if the pod has lost them since then, or is gone.
    policies: HashSet<Arc<str>>,
}

/// How many pods are in which state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// The number of expected pods whose levels are unknown. New pods do not count.
    pub(super) unknown: usize,
    /// The number of expected pods that have sent their levels and are not present yet.
    pub(super) arriving: usize,
    /// The number of absent pods.
    pub(super) absent: usize,
}

#[derive(Debug, Default)]
struct Pod {
    /// The name for people, if it is known.
    name: Option<Arc<str>>,
    /// The policies with rules of scope Fleet that the pod has. Empty if the pod is not expected.
    policies: Vec<Sharing>,
    /// The policies that the pod lost, and that its agent can still have.
    lost: Vec<Lost>,
    /// True if the pod's agent has never run.
    awaits_start: bool,
    /// The time since which the pod is being deleted, if it is.
    leaving_since: Option<u64>,
    /// The time until which the pod is new.
    new_until: u64,
    channel: Option<Channel>,
    /// The time since which the pod is absent, if it is. Zero if it was not present before in this term. Then its agent
    /// can have begun its share at any time.
    absent_since: Option<u64>,
    timer: Option<u64>,
}

#[derive(Debug)]
struct Channel {
    number: u64,
    stage: Stage,
    /// The number of empty answers that were sent.
    releases: u64,
    /// The time of the last message.
    last_message_at: u64,
    /// The time at which the pod becomes absent if no message arrives.
    until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The agent is sending the levels that it knows.
    Greeted,
    /// The agent has sent its levels.
    Ready,
    /// The agent was sent empty answers: they end its share.
    Released,
    /// The agent asks the counter, and uses no share.
    Present,
}

/// A policy that a pod has.
#[derive(Clone, Debug)]
struct Sharing {
    policy: Arc<str>,
    /// The smallest number of sharers that the pod's content had in this term. An agent that is cut off, or that
    /// restarts, can have an old content, and its share is then this part of the limits.
    sharers: u32,
}

/// A policy that was deleted, or that no longer targets the pod.
#[derive(Clone, Debug)]
struct Lost {
    sharing: Sharing,
    /// The time until which the pod keeps its share.
    until: u64,
}

/// The absent pods of one policy.
#[derive(Debug, Default)]
struct Absence {
    /// The number of absent pods by their number of sharers.
    absent: BTreeMap<u32, u32>,
    /// The number of absent pods by the time since which they are absent.
    since: BTreeMap<u64, u32>,
    /// The sum of the times for which pods were absent, until `at`, multiplied by the parts of their shares.
    sum: u128,
    at: u64,
}

impl Absence {
    /// Returns the number of absent pods for each number of sharers, as pairs of pods and sharers.
    fn absent(&self) -> impl Iterator<Item = (u32, u32)> {
        self.absent.iter().map(|(sharers, pods)| (*pods, *sharers))
    }

    fn sum_at(&self, now: u64) -> u128 {
        let parts = self.absent.iter().map(|(sharers, pods)| part(*sharers) * u128::from(*pods)).sum::<u128>();
        self.sum + parts * u128::from(now.saturating_sub(self.at))
    }
}

impl Pod {
    /// The policies whose shares the agent can use while it is cut off.
    fn shares(&self) -> impl Iterator<Item = &Sharing> {
        self.policies.iter().chain(self.lost.iter().map(|lost| &lost.sharing))
    }

    /// Returns true if the agent was sent empty answers, so it may ask the counter.
    fn is_released(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| matches!(channel.stage, Stage::Released | Stage::Present))
    }

    fn is_present(&self, now: u64) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.stage == Stage::Present && now < channel.until)
    }

    /// Records that the agent runs. If this is its first start, the pod is new.
    fn starts(&mut self, now: u64) {
        if std::mem::take(&mut self.awaits_start) {
            self.new_until = now + NEW;
        }
    }

    /// The time at which the pod must be judged again.
    fn due(&self, now: u64) -> Option<u64> {
        let channel = self.channel.as_ref().and_then(|channel| match channel.stage {
            Stage::Released | Stage::Present => Some(channel.until),
            Stage::Greeted | Stage::Ready => None,
        });
        let new = (!self.policies.is_empty()).then_some(self.new_until);
        let lost = self.lost.iter().map(|lost| lost.until);
        channel.into_iter().chain(new).chain(lost).filter(|at| *at > now).min()
    }

    /// What this pod adds to the totals.
    fn totals(&self) -> Totals {
        if self.policies.is_empty() || self.awaits_start {
            return Totals::default();
        }
        let stage = self.channel.as_ref().map_or(Stage::Greeted, |channel| channel.stage);
        // The agent of a pod that is being deleted gets no other channel.
        let can_answer = self.channel.is_some() || self.leaving_since.is_none();
        Totals {
            // A pod that is new in this term knows no level of an earlier one.
            unknown: usize::from(stage == Stage::Greeted && self.new_until == 0 && can_answer),
            arriving: usize::from(matches!(stage, Stage::Ready | Stage::Released)),
            absent: usize::from(self.absent_since.is_some()),
        }
    }
}

impl Totals {
    /// Replaces what a pod added before by what it adds now.
    fn replace(&mut self, before: Self, now: Self) {
        self.unknown = self.unknown - before.unknown + now.unknown;
        self.arriving = self.arriving - before.arriving + now.arriving;
        self.absent = self.absent - before.absent + now.absent;
    }
}

impl Incomplete {
    fn add(&mut self, pod: &Pod) {
        self.name = pod.name.clone().or_else(|| self.name.take());
        self.policies.extend(pod.shares().map(|share| share.policy.clone()));
    }
}

impl Pods {
    /// Sets the rules of a pod. A pod without rules is not expected. If `is_new`, the pod's agent may still be
    /// starting. `has_run` is false if it has never run.
    pub(super) fn expect(&mut self, pod: &str, rules: &[CountedRule], has_run: bool, is_new: bool, now: u64) {
        let mut policies: Vec<Sharing> = Vec::new();
        for CountedRule { policy, sharers, .. } in rules {
            self.policies.entry(policy.clone()).or_default();
            match policies.iter_mut().find(|known| known.policy == *policy) {
                Some(known) => known.sharers = known.sharers.min(*sharers),
                None => policies.push(Sharing { policy: policy.clone(), sharers: *sharers }),
            }
        }
        if rules.is_empty() && !self.pods.contains_key(pod) {
            return;
        }
        self.change(pod, now, |pod| {
            let is_first = pod.shares().next().is_none();
            if is_first && is_new {
                pod.new_until = now + NEW;
            }
            if has_run {
                pod.starts(now);
            } else if is_first && pod.channel.is_none() {
                pod.awaits_start = true;
            }
            for earlier in pod.shares() {
                if let Some(known) = policies.iter_mut().find(|known| known.policy == earlier.policy) {
                    known.sharers = known.sharers.min(earlier.sharers);
                }
            }
            let earlier = std::mem::replace(&mut pod.policies, policies);
            pod.lost.extend(earlier.into_iter().map(|sharing| Lost { sharing, until: now + LOST }));
            let policies = &pod.policies;
            pod.lost.retain(|lost| policies.iter().all(|known| known.policy != lost.sharing.policy));
        });
    }

    /// Sets the name of a pod for people.
    pub(super) fn name(&mut self, pod: &str, name: &Arc<str>) {
        if let Some(pod) = self.pods.get_mut(pod) {
            pod.name = Some(name.clone());
        }
    }

    /// Records that an agent has acknowledged a content with these rules. It uses no share of other policies.
    pub(super) fn acknowledged(&mut self, pod: &str, number: u64, rules: &[CountedRule], now: u64) {
        let Some(known) = self.pods.get(pod).filter(|pod| !pod.lost.is_empty()) else { return };
        if known.channel.as_ref().is_some_and(|channel| channel.number == number) {
            let is_had = |lost: &Lost| rules.iter().any(|rule| rule.policy == lost.sharing.policy);
            self.change(pod, now, |pod| pod.lost.retain(is_had));
        }
    }

    /// Records that a pod is being deleted.
    pub(super) fn leave(&mut self, pod: &str, has_run: bool, now: u64) {
        if let Some((uid, _)) = self.pods.get_key_value(pod) {
            self.leaving.insert(uid.clone());
            self.change(pod, now, |pod| {
                pod.leaving_since.get_or_insert(now);
                if has_run {
                    pod.starts(now);
                }
            });
        }
    }

    /// Records that a pod is gone, and its agent with it.
    pub(super) fn gone(&mut self, pod: &str, now: u64) {
        if self.pods.contains_key(pod) {
            self.change(pod, now, |pod| {
                pod.policies.clear();
                pod.lost.clear();
            });
        }
    }

    /// Registers a new channel, and returns its number. If `is_new`, a pod whose agent never ran is new from now on.
    pub(super) fn connected(&mut self, pod: &str, is_new: bool, now: u64) -> u64 {
        self.channels += 1;
        let number = self.channels;
        let channel = Channel { number, stage: Stage::Greeted, releases: 0, last_message_at: now, until: now };
        self.change(pod, now, |pod| {
            pod.channel = Some(channel);
            if is_new {
                pod.starts(now);
            } else {
                pod.awaits_start = false;
            }
        });
        number
    }

    pub(super) fn record_message(&mut self, pod: &str, number: u64, until: u64, now: u64) {
        self.on_channel(pod, number, now, |channel| (channel.last_message_at, channel.until) = (now, until));
    }

    /// Ends the share of an agent that has sent its levels. Returns true if the agent must get empty
    /// answers now. A silent agent gets them with its next message. Otherwise its confirmation could arrive so late that
    /// the agent has begun its next share.
    pub(super) fn release(&mut self, pod: &str, number: u64, now: u64) -> bool {
        let channel = self.pods.get(pod).filter(|pod| !pod.policies.is_empty()).and_then(|pod| pod.channel.as_ref());
        let is_ready = channel
            .is_some_and(|channel| channel.number == number && channel.stage == Stage::Ready && now < channel.until);
        if is_ready {
            self.on_channel(pod, number, now, |channel| {
                channel.stage = Stage::Released;
                channel.releases += 1;
            });
        }
        is_ready
    }

    /// Records that a pod has sent levels, after it received this number of empty answers. If the operator was
    /// suspended, the agent can have confirmed earlier ones, and have begun its next share since then. Agents of earlier
    /// versions do not count, and send 0.
    pub(super) fn levels_sent(&mut self, pod: &str, number: u64, releases: u64, now: u64) {
        self.on_channel(pod, number, now, |channel| {
            channel.stage = match channel.stage {
                Stage::Greeted => Stage::Ready,
                Stage::Released if releases == channel.releases || releases == 0 => Stage::Present,
                stage => stage,
            };
        });
    }

    pub(super) fn ended(&mut self, pod: &str, number: u64, now: u64) {
        let Some(before) = self.pods.get(pod) else { return };
        let Some(channel) = before.channel.as_ref().filter(|channel| channel.number == number) else { return };
        let (last_message_at, was_absent) = (channel.last_message_at, before.absent_since.is_some());
        self.change(pod, now, |pod| pod.channel = None);
        if !was_absent {
            self.backdate(pod, last_message_at, now);
        }
    }

    /// Handles the passage of time.
    pub(super) fn advance(&mut self, now: u64) {
        while let Some((at, pod)) = self.timers.first().cloned().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, pod.clone()));
            if let Some(pod) = self.pods.get_mut(&pod) {
                pod.timer = None;
            }
            // The pod is absent since the time of its timer, even if nothing happened since then.
            self.change(&pod, at, |pod| {
                let Some(channel) = &mut pod.channel else { return };
                if matches!(channel.stage, Stage::Released | Stage::Present) && at >= channel.until {
                    // The agent may have begun to use its share, so its next message does not make it present.
                    channel.stage = Stage::Ready;
                }
            });
        }
    }

    /// Forgets policies that no pod has, except for these, which have keys. The sum of a policy that comes back begins at
    /// zero, so no key may know the earlier sum.
    pub(super) fn forget(&mut self, mut kept: HashSet<Arc<str>>) {
        kept.extend(self.pods.values().flat_map(Pod::shares).map(|share| share.policy.clone()));
        self.policies.retain(|policy, _| kept.contains(policy));
    }

    /// Records that a pod's agent could not send all levels that it knew.
    pub(super) fn levels_are_incomplete(&mut self, pod: &str) {
        self.incomplete.entry(pod.into()).or_default();
    }

    /// Returns the policies that agents can have used without the knowledge of the counter: those of pods with
    /// incomplete levels, and those of the namespaces of pods that are missing. The agent of a missing pod can have a
    /// policy that the plan no longer gives to it, but none of another namespace.
    pub(super) fn unknown_use(&mut self) -> UnknownUse {
        let mut incomplete = std::mem::take(&mut self.incomplete);
        let mut unknown = UnknownUse::default();
        for (uid, pod) in &self.pods {
            let (name, policies) = (pod.name.as_ref().unwrap_or(uid), pod.shares().map(|share| &share.policy));
            let Totals { unknown: is_unknown, arriving, .. } = pod.totals();
            if is_unknown + arriving > 0 {
                unknown.record_missing(name, policies);
                incomplete.remove(uid);
            } else if let Some(known) = incomplete.get_mut(uid) {
                known.add(pod);
            }
        }
        for (uid, Incomplete { name, policies }) in &incomplete {
            unknown.record_incomplete(name.as_ref().unwrap_or(uid), policies.iter());
        }
        unknown
    }

    /// The number of policies.
    #[cfg(test)]
    pub(super) fn policies(&self) -> usize {
        self.policies.len()
    }

    /// Returns a policy's absent pods with their numbers of sharers, the sum of the times and parts of their shares, and
    /// the earliest time at which one of these shares can have begun.
    pub(super) fn absence(&self, policy: &str, now: u64) -> (Vec<(u32, u32)>, u128, u64) {
        self.policies.get(policy).map_or((Vec::new(), 0, now), |it| {
            (it.absent().collect(), it.sum_at(now), it.since.keys().next().copied().unwrap_or(now))
        })
    }

    /// Returns the absent pods of each policy with their numbers of sharers.
    pub(super) fn sharing(&self) -> impl Iterator<Item = (Arc<str>, Vec<(u32, u32)>)> {
        let sharing = self.policies.iter().map(|(policy, it)| (policy.clone(), it.absent().collect::<Vec<_>>()));
        sharing.filter(|(_, absent)| !absent.is_empty())
    }

    /// Returns the pods of each policy that are being deleted and have been absent since then for a long time.
    pub(super) fn leaving(&self, now: u64) -> HashMap<Arc<str>, FewPods> {
        let mut leaving: HashMap<Arc<str>, FewPods> = HashMap::new();
        for (uid, pod) in self.leaving.iter().filter_map(|uid| self.pods.get_key_value(uid)) {
            let since = pod.leaving_since.zip(pod.absent_since).map(|(leaving, absent)| leaving.max(absent));
            if since.is_some_and(|since| now >= since + LONG_LEAVING) {
                for Sharing { policy, .. } in pod.shares() {
                    leaving.entry(policy.clone()).or_default().add(pod.name.as_ref().unwrap_or(uid));
                }
            }
        }
        leaving
    }

    fn on_channel(&mut self, pod: &str, number: u64, now: u64, change: impl FnOnce(&mut Channel)) {
        if !self.pods.contains_key(pod) {
            return;
        }
        self.change(pod, now, |pod| {
            if let Some(channel) = pod.channel.as_mut().filter(|channel| channel.number == number) {
                change(channel);
            }
        });
    }

    /// Changes a pod, and everything that is computed from it.
    fn change(&mut self, name: &str, now: u64, change: impl FnOnce(&mut Pod)) {
        let (name, mut pod) = self.pods.remove_entry(name).unwrap_or_else(|| (name.into(), Pod::default()));
        if let Some(known) = self.incomplete.get_mut(&name) {
            known.add(&pod);
        }
        let before = pod.totals();
        if let Some(since) = pod.absent_since {
            self.count(pod.shares(), since, -1, now);
        }
        // The agent of a pod that was present asked the counter when it sent its last message.
        let present = pod.channel.as_ref().filter(|channel| channel.stage == Stage::Present);
        let since = pod.absent_since.unwrap_or(present.map_or(0, |channel| channel.last_message_at));
        let was_released = pod.is_released();
        change(&mut pod);
        pod.lost.retain(|lost| now < lost.until);
        if pod.is_present(now) || (was_released && !pod.is_released()) {
            // An agent that got empty answers does not wait as a new one does, if its channel ends.
            pod.new_until = pod.new_until.min(now);
        }
        let is_absent =
            pod.shares().next().is_some() && !pod.awaits_start && !pod.is_present(now) && now >= pod.new_until;
        pod.absent_since = is_absent.then_some(since);
        if is_absent {
            self.count(pod.shares(), since, 1, now);
        }
        self.totals.replace(before, pod.totals());
        self.set_timer(&name, &mut pod, now);
        if pod.shares().next().is_none() && pod.channel.is_none() {
            self.leaving.remove(&name);
            if let Some(timer) = pod.timer {
                self.timers.remove(&(timer, name));
            }
        } else {
            self.pods.insert(name, pod);
        }
    }

    /// Sets the pod's timer, if it must be judged earlier than until now.
    fn set_timer(&mut self, name: &Arc<str>, pod: &mut Pod, now: u64) {
        let due = pod.due(now);
        if pod.timer.is_some_and(|timer| due.is_none_or(|due| timer <= due)) {
            return;
        }
        if let Some(timer) = pod.timer.take() {
            self.timers.remove(&(timer, name.clone()));
        }
        if let Some(due) = due {
            self.timers.insert((due, name.clone()));
            pod.timer = Some(due);
        }
    }

    fn count<'a>(&mut self, shares: impl Iterator<Item = &'a Sharing>, since: u64, change: i32, now: u64) {
        for Sharing { policy, sharers } in shares {
            let absence = self.policies.entry(policy.clone()).or_default();
            (absence.sum, absence.at) = (absence.sum_at(now), now.max(absence.at));
            add(&mut absence.absent, *sharers, change);
            add(&mut absence.since, since, change);
        }
    }

    /// Counts a pod as absent since its last message, because its agent may have noticed the end of the channel first.
    fn backdate(&mut self, pod: &str, since: u64, now: u64) {
        let Some(pod) = self.pods.get(pod).filter(|pod| pod.absent_since.is_some()) else { return };
        for Sharing { policy, sharers } in pod.shares() {
            if let Some(absence) = self.policies.get_mut(policy) {
                absence.sum += part(*sharers) * u128::from(now.saturating_sub(since));
            }
        }
    }
}

fn add<K: Copy + Ord>(counts: &mut BTreeMap<K, u32>, key: K, change: i32) {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add_signed(change);
    if *count == 0 {
        counts.remove(&key);
    }
}
