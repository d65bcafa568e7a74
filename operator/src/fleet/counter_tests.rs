//! Tests single decisions of the counter.

use weir_core::{Quota, Strategy};
use weir_seats::{Key, StoreTerms, Take};
use weir_wire::{BanChange, BanPart, Granted};

use super::*;
use crate::{
    fleet::room::{MOST_KEYS, MOST_TIMES, OF_RULE},
    plan::CountedRule,
};

const UNIX: u64 = 1_790_000_000_000_000;
const SILENCE: Duration = Duration::from_secs(5);
/// The begin of the first window of a day.
const WINDOW: u64 = UNIX - UNIX % 86_400_000_000;

struct Bench {
    counter: Counter,
    /// The number of empty answers that each channel got.
    releases: HashMap<u64, u64>,
    now: Duration,
    rules: Vec<CountedRule>,
    terms: StoreTerms,
}

fn rule(counters: &str, stamp: u64) -> CountedRule {
    CountedRule { counters: counters.to_owned(), policy: "shop/api".into(), stamp, sharers: 4, accepts_limits: false }
}

/// The counters of the rules that count as used up, and the pods because of which they do.
fn used_up(bench: &mut Bench) -> Vec<(String, usize, Vec<String>)> {
    let Some(used_up) = bench.counter.usage(bench.now).used_up else { return Vec::new() };
    let rules = used_up.rules.iter().map(|(counters, policy)| {
        let (missing, incomplete) = (used_up.unknown.missing(policy), used_up.unknown.incomplete(policy));
        let names = missing.first.iter().map(|name| format!("missing {name}"));
        let names = names.chain(incomplete.first.iter().map(|name| format!("incomplete {name}")));
        (counters.clone(), missing.count + incomplete.count, names.collect())
    });
    let mut rules: Vec<_> = rules.collect();
    rules.sort();
    rules
}

fn sent(is_complete: bool) -> LevelsSent {
    LevelsSent { is_complete, time: None, releases: 0 }
}

impl Bench {
    /// Returns a counter that expects pods `a` and `b`, with a limit of 40 in a day.
    fn new() -> Self {
        Self::with(Strategy::FixedWindow, Term::ending(Duration::from_secs(1000)))
    }

    fn with(strategy: Strategy, term: Term) -> Self {
        let quota = Quota::new(strategy, 40, Duration::from_secs(86_400), None).expect("a quota");
        let terms = StoreTerms::new(7, &[(0, quota)]).expect("terms");
        let now = Duration::from_secs(100);
        let counter = Counter::new(term, now, UNIX);
        let mut bench = Self { counter, releases: HashMap::new(), now, rules: vec![rule("shop/api.all", 7)], terms };
        bench.expect_both();
        bench.counter.planned(now);
        bench
    }

    /// Returns a counter that counts, and the channels of both pods.
    fn counting() -> (Self, [u64; 2]) {
        Self::new().into_counting()
    }

    fn into_counting(self) -> (Self, [u64; 2]) {
        let mut bench = self;
        let channels = ["a", "b"].map(|pod| bench.ready(pod, true));
        bench.confirm_both(channels);
        assert!(bench.counter.is_counting());
        (bench, channels)
    }

    /// The pods have the rules of the bench.
    fn expect_both(&mut self) {
        ["a", "b"].iter().for_each(|pod| self.counter.expect(pod, &self.rules, true, self.now));
    }

    /// Opens a channel whose agent has sent its levels, all of them or not.
    fn ready(&mut self, pod: &str, is_complete: bool) -> u64 {
        let channel = self.counter.connected(pod, self.now);
        self.message(pod, channel);
        self.counter.levels_sent(pod, channel, sent(is_complete), self.now);
        channel
    }

    fn message(&mut self, pod: &str, channel: u64) {
        self.counter.record_message(pod, channel, SILENCE, self.now);
    }

    fn message_both(&mut self, channels: [u64; 2]) {
        ["a", "b"].iter().zip(channels).for_each(|(pod, channel)| self.message(pod, channel));
    }

    fn release(&mut self, pod: &str, channel: u64) -> bool {
        let is_release = self.counter.release(pod, channel, self.now);
        *self.releases.entry(channel).or_default() += u64::from(is_release);
        is_release
    }

    fn confirm(&mut self, pod: &str, channel: u64) {
        assert!(self.release(pod, channel), "the agent must get empty answers");
        self.confirmed(pod, channel, self.releases[&channel]);
    }

    /// If the agent gets empty answers, it confirms them.
    fn reconfirm(&mut self, pod: &str, channel: u64) {
        if self.release(pod, channel) {
            self.confirmed(pod, channel, self.releases[&channel]);
        }
    }

    fn confirm_both(&mut self, channels: [u64; 2]) {
        ["a", "b"].iter().zip(channels).for_each(|(pod, channel)| self.confirm(pod, channel));
    }

    /// The agent has confirmed this many empty answers.
    fn confirmed(&mut self, pod: &str, channel: u64, releases: u64) {
        self.counter.levels_sent(pod, channel, LevelsSent { releases, ..sent(true) }, self.now);
    }

    fn after(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        self.counter.advance(self.now);
        self
    }

    fn question(&self, requests: u32) -> Question {
        let key = Key::new("shop/api.all", 1).expect("a key");
        Take { requests, ..Take::new(&self.terms) }.encode().expect("a question").message(1, &key)
    }

    fn answer(&mut self, question: Question) -> Vec<Answer> {
        self.counter.answer(&[question], [&self.rules, &[]], self.now)
    }

    /// An agent reports that it has seen this level, or that it owes units.
    fn report(&mut self, question: Question) {
        assert_eq!(self.answer(Question { id: 0, requests: 0, ..question }), [], "a report gets no answer");
    }

    /// A question of an agent that has seen this many units of the first window used.
    fn seen(&self, used: u64) -> Question {
        Question { seen: Some(vec![[WINDOW, used, 0]]), ..self.question(1) }
    }

    fn ask(&mut self, question: Question) -> Outcome {
        self.answer(question).pop().expect("an answer").outcome
    }

    fn counted(&mut self, question: Question) -> Granted {
        match self.ask(question) {
            Outcome::Counted(granted) => granted,
            other => panic!("{other:?}"),
        }
    }

    fn granted(&mut self, requests: u32) -> u64 {
        self.counted(self.question(requests)).granted
    }

    /// The absence of pods of the policy: their parts, the sum, and its time.
    fn absence(&self) -> (Vec<(u32, u32)>, u128, u64) {
        self.counter.pods.absence("shop/api", self.counter.time(self.now))
    }

    fn refusal(&mut self, question: Question) -> String {
        match self.ask(question) {
            Outcome::Refused(reason) => reason,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn present_pods_share_the_whole_limit() {
    let (mut bench, _) = Bench::counting();
    assert_eq!((bench.granted(30), bench.granted(30)), (30, 10));
    assert_eq!((bench.counter.keys(), bench.counter.absent()), (1, 0));
}

#[test]
fn after_its_term_a_counter_counts_nothing() {
    let (mut bench, _) = Bench::counting();
    bench.now = Duration::from_micros(999_999_999);
    assert_eq!(bench.granted(1), 1);
    bench.now = Duration::from_secs(1000);
    let answers = bench.counter.answer(&[bench.question(1)], [&bench.rules, &[]], bench.now);
    assert_eq!(answers, [], "an answer would show that this counter counts the pod as present");
    let channel = bench.ready("b", true);
    assert!(!bench.counter.release("b", channel, bench.now), "the share of an agent must not end now");
}

#[test]
fn a_pod_asks_only_about_its_own_rules_and_known_limits() {
    let (mut bench, _) = Bench::counting();
    let counters = "shop/other.all".to_owned();
    assert_eq!(bench.refusal(Question { counters, ..bench.question(1) }), "the pod has no such rule");
    assert_eq!(bench.refusal(Question { stamp: 8, ..bench.question(1) }), "the pod has no such rule");
    // A descriptor's limit has its own counters.
    let counters = "shop/api.all@20-1000".to_owned();
    let with_limit = Question { counters, ..bench.question(30) };
    assert_eq!(bench.refusal(with_limit.clone()), "the pod has no such rule");
    bench.rules[0].accepts_limits = true;
    assert!(matches!(bench.ask(with_limit), Outcome::Counted(Granted { granted: 30, .. })));
    assert_eq!((bench.granted(30), bench.counter.keys()), (30, 2));
    let keys = bench.counter.usage(bench.now).keys;
    assert_eq!(keys, [("shop/api.all".to_owned(), 2)].into(), "both are keys of the rule");
    let mut idle = Bench::counting().0;
    idle.rules[0].accepts_limits = true;
    let counters = "shop/api.all@20-1000".to_owned();
    idle.ask(Question { counters, ..idle.question(30) });
    idle.counter.forget(UNIX + 3 * 86_400_000_000);
    assert_eq!(idle.counter.usage(idle.now).keys, [].into(), "a forgotten key leaves its place in the rule");
    // The agent has acknowledged an older content, and the newer one is wanted.
    let wanted = [rule("shop/api.all", 9)];
    let old = bench.question(1);
    let answers = bench.counter.answer(&[old], [&wanted, &bench.rules], bench.now);
    assert!(matches!(answers[0].outcome, Outcome::Counted(_)));
}

#[test]
fn a_malformed_question_is_refused_with_the_name_of_the_field() {
    let (mut bench, _) = Bench::counting();
    let question = bench.question(1);
    for (field, question) in [
        ("hash", Question { hash: "x".to_owned(), ..question.clone() }),
        ("limits", Question { limits: "1".to_owned(), ..question.clone() }),
        ("cost", Question { cost: 0, ..question.clone() }),
        ("seen", Question { seen: Some(Vec::new()), ..question.clone() }),
        ("ban", Question { ban: Some(BanPart { for_micros: 0, ..KEEP }), ..question.clone() }),
    ] {
        assert_eq!(bench.refusal(question), format!("invalid {field}"));
    }
}

/// The new leader learns what the previous leader granted, and counts only then.
#[test]
fn a_new_term_collects_levels_first() {
    let mut bench = Bench::new();
    let channels = ["a", "b"].map(|pod| bench.counter.connected(pod, bench.now));
    assert_eq!(bench.ask(bench.question(1)), Outcome::NotYet);
    for (pod, channel, seen, owed) in [("a", channels[0], 25, 0), ("b", channels[1], 20, 3)] {
        bench.report(Question { owed, ..bench.seen(seen) });
        bench.counter.levels_sent(pod, channel, sent(true), bench.now);
    }
    bench.message("a", channels[0]);
    bench.message("b", channels[1]);
    assert_eq!(bench.ask(bench.question(1)), Outcome::NotYet, "the shares have not ended");
    bench.confirm("a", channels[0]);
    assert_eq!(bench.ask(bench.question(1)), Outcome::NotYet, "one share has not ended");
    bench.confirm("b", channels[1]);
    assert_eq!(bench.granted(40), 40 - 25 - 3);
    assert_eq!(used_up(&mut bench), []);
}

const KEEP: BanPart = BanPart { for_micros: 3_600_000_000, change: BanChange::Keep, seen: 0 };

/// One agent knows a level under the limit in force, and another one under an earlier limit.
#[test]
fn levels_under_earlier_limits_count() {
    for order in [[0, 1], [1, 0]] {
        let mut bench = Bench::new();
        let channels = ["a", "b"].map(|pod| bench.ready(pod, true));
        bench.rules = vec![rule("shop/api.all", 8)];
        let newer = Quota::new(Strategy::FixedWindow, 60, Duration::from_secs(86_400), None).expect("a quota");
        let old = bench.question(0);
        bench.terms = StoreTerms::new(8, &[(0, newer)]).expect("terms");
        let new = bench.question(0);
        let levels =
            [(old, 25), (new, 20)].map(|(question, used)| Question { seen: Some(vec![[WINDOW, used, 0]]), ..question });
        order.into_iter().for_each(|index| bench.report(levels[index].clone()));
        bench.confirm_both(channels);
        assert!(bench.counter.is_counting());
        assert_eq!(bench.granted(100), 35, "{order:?}");
    }
}

/// A ban is in force for all pods. A new leader learns bans from reports. A report never starts or lifts a ban.
#[test]
fn bans_are_counted_and_collected() {
    let mut bench = Bench::new();
    let (a, b) = (bench.counter.connected("a", bench.now), bench.counter.connected("b", bench.now));
    let seen = BanPart { seen: UNIX - 1_000_000, ..KEEP };
    for (hash, part) in [("1", seen), ("2", BanPart { change: BanChange::Start(0), ..KEEP })] {
        bench.report(Question { hash: hash.to_owned(), ban: Some(part), ..bench.seen(1) });
    }
    for (pod, channel) in [("a", a), ("b", b)] {
        bench.counter.levels_sent(pod, channel, sent(true), bench.now);
        bench.message(pod, channel);
    }
    bench.confirm("a", a);
    bench.confirm("b", b);
    let mut ask = |hash: &str, change| {
        let part = BanPart { change, ..KEEP };
        let question = Question { hash: hash.to_owned(), ban: Some(part), ..bench.question(1) };
        let granted = bench.counted(question);
        (granted.granted, granted.banned_since)
    };
    assert_eq!(ask("1", BanChange::Keep), (0, UNIX - 1_000_000), "the earlier ban");
    assert_eq!(ask("2", BanChange::Keep), (1, 0), "a report starts no ban");
    let (granted, since) = ask("2", BanChange::Start(0));
    assert!(granted == 0 && since >= UNIX, "{since}");
    assert_eq!(ask("2", BanChange::Keep), (0, since));
    assert_eq!((ask("2", BanChange::Lift), ask("2", BanChange::Keep)), ((1, 0), (1, 0)));
}

#[test]
fn if_a_pod_is_missing_all_limits_count_as_used_up() {
    let mut bench = Bench::new();
    let channel = bench.ready("a", true);
    bench.report(bench.seen(1));
    for _ in 0..9 {
        bench.after(1).message("a", channel);
        assert!(!bench.counter.release("a", channel, bench.now));
    }
    bench.after(1).message("a", channel);
    bench.confirm("a", channel);
    assert_eq!((bench.counter.is_counting(), bench.counter.absent()), (true, 1));
    assert_eq!(bench.granted(1), 0, "a known key is used up");
    let unknown = Question { hash: "2".to_owned(), ..bench.question(1) };
    assert_eq!(bench.counted(unknown).granted, 0);
    // The next day, the limit is free again, except for the share of the missing pod.
    bench.counter.term = Term::unbounded();
    bench.after(86_400).message("a", channel);
    bench.confirm("a", channel);
    assert_eq!(bench.granted(40), 30);
}

/// A rule that comes when the counter counts was used by no agent before. A rule that agents had is still used up, also
/// with another limit and for unknown keys.
#[test]
fn only_rules_that_agents_had_before_count_as_used_up() {
    let mut bench = Bench::new();
    bench.counter.term = Term::unbounded();
    let channel = bench.ready("a", true);
    for _ in 0..10 {
        bench.after(1).message("a", channel);
    }
    bench.confirm("a", channel);
    assert!(bench.counter.is_counting());
    bench.after(3600).message("a", channel);
    bench.confirm("a", channel);
    bench.rules = vec![rule("shop/api.all", 8), rule("shop/api.late", 8)];
    bench.counter.expect("a", &bench.rules, true, bench.now);
    bench.counter.planned(bench.now);
    let granted = |bench: &mut Bench, counters: &str, hash: &str| {
        let question = Question { counters: counters.into(), hash: hash.into(), stamp: 8, ..bench.question(100) };
        bench.counted(question).granted
    };
    assert_eq!(granted(&mut bench, "shop/api.all", "1"), 0);
    assert_eq!(granted(&mut bench, "shop/api.late", "1"), 30, "b has a quarter");
    assert_eq!(granted(&mut bench, "shop/api.all", "2"), 0);
}

/// A missing pod can have had any policy of its namespace before. An agent with incomplete levels reported its own
/// policies. No other limit loses units.
#[test]
fn only_limits_that_an_agent_can_have_used_count_as_used_up() {
    for (is_missing, of_namespace) in [(true, 0), (false, 40)] {
        let mut bench = Bench::new();
        bench.counter = Counter::new(Term::unbounded(), bench.now, UNIX);
        let of = |policy: &str| CountedRule { policy: policy.into(), ..rule(&format!("{policy}.all"), 7) };
        let all = [("c", of("bank/api")), ("a", of("shop/api")), ("b", of("shop/other"))];
        for (pod, rule) in &all {
            bench.counter.expect(pod, std::slice::from_ref(rule), true, bench.now);
            bench.counter.name(pod, &format!("pod-{pod}").into());
        }
        bench.counter.planned(bench.now);
        let mut channels = Vec::new();
        for (pod, _) in all.iter().filter(|(pod, _)| !(is_missing && *pod == "b")) {
            channels.push((*pod, bench.ready(pod, *pod != "b")));
        }
        for _ in 0..if is_missing { 10 } else { 0 } {
            bench.after(1);
            channels.iter().for_each(|(pod, channel)| bench.message(pod, *channel));
        }
        channels.iter().for_each(|(pod, channel)| bench.confirm(pod, *channel));
        assert!(bench.counter.is_counting());
        for ((_, rule), free) in all.iter().zip([40, of_namespace, 0]) {
            let question = Question { counters: rule.counters.clone(), ..bench.question(100) };
            let answers = bench.counter.answer(&[question], [std::slice::from_ref(rule), &[]], bench.now);
            let Outcome::Counted(granted) = &answers[0].outcome else { panic!("{answers:?}") };
            assert_eq!(granted.granted, free, "{}, missing: {is_missing}", rule.counters);
        }
        let counters = if is_missing { &["shop/api.all", "shop/other.all"][..] } else { &["shop/other.all"] };
        let why = if is_missing { "missing pod-b" } else { "incomplete pod-b" };
        let expected: Vec<_> = counters.iter().map(|it| ((*it).to_owned(), 1, vec![why.to_owned()])).collect();
        assert_eq!(used_up(&mut bench), expected);
    }
}

/// The engine plans its pods so late that the counter counts already. Their agents had these rules before.
#[test]
fn rules_of_the_first_plan_count_as_used_up() {
    let mut bench = Bench::new();
    bench.counter = Counter::new(Term::unbounded(), bench.now, UNIX);
    bench.after(15);
    assert!(bench.counter.is_counting());
    bench.counter.expect("a", &bench.rules, true, bench.now);
    bench.counter.planned(bench.now);
    bench.rules.push(rule("shop/api.late", 7));
    bench.counter.expect("a", &bench.rules, true, bench.now);
    assert_eq!(bench.granted(1), 0);
    let late = Question { counters: "shop/api.late".to_owned(), ..bench.question(1) };
    assert_eq!(bench.counted(late).granted, 1);
    assert_eq!(used_up(&mut bench), [("shop/api.all".to_owned(), 0, Vec::new())]);
}

/// Units that one pod gives back serve the others, but not the share of an absent pod. A report gives nothing back.
#[test]
fn pods_give_units_back() {
    let (mut bench, [_, b]) = Bench::counting();
    bench.counter.ended("b", b, bench.now);
    assert_eq!(bench.granted(100), 30);
    let question = Question { requests: 0, credit: 7, ..bench.question(1) };
    bench.report(question.clone());
    assert_eq!(bench.granted(100), 0);
    bench.ask(question);
    assert_eq!(bench.granted(100), 7);
}

#[test]
fn the_share_of_an_absent_pod_stays_free_until_it_is_back() {
    let (mut bench, [a, b]) = Bench::counting();
    bench.counter.ended("b", b, bench.now);
    assert_eq!(bench.counter.absent(), 1);
    assert_eq!(bench.granted(100), 30);
    let again = bench.ready("b", true);
    assert_eq!((bench.granted(100), bench.counter.absent()), (0, 1), "its share has not ended");
    bench.message("a", a);
    bench.report(Question { owed: 4, ..bench.question(1) });
    bench.confirm("b", again);
    assert_eq!((bench.granted(100), bench.counter.absent()), (6, 0));
}

#[test]
fn a_silent_pod_is_absent_and_an_end_of_an_old_channel_is_not() {
    let (mut bench, [a, b]) = Bench::counting();
    bench.counter.ended("b", a, bench.now);
    assert_eq!(bench.after(4).counter.absent(), 0);
    bench.message("a", a);
    assert_eq!(bench.after(1).counter.absent(), 1, "b was silent for 5 s");
    bench.message("b", b);
    assert_eq!(bench.counter.absent(), 1, "its share has not ended");
    bench.confirm("b", b);
    assert_eq!(bench.counter.absent(), 0, "it is back on the same channel");
    assert_eq!(bench.after(5).counter.absent(), 2);
}

/// If the operator is paused after it has sent the empty answers, the agent's share begins again.
#[test]
fn an_agent_that_was_not_heard_during_a_pause_is_absent() {
    let (mut bench, [_, b]) = Bench::counting();
    bench.counter.ended("b", b, bench.now);
    let again = bench.ready("b", true);
    assert!(bench.release("b", again), "the share of b is over");
    bench.after(9);
    bench.message("b", again);
    assert!(bench.release("b", again), "the next share can have begun");
    bench.confirmed("b", again, 1);
    assert_eq!(bench.counter.absent(), 2, "the agent had sent this before its next share");
    bench.confirmed("b", again, 2);
    assert_eq!(bench.counter.absent(), 1, "a is silent");
}

/// No event wakes the counter when a pod becomes silent.
#[test]
fn a_silent_pod_is_absent_since_its_timer() {
    let (mut bench, [a, b]) = Bench::counting();
    bench.message_both([a, b]);
    let silent_for = Duration::from_secs(60) - SILENCE;
    bench.after(60);
    let (_, sum, _) = bench.absence();
    assert_eq!(sum, 2 * silent_for.as_micros() * part(4));
}

/// Its agent got empty answers, or has also asked the counter. So it uses its share when the channel ends, unlike the agent of
/// a new pod.
#[test]
fn a_new_pod_that_was_released_is_absent_when_its_channel_ends() {
    for (asks, ends) in [(true, true), (false, true), (false, false)] {
        let (mut bench, _) = Bench::counting();
        bench.counter.expect("c", &bench.rules, true, bench.now);
        bench.after(1);
        let c = bench.ready("c", true);
        if asks {
            bench.confirm("c", c);
        } else {
            assert!(bench.release("c", c));
        }
        assert_eq!(bench.counter.absent(), 0, "its agent asks, or has not begun its share");
        bench.after(1);
        if ends {
            bench.counter.ended("c", c, bench.now);
        } else {
            // The operator has not noticed the end of the earlier channel.
            bench.ready("c", true);
        }
        assert_eq!(bench.counter.absent(), 1, "asks: {asks}, ends: {ends}");
    }
}

/// An agent can notice the end of its channel before the operator does.
#[test]
fn a_pod_counts_as_absent_since_its_last_message() {
    let (mut bench, [a, b]) = Bench::counting();
    bench.after(2).message_both([a, b]);
    bench.after(3);
    bench.counter.ended("b", b, bench.now);
    let since = bench.counter.time(bench.now) - 3_000_000;
    assert_eq!(bench.absence(), (vec![(1, 4)], 3_000_000 * part(4), since));
    bench.message("a", a);
    bench.after(1);
    assert_eq!(bench.absence(), (vec![(1, 4)], 4_000_000 * part(4), since));
}

/// Each pod can have the content of any time since it was expected, and no older one.
#[test]
fn a_pod_that_came_later_has_a_smaller_share() {
    let (mut bench, [a, b]) = Bench::counting();
    bench.rules[0].sharers = 8;
    for pod in ["a", "b", "c"] {
        bench.counter.expect(pod, &bench.rules, true, bench.now);
    }
    for _ in 0..3 {
        bench.after(4).message_both([a, b]);
    }
    assert_eq!((bench.counter.absent(), bench.granted(100)), (1, 35), "c has an eighth");
    bench.counter.ended("b", b, bench.now);
    let other = |bench: &mut Bench| {
        let question = Question { hash: "2".to_owned(), ..bench.question(100) };
        bench.counted(question).granted
    };
    assert_eq!(other(&mut bench), 25, "b can still have a quarter");
    // A pod that is gone and comes back is a new one.
    bench.counter.gone("b", bench.now);
    bench.counter.expect("b", &bench.rules, true, bench.now);
    bench.after(4).message("a", a);
    assert_eq!(bench.counter.usage(bench.now).policies["shop/api"], [(1, 8)]);
}

/// The agent of a pod that is cut off does not learn that the policy was deleted, and still uses its share.
#[test]
fn a_policy_that_is_created_again_reserves_the_share_of_a_pod_that_is_cut_off() {
    for (seconds, is_kept) in [(0, true), (59, true), (60, false)] {
        let (mut bench, [a, b]) = Bench::with(Strategy::FixedWindow, Term::unbounded()).into_counting();
        bench.counter.ended("b", b, bench.now);
        let since = bench.counter.time(bench.now);
        bench.after(1).message("a", a);
        for pod in ["a", "b"] {
            bench.counter.expect(pod, &[], true, bench.now);
        }
        bench.counter.acknowledged("a", a, &[], bench.now);
        assert_eq!(bench.counter.absent(), 0, "no pod is expected");
        bench.after(seconds).message("a", a);
        bench.rules[0].sharers = 8;
        bench.expect_both();
        bench.reconfirm("a", a);
        let absence = bench.absence();
        if is_kept {
            let sum = u128::from(seconds + 1) * 1_000_000 * part(4);
            assert_eq!(absence, (vec![(1, 4)], sum, since), "its share did not end in {seconds} s");
            assert_eq!((bench.counter.absent(), bench.granted(100)), (1, 30));
        } else {
            assert_eq!((bench.counter.absent(), bench.granted(100)), (0, 40), "it is a new pod");
        }
    }
}

/// A channel can lose its messages when the policy is deleted. So an agent that has not acknowledged this still has it.
#[test]
fn a_pod_that_is_cut_off_after_it_lost_a_policy_keeps_its_share() {
    for is_told in [false, true] {
        let (mut bench, [a, b]) = Bench::counting();
        for pod in ["a", "b"] {
            bench.counter.expect(pod, &[], true, bench.now);
        }
        bench.counter.acknowledged("a", a, &[], bench.now);
        // An agent can acknowledge what was pushed before, and on an earlier channel.
        let (before, none) = (bench.rules.clone(), Vec::new());
        bench.counter.acknowledged("b", b, if is_told { &none } else { &before }, bench.now);
        bench.counter.acknowledged("b", a, &[], bench.now);
        bench.after(6).message("a", a);
        bench.expect_both();
        bench.confirm("a", a);
        let (absent, granted) = if is_told { (0, 40) } else { (1, 30) };
        assert_eq!((bench.counter.absent(), bench.granted(100)), (absent, granted), "told: {is_told}");
    }
}

#[test]
fn a_new_pod_reserves_nothing_for_ten_seconds_and_a_deleted_one_nothing() {
    let (mut bench, channels) = Bench::counting();
    bench.counter.expect("c", &bench.rules, true, bench.now);
    for (pod, channel) in ["a", "b"].into_iter().zip(channels) {
        bench.counter.record_message(pod, channel, Duration::from_secs(60), bench.now);
    }
    assert_eq!(bench.after(9).counter.absent(), 0);
    assert_eq!(bench.after(1).counter.absent(), 1);
    assert_eq!(bench.counter.usage(bench.now).policies, [("shop/api".into(), vec![(1, 4)])].into());
    bench.counter.gone("c", bench.now);
    assert_eq!(bench.counter.absent(), 0);
    assert_eq!(bench.granted(100), 40);
}

/// The agent of a pod that is being deleted can be cut off, and continues until the pod is gone.
#[test]
fn a_pod_that_is_being_deleted_keeps_its_share_until_it_is_gone() {
    let (mut bench, [a, b]) = Bench::with(Strategy::FixedWindow, Term::unbounded()).into_counting();
    bench.counter.name("b", &"web-b".into());
    bench.counter.leave("b", true, bench.now);
    assert_eq!((bench.counter.absent(), bench.granted(1)), (0, 1), "its agent still asks");
    bench.counter.ended("b", b, bench.now);
    let late = |bench: &mut Bench| bench.counter.usage(bench.now).leaving;
    for _ in 0..59 {
        bench.after(1).message("a", a);
        assert_eq!((bench.counter.absent(), late(&mut bench)), (1, HashMap::new()));
    }
    assert_eq!(bench.granted(100), 29, "its agent uses a quarter");
    bench.after(1).message("a", a);
    assert_eq!(late(&mut bench)["shop/api"].first, ["web-b".into()].into());
    bench.counter.gone("b", bench.now);
    assert_eq!((bench.counter.absent(), late(&mut bench), bench.granted(100)), (0, HashMap::new(), 10));
}

/// A new leader has no link to such a pod. Its agent uses its share, and cannot report what it knows.
#[test]
fn a_new_term_does_not_wait_for_a_pod_that_is_being_deleted_but_keeps_its_share_free() {
    let mut bench = Bench::new();
    bench.counter.expect("c", &bench.rules, true, bench.now);
    bench.counter.leave("c", true, bench.now);
    let (mut bench, _) = bench.into_counting();
    assert_eq!((bench.counter.absent(), used_up(&mut bench)), (1, vec![]));
    assert_eq!(bench.granted(100), 30);
}

/// The channel of an agent continues while its pod is being deleted.
#[test]
fn a_new_term_waits_for_a_connected_agent_whose_pod_is_being_deleted() {
    let mut bench = Bench::new();
    bench.counter.expect("c", &bench.rules, true, bench.now);
    let c = bench.counter.connected("c", bench.now);
    bench.counter.leave("c", true, bench.now);
    for pod in ["a", "b"] {
        bench.ready(pod, true);
    }
    assert!(!bench.counter.has_levels(), "it has not sent its levels");
    bench.counter.ended("c", c, bench.now);
    assert!(bench.after(0).counter.has_levels());
}

/// An agent that has never run has used nothing: a new term does not wait for it, and its share is not kept free.
#[test]
fn a_pod_whose_agent_never_ran_is_not_missing() {
    for connects in [true, false] {
        let mut bench = Bench::new();
        bench.counter.expect("c", &bench.rules, false, bench.now);
        let (mut bench, channels) = bench.into_counting();
        assert_eq!(used_up(&mut bench), []);
        for (pod, channel) in ["a", "b"].into_iter().zip(channels) {
            bench.counter.record_message(pod, channel, Duration::from_secs(60), bench.now);
        }
        bench.after(30);
        // Its content can change in the meantime.
        bench.counter.expect("c", &bench.rules, false, bench.now);
        assert_eq!((bench.counter.absent(), bench.granted(40)), (0, 40));
        // Its start can first be known from its channel.
        if connects {
            let channel = bench.counter.connected("c", bench.now);
            bench.counter.expect("c", &bench.rules, false, bench.now);
            bench.counter.ended("c", channel, bench.now);
        } else {
            bench.counter.expect("c", &bench.rules, true, bench.now);
        }
        assert_eq!(bench.after(9).counter.absent(), 0, "a new agent uses no share yet");
        assert_eq!(bench.after(1).counter.absent(), 1);
    }
}

/// The kubelet's status can be older than the channel.
#[test]
fn a_connected_agent_is_awaited_even_if_it_seems_never_to_have_run() {
    let mut bench = Bench::new();
    bench.counter.expect("c", &bench.rules, false, bench.now);
    let channel = bench.counter.connected("c", bench.now);
    for pod in ["a", "b"] {
        bench.ready(pod, true);
    }
    assert!(!bench.counter.has_levels(), "the levels of a connected agent are unknown");
    bench.message("c", channel);
    bench.counter.levels_sent("c", channel, sent(true), bench.now);
    assert!(bench.counter.has_levels());
}

/// Users can create and delete any number of policies in one term.
#[test]
fn a_policy_is_forgotten_when_no_pod_and_no_key_is_left_of_it() {
    let (mut bench, [a, b]) = Bench::with(Strategy::FixedWindow, Term::unbounded()).into_counting();
    bench.counter.ended("b", b, bench.now);
    let kept = bench.rules.clone();
    for number in 0..100 {
        let preview = CountedRule { policy: format!("shop/preview-{number}").into(), ..rule("shop/preview.all", 7) };
        bench.rules = vec![kept[0].clone(), preview];
        bench.counter.expect("a", &bench.rules, true, bench.now);
        bench.counter.acknowledged("a", a, &bench.rules, bench.now);
        bench.after(10).message("a", a);
        bench.reconfirm("a", a);
        bench.counter.usage(bench.now);
        assert_eq!(bench.counter.pods.policies(), 2, "the policies of pods");
    }
    // The policy of `b` has a key.
    assert_eq!(bench.granted(100), 30);
    bench.counter.gone("b", bench.now);
    bench.counter.expect("a", &[], true, bench.now);
    bench.counter.acknowledged("a", a, &[], bench.now);
    let (_, sum, _) = bench.absence();
    assert!(sum > 0);
    bench.after(10);
    bench.counter.usage(bench.now);
    assert_eq!(bench.absence().1, sum, "keys know this sum");
    bench.after(86_400);
    bench.counter.usage(bench.now);
    assert_eq!((bench.counter.keys(), bench.counter.pods.policies()), (0, 0));
}

/// An agent that cannot report all levels may have used any unit of the others, also if its pod loses its policies, or ends,
/// before the counter counts.
#[test]
fn incomplete_levels_count_as_used_up() {
    for then in ["goes on", "is gone", "has no rules"] {
        let mut bench = Bench::new();
        let [a, b] = ["a", "b"].map(|pod| bench.ready(pod, pod == "a"));
        match then {
            "goes on" => bench.confirm("b", b),
            "is gone" => {
                bench.counter.ended("b", b, bench.now);
                bench.counter.gone("b", bench.now);
            }
            _ => {
                bench.counter.expect("b", &[], true, bench.now);
                bench.counter.acknowledged("b", b, &[], bench.now);
            }
        }
        bench.confirm("a", a);
        bench.after(if then == "goes on" { 0 } else { 15 });
        assert!(bench.counter.is_counting(), "{then}");
        assert_eq!(bench.granted(1), 0, "{then}");
    }
}

/// The previous leader's clock was ahead. Agents know it, within bounds.
#[test]
fn a_new_term_continues_with_the_time_of_the_previous_leader() {
    for (ahead, expected) in [(400_000, 400_000), (1_000_000, 1_000_000), (1_000_001, 0), (u64::MAX - UNIX, 0)] {
        let mut bench = Bench::new();
        let channels = ["a", "b"].map(|pod| (pod, bench.counter.connected(pod, bench.now)));
        let mut levels = |(pod, channel), time| {
            let sent = LevelsSent { time: Some(time), ..sent(true) };
            bench.counter.levels_sent(pod, channel, sent, bench.now);
        };
        for _ in 0..3 {
            levels(channels[0], UNIX + ahead);
        }
        levels(channels[1], UNIX - 1);
        assert_eq!(bench.counter.advance(bench.now), UNIX + expected, "{ahead} ahead");
        // Later, agents cannot move it.
        let later = LevelsSent { time: Some(UNIX + 1_900_000), ..sent(true) };
        bench.counter.levels_sent("a", channels[0].1, later, bench.now);
        assert_eq!(bench.counter.advance(bench.now), UNIX + expected);
    }
}

/// Two agents know levels of different times. The units of the later one are not those of the earlier one.
#[test]
fn a_log_counts_the_units_of_the_latest_level() {
    let mut bench = Bench::with(Strategy::SlidingWindowLog, Term::unbounded());
    let channels = ["a", "b"].map(|pod| (pod, bench.counter.connected(pod, bench.now)));
    for ((pod, channel), seconds_ago) in channels.into_iter().zip([80_000, 1_000]) {
        let mark = [UNIX - seconds_ago * 1_000_000, 40, 0];
        bench.report(Question { seen: Some(vec![mark]), ..bench.question(0) });
        bench.message(pod, channel);
        bench.counter.levels_sent(pod, channel, sent(true), bench.now);
    }
    for (pod, channel) in channels {
        bench.confirm(pod, channel);
    }
    let (a, b) = (channels[0].1, channels[1].1);
    for (seconds, granted) in [(10_000, 0), (75_390, 0), (20, 40)] {
        bench.now += Duration::from_secs(seconds);
        bench.message_both([a, b]);
        for (pod, channel) in channels {
            bench.reconfirm(pod, channel);
        }
        assert_eq!((bench.counter.absent(), bench.granted(40)), (0, granted), "after {seconds} s more");
    }
}

/// Each agent reports its last level to the next leader, and sends it again with its first question. All units of the
/// limit are admitted once, in any order, and also if an agent first asks hours later.
#[test]
fn a_log_counts_the_units_of_earlier_leaders_once() {
    for pods in [3, 6, 8] {
        for (clock_behind, idle_hours) in [(0, 0), (0, 5), (500_000, 0), (500_000, 23)] {
            let mut bench = Bench::with(Strategy::SlidingWindowLog, Term::unbounded());
            let names: Vec<String> = (0..pods).map(|pod| format!("pod-{pod}")).collect();
            let mut levels: Vec<Option<Vec<weir_wire::Mark>>> = vec![None; pods];
            let (mut admitted, mut unix) = (0, UNIX);
            for leader in 0..4 {
                bench.counter = Counter::new(Term::unbounded(), bench.now, unix);
                bench.releases.clear();
                for pod in &names {
                    bench.counter.expect(pod, &bench.rules, true, bench.now);
                }
                bench.counter.planned(bench.now);
                let mut channels = Vec::new();
                for (pod, level) in names.iter().zip(&levels) {
                    bench.report(Question { seen: level.clone(), ..bench.question(0) });
                    channels.push(bench.ready(pod, true));
                }
                for (pod, channel) in names.iter().zip(&channels) {
                    bench.confirm(pod, *channel);
                }
                assert!(bench.counter.is_counting());
                for turn in 0..2 * pods {
                    let pod = (turn * 5 + leader) % pods;
                    if turn == pods && leader == 3 {
                        bench.now += Duration::from_secs(3_600 * idle_hours);
                    }
                    bench.now += Duration::from_millis(300);
                    for (pod, channel) in names.iter().zip(&channels) {
                        bench.message(pod, *channel);
                        bench.reconfirm(pod, *channel);
                    }
                    // Some pods do not ask the first leaders. The last leader admits the rest.
                    if leader < 2 && pod % 3 == leader {
                        continue;
                    }
                    let wanted = if leader < 3 { 1 } else { u32::from(turn >= pods) * 40 };
                    let question = Question { seen: levels[pod].clone(), ..bench.question(wanted) };
                    let granted = bench.counted(question);
                    admitted += granted.granted;
                    levels[pod] = Some(granted.level);
                    assert!(admitted <= 40, "{admitted} of 40, {pods} pods");
                }
                bench.after(2);
                unix = bench.counter.time(bench.now) - clock_behind;
            }
            assert_eq!(admitted, 40, "{pods} pods, {clock_behind} us behind, {idle_hours} h idle");
        }
    }
}

/// The previous leader is 300 ms ahead, and in a window that has just begun. Its counts are those of this window.
#[test]
fn levels_of_the_previous_leader_stay_in_its_window() {
    for strategy in [Strategy::FixedWindow, Strategy::SlidingWindowCounter, Strategy::SlidingWindowLog, Strategy::Gcra]
    {
        let mut bench = Bench::with(strategy, Term::ending(Duration::from_secs(1000)));
        let window = UNIX.next_multiple_of(86_400_000_000);
        bench.counter = Counter::new(Term::ending(Duration::from_secs(1000)), bench.now, window - 100_000);
        bench.expect_both();
        bench.counter.planned(bench.now);
        let channels = ["a", "b"].map(|pod| (pod, bench.counter.connected(pod, bench.now)));
        let at = window + 200_000;
        let mark = match strategy {
            Strategy::Gcra => [at + 86_400_000_000, 0, 0],
            Strategy::SlidingWindowLog => [at, 40, 0],
            _ => [window, 40, 0],
        };
        bench.report(Question { seen: Some(vec![mark]), ..bench.question(0) });
        for (pod, channel) in channels {
            bench.message(pod, channel);
            bench.counter.levels_sent(pod, channel, LevelsSent { time: Some(at), ..sent(true) }, bench.now);
        }
        for (pod, channel) in channels {
            bench.confirm(pod, channel);
        }
        assert_eq!(bench.counter.advance(bench.now), at);
        assert_eq!(bench.granted(40), 0, "{strategy:?}: all units are used");
    }
}

/// A level that this counter has granted does not grow when an agent reports it on a new channel.
#[test]
fn a_known_level_is_not_raised_by_a_report() {
    let (mut bench, channels) = Bench::with(Strategy::TokenBucket, Term::unbounded()).into_counting();
    assert_eq!(bench.granted(30), 30);
    let before = bench.counted(bench.question(0));
    bench.report(Question { seen: Some(before.level.clone()), ..bench.question(0) });
    bench.message("a", channels[0]);
    assert_eq!(bench.counted(bench.question(0)).level, before.level);
}

/// The rest of a bucket refills more slowly while a share is reserved, so requests that wait go at this pace.
#[test]
fn answers_say_which_part_of_a_bucket_is_reserved() {
    let (mut bench, channels) =
        Bench::with(Strategy::TokenBucket, Term::ending(Duration::from_secs(1000))).into_counting();
    for (is_absent, part) in [(false, 0), (true, 1 << 28)] {
        if is_absent {
            bench.counter.ended("b", channels[1], bench.now);
        }
        assert_eq!(bench.counted(bench.question(1)).reserved, part, "b has a quarter");
    }
}

/// A message can be lost although its channel seems to be open. So only its confirmation shows that a share is over.
#[test]
fn a_released_pod_is_absent_until_it_confirms() {
    let (mut bench, [a, b]) = Bench::counting();
    bench.after(6).message_both([a, b]);
    bench.confirm("a", a);
    assert!(bench.release("b", b));
    for _ in 0..10 {
        bench.after(1).message_both([a, b]);
        assert_eq!(bench.counter.absent(), 1);
    }
    assert_eq!(bench.granted(40), 30, "b can have a quarter");
    // An agent of an earlier version does not count.
    bench.confirmed("b", b, 0);
    assert_eq!((bench.counter.absent(), bench.granted(40)), (0, 10));
}

/// While the operator waits for the levels of `b`, the link loses the messages of `a`. If it delivers the confirmation of
/// `a` only later, the agent has begun its next share.
#[test]
fn a_silent_pod_is_released_with_its_next_message() {
    let mut bench = Bench::new();
    let a = bench.ready("a", true);
    bench.after(10);
    assert!(bench.counter.has_levels() && !bench.release("a", a));
    bench.after(10);
    bench.message("a", a);
    bench.confirm("a", a);
    assert_eq!(bench.counter.absent(), 1, "only `b` is absent");
}

#[test]
fn a_full_table_refuses_unknown_keys_until_others_are_at_full_credit() {
    let (mut bench, channels) = Bench::counting();
    let key = |bench: &Bench, number: usize| Question { hash: format!("{number:x}"), ..bench.question(1) };
    let rules = ["shop/api.all", "shop/b.all", "shop/c.all"];
    bench.rules = rules.map(|counters| rule(counters, 7)).into();
    let of_bank = CountedRule { policy: "bank/api".into(), ..rule("bank/api.all", 7) };
    bench.rules.insert(0, of_bank);
    let of = |bench: &Bench, counters: &str, number| Question { counters: counters.to_owned(), ..key(bench, number) };
    for counters in &rules[..2] {
        for number in 0..MOST_KEYS / OF_RULE {
            assert!(matches!(bench.ask(of(&bench, counters, number)), Outcome::Counted(_)), "{counters} {number}");
        }
        let reason = bench.refusal(of(&bench, counters, MOST_KEYS));
        assert_eq!(reason, "more than 500 keys of the rule", "the others have room");
    }
    let reason = bench.refusal(of(&bench, rules[2], 1));
    assert_eq!(reason, "more than 1000 keys of the namespace: the rest is kept for other namespaces");
    assert!(matches!(bench.ask(of(&bench, "bank/api.all", 1)), Outcome::Counted(_)), "another namespace has room");
    assert!(matches!(bench.ask(key(&bench, 7)), Outcome::Counted(_)), "a known key");
    bench.counter.term = Term::unbounded();
    bench.after(86_400);
    bench.message_both(channels);
    assert!(matches!(bench.ask(key(&bench, MOST_KEYS)), Outcome::Counted(_)));
    assert_eq!(bench.counter.keys(), 1);
    // Without new keys, the next report forgets keys at full credit.
    bench.after(86_400);
    assert!(bench.counter.usage(bench.now).keys.is_empty());
    assert_eq!(bench.counter.keys(), 0);
}

/// Clients choose keys, and fill their logs. A full log needs no more memory, so its key is still counted.
#[test]
fn logs_have_a_bound_of_their_own() {
    let (mut bench, channels) = Bench::with(Strategy::SlidingWindowLog, Term::unbounded()).into_counting();
    bench.rules = ["shop/api.all", "shop/b.all"].map(|counters| rule(counters, 7)).into();
    let quota = Quota::new(Strategy::SlidingWindowLog, 1000, Duration::from_secs(60), None).expect("a quota");
    bench.terms = StoreTerms::new(7, &[(0, quota)]).expect("terms");
    let of = |bench: &Bench, counters: &str, hash: usize, requests| Question {
        counters: counters.to_owned(),
        hash: format!("{hash:x}"),
        ..bench.question(requests)
    };
    let full = of(&bench, "shop/api.all", 0, 1000);
    let small = of(&bench, "shop/api.all", 1, 1);
    for question in [&full, &small] {
        assert!(matches!(bench.ask(question.clone()), Outcome::Counted(granted) if granted.granted > 0));
    }
    let reason = "more than 5000 times in logs of the rule";
    let more = (2..50).map(|hash| of(&bench, "shop/api.all", hash, 1000)).collect::<Vec<_>>();
    let refused = more.into_iter().position(|question| matches!(bench.ask(question), Outcome::Refused(_)));
    assert!(refused.is_some_and(|count| (2..=4).contains(&count)), "{refused:?}");
    let times = |bench: &Bench| bench.counter.keys.values().map(|entry| entry.value.memory()).sum::<usize>();
    assert_eq!(bench.counter.room.times(), times(&bench));
    assert!(times(&bench) < 2 * MOST_TIMES / OF_RULE);
    assert_eq!(bench.refusal(of(&bench, "shop/api.all", 99, 1)), reason);
    assert_eq!(bench.refusal(small.clone()), reason, "its log can grow");
    bench.report(Question { owed: 3, ..small.clone() });
    let known = &bench.counter.keys[&Key::new("shop/api.all", 1).expect("a key")];
    assert_eq!(known.value.marks(UNIX)[0][1], 4, "a report counts");
    assert_eq!(bench.counted(full).granted, 0, "a full log");
    let other = of(&bench, "shop/b.all", 1, 1);
    assert_eq!(bench.counted(other).granted, 1, "another rule has room");

    bench.after(60);
    for (pod, channel) in ["a", "b"].into_iter().zip(channels) {
        bench.message(pod, channel);
        bench.confirm(pod, channel);
    }
    // A known key can be forgotten while its question is counted.
    assert_eq!(bench.counted(small).granted, 1);
    assert_eq!((bench.counter.keys(), bench.counter.room.times()), (1, times(&bench)));
    assert_eq!(bench.counter.usage(bench.now).keys, [("shop/api.all".to_owned(), 1)].into());
    bench.after(60);
    assert_eq!((bench.counter.usage(bench.now).keys, bench.counter.room.times()), ([].into(), 0));
}

#[test]
fn the_clock_of_a_term_never_goes_back() {
    let bench = Bench::new();
    assert_eq!(bench.counter.time(Duration::from_secs(101)), UNIX + 1_000_000);
    assert_eq!(bench.counter.time(Duration::from_secs(99)), UNIX, "a time before the term");
}

/// Without faults, no request is refused below the limit, and the whole limit is used above it.
#[test]
fn the_whole_limit_is_used() {
    for strategy in Strategy::ALL {
        for (percent, least_granted, most_refused) in [(80, 0, 1), (300, 95, 100)] {
            let (mut bench, channels) = Bench::counting();
            let quota = Quota::new(strategy, 1000, Duration::from_secs(1), None).expect("a quota");
            bench.terms = StoreTerms::new(7, &[(0, quota)]).expect("terms");
            let (mut asked, mut granted) = (0, 0);
            for step in 0..20_000_u64 {
                bench.now += Duration::from_millis(1);
                if step % 1000 == 0 {
                    bench.message_both(channels);
                }
                while asked < step * percent / 100 {
                    asked += 1;
                    granted += bench.granted(1);
                }
            }
            assert!((asked - granted) * 100 <= asked * most_refused, "{strategy:?}: {granted} of {asked}");
            assert!(granted * 100 >= 20_000 * least_granted, "{strategy:?}: {granted} of 20000");
        }
    }
}
