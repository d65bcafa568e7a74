//! Compares the answers to random questions, in binary form and as JSON, with a plain model of the rules. The messages are
//! written here from Envoy's proto files, without the agent's types.

use std::collections::HashMap;

use futures::FutureExt as _;
use prost::Message as _;
use serde_json::{Value, json};
use weir_enforce::{AmbiguousPaths, GateOptions, LiveRules, Stores, lower};
use weir_fuzz::{Choices, Target};
use weir_tower::MonotonicClock;

use super::{
    answer::{InvalidQuestion, answer},
    codec::decode_question,
    messages::{Code, RateLimitRequest},
    quota::{BucketUsage, usages},
    wire::whole_fields,
};

/// The limits of the rules `user`, which accepts limits up to `LARGEST`, and `tenant`.
const OF_USER: u64 = 5;
const LARGEST: u64 = 12;
const OF_TENANT: u64 = 9;

/// Keys, their values, and the values as texts.
const VALUES: [(&str, (&[u8], &str)); 6] = [
    ("user", (b"ann", "ann")),
    ("user", (b"bob", "bob")),
    ("user", (b"\xffbob", "\u{fffd}bob")),
    ("user", (b"\xfebob", "\u{fffd}bob")),
    ("tenant", (b"x", "x")),
    ("tenant", (b"y", "y")),
];

#[test]
fn any_question_is_refused_or_answered_as_the_model_does() {
    Target::new("questions").longest(400).run(500, |bytes| {
        let mut choices = Choices(bytes);
        let (binary, json, garbage) = (rules()?, rules()?, rules()?);
        let mut model = Model::default();
        while !choices.is_over() {
            let question = Question::any(&mut choices);
            let expected = model.is_admitted(&question);
            let bytes = question.binary();
            let asked = decode_question(&bytes).map_err(|invalid| invalid.to_string())?;
            let of_binary = decided(&binary, &asked)?;
            let asked = serde_json::from_value(question.json()).map_err(|error| error.to_string())?;
            let of_json = decided(&json, &asked)?;
            if [of_binary, of_json] != [expected; 2] {
                return Err(format!("{question:?}: {of_binary:?} and {of_json:?} as JSON, and {expected:?} is right"));
            }
            garbled(&garbage, bytes, &mut choices)?;
        }
        Ok(())
    });
}

/// The service answers or refuses a question with changed bytes, and does not panic.
fn garbled(rules: &LiveRules, mut bytes: Vec<u8>, choices: &mut Choices<'_>) -> Result<(), String> {
    for _ in 0..choices.below(4) {
        let place = choices.below(bytes.len());
        if let Some(byte) = bytes.get_mut(place) {
            *byte = choices.byte();
        }
    }
    bytes.truncate(bytes.len() - choices.below(4).min(bytes.len()));
    let (decoded, checked) = (RateLimitRequest::decode(&*bytes), decode_question(&bytes));
    let is_same = match (&checked, &decoded) {
        (Ok(checked), Ok(decoded)) => checked == decoded,
        (Err(InvalidQuestion::Malformed(_)), decoded) => decoded.is_err(),
        (Err(_), _) => true,
        (Ok(_), Err(_)) => false,
    };
    if !is_same {
        return Err(format!("{bytes:?} is {checked:?}, and {decoded:?} for prost"));
    }
    if let Ok(asked) = decoded {
        decided(rules, &asked)?;
    }
    if let Ok(asked) = serde_json::from_slice::<RateLimitRequest>(&bytes) {
        decided(rules, &asked)?;
    }
    let (start, rest) = bytes.split_at(whole_fields(&bytes[..choices.below(bytes.len() + 1)]));
    if !usages(start).chain(usages(rest)).map_while(Result::ok).eq(usages(&bytes).map_while(Result::ok)) {
        return Err(format!("{start:?} and {rest:?} as parts of a report are not the whole report"));
    }
    for (usage, count) in usages(&bytes).map_while(Result::ok) {
        // An entry with the key of another one replaces it.
        if BucketUsage::decode(usage).is_ok_and(|usage| usage.bucket_id.unwrap_or_default().bucket.len() > count) {
            return Err(format!("{usage:?} has more than {count} entries"));
        }
    }
    Ok(())
}

/// Whether a question is admitted. `None` if it is invalid.
fn decided(rules: &LiveRules, asked: &RateLimitRequest) -> Result<Option<bool>, String> {
    // Without a store, every answer is available immediately.
    match answer(rules, asked).now_or_never().ok_or("the answer waits")? {
        Ok(response) if response.statuses.len() == asked.descriptors.len() => {
            Ok(Some(response.overall_code == i32::from(Code::Ok)))
        }
        Ok(response) => Err(format!("{asked:?} has {} statuses", response.statuses.len())),
        Err(invalid) if invalid.to_string().starts_with('d') => Ok(None),
        Err(invalid) => Err(format!("{invalid}: names no field")),
    }
}

fn rules() -> Result<LiveRules, String> {
    let clock = MonotonicClock::start();
    let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: false });
    let limit = |requests: u64| {
        let day = 86_400_000;
        json!([{"name": "l", "strategy": "TokenBucket", "requests": requests, "periodMillis": day, "burst": requests}])
    };
    let of_rules = json!([
        {"name": "user", "action": "Limit", "match": [{"descriptor": [{"name": "user"}]}], "limits": limit(OF_USER),
         "key": [{"descriptor": "user"}], "maxKeys": 16,
         "limitOverride": {"maxRequests": LARGEST, "periodMillis": 86_400_000}},
        {"name": "tenant", "action": "Limit", "match": [{"descriptor": [{"name": "tenant", "value": "x"}]}],
         "limits": limit(OF_TENANT)},
    ]);
    let policy = json!({"uid": "u", "namespace": "n", "name": "p", "revision": "r", "mode": "Enforce", "domain": "shop",
        "rules": of_rules});
    let snapshot = json!({"wireVersion": 1, "sequence": 1, "revision": "r", "policies": [policy]});
    let snapshot: weir_wire::Snapshot = serde_json::from_value(snapshot).map_err(|error| error.to_string())?;
    let lowered = lower(&snapshot).map_err(|faults| format!("{faults:?}"))?;
    {
        let guard = rules.write();
        guard.replace(guard.rules().with_snapshot(snapshot, lowered, &Stores::new(), || clock.now()));
    }
    Ok(rules)
}

#[derive(Debug)]
struct Question {
    hits: u32,
    descriptors: Vec<Descriptor>,
}

#[derive(Debug)]
struct Descriptor {
    key: &'static str,
    /// The bytes in the binary message, and the text that the rules see.
    value: (&'static [u8], &'static str),
    hits: Option<u64>,
    is_negative: bool,
    /// The requests, and the unit as a number and a name.
    limit: Option<(u32, (u64, &'static str))>,
}

impl Question {
    fn any(choices: &mut Choices<'_>) -> Self {
        let descriptors = (0..choices.below(5))
            .map(|_| {
                let (key, value) = *choices.one(&VALUES);
                let hits =
                    *choices.one(&[None, None, Some(0), Some(1), Some(2), Some(5), Some(7), Some(13), Some(u64::MAX)]);
                let requests = *choices.one(&[1, 3, 8, 12, 20, u32::MAX]);
                let limit = (requests, (4, "DAY"));
                let odd = *choices.one(&[(0, (4, "DAY")), (3, (0, "UNKNOWN")), (3, (5, "MONTH"))]);
                let limit = if choices.rarely(20) { Some(odd) } else { choices.rarely(2).then_some(limit) };
                Descriptor { key, value, hits, is_negative: choices.rarely(3), limit }
            })
            .collect();
        Self { hits: *choices.one(&[0, 0, 1, 3]), descriptors }
    }

    fn binary(&self) -> Vec<u8> {
        let mut bytes = text(1, b"shop");
        for one in &self.descriptors {
            let entry = [text(1, one.key.as_bytes()), text(2, one.value.0)].concat();
            let mut descriptor = text(1, &entry);
            if let Some((requests, (unit, _))) = one.limit {
                descriptor.extend(text(2, &[number(1, requests.into()), number(2, unit)].concat()));
            }
            if let Some(hits) = one.hits {
                descriptor.extend(text(3, &number(1, hits)));
            }
            descriptor.extend(number(4, one.is_negative.into()));
            bytes.extend(text(2, &descriptor));
        }
        bytes.extend(number(3, self.hits.into()));
        bytes
    }

    fn json(&self) -> Value {
        let descriptors: Vec<_> = (self.descriptors.iter())
            .map(|one| {
                let mut descriptor = json!({"entries": [{"key": one.key, "value": one.value.1}]});
                if let Some((requests, (number, unit))) = one.limit {
                    // JSON has enums as their names or numbers.
                    let unit = if one.is_negative { json!(number) } else { json!(unit) };
                    descriptor["limit"] = json!({"requestsPerUnit": requests, "unit": unit});
                }
                if let Some(hits) = one.hits {
                    descriptor["hitsAddend"] = json!(hits.to_string());
                }
                descriptor["isNegativeHits"] = json!(one.is_negative);
                descriptor
            })
            .collect();
        json!({"domain": "shop", "descriptors": descriptors, "hitsAddend": self.hits})
    }
}

/// A field with a length.
fn text(tag: u64, bytes: &[u8]) -> Vec<u8> {
    [varint(tag << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// A field with a number.
fn number(tag: u64, value: u64) -> Vec<u8> {
    [varint(tag << 3), varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
}

/// A limit: its rule, its key, and the requests and the unit in a descriptor.
type Limit = (&'static str, &'static str, Option<(u32, u64)>);

/// The used units of each limit.
#[derive(Default)]
struct Model {
    used: HashMap<Limit, u64>,
}

impl Model {
    fn is_admitted(&mut self, question: &Question) -> Option<bool> {
        if question.descriptors.is_empty() {
            return None;
        }
        let mut after = self.used.clone();
        let (mut admitted, mut credits) = (true, Vec::new());
        for one in &question.descriptors {
            // A limit with an unknown unit is ignored.
            let brought = one.limit.map(|(requests, (unit, _))| (requests, unit)).filter(|(_, unit)| *unit > 0);
            if one.key == "user" && brought.is_some_and(|(requests, _)| requests == 0) {
                admitted &= one.is_negative;
                continue;
            }
            let (limit, most) = match (one.key, one.value.1, brought) {
                ("user", value, None) => (("user", value, None), OF_USER),
                ("user", value, Some((requests, unit))) => {
                    (("user", value, Some((requests, unit))), u64::from(requests).min(LARGEST))
                }
                ("tenant", "x", _) => (("tenant", "x", None), OF_TENANT),
                _ => continue,
            };
            let units = one.hits.unwrap_or_else(|| question.hits.max(1).into());
            let used = after.entry(limit).or_default();
            if one.is_negative {
                credits.push((limit, units));
            } else if units == 0 {
                // A check sees only what was charged before the question.
                admitted &= self.used.get(&limit).copied().unwrap_or_default() < most;
            } else {
                *used = used.saturating_add(units);
                admitted &= *used <= most;
            }
        }
        if admitted {
            self.used = after;
            for (limit, units) in credits {
                let used = self.used.entry(limit).or_default();
                *used = used.saturating_sub(units);
            }
        }
        Some(admitted)
    }
}
