//! What is asked of every proxy.

use std::num::NonZeroU32;

/// How many keys are told apart at most.
pub(super) const MANY_KEYS: u64 = 1_000_000;
pub(super) const MANY_RULES: usize = 1_000;

/// One kind of load, and the limits that it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) client: Client,
    /// Connections of HTTP/1.1, or requests in flight on eight connections of HTTP/2.
    pub(super) connections: usize,
    pub(super) large: bool,
    pub(super) rules: usize,
    pub(super) keys: u64,
    /// Every request is refused, or none.
    pub(super) refused: bool,
    /// An aim tells it: it has more rounds.
    pub(super) aimed_at: bool,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// HTTP/1.1, as people load it.
    Wrk,
    /// HTTP/1.1, as fast as one core can ask, or so many.
    Lean { per_second: Option<NonZeroU32> },
    /// HTTP/2.
    H2load,
}

impl Client {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Wrk => "wrk",
            Self::Lean { .. } => "our client",
            Self::H2load => "h2load",
        }
    }
}

/// Small bodies on 64 connections, one rule, one key.
const PLAIN: Scenario = Scenario {
    name: "proxied",
    client: Client::Wrk,
    connections: 64,
    large: false,
    rules: 1,
    keys: 1,
    refused: false,
    aimed_at: false,
};

pub(super) const PROXIED: Scenario = Scenario { aimed_at: true, ..PLAIN };
pub(super) const REFUSED: Scenario = Scenario { name: "refused", refused: true, ..PROXIED };
pub(super) const REFUSED_FULL: Scenario =
    Scenario { name: "refused, core full", client: Client::Lean { per_second: None }, ..REFUSED };
pub(super) const REFUSED_PACED: Scenario = Scenario {
    name: "refused, 60,000 a second",
    client: Client::Lean { per_second: NonZeroU32::new(60_000) },
    ..REFUSED
};
pub(super) const ONE_CONNECTION: Scenario = Scenario { name: "1 connection", connections: 1, ..PLAIN };
pub(super) const RULES: Scenario = Scenario { name: "1,000 rules", rules: MANY_RULES, ..PLAIN };

pub(super) const SCENARIOS: [Scenario; 12] = [
    PROXIED,
    REFUSED,
    REFUSED_FULL,
    REFUSED_PACED,
    ONE_CONNECTION,
    Scenario { name: "1,000 connections", connections: 1_000, ..PLAIN },
    Scenario { name: "64 KiB", large: true, ..PLAIN },
    RULES,
    Scenario { name: "1,000 rules, refused", rules: MANY_RULES, refused: true, ..PLAIN },
    Scenario { name: "1,000,000 keys", keys: MANY_KEYS, ..PLAIN },
    Scenario { name: "HTTP/2", client: Client::H2load, ..PLAIN },
    Scenario { name: "HTTP/2, refused", client: Client::H2load, refused: true, ..PLAIN },
];

impl Scenario {
    /// What is asked for. With many rules it is the last one that matches: whoever tries them in turn tries all.
    pub(super) fn path(&self) -> String {
        let file = if self.large { "large" } else { "small" };
        if self.rules == 1 { format!("/{file}") } else { format!("{}{file}", rule_prefix(self.rules - 1)) }
    }

    /// The paths that each rule is for.
    pub(super) fn rule_prefixes(&self) -> Vec<String> {
        if self.rules == 1 { vec!["/".to_owned()] } else { (0..self.rules).map(rule_prefix).collect() }
    }
}

fn rule_prefix(rule: usize) -> String {
    format!("/rule-{rule}/")
}
