//! The ban of a rule.

use std::{num::NonZeroUsize, time::Duration};

use weir_wire::{LogsTooLarge, MOST_BAN_AFTER, Per, Rule, check_ban};

use super::faults::{Faults, Path};

/// When a rule bans a key, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoweredBan {
    /// The number of refusals that start a ban.
    pub(crate) after: NonZeroUsize,
    /// The time in which they happen.
    pub(crate) within: Duration,
    pub(crate) length: Duration,
    /// The number of keys whose refusals and bans are stored.
    pub(crate) max_keys: NonZeroUsize,
}

/// The longest time of a ban in milliseconds: a week.
const LONGEST: u64 = 7 * 24 * 60 * 60 * 1_000;

/// Lowers the ban of a rule with rates. `max_keys` is `None` if it has faults, or if the rule has no key.
pub(super) fn lower_ban(
    rule: &Rule,
    max_keys: Option<NonZeroUsize>,
    path: &Path,
    faults: &mut Faults,
) -> Option<LoweredBan> {
    let ban = rule.ban.as_ref()?;
    let (before, at) = (faults.len(), path.field("ban"));
    if rule.key.is_empty() {
        faults.add(&at, "needs a `key`: without a key a ban would refuse all requests of the rule");
    }
    if rule.per == Per::Message {
        faults.add(&at, "is not valid with `per: Message`: remove it, or count requests");
    }
    if !(1..=MOST_BAN_AFTER).contains(&ban.after) {
        faults.add(&at.field("after"), format!("must be 1 to {MOST_BAN_AFTER}"));
    }
    for (field, millis) in [("withinMillis", ban.within_millis), ("forMillis", ban.for_millis)] {
        if !(1..=LONGEST).contains(&millis) {
            faults.add(&at.field(field), format!("must be 1 to {LONGEST}"));
        }
    }
    if faults.len() > before {
        return None;
    }
    let max_keys = max_keys?;
    if let Err(LogsTooLarge { path: at, message }) = check_ban(ban, u32::try_from(max_keys.get()).unwrap_or(u32::MAX)) {
        faults.add(&path.field(&at), message);
    }
    Some(LoweredBan {
        after: usize::try_from(ban.after).ok().and_then(NonZeroUsize::new)?,
        within: Duration::from_millis(ban.within_millis),
        length: Duration::from_millis(ban.for_millis),
        max_keys,
    })
}
