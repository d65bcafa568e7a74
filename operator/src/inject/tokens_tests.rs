use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::*;

const START: u64 = 1_800_000_000;
const MINUTE: u64 = 60;

fn secret(tokens: &Tokens) -> Secret {
    let fields = tokens.fields().into_iter().map(|(name, text)| (name.to_owned(), STANDARD.encode(text).into()));
    let data: serde_json::Map<String, Value> = fields.collect();
    serde_json::from_value(json!({"data": data})).unwrap()
}

fn webhook(path: &str) -> MutatingWebhookConfiguration {
    let service = json!({"name": "hook", "namespace": "weir-system", "path": path});
    let hook = json!({"name": "weir.dev", "clientConfig": {"service": service}, "sideEffects": "None",
        "admissionReviewVersions": ["v1"]});
    serde_json::from_value(json!({"metadata": {"name": "weir"}, "webhooks": [hook]})).unwrap()
}

/// A replica with its own clock, which reads each version of the Secret late.
struct Replica {
    ahead: i64,
    delay: u64,
}

/// The Secret and the webhook's path, which several replicas write.
struct Cluster {
    /// Each version, and the time at which it was written.
    secrets: Vec<(u64, Tokens)>,
    path: String,
    paths: Vec<String>,
}

impl Cluster {
    fn new() -> Self {
        Self { secrets: vec![(0, Tokens::default())], path: String::new(), paths: Vec::new() }
    }

    fn seen_by(&self, replica: &Replica, now: u64) -> Tokens {
        let seen = self.secrets.iter().rev().find(|(at, _)| at + replica.delay <= now);
        Tokens::of(&secret(&seen.expect("the first version is old").1))
    }

    fn step(&mut self, replica: &Replica, now: u64) {
        let (clock, tokens) = (now.saturating_add_signed(replica.ahead), self.seen_by(replica, now));
        if let Some(renewed) = tokens.renewed(&webhook(&self.path), clock) {
            // The apiserver refuses a write that is based on an older version.
            if self.secrets.last().expect("a version").1 == tokens {
                self.secrets.push((now, renewed));
            }
        } else {
            let wanted = tokens.path(&webhook(&self.path), clock);
            if wanted != self.path {
                self.path.clone_from(&wanted);
                self.paths.push(wanted);
            }
        }
    }

    fn is_accepted_by(&self, replica: &Replica, now: u64) -> bool {
        let accepted = self.seen_by(replica, now).accepted(now.saturating_add_signed(replica.ahead));
        accepted.iter().any(|token| path(token) == self.path)
    }
}

/// The apiserver never calls a path that a replica refuses, and no path is used for much longer than a day.
#[test]
fn every_replica_accepts_the_published_path_while_tokens_change() {
    let minute = i64::try_from(MINUTE).unwrap();
    for (what, replicas) in [
        ("one replica", vec![Replica { ahead: 0, delay: 0 }]),
        ("one reads late", vec![Replica { ahead: 0, delay: 0 }, Replica { ahead: 0, delay: 5 * MINUTE }]),
        ("clocks differ", vec![Replica { ahead: 50 * minute, delay: MINUTE }, Replica { ahead: 0, delay: 5 * MINUTE }]),
    ] {
        let mut cluster = Cluster::new();
        let mut since = BTreeMap::new();
        for now in (START..START + 4 * DAY).step_by(usize::try_from(MINUTE).unwrap()) {
            for replica in &replicas {
                cluster.step(replica, now);
            }
            for replica in replicas.iter().filter(|_| now > START + 10 * MINUTE) {
                assert!(cluster.is_accepted_by(replica, now), "{what}: after {} minutes", (now - START) / MINUTE);
            }
            let first = *since.entry(cluster.path.clone()).or_insert(now);
            assert!(now - first <= LIVES + OVERLAP, "{what}");
        }
        assert!(cluster.paths.len() >= 4, "{what}: {:?}", cluster.paths);
        since.remove("");
        assert_eq!(since.len(), cluster.paths.len(), "{what}: a path returns");
    }
}

#[test]
fn a_leaked_path_ends() {
    let begun = Tokens::default().renewed(&webhook(""), START).expect("there is no token");
    let leaked = begun.path(&webhook(""), START);
    assert_eq!(begun.renewed(&webhook(&leaked), START + DAY - 1), None);
    let next = begun.renewed(&webhook(&leaked), START + DAY).expect("a day is over");
    assert_eq!(next.path(&webhook(&leaked), START + DAY + HOUR - 1), leaked, "some replicas may not know the next one");
    assert_ne!(next.path(&webhook(&leaked), START + DAY + HOUR), leaked);
    let accepts = |tokens: &Tokens, now| tokens.accepted(now).iter().any(|token| path(token) == leaked);
    assert!(accepts(&next, START + DAY + 2 * HOUR - 1) && !accepts(&next, START + DAY + 2 * HOUR));

    // An administrator removes the token.
    let without = Tokens { newest: String::new(), ..begun };
    let replaced = without.renewed(&webhook(&leaked), START + 1).expect("there is no token");
    assert!(!accepts(&replaced, START + 1) && replaced.path(&webhook(&leaked), START + 1) != leaked);
}

/// Such a token is replaced: the apiserver would refuse the path, or call another one.
#[test]
fn a_token_that_cannot_be_in_a_path_counts_as_none() {
    for (text, expected) in [("abc123", "abc123"), ("abc123\n", ""), ("a b/c?d#e", ""), ("", "")] {
        let secret = serde_json::from_value(json!({"data": {"token": STANDARD.encode(text)}})).unwrap();
        assert_eq!(Tokens::of(&secret).newest, expected, "{text:?}");
    }
    assert_eq!(Tokens::default().renewed(&webhook(""), START).map(|tokens| tokens.newest.len()), Some(64));
}
