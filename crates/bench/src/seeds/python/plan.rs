//! What a contender serves and limits: one plan, from which the Python app gets its routes and limits, and the agent its
//! policy. A limiter that is compared with another one must get the same numbers.

use serde::Serialize;
use serde_json::{Value, json};

use super::counting::Counting;

/// The header with the key of a request.
pub(super) const KEY: &str = "x-key";
/// So long that no window ends and no bucket refills during a run.
pub(super) const DAY: u64 = 24 * 3600 * 1000;
/// A rate that no contender reaches.
pub(super) const UNREACHED: u64 = 1_000_000;

/// Served without a limit, and by the same process.
pub(super) const FREE: &str = "/health";

#[derive(Clone, Serialize)]
pub(super) struct Plan {
    pub(super) routes: Vec<Route>,
}

/// A path of the app, and the limit on it.
#[derive(Clone, Serialize)]
pub(super) struct Route {
    pub(super) path: String,
    pub(super) limit: Option<Limit>,
    /// It is a WebSocket that sends each message back, and messages are limited instead of requests.
    pub(super) messages: bool,
    pub(super) fields: Fields,
    /// Conditions of traffik, all of which must hold for its limit to apply.
    pub(super) gates: Vec<Gate>,
    /// The rules of the agent, if they are not one rule for the path.
    #[serde(skip)]
    pub(super) rules: Option<Vec<Selection>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Strategy {
    FixedWindow,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    TokenBucketWithDebt,
    LeakyBucket,
    #[serde(rename = "GCRA")]
    Gcra,
}

pub(super) const STRATEGIES: [Strategy; 7] = [
    Strategy::FixedWindow,
    Strategy::SlidingWindowCounter,
    Strategy::SlidingWindowLog,
    Strategy::TokenBucket,
    Strategy::TokenBucketWithDebt,
    Strategy::LeakyBucket,
    Strategy::Gcra,
];

#[derive(Clone, Copy, Serialize)]
pub(super) struct Limit {
    pub(super) strategy: Strategy,
    pub(super) requests: u64,
    pub(super) millis: u64,
    pub(super) burst: Option<u64>,
    pub(super) debt: Option<u64>,
    /// How long a request may wait for its turn. Only the agent holds requests.
    #[serde(skip)]
    pub(super) wait: Option<u64>,
}

/// The header fields of a response.
#[derive(Clone, Copy, Serialize)]
pub(super) enum Fields {
    None,
    /// Those that the limiter offers.
    Standard,
    /// Fields of the user's own.
    Own(&'static [(&'static str, &'static str)]),
    /// Fields of the user's own, in refusals only. Only the agent has them.
    OwnOfRefusals(&'static [(&'static str, &'static str)]),
}

/// A condition of traffik: a path or a regular expression that must match, or must not.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Gate {
    pub(super) bypass: bool,
    pub(super) path: &'static str,
    pub(super) regex: bool,
}

/// The requests of one rule of the agent.
#[derive(Clone, Copy)]
pub(super) enum Selection {
    All,
    Path(&'static str),
    Regex(&'static str),
    Bypass(&'static str),
}

impl Strategy {
    /// As in a policy.
    pub(super) fn name(self) -> String {
        if self == Self::Gcra { "GCRA".to_owned() } else { format!("{self:?}") }
    }
}

impl Route {
    pub(super) fn free() -> Self {
        Self { path: FREE.to_owned(), limit: None, ..Self::limited(FREE, Limit::unreached()) }
    }

    pub(super) fn limited(path: impl Into<String>, limit: Limit) -> Self {
        let (fields, gates) = (Fields::None, Vec::new());
        Self { path: path.into(), limit: Some(limit), messages: false, fields, gates, rules: None }
    }
}

impl Limit {
    pub(super) fn window(requests: u64) -> Self {
        Self { strategy: Strategy::FixedWindow, requests, millis: DAY, burst: None, debt: None, wait: None }
    }

    pub(super) fn unreached() -> Self {
        Self::window(UNREACHED)
    }

    /// The limit of each strategy that lets this many requests pass at the same time, as far as it can.
    pub(super) fn at_once(strategy: Strategy, requests: u64, millis: u64) -> Self {
        let debt = (strategy == Strategy::TokenBucketWithDebt).then_some(requests / 5);
        let burst = match strategy {
            Strategy::TokenBucketWithDebt => Some(requests - requests / 5),
            Strategy::TokenBucket | Strategy::Gcra | Strategy::LeakyBucket => Some(requests),
            Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => None,
        };
        Self { strategy, requests, millis, burst, debt, wait: None }
    }
}

impl Plan {
    pub(super) fn of(routes: impl IntoIterator<Item = Route>) -> Self {
        Self { routes: routes.into_iter().chain([Route::free()]).collect() }
    }

    /// The rules of the agent, each with the same scope.
    pub(super) fn rules(&self, counting: &Counting) -> Vec<Value> {
        let mut rules = self.rules_of_pods();
        for rule in &mut rules {
            counting.share(rule);
        }
        rules
    }

    fn rules_of_pods(&self) -> Vec<Value> {
        let limited = self.routes.iter().enumerate().filter_map(|(number, route)| Some((number, route, route.limit?)));
        limited.flat_map(|(number, route, limit)| route.policy(number, limit)).collect()
    }
}

impl Route {
    fn policy(&self, number: usize, limit: Limit) -> Vec<Value> {
        let Some(selections) = &self.rules else {
            return vec![self.rule(&format!("route-{number}"), &json!([{ "paths": [self.path] }]), limit)];
        };
        let rule = |(place, selection): (usize, &Selection)| {
            let name = format!("route-{number}-{place}");
            match selection {
                Selection::All => self.rule(&name, &json!([]), limit),
                Selection::Path(path) => self.rule(&name, &json!([{ "paths": [path] }]), limit),
                Selection::Regex(regex) => self.rule(&name, &json!([{ "pathRegexes": [regex] }]), limit),
                Selection::Bypass(path) => json!({ "name": name, "action": "Bypass", "match": [{ "paths": [path] }] }),
            }
        };
        selections.iter().enumerate().map(rule).collect()
    }

    fn rule(&self, name: &str, matches: &Value, limit: Limit) -> Value {
        let mut strategy = json!({
            "name": "limit",
            "strategy": limit.strategy,
            "requests": limit.requests,
            "periodMillis": limit.millis,
        });
        if let Some(burst) = limit.burst {
            strategy["burst"] = json!(burst);
        }
        if let Some(debt) = limit.debt {
            strategy["debt"] = json!(debt);
        }
        let headers = if matches!(self.fields, Fields::Standard) { "IETF" } else { "None" };
        let mut rule = json!({
            "name": name,
            "action": "Limit",
            "match": matches,
            "key": [{ "header": KEY }],
            "limits": [strategy],
            "onLimit": { "status": 429, "headers": headers },
        });
        if let Some(wait) = limit.wait {
            rule["onLimit"]["maxWaitMillis"] = json!(wait);
        }
        if self.messages {
            rule["per"] = json!("Message");
            rule["onLimit"]["onMessage"] = json!("Notice");
        }
        let own = |own: &[(&str, &str)]| -> Value {
            own.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
        };
        match self.fields {
            Fields::None | Fields::Standard => {}
            Fields::Own(fields) => rule["responseHeaders"] = own(fields),
            Fields::OwnOfRefusals(fields) => rule["onLimit"]["set"] = own(fields),
        }
        rule
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_get_the_same_numbers() {
        let limit = Limit::at_once(Strategy::TokenBucketWithDebt, 100, DAY);
        let plan = Plan::of([Route::limited("/a", limit)]);
        let app = serde_json::to_value(&plan).expect("plain data");
        let (theirs, rules) = (&app["routes"][0]["limit"], plan.rules(&Counting::in_memory()));
        let ours = &rules[0]["limits"][0];
        for (app, agent) in [("strategy", "strategy"), ("requests", "requests"), ("millis", "periodMillis")] {
            assert_eq!(theirs[app], ours[agent]);
        }
        assert_eq!((&theirs["burst"], &theirs["debt"]), (&json!(80), &json!(20)));
        assert_eq!((&ours["burst"], &ours["debt"]), (&json!(80), &json!(20)));
        assert_eq!(app["routes"][1]["path"], FREE, "a path without a limit is there, too");
        assert_eq!(rules.len(), 1, "and the agent has no rule for it");
    }
}
