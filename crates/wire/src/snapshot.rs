//! The configuration of one agent: pure data, no defaults that hide a decision of the operator's.

use serde::{Deserialize, Serialize};

/// All that one agent enforces. Snapshots are ordered by `sequence`; content is compared by `revision`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Snapshot {
    /// [`crate::WIRE_VERSION`] of the sender.
    pub wire_version: u32,
    /// Newer snapshots have larger numbers: the operator takes microseconds of Unix time, and never the same twice.
    pub sequence: u64,
    /// Names the content: equal revisions mean equal `policies`. Opaque to the agent, 1 to 128 characters.
    pub revision: String,
    /// Every policy that targets this agent's pod.
    pub policies: Vec<PolicyRules>,
}

/// The rules that one `RateLimitPolicy` compiles to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyRules {
    /// The object's UID: counters belong to it, so a policy that is deleted and made again starts afresh.
    pub uid: String,
    /// Namespace of the policy, for metrics and messages.
    pub namespace: String,
    /// Name of the policy, for metrics and messages.
    pub name: String,
    /// Names the content of this policy's rules and mode.
    pub revision: String,
    /// Whether refusals are carried out, only counted, or not even looked at.
    pub mode: Mode,
    /// Tried in order; names are unique within a policy.
    pub rules: Vec<Rule>,
}

/// What an agent does with a policy's decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Refuse what exceeds a limit.
    Enforce,
    /// Decide and count, refuse nothing.
    Shadow,
    /// Keep the counters and do nothing.
    Disabled,
}

/// One rule: which requests, counted by what, against which limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Unique within the policy; counters belong to it.
    pub name: String,
    /// Limit, or let pass without looking at any limit.
    pub action: Action,
    /// Any entry may match; inside an entry all must. Empty: every request.
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// What requests are told apart by. Empty: all requests of the rule share one counter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<KeyPart>,
    /// All must admit; a refusal charges none. Empty for [`Action::Bypass`], at least one for [`Action::Limit`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Other numbers for some keys. Only with a `key`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    /// How a refusal looks to the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
    /// How many keys are tracked at most; those beyond share one counter. At least 1; only with a `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_keys: Option<u32>,
}

/// What a rule does with the requests that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Charge the rule's limits.
    Limit,
    /// Let pass; no limit of any policy is charged. Bypasses are looked at first.
    Bypass,
}

/// Conditions that must all hold; an empty list is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Match {
    /// Methods, upper case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Hosts without port, lower case: exact, or `*.example.com` for every host below it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Path globs: `*` is anything within a segment, `**` as a whole segment is any number of segments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Headers that must be there with exactly this value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderMatch>,
}

/// A header that must be present with this exact value (in any of its occurrences).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderMatch {
    /// Name, in any case.
    pub name: String,
    /// Value, compared byte by byte.
    pub value: String,
}

/// One part of what requests are told apart by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyPart {
    /// The value of the first header of this name; requests without it share one key.
    #[serde(rename = "header")]
    Header(String),
    /// The client's address.
    #[serde(rename = "clientIP")]
    ClientIp {
        /// How many proxies in front of the agent are trusted to have appended to `X-Forwarded-For`. 0: the peer
        /// address counts. With fewer entries in the header than this, the peer address counts as well.
        #[serde(rename = "trustedHops")]
        trusted_hops: u8,
        /// IPv6 clients are told apart by this many leading bits, 1 to 128.
        #[serde(rename = "ipv6Prefix")]
        ipv6_prefix: u8,
    },
}

/// One limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limit {
    /// Unique within the rule; counters belong to it.
    pub name: String,
    /// How requests are counted.
    pub strategy: Strategy,
    /// How many requests a period admits, at least 1.
    pub requests: u64,
    /// Length of the period in milliseconds, at least 1.
    pub period_millis: u64,
    /// How many requests may come at once: at least 1; none for [`Strategy::FixedWindow`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
}

/// How requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// `requests` per window aligned to Unix time.
    FixedWindow,
    /// A steady rate with `burst` saved up; `burst` defaults to `requests`.
    TokenBucket,
    /// A steady rate with strict spacing; `burst` defaults to 1.
    #[serde(rename = "GCRA")]
    Gcra,
}

/// Other numbers for the limits of a rule, for some keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Override {
    /// The keys meant: each has one value per part of the rule's `key`, in the same order.
    pub keys: Vec<Vec<String>>,
    /// Replaces the rule's limits of the same names; the others stay.
    pub limits: Vec<Limit>,
}

/// How a refusal looks to the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnLimit {
    /// HTTP status of a refusal, 400 to 599.
    pub status: u16,
    /// Which fields tell the client about its quota. `Retry-After` is sent with every refusal.
    pub headers: HeaderStyle,
}

/// Which fields tell the client about its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers).
    #[serde(rename = "IETF")]
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`.
    Legacy,
    /// Both of them.
    Both,
    /// Neither of them.
    None,
}
