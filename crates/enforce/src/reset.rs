//! Returns one key of a rule to its full credit and lifts its ban, when a user requests it.

use weir_core::Time;
use weir_store::StoreError;
use weir_wire::ResetCount;

use super::{
    ban_list::{BanSelection, BansNotLifted},
    in_force::RulesInForce,
    lower::full_name,
    rule::Rule,
};

/// The error if a count was not reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReset {
    /// No such policy is in force, or it has no such rule.
    #[error("{0}")]
    Unknown(String),
    /// The rule has no count that can be reset, or the key has another number of parts.
    #[error("{0}")]
    Invalid(String),
    /// A store did not lift the ban.
    #[error("the reset is not complete: {0}")]
    Ban(#[from] BansNotLifted),
    /// A store did not reset the count.
    #[error("the store {store} did not reset the count ({error}): repeat the request")]
    Store {
        /// The name of the store.
        store: String,
        /// Why it did not.
        error: StoreError,
    },
}

impl RulesInForce {
    /// Returns a key to its full credit, in all limits of one rule, and lifts its ban. The count of a rule of scope Shared
    /// is reset once for all programs. The selection must have the policy, the rule and the whole key.
    ///
    /// # Errors
    ///
    /// [`NotReset`]. If the store does not answer, the ban can be lifted although the count is not reset. Or the count
    /// is reset, and a ban stays that began in the meantime.
    pub async fn reset_count(&self, selection: &BanSelection, now: impl Fn() -> Time) -> Result<ResetCount, NotReset> {
        let rule = self.rule_of(selection)?;
        let scope = rule.scope();
        let Some(limits) = rule.rates() else {
            let message = "has no count to reset: its action is Bypass or Deny, or its limit is concurrent";
            return Err(NotReset::Invalid(format!("rule: {:?} {message}", rule.name)));
        };
        if scope == "Fleet" {
            let message = "has scope Fleet, whose counts are in the operator: they cannot be reset";
            return Err(NotReset::Invalid(format!("rule: {:?} {message}", rule.name)));
        }
        let keys = limits.key.all_named(&selection.key);
        if keys.is_empty() {
            let (rule, parts, given) = (&rule.name, limits.key.parts().len(), selection.key.len());
            return Err(NotReset::Invalid(format!(
                "key: the key of rule {rule} has {parts} parts, and these {given} values are not such a key: repeat key for \
                 each part, with values as a request has them"
            )));
        }
        let mut lifted = 0;
        if rule.ban().is_some() {
            lifted = self.lift_bans_in_stores(selection, now()).await?;
            lifted += self.lift_bans(selection, now()).map_or(0, |lifted| lifted.lifted);
        }
        for key in keys {
            match rule.key_in_store(&key) {
                Some(key) => {
                    let store = key.store();
                    key.reset().await.map_err(|error| NotReset::Store { store, error })?;
                }
                None => limits.pod_limiter().reset(&key, &now),
            }
        }
        // The old count may have banned the key again in the meantime.
        if rule.ban().is_some() {
            self.lift_bans_in_stores(selection, now()).await?;
            let _ = self.lift_bans(selection, now());
        }
        Ok(ResetCount { limits: limits.names.iter().map(ToString::to_string).collect(), lifted })
    }

    fn rule_of(&self, selection: &BanSelection) -> Result<&Rule, NotReset> {
        let wanted = selection.policy.as_deref().unwrap_or_default();
        let mut policies = self.policies().iter();
        let policy = policies.find(|policy| full_name(&policy.namespace, &policy.name) == wanted).ok_or_else(|| {
            let message = "is not in force here: write the namespace and the name, such as shop/checkout";
            NotReset::Unknown(format!("policy: {wanted:?} {message}"))
        })?;
        let wanted = selection.rule.as_deref().unwrap_or_default();
        let rule = policy.rules.iter().find(|rule| rule.name == wanted);
        rule.map(|rule| &**rule).ok_or_else(|| {
            NotReset::Unknown(format!("rule: {wanted:?} is not a rule of the policy: see GET /v1/config"))
        })
    }
}
