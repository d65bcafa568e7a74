//! Translates configurations of envoyproxy/ratelimit into a snapshot of Weir.
//!
//! In the peer, only the most specific limit of a descriptor applies. In Weir, all matching rules apply. So a rule must
//! match exactly the descriptors whose most specific limit it is. If the patterns of its nodes match no others, the rule
//! has these patterns as its one entry of `match`. Otherwise it lists the descriptors, which are few, because the values
//! come from a small set.

use serde_json::{Value, json};

use super::{
    super::messages::Entry,
    config::{Config, Limit, Node, Pattern},
    lookup::{self, Found},
};

/// Keys that a rule counts: more than there are.
const MAX_KEYS: u32 = 1_000;

/// A snapshot with one policy for each configuration.
pub(super) fn snapshot(configs: &[Config], sequence: u64) -> Value {
    json!({
        "wireVersion": 1,
        "sequence": sequence,
        "revision": format!("answers-{sequence}"),
        "policies": configs.iter().map(policy).collect::<Vec<_>>(),
    })
}

fn policy(config: &Config) -> Value {
    let rules = lookup::all(config).into_iter().enumerate().flat_map(|(number, found)| rules(config, number, &found));
    json!({
        "uid": config.domain,
        "namespace": "answers",
        "name": config.domain,
        "revision": "1",
        "domain": config.domain,
        "mode": "Enforce",
        "rules": rules.collect::<Vec<_>>(),
    })
}

/// The rules of one limit: mostly one, and none if its siblings hide it.
fn rules(config: &Config, number: usize, found: &Found<'_>) -> Vec<Value> {
    let name = format!("limit-{number}");
    let keys: Vec<_> = found.nodes.iter().map(|node| node.key).collect();
    let all = lookup::descriptors(&keys);
    let fits =
        |entries: &&Vec<Entry>| found.nodes.iter().zip(*entries).all(|(node, entry)| node.value.matches(&entry.value));
    let own = |entries: &&Vec<Entry>| lookup::find(config, entries).as_ref() == Some(found);
    let own: Vec<_> = all.iter().filter(own).collect();
    let listed = || own.iter().map(|entries| exactly(entries)).collect::<Vec<_>>();
    // A part of a key is the first entry with its name.
    let separate: Vec<_> = found.nodes.iter().filter(|node| node.value.separates()).map(|node| node.key).collect();
    let ambiguous = separate.iter().any(|key| keys.iter().filter(|other| *other == key).count() > 1);
    if own.is_empty() {
        Vec::new()
    } else if ambiguous {
        apart(found, &own)
            .into_iter()
            .enumerate()
            .map(|(index, (entries, _))| rule(&format!("{name}-{index}"), found.limit, &entries, &[]))
            .collect()
    } else if all.iter().filter(fits).count() == own.len() {
        vec![rule(&name, found.limit, &[patterns(&found.nodes)], &separate)]
    } else {
        vec![rule(&name, found.limit, &listed(), &separate)]
    }
}

/// The descriptors, in groups that the limit counts together: each with the values that it separates.
fn apart(found: &Found<'_>, own: &[&Vec<Entry>]) -> Vec<(Vec<Value>, Vec<String>)> {
    let mut groups: Vec<(Vec<Value>, Vec<String>)> = Vec::new();
    for entries in own {
        let separated = found.nodes.iter().zip(*entries).filter(|(node, _)| node.value.separates());
        let values: Vec<_> = separated.map(|(_, entry)| entry.value.clone()).collect();
        match groups.iter_mut().find(|(_, other)| *other == values) {
            Some((group, _)) => group.push(exactly(entries)),
            None => groups.push((vec![exactly(entries)], values)),
        }
    }
    groups
}

fn exactly(entries: &[Entry]) -> Value {
    entries.iter().map(|entry| json!({ "name": entry.key, "value": entry.value })).collect()
}

fn patterns(nodes: &[&Node]) -> Value {
    let pattern = |node: &&Node| match node.value {
        // Every value begins with nothing.
        Pattern::Any | Pattern::Prefix { start: "", .. } => json!({ "name": node.key }),
        Pattern::Exact(value) => json!({ "name": node.key, "value": value }),
        Pattern::Prefix { start, .. } => json!({ "name": node.key, "prefix": start }),
    };
    nodes.iter().map(pattern).collect()
}

fn rule(name: &str, limit: &Limit, descriptors: &[Value], separate: &[&str]) -> Value {
    let matches: Vec<_> = descriptors.iter().map(|entries| json!({ "descriptor": entries })).collect();
    let Limit::Rate { requests, unit, shadow } = limit else {
        return json!({ "name": name, "action": "Bypass", "match": matches });
    };
    let mut rule = json!({
        "name": name,
        "action": "Limit",
        "match": matches,
        "limits": [{
            "name": "rate",
            "strategy": "FixedWindow",
            "requests": requests,
            "periodMillis": unit.seconds() * 1_000,
        }],
    });
    if !separate.is_empty() {
        rule["key"] = separate.iter().map(|key| json!({ "descriptor": key })).collect();
        rule["maxKeys"] = MAX_KEYS.into();
    }
    if *shadow {
        rule["mode"] = "Shadow".into();
    }
    rule
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            super::messages::Unit,
            config::{DEPTH, VALUES},
        },
        *,
    };

    fn node(key: &'static str, value: Pattern, nodes: Vec<Node>) -> Node {
        let limit = Some(Limit::Rate { requests: 3, unit: Unit::Hour, shadow: false });
        Node { key, value, limit, nodes }
    }

    fn translated(nodes: Vec<Node>) -> Vec<Value> {
        let policy = policy(&Config { domain: "d".to_owned(), nodes });
        policy["rules"].as_array().expect("rules").clone()
    }

    #[test]
    fn patterns_stay_where_nothing_hides_them() {
        let prefix = Pattern::Prefix { start: "fo", share: false };
        let rules = translated(vec![node("client", Pattern::Any, vec![node("path", prefix, vec![])])]);
        let matches = |rule: &Value| rule["match"].clone();
        assert_eq!(matches(&rules[0]), json!([{ "descriptor": [{ "name": "client" }] }]));
        assert_eq!(rules[0]["key"], json!([{ "descriptor": "client" }]));
        let nested = json!([{ "descriptor": [{ "name": "client" }, { "name": "path", "prefix": "fo" }] }]);
        assert_eq!(matches(&rules[1]), nested);
        assert_eq!(rules[1]["key"], json!([{ "descriptor": "client" }, { "descriptor": "path" }]));
    }

    #[test]
    fn a_hidden_rule_lists_what_is_left_for_it() {
        let rules = translated(vec![node("path", Pattern::Any, vec![]), node("path", Pattern::Exact("x"), vec![])]);
        let listed = rules[0]["match"].as_array().expect("entries");
        assert_eq!(listed.len(), VALUES.len() - 1);
        assert!(listed.iter().all(|entry| entry["descriptor"][0]["value"] != "x"), "{listed:?}");
        assert_eq!(rules[0]["key"], json!([{ "descriptor": "path" }]));
        assert_eq!(rules[1]["match"], json!([{ "descriptor": [{ "name": "path", "value": "x" }] }]));
        assert_eq!(rules[1].get("key"), None);
    }

    #[test]
    fn a_shared_threshold_is_no_part_of_the_key() {
        let rules = translated(vec![node("path", Pattern::Prefix { start: "fo", share: true }, vec![])]);
        assert_eq!(rules[0].get("key"), None);
    }

    #[test]
    fn a_name_that_is_there_twice_makes_rules_apart() {
        let rules = translated(vec![node("path", Pattern::Exact("x"), vec![node("path", Pattern::Any, vec![])])]);
        assert_eq!(rules.len(), 1 + VALUES.len());
        assert!(rules.iter().all(|rule| rule.get("key").is_none()), "{rules:?}");
    }

    /// Each descriptor matches the one rule of its limit, and no other.
    #[test]
    fn no_descriptor_matches_two_rules() {
        use rand::{SeedableRng as _, rngs::StdRng};
        let mut random = StdRng::seed_from_u64(1);
        let mut limited = 0;
        for number in 0..50 {
            let config = Config::random(number.to_string(), &[Unit::Hour], &mut random);
            let rules = policy(&config)["rules"].as_array().expect("rules").clone();
            for found in lookup::all(&config) {
                let keys: Vec<_> = found.nodes.iter().map(|node| node.key).collect();
                assert!(keys.len() <= DEPTH);
                for entries in lookup::descriptors(&keys) {
                    let matching = rules.iter().filter(|rule| {
                        rule["match"].as_array().expect("entries").iter().any(|one| fits(&one["descriptor"], &entries))
                    });
                    let is_limited = lookup::find(&config, &entries).is_some();
                    assert_eq!(matching.count(), usize::from(is_limited), "{entries:?} in {}", config.yaml());
                    limited += usize::from(is_limited);
                }
            }
        }
        assert!(limited > 1_000, "{limited}");
    }

    fn fits(patterns: &Value, entries: &[Entry]) -> bool {
        let patterns = patterns.as_array().expect("a list");
        patterns.len() == entries.len()
            && patterns.iter().zip(entries).all(|(pattern, entry)| {
                pattern["name"] == entry.key
                    && pattern.get("value").is_none_or(|value| *value == entry.value)
                    && pattern.get("prefix").is_none_or(|start| entry.value.starts_with(start.as_str().expect("text")))
            })
    }
}
