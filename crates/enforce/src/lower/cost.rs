//! Lowers the `cost` of a rule.

use weir_core::Terms;
use weir_wire::{Per, Rule};

use super::faults::{Faults, Path};
use crate::cost::{Cost, HeaderCost};

/// Lowers a cost. `terms` is `None` if the limits have faults.
pub(super) fn lower_cost(rule: &Rule, terms: Option<&Terms>, path: &Path, faults: &mut Faults) -> Option<Cost> {
    let at = path.field("cost");
    let cost = match &rule.cost {
        None => Cost::Fixed(1),
        Some(weir_wire::Cost::Fixed(cost)) => {
            let at = at.field("fixed");
            if *cost == 0 {
                faults.add(&at, "must be at least 1: a rule with action Bypass charges nothing");
                return None;
            }
            Cost::Fixed(*cost)
        }
        Some(weir_wire::Cost::RequestHeader { name, most }) => {
            Cost::RequestHeader(header_cost(name, *most, &at.field("requestHeader"), faults)?)
        }
        Some(weir_wire::Cost::ResponseHeader { name, most }) => {
            Cost::ResponseHeader(header_cost(name, *most, &at.field("responseHeader"), faults)?)
        }
        Some(weir_wire::Cost::RequestBytes) => Cost::RequestBytes,
        Some(weir_wire::Cost::ResponseBytes) => Cost::ResponseBytes,
    };
    if let (Cost::Fixed(cost), Some(terms)) = (&cost, terms) {
        too_much(*cost, rule, terms, &at.field("fixed"), faults)?;
    }
    if cost.is_known_later() {
        if rule.per == Per::Message {
            faults.add(&at, "a message has no body and no response: use a `fixed` cost");
            return None;
        }
        // With at most 1, no request costs more than on its arrival.
        if !matches!(cost, Cost::ResponseHeader(HeaderCost { most: 1, .. })) {
            only_with_debt(rule, path, faults)?;
        }
    }
    Some(cost)
}

fn header_cost(name: &str, most: u64, at: &Path, faults: &mut Faults) -> Option<HeaderCost> {
    let name = super::conditions::header_name(name, &at.field("name"), faults);
    if most == 0 {
        faults.add(&at.field("most"), "must be at least 1");
        return None;
    }
    Some(HeaderCost { name: name?, most })
}

/// Checks that no limit refuses every request because the cost is more than the limit can ever admit.
fn too_much(cost: u64, rule: &Rule, terms: &Terms, at: &Path, faults: &mut Faults) -> Option<()> {
    let sets = std::iter::once(None).chain((0..rule.overrides.len()).map(Some));
    let mut limits = sets.flat_map(|set| terms.limits().map(|(name, _)| name).zip(terms.quotas(set)));
    match limits.find(|(_, quota)| cost > quota.most()) {
        None => Some(()),
        Some((name, quota)) => {
            let most = quota.most();
            faults
                .add(at, format!("{name} admits {most} at once, so no request can pass: lower it or raise the burst"));
            None
        }
    }
}

/// Checks that all limits of a rule with a deferred cost allow debt, because the request passes before its cost is
/// known.
fn only_with_debt(rule: &Rule, path: &Path, faults: &mut Faults) -> Option<()> {
    let limits = path.field("limits");
    let own = rule.limits.iter().enumerate().map(|(index, limit)| (limits.index(index), limit));
    let overrides = rule.overrides.iter().enumerate().flat_map(|(index, one)| {
        let limits = path.field("overrides").index(index).field("limits");
        one.limits.iter().enumerate().map(move |(index, limit)| (limits.index(index), limit))
    });
    let mut all = Some(());
    for (at, limit) in own.chain(overrides) {
        if limit.strategy != weir_wire::Strategy::TokenBucketWithDebt {
            let message = "this cost needs TokenBucketWithDebt, because it is known too late for a refusal";
            faults.add(&at.field("strategy"), message);
            all = None;
        }
    }
    all
}
