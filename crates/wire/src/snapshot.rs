//! The configuration of one agent: plain data, without defaults that would hide a decision of the operator.

use serde::{Deserialize, Serialize};

use crate::{Shared, Store};

/// Everything that one agent enforces. Snapshots are ordered by `sequence`; their content is compared by `revision`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Snapshot {
    /// [`crate::WIRE_VERSION`] of the sender.
    pub wire_version: u32,
    /// Newer snapshots have larger numbers. The operator uses microseconds of Unix time, and never the same number
    /// twice.
    pub sequence: u64,
    /// Identifies the content: equal revisions mean equal `policies` and `stores`. Opaque to the agent, 1 to 128 characters.
    pub revision: String,
    /// Every policy that targets this agent's pod.
    pub policies: Vec<PolicyRules>,
    /// Every store that a rule of these policies uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<Store>,
}

/// The rules that one `RateLimitPolicy` compiles to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyRules {
    /// UID of the object; counters belong to it. If a policy is deleted and created again within a minute, its limits
    /// keep their state, by namespace, name and the names of its rules.
    pub uid: String,
    /// Namespace of the policy.
    pub namespace: String,
    /// Name of the policy.
    pub name: String,
    /// Identifies the content of this policy's rules and mode.
    pub revision: String,
    /// Whether refusals are applied, only counted, or not evaluated.
    pub mode: Mode,
    /// How long a request may take, including waits for limits and for the app. After that the client receives 504. At
    /// least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_millis: Option<u64>,
    /// Evaluated in order. Names are unique within a policy.
    pub rules: Vec<Rule>,
}

impl PolicyRules {
    /// The mode of one of its rules: the weaker one of the rule and the policy.
    pub fn mode_of(&self, rule: &Rule) -> Mode {
        rule.mode.map_or(self.mode, |mode| mode.max(self.mode))
    }
}

/// What an agent does with a policy's decisions. The order is that of their strength, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// Refuse what exceeds a limit.
    Enforce,
    /// Decide and count, refuse nothing.
    Shadow,
    /// Keep the counters and do nothing.
    Disabled,
}

/// One rule: which requests it limits, what it counts separately, and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Unique within the policy; counters belong to the name.
    pub name: String,
    /// Limit, let pass without any limit, or refuse.
    pub action: Action,
    /// A weaker mode for this rule alone; that of the policy if absent or stronger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// A request must match any entry, and within an entry all conditions. Empty: every request.
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// What is counted: requests, or the messages of the connections that matching requests open.
    #[serde(default, skip_serializing_if = "Per::is_request")]
    pub per: Per,
    /// What requests are counted separately by. Empty: all requests of the rule share one counter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<KeyPart>,
    /// All limits must admit; a refusal charges none. At least one for [`Action::Limit`], none for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Other numbers for some keys. Only with a `key`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    /// What each request takes from every limit; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// How a refusal looks to the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
    /// Headers of every response to a request that the rule matches. Only with [`Action::Limit`] and [`Per::Request`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_headers: Vec<ResponseHeader>,
    /// How many keys are tracked at most; keys beyond are counted in the overflow. At least 1; only with a `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_keys: Option<u32>,
    /// Present: agents count together, in a store. Absent: each agent counts alone. Only with [`Action::Limit`] and
    /// [`Per::Request`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<Shared>,
}

/// What a rule does with the requests that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Charge the rule's limits.
    Limit,
    /// Let pass; no limit of any policy is charged. Rules with this action are evaluated before those that limit.
    Bypass,
    /// Refuse. Rules with this action are evaluated first.
    Deny,
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
    /// Regular expressions, one of which must match a part of the path's normal form: `^` and `$` match its start and end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path_regexes: Vec<String>,
    /// Headers that must be present; the case of names does not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<FieldMatch>,
    /// Query parameters that must be present; names are compared byte by byte after percent-decoding.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<FieldMatch>,
    /// Networks in CIDR notation, or single addresses, one of which must contain the client's address.
    #[serde(default, rename = "clientCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub client_cidrs: Vec<String>,
    /// How many proxies in front of the agent are trusted to append to `X-Forwarded-For`, for `clientCIDRs` and for
    /// `request.clientIP` in `predicate`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub trusted_hops: u8,
    /// A CEL expression that must be true. It reads `request` with `method`, `host`, `path`, `query` (a map), `headers`
    /// (a map by lower-case name) and `clientIP`. An expression that fails is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicate: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u8) -> bool {
    *number == 0
}

/// A header or query parameter that must be present in any of its occurrences: with exactly this value, with a value
/// that starts with this prefix, or with any value if neither is set. Not with both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FieldMatch {
    /// Name.
    pub name: String,
    /// The whole value, compared byte by byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The start of the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// What a rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Per {
    /// Requests; the opening request of a WebSocket connection is one.
    #[default]
    Request,
    /// Messages that the client sends over the WebSocket connections that matching requests open. The opening request
    /// itself charges nothing.
    Message,
}

impl Per {
    pub(crate) fn is_request(&self) -> bool {
        *self == Self::Request
    }
}

/// What a request takes from every limit of its rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Cost {
    /// The same number for each request, at least 1.
    Fixed(u64),
    /// The number in this header of the request, at least 1 and at most `most`. 1 if the request has no such header.
    RequestHeader {
        /// Name of the header.
        name: String,
        /// The most that one request takes; at least 1.
        most: u64,
    },
    /// 1 at first. When the app has answered, the rest of the number in this header of the response, at most `most`.
    /// Every limit of the rule is a [`Strategy::TokenBucketWithDebt`].
    ResponseHeader {
        /// Name of the header. It is not passed on to the client.
        name: String,
        /// The most that one request takes; at least 1.
        most: u64,
    },
    /// 1 at first, then the bytes of the response's body as they pass, so that `requests` are bytes. Every limit of the
    /// rule is a [`Strategy::TokenBucketWithDebt`].
    ResponseBytes,
}

/// One part of a key: requests with different values are counted separately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyPart {
    /// The value of the first header of this name; requests without it share one key.
    #[serde(rename = "header")]
    Header(String),
    /// The client's address.
    #[serde(rename = "clientIP")]
    ClientIp {
        /// How many proxies in front of the agent are trusted to append to `X-Forwarded-For`. 0, or a header with fewer
        /// entries than this: the peer address is the client's.
        #[serde(rename = "trustedHops")]
        trusted_hops: u8,
        /// IPv6 clients whose addresses share this many leading bits share one count, 1 to 128.
        #[serde(rename = "ipv6Prefix")]
        ipv6_prefix: u8,
    },
    /// The value of the first cookie of this name; requests without it share one key.
    #[serde(rename = "cookie")]
    Cookie(String),
    /// The first value of this query parameter, percent-decoded; requests without it share one key.
    #[serde(rename = "query")]
    Query(String),
    /// This segment of the path's normal form, counted from 1; requests with a shorter path share one key.
    #[serde(rename = "pathSegment")]
    PathSegment(u8),
    /// The host that the client asked for, in lower case and without port.
    #[serde(rename = "host")]
    Host {},
    /// The method.
    #[serde(rename = "method")]
    Method {},
    /// A claim of a JSON Web Token. Requests without it share one key. The claim is verified only if the agent has a
    /// JWKS file; then only a token that verifies has claims.
    #[serde(rename = "jwtClaim")]
    JwtClaim {
        /// Header with the token, with or without `Bearer ` before it.
        header: String,
        /// Name of the claim; `a.b` is the field `b` of `a`. A text, number or truth value.
        claim: String,
    },
}

/// One limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limit {
    /// Unique within the rule; counters belong to the name.
    pub name: String,
    /// How requests are counted.
    pub strategy: Strategy,
    /// How many requests a period admits, at least 1.
    pub requests: u64,
    /// Length of the period in milliseconds, at least 1.
    pub period_millis: u64,
    /// How many requests may come at once, or for [`Strategy::LeakyBucket`] wait in the queue. At least 1; absent for
    /// windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// How far a [`Strategy::TokenBucketWithDebt`] may be overdrawn; 0 if absent. None for the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debt: Option<u64>,
}

/// How requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// `requests` per window aligned to Unix time.
    FixedWindow,
    /// Requests of this window, plus the last window's requests weighted by its share of the current period; at most
    /// 2^30.
    SlidingWindowCounter,
    /// Never more than `requests` in any period. Each request is remembered; at most 2^20.
    SlidingWindowLog,
    /// A steady rate; up to `burst` unused requests are saved. `burst` defaults to `requests`.
    TokenBucket,
    /// A TokenBucket that may be overdrawn by `debt` and pays it back.
    TokenBucketWithDebt,
    /// Evenly paced: up to `burst` requests wait in the queue, `requests` of them if absent.
    LeakyBucket,
    /// A steady rate with strict spacing; `burst` defaults to 1.
    #[serde(rename = "GCRA")]
    Gcra,
}

/// Other numbers for the limits of a rule, for some keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Override {
    /// The keys: each has one value for each part of the rule's `key`, in the same order.
    pub keys: Vec<Vec<String>>,
    /// These limits replace the rule's limits of the same names; the other limits stay.
    pub limits: Vec<Limit>,
}

/// What happens to a request beyond a limit, and how a refusal looks to the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnLimit {
    /// How long a request may wait for its turn. It gets a turn at once, or is refused at once. Absent or 0: requests
    /// do not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_millis: Option<u64>,
    /// HTTP status of a refusal, 400 to 599.
    pub status: u16,
    /// Which fields tell the client about its quota. `Retry-After` is sent with every refusal.
    pub headers: HeaderStyle,
    /// Which responses get these fields.
    #[serde(default, skip_serializing_if = "HeadersOn::is_all")]
    pub headers_on: HeadersOn,
    /// Headers of a refusal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<ResponseHeader>,
    /// Body of a refusal. If absent, a JSON object that names the limit that refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Media type of the body. If absent, `application/json` for the agent's own body, `text/plain; charset=utf-8` for
    /// `body`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// What happens to a message beyond a limit, in a rule per message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_message: Option<OnMessage>,
}

/// What happens to a message beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnMessage {
    /// It does not reach the app. The client receives a text message: a JSON object that names the limit that refused.
    #[default]
    Notice,
    /// The connection is closed with code 1008.
    Close,
}

/// A header of responses, in place of the app's header of this name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResponseHeader {
    /// Name.
    pub name: String,
    /// Text with the placeholders `{remaining}`, `{limit}`, `{resetAfter}`, `{policy}` and `{rule}`.
    pub value: String,
}

/// Which responses get the fields that tell the client about its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeadersOn {
    /// All responses.
    #[default]
    All,
    /// Only refusals.
    Refusals,
}

impl HeadersOn {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_all(&self) -> bool {
        *self == Self::All
    }
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

impl HeaderStyle {
    /// The names of the fields, in lower case.
    pub fn names(self) -> &'static [&'static str] {
        const ALL: [&str; 5] =
            ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
        match self {
            Self::Ietf => &ALL[..2],
            Self::Legacy => &ALL[2..],
            Self::Both => &ALL,
            Self::None => &[],
        }
    }
}
