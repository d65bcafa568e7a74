//! Bans of keys that a rule refuses again and again.

use std::{collections::HashMap, time::Duration};

use http_body_util::BodyExt;
use proptest::prelude::*;
use weir_wire::{BanList, ExplainRequest};

use super::*;
use crate::matching::{FieldLine, Headers};

fn banning(name: &str, after: u64, within: u64, length: u64, more: Value) -> Value {
    let ban = json!({"after": after, "withinMillis": within, "forMillis": length});
    let limits = [limit("SlidingWindowLog", 2, 10_000, json!({}))];
    with(with(rule(name, &limits, json!({"key": [{"header": "x-key"}], "maxKeys": 100})), json!({"ban": ban})), more)
}

fn of(key: &str) -> Request<()> {
    Request::builder().uri("/").header("x-key", key).body(()).expect("a request")
}

impl Limits {
    /// The status of a request with this key, on one of the two paths.
    async fn of_key(&self, key: &str, at_once: bool) -> u16 {
        if at_once {
            let lines = [FieldLine { name: b"x-key", value: key.as_bytes() }];
            let decide =
                |decided: Result<Pass, &Refusal<'_>>| decided.map_or_else(|refusal| refusal.status().as_u16(), |_| 200);
            let status = self.gate().decide_at_once("GET", ("/", None), Headers::Lines(&lines), 0, decide);
            if let Some(status) = status {
                return status;
            }
        }
        self.send(of(key), ok).await.status().as_u16()
    }

    async fn statuses(&self, key: &str, count: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for turn in 0..count {
            statuses.push(self.of_key(key, turn % 2 == 0).await);
        }
        statuses
    }

    fn bans(&self) -> BanList {
        self.rules.load().bans(&BanSelection::default(), self.clock.now()).expect("all rules")
    }

    /// `bans_started`, `banned`, `shadow_banned` and `ban_overflow` of a rule.
    fn ban_counts(&self, policy: usize, rule: usize) -> [u64; 4] {
        let statistics = self.rules.load().policies()[policy].rules[rule].statistics();
        [statistics.bans_started, statistics.banned, statistics.shadow_banned, statistics.ban_overflow]
    }
}

async fn pass(millis: u64) {
    tokio::time::advance(Duration::from_millis(millis)).await;
}

#[tokio::test(start_paused = true)]
async fn the_refusal_that_starts_a_ban_reports_it_and_a_banned_request_charges_nothing() {
    let all = rule("all", &[limit("TokenBucket", 100, 86_400_000, json!({}))], json!({}));
    let limits = Limits::new(&[policy("p", &[banning("r", 3, 1_000, 60_000, json!({})), all])]);
    assert_eq!(limits.statuses("ann", 4).await, [200, 200, 429, 429]);
    for (rest, millis) in [(60, 0), (60, 1), (31, 29_500), (1, 30_400)] {
        pass(millis).await;
        let refused = limits.send(of("ann"), ok).await;
        assert_eq!(refused.status(), 429);
        let headers = refused.headers().clone();
        assert_eq!(headers["retry-after"], rest.to_string().as_str());
        assert_eq!(headers["ratelimit-policy"], "\"l\";q=2;w=10");
        assert_eq!(headers["ratelimit"], format!("\"l\";r=0;t={rest}").as_str());
        let body = refused.into_body().collect().await.expect("a body").to_bytes();
        let expected = json!({"error": "banned", "policy": "shop/p", "rule": "r", "retryAfterSeconds": rest});
        assert_eq!(serde_json::from_slice::<Value>(&body).expect("JSON"), expected);
    }
    assert_eq!(limits.statuses("bob", 1).await, [200], "another key");
    assert_eq!((limits.counts(0, 0), limits.counts(0, 1)), ([3, 6, 0, 0], [3, 0, 0, 0]));
    assert_eq!(limits.ban_counts(0, 0), [1, 3, 0, 0], "the refusal that started the ban is not a banned request");
    pass(98).await;
    assert_eq!(limits.statuses("ann", 1).await, [429], "1 ms before the end");
    pass(1).await;
    assert_eq!(
        limits.statuses("ann", 5).await,
        [200, 200, 429, 429, 429],
        "the ban has ended; two refusals ban nothing"
    );
    assert_eq!(limits.ban_counts(0, 0)[0], 2);
}

/// A ban can be shorter than the time until the limit admits the next request.
#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_a_short_ban_and_the_limit_is_admitted() {
    let slow = |limits: &[Value]| {
        let ban = json!({"ban": {"after": 2, "withinMillis": 2_000, "forMillis": 2_000}});
        let cost = json!({"cost": {"requestHeader": {"name": "x-cost", "most": 100}}});
        let keyed = json!({"key": [{"header": "x-key"}], "maxKeys": 100});
        policy("p", &[rule("r", limits, with(with(keyed, ban), cost))])
    };
    let of_minute = limit("SlidingWindowLog", 2, 60_000, json!({}));
    let of_second = limit("SlidingWindowLog", 2, 1_000, json!({"name": "short"}));
    for limits in [vec![of_minute.clone()], vec![of_second, of_minute]] {
        let limits = Limits::new(&[slow(&limits)]);
        assert_eq!(limits.statuses("ann", 3).await, [200, 200, 429]);
        let begins = limits.send(of("ann"), ok).await;
        assert_eq!(begins.headers()["retry-after"], "60");
        pass(500).await;
        let banned = limits.send(of("ann"), ok).await;
        assert_eq!(banned.headers()["retry-after"], "60");
        assert!(banned.headers()["ratelimit"].to_str().expect("text").ends_with(";t=60"));
        let body = banned.into_body().collect().await.expect("a body").to_bytes();
        let expected = json!({"error": "banned", "policy": "shop/p", "rule": "r", "retryAfterSeconds": 60});
        assert_eq!(serde_json::from_slice::<Value>(&body).expect("JSON"), expected);
        let never = Request::builder().uri("/").header("x-key", "ann").header("x-cost", "3").body(());
        let never = limits.send(never.expect("a request"), ok).await;
        assert!(!never.headers().contains_key("retry-after"), "this cost is never admitted");
        let body = never.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(serde_json::from_slice::<Value>(&body).expect("JSON")["retryAfterSeconds"], Value::Null);
        pass(59_500).await;
        assert_eq!(limits.statuses("ann", 1).await, [200]);
    }
}

/// The longest ban answers, and the limits of all other rules are asked, too.
#[tokio::test(start_paused = true)]
async fn a_banned_client_that_waits_as_told_is_admitted() {
    let one = |name: &str, period: u64, ban: u64| {
        let limits = [limit("TokenBucket", 1, period, json!({}))];
        let ban = json!({"after": 1, "withinMillis": 60_000, "forMillis": ban});
        let rule = rule(name, &limits, json!({"key": [{"header": "x-key"}], "maxKeys": 100}));
        if ban["forMillis"] == 0 { rule } else { with(rule, json!({"ban": ban})) }
    };
    for (rules, banned_by) in [
        ([one("short", 1_000, 3_000), one("long", 1_000, 9_000)], "long"),
        ([one("long", 1_000, 9_000), one("short", 1_000, 3_000)], "long"),
        ([one("short", 1_000, 3_000), one("limit", 20_000, 0)], "short"),
        ([one("limit", 20_000, 0), one("short", 1_000, 3_000)], "short"),
    ] {
        let limits = Limits::new(&[policy("p", &rules)]);
        assert_eq!(limits.of_key("ann", false).await, 200);
        for rule in &limits.rules.load().policies()[0].rules {
            let own = rule.rates().expect("limits");
            let key = own.key.named(&["ann".to_owned()]).expect("a key");
            own.count_for_ban(&key, limits.clock.now(), rule);
        }
        for at_once in [false, true] {
            assert_eq!(limits.of_key("ann", at_once).await, 429);
        }
        let refused = limits.send(of("ann"), ok).await;
        let wait: u64 = refused.headers()["retry-after"].to_str().expect("text").parse().expect("a number");
        let body = refused.into_body().collect().await.expect("a body").to_bytes();
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!((&body["error"], &body["rule"]), (&json!("banned"), &json!(banned_by)));
        pass(wait * 1_000 - 1_000).await;
        assert_eq!(limits.of_key("ann", false).await, 429, "{banned_by}");
        pass(1_000).await;
        assert_eq!(limits.of_key("ann", false).await, 200, "{banned_by}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_banned_request_takes_no_permit_and_passes_no_other_rule() {
    let parallel = json!({"name": "c", "action": "Limit", "concurrency": {"name": "parallel", "limit": 1}});
    let all = rule("all", &[limit("TokenBucket", 100, 86_400_000, json!({}))], json!({}));
    let limits = Limits::new(&[policy("p", &[parallel, all, banning("r", 1, 1_000, 60_000, json!({}))])]);
    assert_eq!(limits.statuses("ann", 4).await, [200, 200, 429, 429]);
    // The only permit is taken. A banned request is refused by the ban, not by the missing permit.
    let held = limits.send(of("bob"), ok).await;
    assert_eq!(held.status(), 200);
    assert_eq!(limits.statuses("ann", 2).await, [429, 429]);
    assert_eq!(
        (limits.counts(0, 0), limits.counts(0, 1), limits.counts(0, 2)),
        ([3, 0, 0, 0], [3, 0, 0, 0], [3, 4, 0, 0])
    );
}

#[tokio::test(start_paused = true)]
async fn only_refusals_by_the_rule_itself_count() {
    let tight = rule("tight", &[limit("TokenBucket", 1, 86_400_000, json!({}))], json!({}));
    let limits = Limits::new(&[policy("p", &[tight, banning("r", 2, 1_000, 60_000, json!({}))])]);
    assert_eq!(limits.statuses("ann", 9).await[1..], [429; 8]);
    assert_eq!((limits.counts(0, 0), limits.counts(0, 1)), ([1, 8, 0, 0], [1, 0, 0, 0]));
    assert_eq!(limits.ban_counts(0, 1), [0; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waited_and_was_refused_counts() {
    let paced = |requests: u64| {
        let patient = with(wait(1_000), json!({"key": [{"header": "x-key"}], "maxKeys": 9}));
        let rule = rule("r", &[limit("GCRA", requests, 1_000, json!({}))], patient);
        policy("p", &[with(rule, json!({"ban": {"after": 3, "withinMillis": 60_000, "forMillis": 60_000}}))])
    };
    let limits = Limits::new(&[paced(2)]);
    assert_eq!(limits.of_key("ann", true).await, 200);
    let mut waits: Vec<_> = (0..2).map(|_| Box::pin(limits.send(of("ann"), ok))).collect();
    for wait in &mut waits {
        let _ = futures::poll!(wait);
    }
    assert_eq!(limits.of_key("ann", true).await, 429, "its turn would come too late");
    // With the new rate, the last of the requests that wait is too late.
    limits.apply(&[paced(1)]);
    let statuses: Vec<_> =
        futures::future::join_all(waits).await.iter().map(|response| response.status().as_u16()).collect();
    assert_eq!((statuses, limits.ban_counts(0, 0)), (vec![200, 429], [0; 4]));
    let next = [limits.send(of("ann"), ok), limits.send(of("ann"), ok)];
    let statuses = futures::future::join_all(next).await;
    assert_eq!(statuses.iter().map(|response| response.status().as_u16()).collect::<Vec<_>>(), [200, 429]);
    assert_eq!(limits.ban_counts(0, 0), [1, 0, 0, 0], "three refusals: immediately, after a wait, immediately");
    assert_eq!(limits.of_key("ann", false).await, 429);
}

#[tokio::test(start_paused = true)]
async fn a_ban_in_shadow_mode_is_only_counted() {
    let limits = Limits::new(&[policy("p", &[banning("r", 3, 1_000, 60_000, json!({"mode": "Shadow"}))])]);
    assert_eq!(limits.statuses("ann", 9).await, [200; 9]);
    assert_eq!(limits.counts(0, 0), [2, 0, 7, 0]);
    assert_eq!(limits.ban_counts(0, 0), [1, 0, 4, 0]);
    pass(10_000).await;
    assert_eq!(limits.statuses("ann", 1).await, [200]);
    assert_eq!(limits.counts(0, 0), [2, 0, 8, 0], "the limit has capacity, but the ban would still refuse");
}

#[tokio::test(start_paused = true)]
async fn a_ban_ends_with_its_rule_its_key_or_its_field() {
    let ban = banning("r", 1, 1_000, 60_000, json!({}));
    let without = with(ban.clone(), json!({"ban": null}));
    let by_another = with(ban.clone(), json!({"key": [{"header": "x-key"}, {"method": {}}]}));
    let other = with(ban.clone(), json!({"name": "other"}));
    for (change, what) in [(without, "field"), (by_another, "key"), (other, "rule")] {
        let limits = Limits::new(&[policy("p", std::slice::from_ref(&ban))]);
        assert_eq!(limits.statuses("ann", 3).await, [200, 200, 429]);
        pass(20_000).await;
        assert_eq!(limits.statuses("ann", 1).await, [429], "banned");
        limits.apply(&[policy("p", &[change])]);
        assert_eq!(limits.statuses("ann", 1).await, [200], "{what}");
        limits.apply(&[policy("p", std::slice::from_ref(&ban))]);
        assert_eq!((limits.bans().total, limits.statuses("ann", 1).await), (0, vec![200]), "{what}");
    }
    // All other changes keep the ban. The end moves with the length of the ban.
    let limits = Limits::new(&[policy("p", std::slice::from_ref(&ban))]);
    assert_eq!(limits.statuses("ann", 3).await, [200, 200, 429]);
    let others = [
        with(ban.clone(), json!({"match": [{"paths": ["/**"]}]})),
        with(ban.clone(), json!({"mode": "Disabled"})),
        with(ban.clone(), json!({"maxKeys": 1, "ban": {"after": 9, "withinMillis": 5, "forMillis": 60_000}})),
        banning("r", 1, 1_000, 90_000, json!({})),
    ];
    for change in others {
        limits.apply(&[policy("p", &[change])]);
        pass(10_000).await;
        assert_eq!(limits.bans().total, 1);
    }
    assert_eq!(limits.bans().bans[0].ends_after_millis, 50_000);
    assert_eq!(limits.statuses("ann", 1).await, [429]);
    limits.apply(&[policy("p", &[banning("r", 1, 1_000, 40_000, json!({}))])]);
    assert_eq!((limits.bans().total, limits.statuses("ann", 1).await), (0, vec![200]), "a shorter ban has ended");
}

#[tokio::test(start_paused = true)]
async fn bans_are_listed_explained_and_lifted() {
    let two = json!({"key": [{"header": "x-key"}, {"clientIP": {"trustedHops": 0, "ipv6Prefix": 64}}]});
    let limits = Limits::new(&[
        policy("p", &[banning("r", 1, 1_000, 60_000, two)]),
        policy("q", &[banning("s", 9, 1, 1, json!({}))]),
    ]);
    let long = "k".repeat(100);
    for key in ["ann", "bob", &long] {
        assert_eq!(limits.statuses(key, 3).await, [200, 200, 429]);
    }
    limits.get("/").await;
    limits.get("/").await;
    assert_eq!(limits.status("/").await, 429, "requests without the header have a key, too");
    pass(500).await;
    let now = limits.clock.now();
    let mut list = limits.bans();
    assert_eq!(list.total, 4);
    list.bans.sort_by(|one, other| one.key.cmp(&other.key));
    let shown: Vec<_> = list.bans.iter().map(|ban| ban.key[0].as_deref()).collect();
    let digest = list.bans[3].key[0].clone().expect("a hash");
    assert_eq!(shown, [None, Some("ann"), Some("bob"), Some(&*digest)]);
    assert!(digest.starts_with("sha256:") && digest.len() == 71, "{digest}");
    let first = serde_json::to_value(&list.bans[1]).expect("JSON");
    let expected = json!({"policy": "shop/p", "rule": "r", "key": ["ann", "127.0.0.1"], "endsAfterMillis": 59_500});
    assert_eq!(first, expected);

    let request: ExplainRequest =
        serde_json::from_value(json!({"target": "/", "headers": [["x-key", "ann"]]})).expect("a request");
    let explained = limits.rules.load().explain(&request, limits.clock, AmbiguousPaths::Refuse).expect("a request");
    let [own, other] = &explained.rules[..] else { panic!("{explained:?}") };
    assert_eq!((own.banned, own.after_millis, other.banned), (true, Some(59_500), false));

    let select = |key: &[&str]| BanSelection {
        policy: Some("shop/p".into()),
        rule: Some("r".into()),
        key: key.iter().map(|value| value.as_bytes().to_owned()).collect(),
    };
    let rules = limits.rules.load();
    let lift = |key: &[&str]| rules.lift_bans(&select(key), now).expect("a rule with a ban").lifted;
    assert_eq!(rules.bans(&select(&["bob", "127.0.0.1"]), now).expect("a rule").total, 1);
    assert_eq!((lift(&["eve", "127.0.0.1"]), lift(&["ann", "127.0.0.2"])), (0, 0), "not banned");
    assert_eq!((lift(&["ann", "::ffff:127.0.0.1"]), lift(&["ann", "127.0.0.1"])), (1, 0));
    assert_eq!((lift(&[&long, "127.0.0.1"]), lift(&["", "127.0.0.1"])), (1, 1));
    pass(10_000).await;
    assert_eq!((limits.statuses("ann", 1).await, limits.statuses("bob", 1).await), (vec![200], vec![429]));
    assert_eq!((limits.bans().total, lift(&[]), limits.bans().total), (1, 1, 0));
    assert_eq!(limits.statuses("bob", 1).await, [200]);
    for (selection, word) in [
        (BanSelection { policy: Some("p".into()), ..select(&[]) }, "policy: \"p\" is not in force"),
        (BanSelection { rule: Some("s".into()), ..select(&[]) }, "rule: \"s\" is not a rule with a ban"),
        (select(&["ann"]), "key: the key of rule r has 2 parts, but 1"),
    ] {
        for error in [rules.bans(&selection, now).map(drop), rules.lift_bans(&selection, now).map(drop)] {
            let error = error.expect_err(word).to_string();
            assert!(error.starts_with(word), "{error}");
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Ask {
        key: usize,
        at_once: bool,
    },
    Pass(u64),
    /// A change of the ban: `after`, `within` and its length, or no ban.
    Change(Option<(usize, u64, u64)>),
    Lift(Option<usize>),
    /// A scrape, which removes old entries.
    Scrape,
}

fn terms() -> impl Strategy<Value = (usize, u64, u64)> {
    (1..5_usize, prop::sample::select(vec![300, 1_000, 5_000]), prop::sample::select(vec![500, 2_000, 20_000]))
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        30 => (0..3_usize, any::<bool>()).prop_map(|(key, at_once)| Event::Ask { key, at_once }),
        10 => prop_oneof![0..400_u64, 0..4_000_u64, 0..15_000_u64].prop_map(Event::Pass),
        2 => prop::option::weighted(0.8, terms()).prop_map(Event::Change),
        1 => prop::option::of(0..3_usize).prop_map(Event::Lift),
        2 => Just(Event::Scrape),
    ]
}

/// A key by its definition, in exact milliseconds.
#[derive(Clone, Default)]
struct Key {
    /// The times of admitted requests, for the limit: two in ten seconds.
    admitted: Vec<u64>,
    refused: Vec<u64>,
    banned_since: Option<u64>,
}

impl Key {
    fn is_banned(&self, now: u64, length: u64) -> bool {
        self.banned_since.is_some_and(|since| now < since + length)
    }

    /// Removes the refusals and the ban that ended before a change. So a longer `within` or `for` does not bring them
    /// back.
    fn forget(&mut self, now: u64, ban: Option<(usize, u64, u64)>) {
        let Some((_, within, length)) = ban else { return };
        self.refused.retain(|at| now - at < within);
        self.banned_since = self.banned_since.filter(|since| now < since + length);
    }

    fn admits(&mut self, now: u64, ban: Option<(usize, u64, u64)>) -> bool {
        if let Some((.., length)) = ban {
            if self.is_banned(now, length) {
                return false;
            }
            self.banned_since = None;
        }
        if self.admitted.iter().filter(|at| now - **at < 10_000).count() < 2 {
            self.admitted.push(now);
            return true;
        }
        if let Some((after, within, _)) = ban {
            self.refused.push(now);
            if self.refused.iter().filter(|at| now - **at < within).count() >= after {
                (self.refused, self.banned_since) = (Vec::new(), Some(now));
            }
            // A key has a memory of fewer than `after` refusals.
            self.refused.drain(..self.refused.len().saturating_sub(after - 1));
        }
        false
    }
}

proptest! {
    #[test]
    fn bans_are_those_of_the_definition_across_changes(first in terms(), events in prop::collection::vec(event(), 1..150)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async move {
            let ban_of = |terms: Option<(usize, u64, u64)>| {
                let (after, within, length) = terms.unwrap_or((1, 1, 1));
                let rule = banning("r", after as u64, within, length, json!({}));
                policy("p", &[if terms.is_some() { rule } else { with(rule, json!({"ban": null})) }])
            };
            let (mut terms, mut keys, mut now) = (Some(first), HashMap::<usize, Key>::new(), 0_u64);
            let limits = Limits::new(&[ban_of(terms)]);
            for event in events {
                match event {
                    Event::Ask { key, at_once } => {
                        let expected = keys.entry(key).or_default().admits(now, terms);
                        let admitted = limits.of_key(&key.to_string(), at_once).await == 200;
                        prop_assert_eq!(admitted, expected, "key {} at {}", key, now);
                    }
                    Event::Pass(millis) => {
                        tokio::time::advance(Duration::from_millis(millis)).await;
                        now += millis;
                    }
                    Event::Change(next) => {
                        keys.values_mut().for_each(|key| key.forget(now, terms));
                        limits.apply(&[ban_of(next)]);
                        terms = next;
                        if terms.is_none() {
                            keys.values_mut().for_each(|key| (key.refused, key.banned_since) = (Vec::new(), None));
                        }
                    }
                    Event::Lift(only) => {
                        let selection = BanSelection {
                            key: only.iter().map(|key| key.to_string().into_bytes()).collect(),
                            ..BanSelection::default()
                        };
                        let lifted = limits.rules.load().lift_bans(&selection, limits.clock.now()).expect("valid").lifted;
                        let Some((.., length)) = terms else {
                            prop_assert_eq!(lifted, 0);
                            continue;
                        };
                        let wanted = keys.iter_mut().filter(|(key, _)| only.is_none_or(|only| only == **key));
                        let banned: Vec<_> = wanted.filter(|(_, key)| key.is_banned(now, length)).collect();
                        prop_assert_eq!(lifted, banned.len() as u64);
                        banned.into_iter().for_each(|(_, key)| key.banned_since = None);
                    }
                    Event::Scrape => {
                        let counted = limits.rules.load().policies()[0].rules[0].banned_keys(limits.clock.now());
                        let banned = |length| keys.values().filter(|key| key.is_banned(now, length)).count() as u64;
                        prop_assert_eq!(counted, terms.map(|(.., length)| banned(length)));
                        prop_assert_eq!(limits.bans().total, counted.unwrap_or(0));
                    }
                }
            }
            Ok(())
        })?;
    }
}

/// Keys that are not UTF-8 are different keys in a list, and each one can be lifted and reset.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_not_utf8_can_be_named() {
    let limits = Limits::new(&[policy("p", &[banning("r", 1, 1_000, 60_000, json!({}))])]);
    let rules = limits.rules.load();
    let rule = &rules.policies()[0].rules[0];
    let now = limits.clock.now();
    let values: Vec<Vec<u8>> =
        (0xc0..=0xff).map(|byte| vec![byte]).chain([b"caf\xe9".to_vec(), b"ann".to_vec()]).collect();
    for value in &values {
        let lines = [FieldLine { name: b"x-key", value }];
        let decide = |decided: Result<Pass, &Refusal<'_>>| decided.is_ok();
        let asked: Vec<_> = (0..4)
            .filter_map(|_| limits.gate().decide_at_once("GET", ("/", None), Headers::Lines(&lines), 0, decide))
            .collect();
        assert_eq!(asked, [true, true, false, false], "{value:?}");
    }
    let listed = limits.bans();
    let mut shown: Vec<_> = listed.bans.iter().map(|ban| ban.key[0].clone().expect("a value")).collect();
    shown.sort_unstable();
    let mut expected: Vec<_> = (0xc0..=0xff).map(|byte: u8| format!("bytes:{byte:02x}")).collect();
    expected.extend(["bytes:636166e9".to_owned(), "ann".to_owned()]);
    expected.sort_unstable();
    assert_eq!(shown, expected);
    let select =
        |key: Vec<u8>| BanSelection { policy: Some("shop/p".to_owned()), rule: Some("r".to_owned()), key: vec![key] };
    for text in ["bytes:c0", "bytes:636166e9"] {
        assert_eq!(rules.lift_bans(&select(text.into()), now).expect("a rule").lifted, 1, "{text}");
    }
    for value in &values {
        let reset = rules.reset_count(&select(value.clone()), || now).await.expect("it is there");
        let is_lifted = [&b"\xc0"[..], b"caf\xe9"].contains(&&value[..]);
        assert_eq!(reset.lifted, u64::from(!is_lifted), "{value:?}");
        let key = rule.key().and_then(|key| key.named(&[value])).expect("a key");
        let limits = rule.rates().expect("limits").pod_limiter();
        assert_eq!(limits.peek(now, &key, 1).map_or(0, |tightest| tightest.standing.remaining()), 2, "{value:?}");
    }
}

/// The old count refuses requests until it is reset, and these refusals ban the key again.
#[tokio::test(start_paused = true)]
async fn a_ban_that_begins_during_a_reset_is_lifted() {
    let limits = Limits::new(&[policy("p", &[banning("r", 1, 1_000, 60_000, json!({}))])]);
    assert_eq!(limits.statuses("ann", 4).await, [200, 200, 429, 429]);
    let selection =
        BanSelection { policy: Some("shop/p".to_owned()), rule: Some("r".to_owned()), key: vec![b"ann".to_vec()] };
    let rules = limits.rules.load();
    let rule = &rules.policies()[0].rules[0];
    let key = rule.key().and_then(|key| key.named(&selection.key)).expect("a key");
    let (calls, begun) = (Cell::new(0), Cell::new(0));
    let now = || {
        let now = limits.clock.now();
        calls.set(calls.get() + 1);
        // Before, the stores and this program lift the ban.
        if calls.get() == 3 {
            assert_eq!(limits.bans().total, 0, "the first ban is lifted");
            rule.ban().expect("a ban").refused(&key, now, &rule.statistics);
            begun.set(limits.bans().total);
        }
        now
    };
    let reset = rules.reset_count(&selection, now).await.expect("it is there");
    assert_eq!((begun.get(), reset.lifted, limits.bans().total), (1, 1, 0));
    assert_eq!(limits.statuses("ann", 3).await, [200, 200, 429]);
}
