//! A rule whose questions the store refuses, although it answers those of other rules: for example because the store's
//! user may not run a command that only this strategy needs.

use std::{collections::HashMap, fmt, time::Duration};

use weir_seats::{Key, StoreError};

/// The time over which all questions of a rule must be refused before the status reports it. A failover can refuse
/// questions for a moment.
const LASTING: Duration = Duration::from_secs(3);

/// The time without a question after which a refusal is forgotten. The store can have been repaired.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// The shortest time between two log lines about refusals.
const BETWEEN_LOGS: Duration = Duration::from_secs(60);

/// The commands of the script and of its callers.
const RIGHTS: &str = "EVAL, EVALSHA, TIME, GETRANGE, SET, SETRANGE, DEL and PEXPIREAT";

/// The rules whose questions the store refuses, by the name of their counters. There are at most as many as rules in
/// force: a rule that changes or ends forgets its refusal.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    refused: HashMap<String, Refusal>,
    logged_at: Option<Duration>,
}

/// The refusals of one rule without an answer between them.
#[derive(Debug)]
pub(super) struct Refusal {
    counters: String,
    error: String,
    pub(super) since: Duration,
    last: Duration,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counters, error, .. } = self;
        write!(f, "the store refuses questions of {counters}")?;
        if lacks_right(error) {
            write!(f, "; allow its user {RIGHTS}")?;
        }
        write!(f, ": {error}")
    }
}

/// Whether this error of the store is about a right that its user does not have.
fn lacks_right(error: &str) -> bool {
    let text = error.to_lowercase();
    // The first text is about a command in a script, and the second one about a key.
    text.contains("can't run this command") || text.contains("no permissions")
}

/// The error of a lost store. It names the rights, because the store also counts as lost if it refuses the questions of all
/// rules. The texts about certificates are those of rustls.
pub(super) fn of_lost_store(error: &StoreError) -> String {
    match error {
        StoreError::Refused(text) if lacks_right(text) => format!("{error}; allow its user {RIGHTS}"),
        StoreError::Lost(text) if text.contains("UnknownIssuer") => {
            format!("{error}; add the authority of the server to ca.crt in the Secret of spec.redis.tls.caSecretRef")
        }
        StoreError::Lost(text) if text.contains("CertificateRequired") => {
            format!("{error}; add a client's tls.crt and tls.key to the Secret of spec.redis.credentialsSecretRef")
        }
        _ => error.to_string(),
    }
}

impl Refusals {
    /// Records that the store refuses a question. Returns the text that the log must contain now, if any.
    pub(super) fn refused(&mut self, key: &Key, error: &str, now: Duration) -> Option<String> {
        self.refused.retain(|_, refusal| now <= refusal.last + FORGOTTEN);
        let counters = key.counters().to_owned();
        let new = || Refusal { counters: counters.clone(), error: String::new(), since: now, last: now };
        let refusal = self.refused.entry(counters.clone()).or_insert_with(new);
        refusal.last = now;
        error.clone_into(&mut refusal.error);
        let logs = self.logged_at.is_none_or(|logged| logged + BETWEEN_LOGS <= now);
        logs.then(|| {
            self.logged_at = Some(now);
            refusal.to_string()
        })
    }

    /// Ends the refusal of a rule, after the store has answered one of its questions, or after the rule has changed or
    /// ended. Returns true if the status reported a refusal until now, and reports none from now on.
    pub(super) fn end(&mut self, counters: &str, now: Duration) -> bool {
        let was_reported = self.lasting(now).is_some();
        self.refused.remove(counters).is_some() && was_reported && self.lasting(now).is_none()
    }

    /// The refusal that the status reports: the oldest.
    pub(super) fn lasting(&self, now: Duration) -> Option<&Refusal> {
        let is_lasting =
            |refusal: &&Refusal| refusal.last >= refusal.since + LASTING && now <= refusal.last + FORGOTTEN;
        self.refused.values().filter(is_lasting).min_by_key(|refusal| (refusal.since, &refusal.counters))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rule: &str) -> Key {
        Key::new(&format!("shop/api.{rule}"), 7).expect("a key")
    }

    #[test]
    fn a_lasting_refusal_is_reported_until_the_rule_has_an_answer() {
        let (second, mut refusals) = (Duration::from_secs, Refusals::default());
        let logged = refusals.refused(&key("a"), "OOM", second(10));
        assert_eq!(logged.as_deref(), Some("the store refuses questions of shop/api.a: OOM"));
        assert_eq!(refusals.refused(&key("b"), "OOM", second(12)), None, "one line is enough");
        assert!(refusals.lasting(second(20)).is_none(), "no rule has a later refusal");
        refusals.refused(&key("a"), "OOM", second(13));
        assert!(!refusals.end("shop/api.b", second(13)));
        assert_eq!(refusals.lasting(second(313)).map(|refusal| refusal.since), Some(second(10)));
        assert!(refusals.lasting(second(314)).is_none(), "the rule has had no question for a long time");
        assert!(refusals.end("shop/api.a", second(14)));
        assert!(refusals.lasting(second(14)).is_none());
        assert!(refusals.refused(&key("b"), "OOM", second(70)).is_some());
    }

    #[test]
    fn a_store_that_refuses_everything_names_the_rights() {
        let lost = |text: &str| of_lost_store(&StoreError::Refused(text.to_owned()));
        for text in [
            "NOPERM User weir has no permissions to run the 'evalsha' command",
            "ERR ACL failure: can't run this command",
        ] {
            assert!(
                lost(text)
                    .ends_with("; allow its user EVAL, EVALSHA, TIME, GETRANGE, SET, SETRANGE, DEL and PEXPIREAT")
            );
        }
        assert!(!lost("OOM").contains("EVAL") && !of_lost_store(&StoreError::Late).contains("EVAL"));
    }

    #[test]
    fn each_rule_has_its_own_refusal() {
        let (second, mut refusals) = (Duration::from_secs, Refusals::default());
        let reported = |refusals: &Refusals| refusals.lasting(second(20)).map(|refusal| refusal.counters.clone());
        for (rule, seconds) in [("a", 10), ("b", 11), ("c", 12), ("a", 20), ("b", 20), ("c", 14)] {
            refusals.refused(&key(rule), "OOM", second(seconds));
        }
        assert_eq!(reported(&refusals).as_deref(), Some("shop/api.a"));
        assert!(!refusals.end("shop/api.a", second(20)), "the store still refuses another rule");
        assert_eq!(reported(&refusals).as_deref(), Some("shop/api.b"));
        assert!(!refusals.end("shop/api.c", second(20)), "its refusal did not last");
        assert!(refusals.end("shop/api.b", second(20)));
        assert_eq!(reported(&refusals), None);
        assert!(refusals.refused.is_empty());
    }
}
