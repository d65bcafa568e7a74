//! Compiles the ban of a rule, and refuses bans that agents cannot enforce.

use weir_api as api;
use weir_wire as wire;

use super::faults::Faults;

/// Reports a ban in a rule with action Bypass or Deny.
pub(super) fn check_absent(rule: &api::Rule, path: &str, faults: &mut Faults) {
    if rule.ban.is_some() {
        let message = "is valid only with action Limit, because other rules count no refusals: remove it";
        faults.add(format!("{path}.ban"), message);
    }
}

/// Compiles the ban of a rule with action Limit. `max_keys` is the number of keys that the rule tracks.
pub(super) fn ban(rule: &api::Rule, max_keys: Option<u32>, path: &str, faults: &mut Faults) -> Option<wire::Ban> {
    let ban = rule.ban.as_ref()?;
    if rule.key.is_empty() {
        let message = "needs a key, because without a key a ban would refuse the requests of all clients: add key";
        faults.add(format!("{path}.ban"), message);
    }
    if rule.limits.iter().any(|limit| limit.concurrent.is_some()) {
        let message = "is not valid with a concurrent limit: remove it, or add a rule with a rate and a ban";
        faults.add(format!("{path}.ban"), message);
    }
    if rule.per == api::Per::Message {
        faults.add(format!("{path}.ban"), "is not valid with per Message: remove it, or use per Request");
    }
    let compiled = wire::Ban {
        after: faults.number(format!("{path}.ban.after"), ban.after.into(), 1),
        within_millis: ban.within.as_ref().map_or(ban.length.as_millis(), api::BanWindow::as_millis),
        for_millis: ban.length.as_millis(),
    };
    if compiled.after > wire::MOST_BAN_AFTER {
        faults.add(format!("{path}.ban.after"), format!("must be at most {}", wire::MOST_BAN_AFTER));
    } else if let Some(max_keys) = max_keys
        && let Err(wire::LogsTooLarge { path: at, message }) = wire::check_ban(&compiled, max_keys)
    {
        faults.add(format!("{path}.{at}"), message);
    }
    Some(compiled)
}
