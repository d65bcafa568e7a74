//! The last good generation of a policy, as its status stores it. An operator that has never received that generation
//! restores it from the status and enforces it.
//!
//! Every user with write access to the status can change the stored generation. So it is validated like a new policy,
//! by the schema, the CEL rules and the compiler, and it can target only pods in the policy's own namespace. A user who
//! can write the status can enforce nothing that a user who can write the policy cannot enforce.
//!
//! An operator stores only what it has compiled. So if this operator cannot read or compile the stored generation, or
//! read a store that it uses, an operator of another version has accepted it, for example before a rollback. Without an
//! unknown field, the rules could mean something else, so this operator does not enforce them. It keeps the generation in
//! the status as it is, and pushes nothing to agents that enforce the policy.
//!
//! If the reason is a store that this operator reads, or that was deleted, the version is not the reason, and the rules end.
//! Otherwise, a user who can change a store could stop the changes of all policies of these pods.

use std::sync::Arc;

use serde_json::Value;
use weir_api::{
    LastKnownGood, RateLimitPolicy, RateLimitPolicySpec,
    check::{self, FaultKind},
};

use super::{
    CompiledPolicy, Sharing, Target, compile_with,
    shared::{KnownStores, names_unreadable_store},
};
use crate::world::{Fault, Policy};

const PATH: &str = "status.lastKnownGood";

/// A generation that this operator can enforce, or only one of another version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoodGeneration {
    generation: i64,
    /// The spec as JSON, or `None` if it is too long to store.
    spec: Option<Arc<str>>,
}

impl GoodGeneration {
    /// Returns the policy's current generation.
    pub(super) fn new(policy: &Policy, spec: &RateLimitPolicySpec) -> Self {
        // For a policy in a file, the status is a separate file without a size limit.
        let most = if policy.file.is_some() { usize::MAX } else { LastKnownGood::LONGEST };
        Self { generation: policy.generation, spec: as_json(spec, most) }
    }

    /// Returns the generation's number.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Returns the value to store in the status, or `None` if the spec is too long.
    pub fn to_stored(&self) -> Option<LastKnownGood> {
        let spec = self.spec.as_deref()?.to_owned();
        Some(LastKnownGood { generation: self.generation, spec })
    }
}

#[cfg(test)]
impl GoodGeneration {
    /// Returns a generation with this number.
    pub(crate) fn claiming(generation: i64) -> Self {
        Self { generation, spec: Some("{}".into()) }
    }
}

/// Returns the JSON of a spec, or `None` if it is too long to store.
fn as_json(spec: &RateLimitPolicySpec, most: usize) -> Option<Arc<str>> {
    let json = serde_json::to_string(spec).expect("a spec is plain data, which always serializes to JSON");
    (json.len() <= most).then(|| Arc::from(json))
}

/// The reason why a stored generation is not enforced.
#[derive(Debug)]
pub(super) enum Unusable {
    /// Stores that it uses were deleted, or cannot count it.
    Stores(Vec<Fault>),
    /// This operator cannot read or compile it, or read a store that it uses.
    Unreadable(Vec<Fault>, GoodGeneration),
}

/// Compiles the generation that a status stores.
pub(super) fn restore(
    uid: &str,
    kept: &LastKnownGood,
    sharing: Sharing<'_>,
) -> Result<((CompiledPolicy, Target), GoodGeneration), Unusable> {
    let key = sharing.policy;
    let fault = |message: String| Fault { path: PATH.to_owned(), message };
    let is_not = |what: &dyn std::fmt::Display| fault(format!("is not valid either: {what}"));
    let generation = kept.generation;
    let unreadable =
        |faults| Unusable::Unreadable(faults, GoodGeneration { generation, spec: Some(kept.spec.as_str().into()) });
    let spec: Value = serde_json::from_str(&kept.spec).map_err(|error| unreadable(vec![is_not(&error)]))?;
    let policy = check::parse(&key.document::<RateLimitPolicy>(&spec)).map_err(|faults| {
        unreadable(match faults.iter().find(|fault| fault.kind != FaultKind::Invalid) {
            Some(check::Fault { path, kind, .. }) => {
                let what = if *kind == FaultKind::UnknownValue { "a value in" } else { "the field" };
                vec![fault(format!("generation {generation} has {what} {path}, which this operator does not know"))]
            }
            None => faults.iter().map(|it| is_not(it)).collect(),
        })
    })?;
    let compiled = compile_with(uid, &policy.spec, sharing).map_err(|faults| {
        let faults = faults.iter().map(|it| is_not(it)).collect();
        if is_fault_of_stores(uid, &policy.spec, sharing) { Unusable::Stores(faults) } else { unreadable(faults) }
    })?;
    let good = GoodGeneration { generation, spec: as_json(&policy.spec, LastKnownGood::LONGEST.max(kept.spec.len())) };
    Ok((compiled, good))
}

/// Returns true if a spec that does not compile would compile with other stores, and if this operator can read all
/// present ones.
fn is_fault_of_stores(uid: &str, spec: &RateLimitPolicySpec, sharing: Sharing<'_>) -> bool {
    let without = Sharing { stores: KnownStores::Unknown, ..sharing };
    !names_unreadable_store(spec, sharing) && compile_with(uid, spec, without).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::{
        super::{Compiled, Compiler, tests::key},
        *,
    };
    use crate::world::{DirtySet, World};

    fn rule(requests: u32) -> Value {
        json!({"name": "all", "limits": [{"name": "a", "requests": requests, "per": "1s"}]})
    }

    fn spec(rules: &Value) -> Value {
        json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules})
    }

    fn policy(generation: i64, rules: &Value) -> Policy {
        Policy::of_spec("uid", generation, spec(rules))
    }

    fn bad(generation: i64) -> Policy {
        policy(generation, &json!([{"name": "all", "match": [{"pathRegexes": ["("]}], "limits": rule(9)["limits"]}]))
    }

    /// Returns the result of compiling these policies in order, each with the generation that its status stores at that
    /// time.
    fn compiled(seen: Vec<(Policy, Option<LastKnownGood>)>) -> Compiled {
        let mut compiler = Compiler::default();
        for (policy, kept) in seen {
            let world = World::of_policies(BTreeMap::from([(key(), policy)]));
            let mut dirty = DirtySet { policies: [key()].into(), ..DirtySet::default() };
            compiler.update(&world, &mut dirty, |_| kept.as_ref());
        }
        compiler.compiled()[&key()].clone()
    }

    fn requests(compiled: &Compiled) -> Option<u64> {
        Some(compiled.policy.as_ref()?.rules[0].limits[0].requests)
    }

    #[test]
    fn the_status_stores_what_was_enforced() {
        let good = compiled(vec![(policy(3, &json!([rule(50)])), None)]);
        let kept = good.good.as_ref().and_then(GoodGeneration::to_stored).unwrap();
        assert_eq!(kept.generation, 3);
        let restored = compiled(vec![(bad(4), Some(kept.clone()))]);
        assert_eq!((restored.policy, restored.target, restored.good.clone()), (good.policy, good.target, good.good));
        assert_eq!((restored.generation, restored.faults.len()), (4, 1), "{:?}", restored.faults);
        // The status keeps the generation, so the next operator restores it, too.
        assert_eq!(restored.good.and_then(|good| good.to_stored()), Some(kept));
    }

    #[test]
    fn the_newest_known_generation_is_enforced() {
        let kept = |generation, requests| {
            let spec = spec(&json!([rule(requests)])).to_string();
            Some(LastKnownGood { generation, spec })
        };
        let good = |generation, requests| policy(generation, &json!([rule(requests)]));
        for (what, seen, expected, generation) in [
            ("the policy, while it is good", vec![(good(3, 50), kept(2, 40))], Some(50), Some(3)),
            ("no good generation is known", vec![(bad(3), None)], None, None),
            ("a remembered generation", vec![(good(3, 50), None), (bad(4), kept(2, 40))], Some(50), Some(3)),
            ("another operator's generation", vec![(good(3, 50), None), (bad(5), kept(4, 60))], Some(60), Some(4)),
            ("a stored generation that arrives later", vec![(bad(5), None), (bad(5), kept(4, 60))], Some(60), Some(4)),
            ("the policy, fixed", vec![(bad(4), kept(3, 40)), (good(5, 70), kept(3, 40))], Some(70), Some(5)),
        ] {
            let compiled = compiled(seen);
            let found = (requests(&compiled), compiled.good.map(|good| good.generation));
            assert_eq!(found, (expected, generation), "{what}");
        }
    }

    #[test]
    fn a_generation_that_is_refused_is_kept_and_not_enforced() {
        let with = |condition: &Value| {
            let rule = json!({"name": "all", "match": [condition], "limits": rule(50)["limits"]});
            spec(&json!([rule])).to_string()
        };
        for (spec, told) in [
            ("{".to_owned(), "EOF while parsing"),
            ("[]".to_owned(), "spec: Invalid value"),
            (spec(&json!([rule(0)])).to_string(), "spec.rules[0].limits[0].requests: Invalid value: 0"),
            (spec(&json!([{"name": "all"}])).to_string(), "spec.rules[0]"),
            (spec(&json!([rule(1), rule(2)])).to_string(), "spec.rules[1]: Duplicate value"),
            (with(&json!({"predicate": "request.newer == 'a'"})), "spec.rules[0].match[0].predicate"),
            (with(&json!({"predicate": "newer(request.path)"})), "spec.rules[0].match[0].predicate"),
            (with(&json!({"pathRegexes": ["(?<newer"]})), "spec.rules[0].match[0].pathRegexes[0]"),
        ] {
            let kept = LastKnownGood { generation: 1, spec };
            let seen = [(bad(2), Some(kept.clone())), (bad(3), None)];
            let later = compiled(seen.to_vec());
            assert_eq!(later.unreadable().and_then(GoodGeneration::to_stored), Some(kept.clone()), "later");
            let compiled = compiled(seen[..1].to_vec());
            assert!(compiled.policy.is_none() && compiled.target.is_none(), "{kept:?}");
            assert_eq!(compiled.unreadable().and_then(GoodGeneration::to_stored), Some(kept));
            let words: Vec<String> = compiled.faults.iter().map(ToString::to_string).collect();
            let mut of_status =
                words.iter().filter(|words| words.starts_with("status.lastKnownGood: is not valid either"));
            assert!(of_status.any(|words| words.contains(told)), "{told:?} is not in {words:?}");
        }
    }

    /// After a rollback, the cluster and the status have the spec of a newer operator.
    #[test]
    fn a_generation_with_unknown_fields_or_values_is_kept_and_not_enforced() {
        let newer = json!({"name": "all", "match": [{"newer": 1}], "limits": rule(50)["limits"]});
        let elsewhere =
            json!({"targetRefs": [{"kind": "Deployment", "name": "web", "namespace": "other"}], "rules": [rule(1)]});
        let action = json!({"name": "all", "action": "Newer", "limits": rule(50)["limits"]});
        for (spec, what) in [
            (spec(&json!([newer])).to_string(), "the field spec.rules[0].match[0].newer"),
            (elsewhere.to_string(), "the field spec.targetRefs[0].namespace"),
            (spec(&json!([action])).to_string(), "a value in spec.rules[0].action"),
        ] {
            let kept = LastKnownGood { generation: 4, spec };
            let seen = [(bad(4), Some(kept.clone())), (bad(5), None)];
            for count in 1..=seen.len() {
                let compiled = compiled(seen[..count].to_vec());
                assert!(compiled.policy.is_none() && compiled.target.is_none(), "{compiled:?}");
                assert_eq!(compiled.unreadable().and_then(GoodGeneration::to_stored), Some(kept.clone()), "{count}");
            }
            let told = compiled(seen[..1].to_vec()).faults.last().map(ToString::to_string);
            let expected = format!("{PATH}: generation 4 has {what}, which this operator does not know");
            assert_eq!(told, Some(expected));
            let fixed = compiled([&seen[..], &[(policy(6, &json!([rule(70)])), None)]].concat());
            assert_eq!((requests(&fixed), fixed.unreadable()), (Some(70), None));
        }
    }

    #[test]
    fn a_spec_too_long_for_the_status_is_not_stored() {
        let long = json!({"name": "all", "match": [{"paths": ["/a"]}], "limits": rule(50)["limits"]});
        let paths = |count: usize| {
            let mut rule = long.clone();
            rule["match"][0]["paths"] = (0..count).map(|number| format!("/{number:0>200}")).collect();
            json!([rule])
        };
        let kept = |count| compiled(vec![(policy(1, &paths(count)), None)]).good.and_then(|good| good.to_stored());
        assert!(kept(1000).is_some_and(|kept| kept.spec.len() < LastKnownGood::LONGEST));
        assert_eq!(kept(1400), None);
        // The generation stays in force as long as this operator remembers it.
        let remembered = compiled(vec![(policy(1, &paths(1400)), None), (bad(2), None)]);
        assert_eq!(requests(&remembered), Some(50));
        // The status of a file has no size limit.
        let in_file = Policy { file: Some("a.yaml".into()), ..policy(1, &paths(1400)) };
        assert!(compiled(vec![(in_file, None)]).good.is_some_and(|good| good.to_stored().is_some()));
    }
}
