//! Programs that share a limit through an operator in this process. It reads the questions as the real one does.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::{task::JoinHandle, time::Instant};
use weir_core::{Quota, Strategy};
use weir_seats::{EncodedTake, MemoryStore, Value, model};

use super::*;
use crate::{
    Backend, Claim, OnLoss, Refused, SharedLimiter, SharedRule, StoreClient, StoreParts, tests::oracle::excess,
};

const EPOCH: Duration = Duration::from_secs(1_790_000_000);

/// What the operator does with questions.
#[derive(Default)]
struct Operator {
    values: Mutex<HashMap<Key, Value>>,
    is_silent: std::sync::atomic::AtomicBool,
    /// The number of questions to which it answers that it does not count yet.
    not_yet: std::sync::atomic::AtomicU64,
    /// The time until an answer, in addition to 1 ms.
    delay_millis: std::sync::atomic::AtomicU64,
    questions: std::sync::atomic::AtomicU64,
    /// The times at which it received questions and statuses.
    received: Mutex<Vec<Duration>>,
    /// How far its clock is behind.
    behind_millis: std::sync::atomic::AtomicU64,
}

struct World {
    start: Instant,
    operator: Arc<Operator>,
}

impl World {
    fn new() -> Self {
        Self { start: Instant::now(), operator: Arc::default() }
    }

    fn program(&self) -> Program {
        let start = self.start;
        let store = OperatorStore::new(move || EPOCH + start.elapsed());
        let opened = Arc::clone(&store);
        let open = move || Ok(Backend::Operator(Arc::clone(&opened)));
        let client = StoreClient::start(StoreParts::new("operator", open, move || EPOCH + start.elapsed()));
        Program { store, client }
    }

    fn now(&self) -> u64 {
        u64::try_from((EPOCH + self.start.elapsed()).as_micros()).expect("fits")
    }

    /// Connects a program to the operator. Aborting the task ends the channel as the operator does.
    fn connect(&self, program: &Program) -> JoinHandle<()> {
        let (mut channel, operator, start) = (program.store.open(), Arc::clone(&self.operator), self.start);
        assert!(channel.begin_asking());
        let now = self.now();
        program.client.end_shares().iter().for_each(|question| drop(operator.answer(question, now)));
        channel.closed_by_operator();
        channel.status_interval(Duration::from_secs(1));
        tokio::spawn(async move {
            loop {
                let questions = tokio::select! {
                    questions = channel.questions() => questions,
                    // A status.
                    () = sleep(Duration::from_millis(100)) => {
                        if !channel.is_quiet() {
                            lock(&operator.received).push(start.elapsed());
                        }
                        continue;
                    }
                };
                lock(&operator.received).push(start.elapsed());
                sleep(MILLI + Duration::from_millis(operator.delay_millis.load(Relaxed))).await;
                let now = u64::try_from((EPOCH + start.elapsed()).as_micros()).expect("fits");
                let answers: Vec<_> = questions.iter().filter_map(|question| operator.answer(question, now)).collect();
                if !answers.is_empty() {
                    channel.answer(answers);
                }
            }
        })
    }
}

impl Operator {
    fn answer(&self, question: &Question, now: u64) -> Option<Answer> {
        self.questions.fetch_add(1, Relaxed);
        if question.id != 0 && self.not_yet.load(Relaxed) > 0 {
            self.not_yet.fetch_sub(1, Relaxed);
            return Some(Answer { id: question.id, outcome: Outcome::NotYet });
        }
        let (key, mut encoded) = EncodedTake::read(question).expect("a valid question");
        let now = now - 1_000 * self.behind_millis.load(Relaxed);
        encoded.rebase_seen(now, 0);
        let mut values = lock(&self.values);
        let outcome = model::take(values.get(&key), &encoded, now);
        values.insert(key, outcome.value);
        let outcome = Outcome::Counted(outcome.answer.message());
        (!self.is_silent.load(Relaxed)).then_some(Answer { id: question.id, outcome })
    }
}

struct Program {
    store: Arc<OperatorStore>,
    client: Arc<StoreClient>,
}

impl Program {
    fn limiter(&self, quota: Quota) -> Arc<SharedLimiter> {
        let rule = SharedRule::new("shop/api.all", 1, &[vec![(0, quota)]], OnLoss::LocalShare, 4, 1_000);
        SharedLimiter::new(Arc::clone(&self.client), rule.expect("a rule"))
    }
}

fn quota(strategy: Strategy, requests: u64, seconds: u64) -> Quota {
    Quota::new(strategy, requests, Duration::from_secs(seconds), None).expect("a quota")
}

/// Starts a program that is connected to an operator, and has a limiter with this quota.
fn connected(strategy: Strategy, requests: u64, seconds: u64) -> (World, Program, JoinHandle<()>, Arc<SharedLimiter>) {
    let world = World::new();
    let program = world.program();
    let link = world.connect(&program);
    let limiter = program.limiter(quota(strategy, requests, seconds));
    (world, program, link, limiter)
}

async fn request(limiter: &SharedLimiter) -> Result<(), Refused> {
    match limiter.claim(7, 1, Duration::ZERO) {
        Claim::Granted(grant) => grant.settle(),
        Claim::Refused(refused) => return Err(refused),
        Claim::AskStore => limiter.ask(7, 1, Duration::ZERO).await?.settle(),
    }
    Ok(())
}

/// Sends requests at this pace until the end, and records the admissions.
async fn load(world: &World, limiters: &[&SharedLimiter], every: Duration, until: Duration) -> Vec<(u64, u64)> {
    let mut admissions = Vec::new();
    while world.start.elapsed() < until {
        for limiter in limiters {
            if request(limiter).await.is_ok() {
                admissions.push((world.now(), 1));
            }
        }
        sleep(every).await;
    }
    admissions
}

const MILLI: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn programs_share_a_limit_through_the_operator() {
    for strategy in Strategy::ALL {
        let world = World::new();
        let programs: Vec<_> = (0..5).map(|_| world.program()).collect();
        let _links: Vec<_> = programs.iter().map(|program| world.connect(program)).collect();
        let quota = quota(strategy, 100, 2);
        let limiters: Vec<_> = programs.iter().map(|program| program.limiter(quota)).collect();
        let limiters: Vec<&SharedLimiter> = limiters.iter().map(AsRef::as_ref).collect();
        let admissions = load(&world, &limiters, 10 * MILLI, Duration::from_secs(20)).await;
        assert_eq!(excess(quota, &admissions).first(), None, "{strategy:?}");
        // Ten periods of 100 units, and requests for ten times as many. A leaky bucket and GCRA with a burst of one admit
        // one request at a time, so slots pass unused while no request waits.
        let is_paced = matches!(strategy, Strategy::LeakyBucket | Strategy::Gcra);
        let least = if is_paced { 700 } else { 900 };
        assert!(admissions.len() > least, "{strategy:?}: {}", admissions.len());
    }
}

/// A program that is cut off has a quarter of the limit, which begins without credit.
#[tokio::test(start_paused = true)]
async fn a_program_begins_its_share_when_the_operator_closes_the_channel() {
    let (world, program, link, limiter) = connected(Strategy::TokenBucket, 100, 1);
    load(&world, &[&limiter], MILLI, Duration::from_secs(3)).await;
    link.abort();
    let cut = world.now();
    let admissions = load(&world, &[&limiter], MILLI, Duration::from_secs(13)).await;
    let alone: Vec<_> = admissions.iter().filter(|(at, _)| *at > cut + 1_500_000).collect();
    // 25 a second. Seats from before the break last for a moment.
    assert!((190..=214).contains(&alone.len()), "{}", alone.len());
    assert!(!program.client.condition().reached);
    let share = quota(Strategy::TokenBucket, 25, 1);
    let alone: Vec<_> = alone.into_iter().copied().collect();
    assert_eq!(excess(share, &alone).first(), None);
}

/// The operator notices a silent program after its interval of one second and four seconds, and a late message can delay
/// this once.
#[tokio::test(start_paused = true)]
async fn a_program_waits_with_its_share_while_the_operator_is_silent() {
    let (world, _program, _link, limiter) = connected(Strategy::FixedWindow, 40, 1);
    load(&world, &[&limiter], MILLI, Duration::from_secs(3)).await;
    world.operator.is_silent.store(true, Relaxed);
    let silent = world.now();
    let admissions = load(&world, &[&limiter], MILLI, Duration::from_secs(20)).await;
    let first = admissions.iter().find(|(at, _)| *at > silent + 1_000_000).expect("an admission").0;
    assert!((10_000_000..=12_500_000).contains(&(first - silent)), "{}", first - silent);
    // The operator answers again: the share ends, and the whole limit is there.
    world.operator.is_silent.store(false, Relaxed);
    let back = world.now();
    let admissions = load(&world, &[&limiter], MILLI, Duration::from_secs(40)).await;
    let later = admissions.iter().filter(|(at, _)| *at > back + 6_000_000).count();
    assert!((520..=560).contains(&later), "{later} in 14 seconds");
}

#[tokio::test(start_paused = true)]
async fn a_program_without_any_channel_waits_twenty_seconds_for_its_share() {
    let world = World::new();
    let program = world.program();
    let limiter = program.limiter(quota(Strategy::TokenBucket, 100, 1));
    let admissions = load(&world, &[&limiter], MILLI, Duration::from_secs(30)).await;
    let first = admissions.first().expect("an admission").0;
    assert!(Duration::from_micros(first) >= EPOCH + Duration::from_secs(20), "{first}");
    assert!((200..=250).contains(&admissions.len()), "{}", admissions.len());
}

/// The new operator knows nothing except for what the programs tell.
#[tokio::test(start_paused = true)]
async fn a_new_operator_learns_the_levels() {
    let mut world = World::new();
    let programs: Vec<_> = (0..3).map(|_| world.program()).collect();
    let links: Vec<_> = programs.iter().map(|program| world.connect(program)).collect();
    let quota = quota(Strategy::FixedWindow, 100, 3_600);
    let limiters: Vec<_> = programs.iter().map(|program| program.limiter(quota)).collect();
    let all: Vec<&SharedLimiter> = limiters.iter().map(AsRef::as_ref).collect();
    let mut admissions = load(&world, &all, 100 * MILLI, Duration::from_secs(2)).await;
    assert!((50..=60).contains(&admissions.len()), "{}", admissions.len());
    links.iter().for_each(JoinHandle::abort);
    world.operator = Arc::default();
    let now = world.now();
    for program in &programs {
        let (levels, sent) = program.client.levels(10);
        let time = sent.time.expect("the time of the operator");
        assert!(sent.is_complete && (now - 10_000..=now).contains(&time), "{sent:?} at {now}");
        assert_eq!(levels.len(), 1);
        levels.iter().for_each(|question| drop(world.operator.answer(question, now)));
        assert!(!program.client.levels(0).1.is_complete, "more levels than allowed");
    }
    let _links: Vec<_> = programs.iter().map(|program| world.connect(program)).collect();
    admissions.extend(load(&world, &all, 100 * MILLI, Duration::from_secs(10)).await);
    assert_eq!(admissions.len(), 100);
}

/// The clock of the next operator is 20 ms behind, which a slow answer does not show.
#[tokio::test(start_paused = true)]
async fn the_clock_of_a_new_operator_replaces_the_earlier_one() {
    let (world, program, link, limiter) = connected(Strategy::FixedWindow, 100, 3_600);
    limiter.ask(1, 1, Duration::ZERO).await.expect("admitted").settle();
    link.abort();
    world.operator.behind_millis.store(20, Relaxed);
    world.operator.delay_millis.store(100, Relaxed);
    let _link = world.connect(&program);
    limiter.ask(2, 1, Duration::ZERO).await.expect("admitted").settle();
    let (time, now) = (program.client.time(program.client.now()).expect("known"), world.now() - 20_000);
    assert!((time.earliest..=time.latest).contains(&now), "{time:?} at {now}");
}

/// The clock of an operator was an hour ahead when it refused a key. After the next operator has answered, the time
/// until a retry follows the clock of that operator.
#[tokio::test(start_paused = true)]
async fn a_refusal_ends_with_its_operator() {
    let (mut world, program, link, limiter) = connected(Strategy::FixedWindow, 10, 60);
    while request(&limiter).await.is_ok() {}
    link.abort();
    world.operator = Arc::default();
    world.operator.behind_millis.store(3_600_000, Relaxed);
    let now = world.now();
    program.client.levels(10).0.iter().for_each(|question| drop(world.operator.answer(question, now)));
    let _link = world.connect(&program);
    // An answer about another key shows the new clock.
    limiter.ask(8, 1, Duration::ZERO).await.expect("admitted").settle();
    let refused = request(&limiter).await.expect_err("a level that is ahead counts as used up");
    let wait = refused.retry_after.expect("a time");
    assert!(wait <= Duration::from_secs(60), "{wait:?}");
    sleep(wait).await;
    request(&limiter).await.expect("it has waited");
}

/// A request waits for a window of the earlier operator, and the next operator has units immediately.
#[tokio::test(start_paused = true)]
async fn a_waiting_request_asks_the_next_operator() {
    let (mut world, program, link, limiter) = connected(Strategy::FixedWindow, 10, 3_600);
    while request(&limiter).await.is_ok() {}
    let waits = limiter.ask(7, 1, Duration::from_secs(7_200));
    assert!(limiter.known(7, 1).is_refused());
    sleep(Duration::from_secs(1)).await;
    link.abort();
    world.operator = Arc::default();
    let next = world.start.elapsed();
    let _link = world.connect(&program);
    waits.await.expect("the operator has counted nothing").settle();
    assert!(world.start.elapsed() - next < Duration::from_secs(1), "{:?}", world.start.elapsed() - next);
}

#[tokio::test(start_paused = true)]
async fn a_new_operator_learns_that_levels_are_missing() {
    let world = World::new();
    let program = world.program();
    let _link = world.connect(&program);
    let quota = quota(Strategy::FixedWindow, 10, 60);
    let rule = SharedRule::new("shop/api.all", 1, &[vec![(0, quota)]], OnLoss::LocalShare, 4, 8).expect("a rule");
    let limiter = SharedLimiter::new(Arc::clone(&program.client), rule);
    let ask = async |hash: u128| limiter.ask(hash, 1, Duration::ZERO).await.expect("admitted").settle();
    for hash in 0..8 {
        ask(hash).await;
    }
    assert!(program.client.levels(100).1.is_complete);
    ask(8).await;
    assert_eq!(limiter.keys().evicted, 1);
    assert!(!program.client.levels(100).1.is_complete, "one key was evicted");
    // A minute later, the evicted key is at full credit.
    sleep(Duration::from_secs(61)).await;
    ask(8).await;
    assert!(program.client.levels(100).1.is_complete);
}

/// The limit changed after the last answers. The levels are reported with the limit that they have.
#[tokio::test(start_paused = true)]
async fn a_new_operator_learns_levels_under_earlier_limits() {
    let mut world = World::new();
    let program = world.program();
    let link = world.connect(&program);
    let rule = |stamp, requests| {
        let quota = quota(Strategy::FixedWindow, requests, 3_600);
        SharedRule::new("shop/api.all", stamp, &[vec![(0, quota)]], OnLoss::LocalShare, 4, 8).expect("a rule")
    };
    let limiter = SharedLimiter::new(Arc::clone(&program.client), rule(1, 10));
    let ask = async || {
        limiter.ask(1, 1, Duration::ZERO).await.is_ok_and(|admitted| {
            admitted.settle();
            true
        })
    };
    for _ in 0..7 {
        assert!(ask().await);
    }
    limiter.retune(rule(2, 12));
    // Idle keys stay known until they are at full credit.
    sleep(Duration::from_secs(200)).await;
    let (levels, sent) = program.client.levels(10);
    assert!(sent.is_complete, "{sent:?}");
    assert_eq!(levels.iter().map(|level| level.stamp).collect::<Vec<_>>(), [1]);
    link.abort();
    world.operator = Arc::default();
    let now = world.now();
    levels.iter().for_each(|question| drop(world.operator.answer(question, now)));
    let _link = world.connect(&program);
    let mut more = 0;
    while ask().await {
        more += 1;
    }
    assert_eq!(more, 5, "7 of 12 were used under the earlier limit");
}

#[tokio::test(start_paused = true)]
async fn a_later_channel_replaces_an_earlier_one() {
    let world = World::new();
    let program = world.program();
    let mut first = program.store.open();
    let quota = quota(Strategy::FixedWindow, 10, 1);
    let limiter = program.limiter(quota);
    let _second = world.connect(&program);
    assert!(request(&limiter).await.is_ok());
    // The first channel has no effect: its answers and its end are ignored.
    first.answer(vec![Answer { id: 2, outcome: Outcome::Refused("no".to_owned()) }]);
    let questions = timeout(Duration::from_secs(1), first.questions()).await;
    assert!(questions.is_err(), "{questions:?}");
    drop(first);
    assert!(request(&limiter).await.is_ok());
    assert!(program.client.condition().reached);
}

/// The memory store serves the same questions.
#[test]
fn a_message_has_the_same_answer_as_its_question() {
    let terms = weir_seats::StoreTerms::new(3, &[(0, quota(Strategy::Gcra, 5, 60))]).expect("terms");
    let key = Key::new("shop/api.all", 0xfeed).expect("a key");
    let question = Take { requests: 7, prefetch: 3, owed: 1, ..Take::new(&terms) };
    let now = 1_790_000_000_000_000;
    let reply = MemoryStore::new().take(&key, &question, || now).expect("an answer");
    let encoded = question.encode().expect("valid");
    let (read_key, read) = EncodedTake::read(&encoded.message(1, &key)).expect("valid");
    assert_eq!(read_key, key);
    let answer = model::take(None, &read, now).answer;
    let answer = EncodedReply::read(answer.message(), &encoded).and_then(|reply| reply.reply(&encoded));
    assert_eq!(answer, Some(reply));
}

/// A refused question is not a sign that the operator is lost: it counts other keys.
#[tokio::test(start_paused = true)]
async fn a_refused_question_does_not_lose_the_operator() {
    let world = World::new();
    let program = world.program();
    let mut channel = program.store.open();
    assert!(channel.begin_asking());
    tokio::spawn(async move {
        loop {
            let questions = channel.questions().await;
            let refusal = || Outcome::Refused("more than 1000000 keys".to_owned());
            channel.answer(questions.iter().map(|question| Answer { id: question.id, outcome: refusal() }).collect());
        }
    });
    let limiter = program.limiter(quota(Strategy::FixedWindow, 10, 1));
    for _ in 0..20 {
        assert!(request(&limiter).await.is_err());
    }
    assert!(program.client.condition().reached);
}

/// Connects a program to an operator that refuses all questions. Returns the number of questions so far.
fn refusing(program: &Program) -> Arc<std::sync::atomic::AtomicU64> {
    let asked = Arc::<std::sync::atomic::AtomicU64>::default();
    let (mut channel, count) = (program.store.open(), Arc::clone(&asked));
    assert!(channel.begin_asking());
    tokio::spawn(async move {
        loop {
            let questions = channel.questions().await;
            sleep(MILLI).await;
            count.fetch_add(questions.len() as u64, Relaxed);
            let refusal = || Outcome::Refused("the pod has no such rule".to_owned());
            channel.answer(questions.iter().map(|question| Answer { id: question.id, outcome: refusal() }).collect());
        }
    });
    asked
}

#[tokio::test(start_paused = true)]
async fn refused_questions_that_no_request_waits_for_are_asked_again_later() {
    let world = World::new();
    let program = world.program();
    let asked = refusing(&program);
    let limiter = program.limiter(quota(Strategy::TokenBucket, 10_000, 1));
    // The key owes units, and would take seats in advance.
    limiter.owe(7, 5);
    let requests = 1_000;
    for _ in 0..requests {
        let _ = request(&limiter).await;
        sleep(MILLI).await;
    }
    let of_requests = asked.swap(0, Relaxed);
    assert!(of_requests <= requests + 10, "{of_requests}");
    sleep(Duration::from_secs(60)).await;
    assert!(asked.load(Relaxed) <= 70, "{asked:?}");
}

/// One question cannot report all that the key owes.
#[tokio::test(start_paused = true)]
async fn a_refused_question_decides_the_requests_of_a_key_with_a_large_debt() {
    let world = World::new();
    let program = world.program();
    let asked = refusing(&program);
    let limiter = program.limiter(quota(Strategy::TokenBucket, 10_000_000, 1));
    limiter.owe(7, 3_000_000);
    for _ in 0..100 {
        let decided = timeout(Duration::from_secs(1), request(&limiter)).await;
        assert!(decided.expect("a decision").is_err(), "the share begins without credit");
    }
    let asked = asked.load(Relaxed);
    assert!(asked <= 1 + 100, "{asked}: one question for the debt, and one for each request");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_the_operator_refuses_gets_its_share() {
    let world = World::new();
    let program = world.program();
    let _asked = refusing(&program);
    let limiter = program.limiter(quota(Strategy::FixedWindow, 40, 1));
    load(&world, &[&limiter], Duration::from_millis(10), Duration::from_secs(20)).await;
    let admitted = load(&world, &[&limiter], Duration::from_millis(10), Duration::from_secs(30)).await;
    assert!((90..=110).contains(&admitted.len()), "{}", admitted.len());
}

#[tokio::test(start_paused = true)]
async fn a_question_that_comes_too_early_is_asked_again() {
    let (world, _program, _link, limiter) = connected(Strategy::FixedWindow, 10, 1);
    world.operator.not_yet.store(5, Relaxed);
    assert!(request(&limiter).await.is_ok());
    assert_eq!(world.operator.not_yet.load(Relaxed), 0);
}

/// A scrape or a snapshot delays the operator's answers by more than twice their usual time.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_later_than_usual_counts() {
    let (world, _program, _link, limiter) = connected(Strategy::FixedWindow, 1_000, 3_600);
    for _ in 0..50 {
        assert!(request(&limiter).await.is_ok());
    }
    world.operator.delay_millis.store(150, Relaxed);
    assert!(request(&limiter).await.is_ok());
}

/// The next operator learns from the programs what this one has counted, also of keys that nobody uses.
#[tokio::test(start_paused = true)]
async fn a_level_is_kept_until_the_key_is_at_full_credit() {
    let (_world, program, _link, limiter) = connected(Strategy::SlidingWindowLog, 10, 3_600);
    assert!(request(&limiter).await.is_ok());
    sleep(Duration::from_secs(1_800)).await;
    assert_eq!(program.client.levels(10).0.len(), 1);
    sleep(Duration::from_secs(1_900)).await;
    assert_eq!(limiter.keys().tracked, 0, "a key at full credit is forgotten");
}

/// A new operator has counted nothing, so it must learn all that a share admitted.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_share_reports_all_that_it_admitted() {
    let (world, program, link, limiter) = connected(Strategy::TokenBucket, 1_000, 10);
    assert!(request(&limiter).await.is_ok());
    link.abort();
    let admitted = load(&world, &[&limiter], MILLI, Duration::from_secs(30)).await.len() as u64;
    assert!(admitted > 500, "{admitted}");
    assert!(program.store.open().begin_asking());
    let reports = program.client.end_shares();
    assert_eq!(reports.iter().map(|report| report.owed).sum::<u64>(), admitted);
}

#[tokio::test(start_paused = true)]
async fn seats_of_an_earlier_operator_are_void() {
    let (world, program, _link, limiter) = connected(Strategy::TokenBucket, 1_000, 10);
    load(&world, &[&limiter], MILLI, Duration::from_secs(5)).await;
    let (seats, lost) = (limiter.known(7, 1).seats, program.client.stats().lost);
    assert!(seats > 0);
    assert!(program.store.open().begin_asking());
    program.client.end_shares();
    assert_eq!((limiter.known(7, 1).seats, program.client.stats().lost - lost), (0, seats.into()));
}

/// After a minute without an answer, the operator's time is known to about 24 ms. At a boundary the share waits that
/// long, because it could otherwise use two of its windows within one window of the operator.
#[tokio::test(start_paused = true)]
async fn a_share_admits_nothing_between_two_windows() {
    let (world, _program, link, limiter) = connected(Strategy::FixedWindow, 40, 1);
    assert!(request(&limiter).await.is_ok());
    link.abort();
    sleep(Duration::from_millis(90_500)).await;
    // The share begins with its first request, without credit, so its first window is used up.
    assert!(request(&limiter).await.is_err());
    let into = world.now() % 1_000_000;
    sleep(Duration::from_micros(3_000_000 + 3_000 - into)).await;
    assert!(request(&limiter).await.is_err(), "3 ms after a boundary");
    sleep(100 * MILLI).await;
    assert!(request(&limiter).await.is_ok(), "103 ms after a boundary");
}

/// A channel can break after the program has sent a report and before the operator reads it.
#[tokio::test(start_paused = true)]
async fn a_lost_report_is_sent_again() {
    let (world, program, link, limiter) = connected(Strategy::TokenBucket, 1_000, 10);
    assert!(request(&limiter).await.is_ok());
    link.abort();
    sleep(MILLI).await;
    let admitted = load(&world, &[&limiter], MILLI, Duration::from_secs(2)).await.len() as u64;
    assert!(admitted > 40, "{admitted}");
    let owed = || program.client.end_shares().iter().map(|report| report.owed).sum::<u64>();
    for _ in 0..2 {
        let channel = program.store.open();
        assert!(channel.begin_asking());
        assert_eq!(owed(), admitted);
    }
    let reported_at = world.start.elapsed();
    let link = world.connect(&program);
    // No request of the key arrives, so the program asks for a confirmation.
    let questions = world.operator.questions.load(Relaxed);
    while world.operator.questions.load(Relaxed) == questions {
        sleep(MILLI).await;
    }
    assert!(world.start.elapsed() - reported_at >= Duration::from_secs(1));
    sleep(Duration::from_secs(1)).await;
    link.abort();
    sleep(MILLI).await;
    assert!(program.store.open().begin_asking());
    assert_eq!(owed(), 0, "the report is confirmed");
    assert_eq!(world.operator.questions.load(Relaxed) - questions, 1);
}

/// An operator that does not count yet answers so, and it counts this program as present.
#[tokio::test(start_paused = true)]
async fn a_program_does_not_begin_its_share_while_the_operator_answers() {
    let (world, _program, _link, limiter) = connected(Strategy::TokenBucket, 1_000, 10);
    assert!(request(&limiter).await.is_ok());
    world.operator.not_yet.store(u64::MAX, Relaxed);
    let during = load(&world, &[&limiter], MILLI, Duration::from_secs(30)).await;
    assert_eq!(during.len(), 0, "the share has not begun");
    // From now on, the operator is silent.
    world.operator.is_silent.store(true, Relaxed);
    world.operator.not_yet.store(0, Relaxed);
    let silence = load(&world, &[&limiter], MILLI, Duration::from_secs(60)).await;
    let (first, _) = silence.first().expect("the share has begun");
    // The last probe with an answer was at most 5 s before.
    assert!(Duration::from_micros(*first) - EPOCH >= Duration::from_secs(32), "{first}");
}

/// The operator receives all messages, and its answers are lost. As long as it receives messages, it counts the program
/// as present and reserves no share.
#[tokio::test(start_paused = true)]
async fn a_program_that_gets_no_answers_sends_nothing_before_its_share_begins() {
    let (world, _program, _link, limiter) = connected(Strategy::TokenBucket, 1_000, 10);
    assert!(request(&limiter).await.is_ok());
    world.operator.is_silent.store(true, Relaxed);
    let during = load(&world, &[&limiter], MILLI, Duration::from_secs(60)).await;
    let (first, _) = during.first().expect("the share has begun");
    let begun = Duration::from_micros(*first) - EPOCH;
    let received = lock(&world.operator.received).clone();
    let quiet = received.windows(2).find(|two| two[1] - two[0] >= Duration::from_secs(10)).expect("a pause");
    assert!(begun >= quiet[1], "begun at {begun:?}, before the end of {quiet:?}");
    assert!(received.iter().any(|at| *at > begun), "the program asks again");
}

/// Requests that wait go at their slots after the channel has ended, so the share begins after them.
#[tokio::test(start_paused = true)]
async fn a_share_begins_after_the_slots_of_waiting_requests() {
    let (world, _program, link, limiter) = connected(Strategy::TokenBucket, 10, 1);
    let waiting: Vec<_> = (0..60)
        .map(|_| {
            let (limiter, start) = (Arc::clone(&limiter), world.start);
            tokio::spawn(async move {
                limiter.ask(7, 1, Duration::from_secs(10)).await.map(|grant| {
                    grant.settle();
                    start.elapsed()
                })
            })
        })
        .collect();
    sleep(Duration::from_secs(1)).await;
    // The share of this key begins with a late answer, before the channel ends.
    world.operator.is_silent.store(true, Relaxed);
    assert!(request(&limiter).await.is_err());
    link.abort();
    let admissions = load(&world, &[&limiter], MILLI, Duration::from_secs(10)).await;
    let mut last = Duration::ZERO;
    for slot in waiting {
        last = last.max(slot.await.expect("no panic").expect("a slot"));
    }
    assert!(last >= Duration::from_millis(4_900), "{last:?}");
    let admitted: Vec<Duration> = admissions.iter().map(|(at, _)| Duration::from_micros(*at) - EPOCH).collect();
    assert!(admitted.iter().all(|at| *at > last), "{last:?} {admitted:?}");
    assert!((10..=14).contains(&admitted.len()), "a quarter of the limit: {admitted:?}");
}

/// The operator reserves nothing of a log during the first half of a period, so a share of a log begins after that.
#[tokio::test(start_paused = true)]
async fn a_share_of_a_log_begins_half_a_period_later() {
    let (world, _program, link, limiter) = connected(Strategy::SlidingWindowLog, 100, 4);
    load(&world, &[&limiter], MILLI, Duration::from_secs(3)).await;
    link.abort();
    let cut = world.start.elapsed();
    let admissions = load(&world, &[&limiter], MILLI, Duration::from_secs(20)).await;
    let first = admissions.iter().map(|(at, _)| Duration::from_micros(*at) - EPOCH).find(|at| *at > cut + MILLI);
    let first = first.expect("the share admits requests") - cut;
    assert!((6_000..=6_100).contains(&first.as_millis()), "{first:?}");
}

/// A program can send a question late, when it already prepares its share. The operator then notices the absence of the
/// program later.
#[tokio::test(start_paused = true)]
async fn a_question_that_is_sent_late_delays_the_share() {
    let program = World::new().program();
    let mut channel = program.store.open();
    assert!(channel.begin_asking());
    let limiter = program.limiter(quota(Strategy::TokenBucket, 1_000, 10));
    let asks = tokio::spawn(async move { request(&limiter).await });
    sleep(UNANSWERED + Duration::from_secs(1)).await;
    let begins = || {
        let now = (program.store.clock)();
        program.store.prepare_share(now);
        program.store.share_begins(Duration::ZERO, now).0
    };
    let first = begins();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(begins(), first);
    assert!(!channel.questions().await.is_empty());
    assert_eq!(begins(), first + Duration::from_secs(2));
    assert!(asks.await.expect("no panic").is_err());
}

/// The limit is raised while a question is on its way. The refusal is by the earlier limit, and refuses no later request.
#[tokio::test(start_paused = true)]
async fn a_refusal_by_an_earlier_limit_refuses_no_later_request() {
    let world = World::new();
    let (program, other) = (world.program(), world.program());
    let (_link, _other_link) = (world.connect(&program), world.connect(&other));
    let rule = |stamp, requests| {
        let quota = quota(Strategy::FixedWindow, requests, 3_600);
        SharedRule::new("shop/api.all", stamp, &[vec![(0, quota)]], OnLoss::LocalShare, 4, 8).expect("a rule")
    };
    let limiter = SharedLimiter::new(Arc::clone(&program.client), rule(1, 2));
    assert!(request(&limiter).await.is_ok());
    assert!(request(&SharedLimiter::new(Arc::clone(&other.client), rule(1, 2))).await.is_ok());
    world.operator.delay_millis.store(100, Relaxed);
    let waits = limiter.ask(7, 1, Duration::ZERO);
    sleep(Duration::from_millis(50)).await;
    limiter.retune(rule(2, 10));
    assert!(waits.await.is_err());
    assert!(request(&limiter).await.is_ok());
}

/// A caller can stop waiting before the operator answers.
#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_waits_for_is_forgotten() {
    let (world, program, _link, limiter) = connected(Strategy::FixedWindow, 10, 3_600);
    world.operator.is_silent.store(true, Relaxed);
    assert!(limiter.lift_ban(7).await.is_err());
    assert!(lock(&program.store.state).waiting.is_empty());
}

/// The operator does not answer, and the program can prepare its share. A look at a key does not begin that.
#[tokio::test(start_paused = true)]
async fn a_look_at_a_key_does_not_silence_the_program() {
    let (world, program, _link, limiter) = connected(Strategy::FixedWindow, 10, 3_600);
    assert!(request(&limiter).await.is_ok());
    world.operator.is_silent.store(true, Relaxed);
    let waits: Vec<_> = (0..20).map(|hash| limiter.ask(hash, 1, Duration::ZERO)).collect();
    for waits in waits {
        assert!(waits.await.is_err());
    }
    sleep(Duration::from_secs(2)).await;
    let known = limiter.known(7, 1);
    assert!(known.is_lost && known.is_refused(), "{known:?}");
    assert_eq!(lock(&program.store.state).quiet_since, None);
    assert!(request(&limiter).await.is_err());
    assert!(lock(&program.store.state).quiet_since.is_some(), "a request begins it");
}
