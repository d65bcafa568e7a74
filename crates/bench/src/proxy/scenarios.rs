//! The scenarios, which are the same for every proxy.

use std::num::NonZeroU32;

/// The largest number of different keys.
pub(super) const MANY_KEYS: u64 = 1_000_000;
pub(super) const MANY_RULES: usize = 1_000;

/// A load, and the limits that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) client: Client,
    /// The number of HTTP/1.1 connections, or of requests in flight on eight HTTP/2 connections.
    pub(super) connections: usize,
    pub(super) large: bool,
    pub(super) rules: usize,
    pub(super) keys: u64,
    /// True if every request must be refused. Otherwise none.
    pub(super) refused: bool,
    /// True if an aim depends on this scenario. Then it has more rounds.
    pub(super) aimed_at: bool,
}

/// The client of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// wrk, over HTTP/1.1.
    Wrk,
    /// The client in `lean.rs`, over HTTP/1.1: as fast as one core can send, or at this rate.
    Lean { per_second: Option<NonZeroU32> },
    /// h2load, over HTTP/2.
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

/// The basic scenario: small bodies on 64 connections, one rule, one key.
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
    /// The requested path. With many rules, only the last rule matches, so that a proxy that tries rules in order must
    /// try all of them.
    pub(super) fn path(&self) -> String {
        let file = if self.large { "large" } else { "small" };
        if self.rules == 1 { format!("/{file}") } else { format!("{}{file}", rule_prefix(self.rules - 1)) }
    }

    /// The path prefixes of each rule.
    pub(super) fn rule_prefixes(&self) -> Vec<String> {
        if self.rules == 1 { vec!["/".to_owned()] } else { (0..self.rules).map(rule_prefix).collect() }
    }
}

fn rule_prefix(rule: usize) -> String {
    format!("/rule-{rule}/")
}
