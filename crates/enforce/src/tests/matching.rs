//! The rules that decide on a request. For any mixture of policies, the index finds the same rules as a linear search.

use proptest::prelude::*;

use super::*;
use crate::{
    matching::RequestView,
    rule_set::{MatchBuffers, Matching},
};

#[derive(Clone, Copy, Debug)]
struct OneRule {
    bypasses: bool,
    about: About,
}

#[derive(Clone, Copy, Debug)]
enum About {
    All,
    AllByName,
    /// Two entries: one for `/a`, and one for every path.
    AOrAll,
    A,
}

impl About {
    fn list(self) -> Value {
        match self {
            Self::All => json!([]),
            Self::AllByName => json!([{"paths": ["/**"]}]),
            Self::AOrAll => json!([{"paths": ["/a"]}, {"paths": ["/b", "/**"]}]),
            Self::A => json!([{"paths": ["/a"]}]),
        }
    }

    fn is_about(self, path: &str) -> bool {
        !matches!(self, Self::A) || path == "/a"
    }
}

fn policies() -> impl Strategy<Value = Vec<(&'static str, Vec<OneRule>)>> {
    let about =
        prop_oneof![3 => Just(About::All), 3 => Just(About::AllByName), 1 => Just(About::AOrAll), 1 => Just(About::A)];
    let rule = (prop::bool::weighted(0.15), about).prop_map(|(bypasses, about)| OneRule { bypasses, about });
    let mode = prop_oneof![4 => Just("Enforce"), 2 => Just("Shadow"), 1 => Just("Disabled")];
    prop::collection::vec((mode, prop::collection::vec(rule, 1..4)), 0..4)
}

/// The error is the matching Bypass rule. Otherwise, the first list has the rules that enforce, and the second the
/// rules in shadow mode. A rule is a policy index and a rule name.
type Found = Result<[Vec<(usize, String)>; 2], (usize, String)>;

fn by_hand(policies: &[(&str, Vec<OneRule>)], path: &str) -> Found {
    let of = |mode: &'static str| {
        let policies = policies.iter().enumerate().filter(move |(_, (its, _))| *its == mode);
        let rules = policies.flat_map(|(policy, (_, rules))| rules.iter().enumerate().map(move |rule| (policy, rule)));
        rules.filter(|(_, (_, rule))| rule.about.is_about(path))
    };
    let name = |(policy, (number, _)): (usize, (usize, &OneRule))| (policy, format!("r{number}"));
    match of("Enforce").find(|(_, (_, rule))| rule.bypasses) {
        Some(bypass) => Err(name(bypass)),
        None => Ok([of("Enforce").map(name).collect(), of("Shadow").map(name).collect()]),
    }
}

proptest! {
    #[test]
    fn the_rules_that_decide_are_those_that_one_finds_by_hand(policies in policies()) {
        let written: Vec<Value> = policies
            .iter()
            .enumerate()
            .map(|(number, (mode, rules))| {
                let rules = rules.iter().enumerate().map(|(number, one)| {
                    let limits = [limit("TokenBucket", 1, 1000, json!({}))];
                    let (name, list) = (format!("r{number}"), json!({"match": one.about.list()}));
                    if one.bypasses {
                        with(json!({"name": name, "action": "Bypass"}), list)
                    } else {
                        rule(&name, &limits, list)
                    }
                });
                with(policy(&format!("p{number}"), &rules.collect::<Vec<_>>()), json!({"mode": mode}))
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let rules = runtime.expect("a runtime").block_on(async { Limits::new(&written).rules.load() });
        let set = &*rules.requests;
        for path in ["/a", "/b"] {
            let request = get(path);
            let name = |index: &usize| (set.get(*index).policy, set.get(*index).rule.name.clone());
            let found = match set.matching(&RequestView::new(&request, PEER), &mut MatchBuffers::default()) {
                Matching::Bypass(bypass) => Err((bypass.policy, bypass.rule.name.clone())),
                Matching::Rules { enforced, shadows } => Ok([enforced, shadows].map(|some| some.iter().map(name).collect())),
            };
            prop_assert_eq!(found, by_hand(&policies, path), "{}", path);
        }
    }
}
