//! The last part of the webhook's secret path, which changes once a day: an error message of the apiserver can show the
//! path to a tenant. This module does no I/O and reads no clock. Tokens are random.
//!
//! A new token begins in three steps, because each replica learns of it at another time. First every replica accepts it.
//! Later the apiserver gets the new path. Until the end, the replicas also accept the previous token. The Secret and the
//! webhook's configuration contain all state, so every replica computes the same.

use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret};

use super::server::path;
use crate::authority::{DAY, HOUR, secret};

const NEWEST: &str = "token";
const PREVIOUS: &str = "token.previous";
const MADE: &str = "token.made";

/// The time after which a token is replaced.
const LIVES: u64 = DAY;
/// The time for which a token is accepted before the apiserver gets it, and the previous one afterwards: for replicas
/// whose clocks differ, or that read the Secret late.
const OVERLAP: u64 = HOUR;

/// The tokens of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    newest: String,
    previous: String,
    /// The time at which the newest token was created, in seconds of Unix time.
    made: u64,
}

impl Tokens {
    /// Reads the tokens of a Secret. A token that cannot be a part of a path counts as none.
    pub(super) fn of(secret: &Secret) -> Self {
        let token = |field: &str| {
            let token = secret::text(secret, field);
            if token.bytes().all(|byte| byte.is_ascii_alphanumeric()) { token } else { String::new() }
        };
        let made = secret::text(secret, MADE).parse().unwrap_or(0);
        Self { newest: token(NEWEST), previous: token(PREVIOUS), made }
    }

    /// Returns the fields of a Secret with these tokens.
    pub(super) fn fields(&self) -> [(&'static str, String); 3] {
        [(NEWEST, self.newest.clone()), (PREVIOUS, self.previous.clone()), (MADE, self.made.to_string())]
    }

    /// Returns the tokens that should replace these, or `None` if no change is needed. The token that the apiserver
    /// uses stays valid, except if someone has removed it from the Secret.
    pub(super) fn renewed(&self, webhook: &MutatingWebhookConfiguration, now: u64) -> Option<Self> {
        // A clock that was far ahead must not keep a token for long.
        let is_due = now.saturating_add(OVERLAP) < self.made || now >= self.made.saturating_add(LIVES);
        if !self.newest.is_empty() && !is_due {
            return None;
        }
        let newest = rand::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect();
        let previous = if self.uses_previous(webhook) { &self.previous } else { &self.newest };
        Some(Self { newest, previous: previous.clone(), made: now })
    }

    /// Returns the path that the apiserver should call.
    pub(super) fn path(&self, webhook: &MutatingWebhookConfiguration, now: u64) -> String {
        let waits = self.uses_previous(webhook) && now < self.made.saturating_add(OVERLAP);
        path(if waits { &self.previous } else { &self.newest })
    }

    /// Returns the tokens to accept.
    pub(super) fn accepted(&self, now: u64) -> Vec<String> {
        let previous = (now < self.made.saturating_add(2 * OVERLAP)).then_some(&self.previous);
        [Some(&self.newest), previous].into_iter().flatten().filter(|token| !token.is_empty()).cloned().collect()
    }

    fn uses_previous(&self, webhook: &MutatingWebhookConfiguration) -> bool {
        !self.previous.is_empty() && is_published(webhook, &path(&self.previous))
    }
}

/// Returns true if the apiserver calls this path.
pub(super) fn is_published(webhook: &MutatingWebhookConfiguration, path: &str) -> bool {
    webhook.webhooks.iter().flatten().any(|hook| {
        let config = &hook.client_config;
        let of_service = config.service.as_ref().and_then(|service| service.path.as_deref());
        let url = config.url.as_ref().and_then(|url| url.parse::<http::Uri>().ok());
        of_service.or(url.as_ref().map(http::Uri::path)) == Some(path)
    })
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
mod tests;
