//! The configuration of one agent. It is plain data, without defaults that would hide a decision of the operator.

use serde::{Deserialize, Serialize};

use crate::{Shared, Store};

/// All rules that one agent enforces. Snapshots are ordered by `sequence`, and their content is compared by `revision`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Snapshot {
    /// The [`crate::WIRE_VERSION`] of the sender.
    pub wire_version: u32,
    /// A number that is larger in newer snapshots. The operator uses microseconds of Unix time, and never the same
    /// number twice.
    pub sequence: u64,
    /// The identifier of the content: equal revisions mean equal `policies` and `stores`. Opaque to the agent, 1 to 128
    /// characters.
    pub revision: String,
    /// All policies that target this agent's pod.
    pub policies: Vec<PolicyRules>,
    /// All stores that a rule of these policies uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<Store>,
}

/// The rules into which the operator compiles one `RateLimitPolicy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyRules {
    /// The UID of the object. Counts belong to the UID. If a policy is deleted and created again within a minute, its
    /// limits keep their state, by namespace, name and the names of its rules.
    pub uid: String,
    /// The namespace of the policy.
    pub namespace: String,
    /// The name of the policy.
    pub name: String,
    /// The identifier of the content of this policy's rules and mode.
    pub revision: String,
    /// The mode: refusals are applied, only counted, or not evaluated.
    pub mode: Mode,
    /// Present: the rules limit descriptors of this domain, which a proxy such as Envoy sends to a rate limit service.
    /// If absent, the rules limit HTTP requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The longest time for a request, including waits for limits and for the app. At least 1. After this time, the
    /// client receives the response of `on_deadline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_millis: Option<u64>,
    /// The response to a request that exceeds the deadline. If absent, status 504 and a line that names the deadline.
    /// Allowed only with a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_deadline: Option<OnDeadline>,
    /// The rules, which are evaluated in order. Names are unique within a policy.
    pub rules: Vec<Rule>,
}

impl PolicyRules {
    /// Returns the mode of one of the policy's rules: the weaker mode of the rule and the policy.
    pub fn mode_of(&self, rule: &Rule) -> Mode {
        rule.mode.map_or(self.mode, |mode| mode.max(self.mode))
    }
}

/// The effect of a policy's decisions. The variants are ordered from the strongest to the weakest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// Refuse requests beyond a limit.
    Enforce,
    /// Decide and count requests, and refuse none.
    Shadow,
    /// Keep the counts, and evaluate no rule.
    Disabled,
}

/// One rule: the requests that it matches, the key by which it counts them separately, and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// The name, which is unique within the policy. Counts belong to the name.
    pub name: String,
    /// The action: limit requests, let them pass without any limit, or refuse them.
    pub action: Action,
    /// A weaker mode for this rule alone. If absent or stronger than the policy's mode, the policy's mode applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The entries, one of which a request must match. Within an entry, a request must meet all conditions. If empty,
    /// every request matches.
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// The names of other rules of the policy that do not apply to a question if this rule matches one of its descriptors.
    /// Allowed only in a policy with a domain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<String>,
    /// The unit to count: requests, or the messages of the connections that matching requests open.
    #[serde(default, skip_serializing_if = "Per::is_request")]
    pub per: Per,
    /// The values by which requests are counted separately. If empty, all requests of the rule share one count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<KeyPart>,
    /// The limits. All limits must admit a request, and a refusal charges none. At least one for [`Action::Limit`]
    /// without `concurrency`, none otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Other limits for some keys. Allowed only with a `key`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    /// Present: a descriptor can contain a limit that replaces the rule's limit. Allowed only in a policy with a
    /// domain, in a rule with one limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_override: Option<LimitOverride>,
    /// Present: the rule limits how many requests are in flight. Only with [`Action::Limit`] and [`Per::Request`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// The units that each request takes from every limit. 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The handling of requests beyond a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
    /// The headers of every response to a request that the rule matches. Allowed only with [`Action::Limit`] and
    /// [`Per::Request`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_headers: Vec<ResponseHeader>,
    /// The largest number of keys in the table. Other keys are counted in the overflow. At least 1. Allowed only with a
    /// `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_keys: Option<u32>,
    /// Present: a key that the rule refuses again and again is refused for a fixed time. Allowed only with a `key`,
    /// [`Action::Limit`] and [`Per::Request`], without `concurrency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban: Option<Ban>,
    /// The store in which agents count together. If absent, each agent counts alone. Allowed only with
    /// [`Action::Limit`] and [`Per::Request`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<Shared>,
}

impl Rule {
    /// Returns a rule without limits and options.
    pub fn without_limits(name: String, action: Action, matches: Vec<Match>) -> Self {
        Self {
            name,
            action,
            mode: None,
            matches,
            replaces: Vec::new(),
            per: Per::Request,
            key: Vec::new(),
            limits: Vec::new(),
            overrides: Vec::new(),
            limit_override: None,
            concurrency: None,
            cost: None,
            on_limit: None,
            response_headers: Vec::new(),
            max_keys: None,
            ban: None,
            shared: None,
        }
    }
}

/// The largest limit that a descriptor can contain: a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitOverride {
    /// The largest number of requests per period. At least 1.
    pub max_requests: u64,
    /// The period in milliseconds. At least 1.
    pub period_millis: u64,
}

/// The action of a rule on the requests that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Charge the rule's limits.
    Limit,
    /// Let requests pass. No limit of any policy is charged. Rules with this action are evaluated before rules with
    /// limits.
    Bypass,
    /// Refuse requests. Rules with this action are evaluated first.
    Deny,
}

/// Conditions that a request must all meet. An empty list is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Match {
    /// Methods in upper case, one of which the request must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Hosts without port, in lower case: an exact host, or `*.example.com` for every host below `example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Path globs: `*` matches any text within a segment, and `**` as a whole segment matches any number of segments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Regular expressions, one of which must match a part of the path's normal form. `^` and `$` match its start and
    /// end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path_regexes: Vec<String>,
    /// Headers that must be present. The case of their names does not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<FieldMatch>,
    /// Query parameters that must be present. Their names are compared byte by byte after decoding, as in a form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<FieldMatch>,
    /// Networks in CIDR notation, or single addresses, one of which must contain the client's address.
    #[serde(default, rename = "clientCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub client_cidrs: Vec<String>,
    /// The number of proxies in front of the agent that are trusted to append to `X-Forwarded-For`, for `clientCIDRs`
    /// and for `request.clientIP` in `predicate`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub trusted_hops: u8,
    /// A CEL expression that must be true. It reads `request` with `method`, `host`, `path`, `query` (a map), `headers`
    /// (a map by lower-case name) and `clientIP`. An expression that fails is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicate: Option<String>,
    /// The entries of a descriptor, in this order, and no others. Required in a policy with a domain, where no other
    /// condition is allowed. Not allowed in other policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub descriptor: Vec<EntryMatch>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u8) -> bool {
    *number == 0
}

/// A header or query parameter, one of whose occurrences must have this exact value or a value that starts with this
/// prefix. If neither is set, any value matches. `value` and `prefix` must not both be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FieldMatch {
    /// The name.
    pub name: String,
    /// The whole value, compared byte by byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The start of the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// An entry of a descriptor with this name, and with this exact value or a value that starts with this prefix. If neither
/// is set, any value matches. `value` and `prefix` must not both be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EntryMatch {
    /// The name.
    pub name: String,
    /// The whole value, compared byte by byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The start of the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Values that do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except_values: Vec<String>,
    /// Starts of values that do not match. None of them is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except_prefixes: Vec<String>,
}

/// The unit that a rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Per {
    /// Requests. The opening request of a WebSocket connection counts as one request.
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

/// The units that a request takes from every limit of its rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Cost {
    /// The same number for each request, at least 1.
    Fixed(u64),
    /// The number in this header of the request, at least 1 and at most `most`. 1 if the request has no such header.
    RequestHeader {
        /// The name of the header.
        name: String,
        /// The largest cost of one request. At least 1.
        most: u64,
    },
    /// 1 at first. When the app has answered, the rest of the number in this header of the response is charged, at most
    /// `most`. If the number is 0, the 1 is given back. Every limit of the rule is a [`Strategy::TokenBucketWithDebt`],
    /// unless `most` is 1.
    ResponseHeader {
        /// The name of the header, which the agent removes from the response.
        name: String,
        /// The largest cost of one request. At least 1.
        most: u64,
    },
    /// 1 at first, and then the bytes of the request's body as they pass, so that `requests` is a number of bytes. Every
    /// limit of the rule is a [`Strategy::TokenBucketWithDebt`].
    RequestBytes,
    /// 1 at first, and then the bytes of the response's body as they pass, so that `requests` is a number of bytes.
    /// Every limit of the rule is a [`Strategy::TokenBucketWithDebt`].
    ResponseBytes,
}

/// One part of a key: requests with different values are counted separately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum KeyPart {
    /// The value of the first header with this name. Requests without this header share one key.
    #[serde(rename = "header")]
    Header(String),
    /// The client's address.
    #[serde(rename = "clientIP")]
    ClientIp {
        /// The number of proxies in front of the agent that are trusted to append to `X-Forwarded-For`. If it is 0, or
        /// if the header has fewer entries, the peer address is the client's address.
        #[serde(rename = "trustedHops")]
        trusted_hops: u8,
        /// The number of leading bits, 1 to 128. IPv6 clients whose addresses are equal in these bits share one count.
        #[serde(rename = "ipv6Prefix")]
        ipv6_prefix: u8,
    },
    /// The value of the first cookie with this name. Requests without this cookie share one key.
    #[serde(rename = "cookie")]
    Cookie(String),
    /// The first value of this query parameter, decoded as in a form. Requests without this parameter share one key.
    #[serde(rename = "query")]
    Query(String),
    /// This segment of the path's normal form, counted from 1. Requests with a shorter path share one key.
    #[serde(rename = "pathSegment")]
    PathSegment(u8),
    /// The path's normal form, without a final slash.
    #[serde(rename = "path")]
    Path {},
    /// The host of the request, in lower case and without port.
    #[serde(rename = "host")]
    Host {},
    /// The method.
    #[serde(rename = "method")]
    Method {},
    /// A claim of a JSON Web Token. Requests without this claim share one key. The token is verified only if the agent
    /// has a JWKS. Then only claims of a valid token count.
    #[serde(rename = "jwtClaim")]
    JwtClaim {
        /// The header with the token, with or without `Bearer ` before the token.
        header: String,
        /// The name of the claim. `a.b` is the field `b` of `a`. The value is a string, a number or a boolean.
        claim: String,
    },
    /// The value of the first entry with this name in a descriptor. Descriptors without this entry share one key.
    /// Required kind of part in a policy with a domain, and not allowed in other policies.
    #[serde(rename = "descriptor")]
    Descriptor(String),
}

/// One limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limit {
    /// The name, which is unique within the rule. Counts belong to the name.
    pub name: String,
    /// The algorithm that counts requests.
    pub strategy: Strategy,
    /// The number of requests per period, at least 1.
    pub requests: u64,
    /// The length of the period in milliseconds, at least 1.
    pub period_millis: u64,
    /// The number of requests that can be admitted at the same time. For [`Strategy::LeakyBucket`], the number of
    /// requests that can wait in the queue. At least 1. Absent for windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// The number of requests by which a [`Strategy::TokenBucketWithDebt`] can be overdrawn. 0 if absent. Always absent
    /// for other strategies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debt: Option<u64>,
}

/// The algorithm that counts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// `requests` per window. Windows are aligned to Unix time.
    FixedWindow,
    /// The requests of this window, plus a share of the previous window's requests. The share is the part of the
    /// previous window that is less than one period old. `requests` is at most 2^30.
    SlidingWindowCounter,
    /// Never more than `requests` in any period. The limiter stores the time of each request. `requests` is at most
    /// 2^20.
    SlidingWindowLog,
    /// A steady rate. Up to `burst` unused requests are saved. `burst` defaults to `requests`.
    TokenBucket,
    /// A TokenBucket that can be overdrawn by `debt` and pays the debt back.
    TokenBucketWithDebt,
    /// Requests at even intervals. Up to `burst` requests wait in the queue. `burst` defaults to `requests`.
    LeakyBucket,
    /// A steady rate with strict intervals. `burst` defaults to 1.
    #[serde(rename = "GCRA")]
    Gcra,
}

/// How many requests of a rule may be in flight: admitted, with a response that has not ended yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Concurrency {
    /// The name of the limit.
    pub name: String,
    /// How many requests of a key may be in flight; of all requests without a `key`. At least 1.
    pub limit: u64,
    /// Other numbers for some keys. Only with a `key`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<ConcurrencyOverride>,
}

/// Another number for some keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConcurrencyOverride {
    /// The keys: each has one value for each part of the rule's `key`, in the same order.
    pub keys: Vec<Vec<String>>,
    /// How many requests of such a key may be in flight. At least 1.
    pub limit: u64,
}

/// When a key is banned, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ban {
    /// The number of refusals of a key that start a ban, 1 to [`MOST_BAN_AFTER`](crate::MOST_BAN_AFTER).
    pub after: u32,
    /// The time in which these refusals happen. At least 1.
    pub within_millis: u64,
    /// The length of the ban, which begins with the last of these refusals. At least 1.
    pub for_millis: u64,
}

/// Other limits of a rule for some keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Override {
    /// The keys. Each key has one value for each part of the rule's `key`, in the same order.
    pub keys: Vec<Vec<String>>,
    /// The limits that replace the rule's limits of the same names. The other limits stay.
    pub limits: Vec<Limit>,
}

/// The handling of a request beyond a limit: its wait, and the response to a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnLimit {
    /// The longest wait of a request for its turn. If its turn would come later, the request is refused immediately. If
    /// absent or 0, requests do not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_millis: Option<u64>,
    /// The HTTP status of a refusal, 400 to 599.
    pub status: u16,
    /// The headers that report the quota to the client. `Retry-After` is sent with every refusal.
    pub headers: HeaderStyle,
    /// The responses that get these headers.
    #[serde(default, skip_serializing_if = "HeadersOn::is_all")]
    pub headers_on: HeadersOn,
    /// Additional headers of a refusal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<ResponseHeader>,
    /// The body of a refusal. If absent, a JSON object with the name of the limit that refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The media type of the body. If absent, `application/json` for the agent's own body, and `text/plain;
    /// charset=utf-8` for `body`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The handling of a message beyond a limit, in a rule with [`Per::Message`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_message: Option<OnMessage>,
}

/// The response to a request that exceeds the deadline of its policy. gRPC clients get `DEADLINE_EXCEEDED` instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnDeadline {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// The body. If absent, a line that names the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The media type of the body. If absent, `text/plain; charset=utf-8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}

/// The handling of a message beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnMessage {
    /// The message does not reach the app. The client receives a text message: the body, or a JSON object with the name
    /// of the limit that refused.
    #[default]
    Notice,
    /// The connection is closed with code 1008.
    Close,
}

/// A header of responses, which replaces the app's header of this name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResponseHeader {
    /// The name.
    pub name: String,
    /// The value: text with the placeholders `{remaining}`, `{limit}`, `{resetAfter}`, `{policy}` and `{rule}`.
    pub value: String,
}

/// The responses that get the headers about the client's quota.
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

/// The headers that report the quota to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers).
    #[serde(rename = "IETF")]
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`.
    Legacy,
    /// Both kinds of headers.
    Both,
    /// No such headers.
    None,
}

impl HeaderStyle {
    /// Returns the names of the headers, in lower case.
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
