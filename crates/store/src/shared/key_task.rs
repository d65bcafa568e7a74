//! The task that asks the store for one key. It sends one question after another, until no request of the key waits.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};
use weir_seats::{
    BanChange, Key, Next, Reply, Seats,
    terms::{MOST_UNITS, StoreTerms},
};

use super::{
    OnLoss, Refused, SOON, SharedLimiter, SharedRule,
    ban::{ByBan, started},
    entry::{Answer, BETWEEN_ATTEMPTS, Entry, LastRefusal, RareState, Task, Waiter},
    hand::Found,
    question::{Owned, Question},
    queue::{Decisions, TimedDecision, send},
    request::{KeyRequest, Moment, micros, slowest},
    reset::BETWEEN_RESETS,
    rule::reach,
};
use crate::client::Answered;

/// The maximum number of requests in one question.
const MOST_REQUESTS: usize = 4_096;

/// The longest time without a question for a refused key, if units of it can come back.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// The longest random delay of a question after the time at which a refused request can proceed.
const LONGEST_JITTER: Duration = Duration::from_millis(50);

/// The next step for a key.
enum Step {
    /// The task ends, because no request waits.
    Ends,
    /// The task sleeps until the store can admit a waiting request, or until another request arrives.
    Sleeps(Duration, Arc<Notify>),
    Asks(Box<Question>),
}

impl SharedLimiter {
    /// Starts the task of a key. The caller has called `begins_task`.
    pub(super) fn start_task(&self, hash: u128) {
        let Some(me) = self.me.upgrade() else { return };
        self.client.spawn(async move { me.run_task(hash).await });
    }

    async fn run_task(self: Arc<Self>, hash: u128) {
        loop {
            let (step, decisions) = self.step(hash);
            send(&self, decisions);
            match step {
                Step::Ends => return,
                Step::Sleeps(pause, wakes) => drop(timeout(pause, wakes.notified()).await),
                Step::Asks(question) => self.ask_store(hash, *question).await,
            }
        }
    }

    /// Decides on the waiting requests as far as possible without a question, and returns the next step.
    fn step(&self, hash: u128) -> (Step, Decisions) {
        let (rule, moment) = (self.rule(), self.moment());
        let Moment { now, lost, .. } = moment;
        let mut decisions = Decisions::new();
        let mut shard = self.table.shard_of(hash);
        let Some(entry) = shard.get_mut(&hash) else { return (Step::Ends, decisions) };
        let Some(mut task) = entry.task.take() else { return (Step::Ends, decisions) };
        let mut waiting = std::mem::take(&mut task.waiting);
        let before = waiting.len();
        waiting.retain(|waiter| !waiter.sender.is_closed());
        self.waiting.fetch_sub(before - waiting.len(), Relaxed);
        let (mut pause, mut asks) = (None::<Duration>, VecDeque::new());
        for mut waiter in waiting {
            let decision = self.decide_locally(entry, &rule, waiter.request(now), moment);
            let needs_slot = matches!(decision, LocalDecision::Asks | LocalDecision::Decided(Err(_)));
            if needs_slot && lost.is_none() && rule.ban.is_none() {
                match self.join(waiter) {
                    Ok(()) => {
                        self.waiting.fetch_sub(1, Relaxed);
                        continue;
                    }
                    Err(other) => waiter = other,
                }
            }
            match decision {
                LocalDecision::Decided(decision) => decisions.push((waiter, decision)),
                LocalDecision::Waits(wait) => {
                    pause = Some(pause.map_or(wait, |pause| pause.min(wait)));
                    task.waiting.push_back(waiter);
                }
                LocalDecision::Asks => asks.push_back(waiter),
            }
        }
        let has_more = lost.is_none() && self.has_more(entry, &rule, (hash, now));
        let step = if !asks.is_empty() || has_more {
            self.question(entry, &mut task, &rule, (hash, asks), now)
        } else if let Some(pause) = pause {
            Step::Sleeps(pause, Arc::clone(task.sleeps.insert(Arc::default())))
        } else {
            Step::Ends
        };
        entry.task = (!matches!(step, Step::Ends)).then_some(task);
        (step, decisions)
    }

    /// Returns true if a question is needed although no request waits: units are owed or given back, or few seats are left.
    fn has_more(&self, entry: &Entry, rule: &SharedRule, (hash, now): (u128, Duration)) -> bool {
        let wanted = self.wanted(entry, rule, rule.set(hash));
        let rare = entry.rare();
        let is_due = rare.owes() || rare.asks_for_ban || entry.owes_share(self.share_time(now));
        let refills = wanted > 0 && now >= rare.refill_after && entry.seats() <= wanted / 2;
        now >= rare.retry_at && (is_due || refills)
    }

    /// Decides on one request without a question, if possible.
    fn decide_locally(
        &self,
        entry: &mut Entry,
        rule: &SharedRule,
        request: KeyRequest,
        moment: Moment,
    ) -> LocalDecision {
        let (KeyRequest { hash, cost, patience }, Moment { now, lost, .. }) = (request, moment);
        let set = rule.set(hash);
        match self.by_ban(entry, rule, moment) {
            Some(ByBan::Refused(rest)) => return LocalDecision::Decided(Err(Refused::banned(rest))),
            Some(ByBan::Asks) => return LocalDecision::Asks,
            None => {}
        }
        if let Some(clocks) = moment.clocks() {
            let (found, expired) = entry.claim_seats(&set.terms, cost, clocks);
            self.client.stats.count_lost_seats(expired);
            if let Found::Seats(seats) = found {
                let left = entry.left(set, clocks.time.latest);
                return LocalDecision::Decided(Ok((self.grant(hash, Some(seats), left), 0)));
            }
            if let (None, Some(refused)) = (lost, entry.refused)
                && cost >= refused.cost.get()
            {
                let wait = refused.rest(clocks);
                if refused.applies_to(request, clocks) {
                    let left = entry.left(set, clocks.time.latest);
                    return LocalDecision::Decided(Err(Refused::new(Some(refused.retry_after(clocks)), left)));
                }
                if !wait.is_zero() && !set.has_slots() {
                    let jitter = Duration::from_micros(refused.jitter.into());
                    return LocalDecision::Waits((wait + jitter).min(wait.max(patience)));
                }
            }
        }
        match lost.or_else(|| self.cut_off(entry, now)) {
            Some(loss) => {
                let decided = self.without_store(entry, rule, request, (now, loss));
                LocalDecision::Decided(decided.map(|grant| (grant, 0)))
            }
            None => LocalDecision::Asks,
        }
    }

    /// Creates the next question. It contains the requests with the same cost as the first one.
    fn question(
        &self,
        entry: &mut Entry,
        task: &mut Task,
        rule: &SharedRule,
        (hash, asks): (u128, VecDeque<Waiter>),
        now: Duration,
    ) -> Step {
        let Ok(key) = Key::new(&rule.counters, hash) else { return Step::Ends };
        let all_share = entry.share.as_ref().map_or(0, |share| share.owed(self.share_time(now)));
        let share_owed = all_share.min(MOST_UNITS);
        let cost = asks.front().map_or(1, |waiter| waiter.queue_id.cost);
        let most = MOST_REQUESTS.min(usize::try_from(MOST_UNITS / cost).unwrap_or(1)).max(1);
        let mut batch = Vec::new();
        for waiter in asks {
            if waiter.queue_id.cost == cost && batch.len() < most {
                batch.push(waiter);
            } else {
                task.waiting.push_back(waiter);
            }
        }
        // The store decides on requests when it knows everything that is owed. Until then, they wait for further questions.
        let knows_all = entry.rare().owed.saturating_add(all_share) <= MOST_UNITS;
        let decides_on = if knows_all { &batch[..] } else { &[] };
        let round = self.client.round();
        let wanted = if knows_all { self.wanted(entry, rule, rule.set(hash)) } else { 0 };
        // The question has the shortest patience of its requests, so that no request gets a slot that is too late for
        // it.
        let patience = decides_on.iter().map(|waiter| waiter.patience(now)).min().unwrap_or_default();
        let failures = self.client.failures();
        let seen = entry.answer.as_ref().filter(|answer| answer.failures != failures);
        let seen = seen.map(|answer| answer.level.clone());
        let (seats, share) = (entry.seats(), entry.share.as_ref());
        let admitted = share.map_or(0, |share| share.admitted.saturating_sub((all_share - share_owed).into()));
        let mut nothing = RareState::default();
        let rare = entry.rare.as_deref_mut().unwrap_or(&mut nothing);
        // The credit is sent once. If it were sent again after a lost answer, the store could count it twice. What exceeds
        // one question is sent with the next one.
        let credit = rare.credit.min(MOST_UNITS);
        rare.credit -= credit;
        let owned = Owned {
            key,
            terms: Arc::clone(&rule.set(hash).terms),
            requests: u32::try_from(decides_on.len()).unwrap_or(u32::MAX),
            cost,
            patience,
            prefetch: wanted.saturating_sub(seats),
            reach: reach(round),
            owed: rare.owed.saturating_add(share_owed).min(MOST_UNITS),
            credit,
            share: (share_owed, admitted),
            seen,
            failures,
            ban: rule.ban(rare.ban_started.take().map_or(BanChange::Keep, |since| started(since, now))),
            asked_at: now,
        };
        rare.asks_for_ban = false;
        rare.owed -= owned.explicit();
        Step::Asks(Box::new(Question { batch, owned }))
    }

    /// Asks the store, and sends the decisions to the waiting requests.
    async fn ask_store(self: &Arc<Self>, hash: u128, question: Question) {
        let Question { batch, owned } = question;
        let deadline = self.client.deadline();
        let (client, asks) = (Arc::clone(&self.client), owned.clone());
        // A separate task asks, because a late answer still brings seats.
        let mut answer = self.client.spawn(async move { client.ask(&asks.key, &asks.take()).await });
        let mut outcome = timeout(deadline, &mut answer).await;
        if outcome.is_err() {
            self.client.missed(deadline);
            if let Some(rest) = self.rest_of_wait(deadline) {
                outcome = timeout(rest, &mut answer).await;
            }
        }
        let decisions = match outcome {
            Ok(Ok(Ok(answered))) => self.answered(hash, batch, &owned, answered),
            Ok(Ok(Err(_)) | Err(_)) => {
                // The store may have charged the owed units. Charging them twice never admits too many requests.
                self.note_unanswered(hash, &owned);
                self.unanswered(hash, batch)
            }
            Err(_) => {
                let me = Arc::clone(self);
                self.client.spawn(async move {
                    match answer.await {
                        // No request waits for this answer, so its seats go to later requests.
                        Ok(Ok(answered)) => send(&me, me.answered(hash, Vec::new(), &owned, answered)),
                        _ => me.note_unanswered(hash, &owned),
                    }
                });
                self.unanswered(hash, batch)
            }
        };
        send(self, decisions);
    }

    /// Returns how much longer requests wait for an answer that has missed the deadline. None if they are decided now.
    fn rest_of_wait(&self, waited: Duration) -> Option<Duration> {
        let is_decided = self.rule().on_loss == OnLoss::Open || self.client.current_loss().is_some();
        let rest = self.client.longest_wait().checked_sub(waited)?;
        (!is_decided && !self.client.asks_operator()).then_some(rest)
    }

    /// Records that a question was not answered, so that the next one reports the same. That one waits a moment, because
    /// the reason can last: an operator refuses all questions about a rule that it does not know.
    fn note_unanswered(&self, hash: u128, owned: &Owned) {
        let (units, started) = (owned.explicit(), owned.ban_started());
        let retry_at = self.client.now() + BETWEEN_ATTEMPTS;
        let mut shard = self.table.shard_of(hash);
        if units == 0 && started.is_none() {
            if let Some(entry) = shard.get_mut(&hash) {
                entry.rare_mut().missed(retry_at);
            }
        } else {
            let entry = self.table.entry_of_debt(&mut shard, hash);
            let started = started.filter(|_| !entry.has_lifted(owned));
            let rare = entry.rare_mut();
            rare.missed(retry_at);
            rare.owed = rare.owed.saturating_add(units);
            rare.ban_started = rare.ban_started.or(started);
        }
    }

    /// Decides on the waiting requests as if the store were lost.
    fn unanswered(&self, hash: u128, batch: Vec<Waiter>) -> Decisions {
        let (rule, now) = (self.rule(), self.client.now());
        let loss = self.client.loss_number();
        let mut shard = self.table.shard_of(hash);
        let Some(entry) = shard.get_mut(&hash) else { return Decisions::new() };
        let decide = |waiter: Waiter| {
            let decided = self.without_store(entry, &rule, waiter.request(now), (now, loss));
            (waiter, decided.map(|grant| (grant, 0)))
        };
        batch.into_iter().map(decide).collect()
    }

    fn answered(&self, hash: u128, batch: Vec<Waiter>, owned: &Owned, answered: Answered) -> Decisions {
        let Answered { reply, at } = answered;
        let mut shard = self.table.shard_of(hash);
        // Read below the lock: `retune` sets the rule, and then forgets each entry's refusal below this lock. So the
        // refusal of an earlier rule cannot be stored after that.
        let (rule, now) = (self.rule(), self.client.now());
        let (set, mut decisions) = (rule.set(hash), Decisions::new());
        let Some(entry) = shard.get_mut(&hash) else { return decisions };
        let Reply { granted, served, prefetched, level, time, next, newer } = reply;
        let terms = &newer.map_or_else(|| Arc::clone(&owned.terms), Arc::new);
        let banned = level.banned();
        entry.end_share(owned.share.1);
        let answer = match entry.answer.take() {
            // Other servers may have answered, without this level. The next question reports it to them.
            Some(last) if owned.seen.is_none() && self.client.failures() != owned.failures => last,
            _ => Answer { level, terms: Arc::clone(terms), failures: owned.failures, asked_at: owned.asked_at },
        };
        entry.learn(answer, now);
        if entry.has_lifted(owned) {
            self.lift_again(hash);
        }
        let passed = micros(now.saturating_sub(at));
        let banned = banned.map(|banned| {
            // The store's terms can be newer, with a longer ban.
            let end = if let Next::At(end) = next { end.max(banned.end()) } else { banned.end() };
            Duration::from_micros(end.saturating_sub(time + passed))
        });
        let granted = served.as_ref().map_or(0, |_| usize::try_from(granted).unwrap_or(usize::MAX));
        let mut served_first = batch;
        let refused = served_first.split_off(served_first.len().min(granted));
        if let Some(seats) = served {
            self.serve(entry, (hash, time, at), owned, (terms, seats), served_first, &mut decisions);
        }
        let lent = prefetched.as_ref().map_or(0, Seats::left);
        self.client.stats.count_prefetched(lent);
        if let Some(seats) = prefetched {
            self.add_new(entry, (time, at), terms, seats);
        }
        if owned.prefetch > 0 && lent < owned.prefetch / 2 {
            entry.rare_mut().refill_after = now + owned.reach / 2;
        }
        // A refusal by limits that have changed in the meantime must not refuse later requests.
        let is_outdated = terms.stamp() < set.terms.stamp();
        entry.refused =
            if banned.is_some() || is_outdated { None } else { self.refusal(&rule, next, owned, (time, at)) };
        let retry_after = match next {
            Next::Now => Some(Duration::ZERO),
            Next::At(until) => Some(Duration::from_micros(until.saturating_sub(time + passed))),
            Next::Never => None,
        };
        // If the strategy has slots, the store has no slot within the patience of these requests.
        let may_wait = banned.is_none() && !set.has_slots();
        let longest = self.client.longest_wait();
        let waits_on = |waiter: &Waiter| {
            if owned.requests == 0 {
                // The question had only a part of the debt.
                return now < waiter.latest + longest;
            }
            may_wait && waiter.is_patient && retry_after.is_some_and(|wait| now + wait <= waiter.latest)
        };
        for waiter in refused.into_iter().rev() {
            match &mut entry.task {
                Some(task) if waits_on(&waiter) => task.waiting.push_front(waiter),
                _ => {
                    let retry_after = if owned.requests == 0 { Some(SOON) } else { retry_after };
                    let refusal = || Refused::new(retry_after, entry.left(set, time));
                    decisions.push((waiter, Err(banned.map_or_else(refusal, Refused::banned))));
                }
            }
        }
        decisions
    }

    /// Gives seats to the requests that the store admitted, which are first in the batch. The rest stays in the hand.
    fn serve(
        &self,
        entry: &mut Entry,
        (hash, time, at): (u128, u64, Duration),
        owned: &Owned,
        (terms, mut seats): (&StoreTerms, Seats),
        batch: Vec<Waiter>,
        decisions: &mut Decisions,
    ) {
        for waiter in batch {
            let due = if owned.patience.is_zero() { 0 } else { seats.due(terms, 0, owned.cost) };
            let own = seats.split(terms, owned.cost);
            if due > time {
                let (goes_at, rare) = (self.client.now() + Duration::from_micros(due - time), entry.rare_mut());
                rare.last_slot = rare.last_slot.max(goes_at);
            }
            let left = entry.level().and_then(|level| level.left(terms, time));
            decisions.push((waiter, Ok((self.grant(hash, Some(own), left), due))));
        }
        self.add_new(entry, (time, at), terms, seats);
    }

    /// Adds the seats of an answer with this time of the store, which arrived at this time.
    fn add_new(&self, entry: &mut Entry, (time, at): (u64, Duration), terms: &StoreTerms, seats: Seats) {
        let rest = Duration::from_micros(seats.due(terms, 0, seats.left()).saturating_sub(time));
        self.client.stats.count_lost_seats(entry.add_seats(terms, seats, at + slowest(rest)));
    }

    /// Computes from an answer, as for [`add_new`](Self::add_new), until when later requests are refused.
    fn refusal(
        &self,
        rule: &SharedRule,
        next: Next,
        owned: &Owned,
        (time, at): (u64, Duration),
    ) -> Option<LastRefusal> {
        let Next::At(until) = next else { return None };
        let wait = Duration::from_micros(until.saturating_sub(time));
        let jitter = (wait / 16).min(LONGEST_JITTER).mul_f64(self.client.jitter());
        let jitter = u32::try_from(jitter.as_micros()).unwrap_or_default();
        let latest = micros(at + slowest(wait));
        // The operator resets no key.
        let until_reset = (!self.client.asks_operator()).then_some(BETWEEN_RESETS);
        let comes_back = rule.has_credits || (rule.has_returns && self.client.takes_back());
        let pause = if comes_back { Some(BETWEEN_LOOKS) } else { until_reset };
        let asks_at = pause.map_or(latest, |pause| latest.min(micros(at + pause)));
        Some(LastRefusal { cost: NonZeroU32::new(owned.cost)?, jitter, until, latest, asks_at })
    }
}

/// What a program does with a request before it asks the store.
enum LocalDecision {
    Decided(TimedDecision),
    /// The request waits for this time before the store is asked again.
    Waits(Duration),
    Asks,
}
