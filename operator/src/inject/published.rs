//! The two objects of the webhook: what they say, and what they should say. Pure but for fresh tokens.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use crate::authority::{Authorities, DAY, HOUR, InvalidAuthorities, Terms, secret};

/// Field of the Secret.
const TOKEN: &str = "token";

/// The authorities whose certificates the apiserver trusts, as the operator writes them into the webhook's configuration.
pub(super) const TERMS: Terms =
    Terms { subject: "weir-operator webhook", lives: 365 * DAY, overlap: 120 * DAY, ripens: HOUR };

/// The authorities that a Secret holds; none if it is empty.
///
/// # Errors
///
/// It holds something else.
pub(super) fn authorities(secret: &Secret) -> Result<Authorities, InvalidAuthorities> {
    secret::authorities(TERMS, secret)
}

/// The token that a Secret holds; empty if there is none.
pub(super) fn token(secret: &Secret) -> String {
    secret::text(secret, TOKEN)
}

/// A token that nobody guesses.
pub(super) fn fresh_token() -> String {
    rand::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The Secret with both.
pub(super) fn secret_with(secret: &Secret, authorities: &Authorities, token: &str) -> Value {
    secret::with(secret, authorities, &[(TOKEN, token)])
}

/// Under which names and addresses the apiserver asks.
pub(super) fn names(webhook: &MutatingWebhookConfiguration) -> Vec<String> {
    let hosts = webhook.webhooks.iter().flatten().filter_map(|hook| {
        let config = &hook.client_config;
        let of_service = config.service.as_ref().map(|service| format!("{}.{}.svc", service.name, service.namespace));
        let of_url = || config.url.as_ref()?.parse::<http::Uri>().ok()?.host().map(str::to_owned);
        // An address of IPv6 stands in brackets there.
        of_service.or_else(of_url).map(|host| host.trim_matches(['[', ']']).to_owned())
    });
    let mut names: Vec<String> = hosts.collect();
    names.sort();
    names.dedup();
    names
}

/// What to apply so that the apiserver trusts and asks us; none if it does. Without a `bundle` somebody else says whom to trust.
pub(super) fn registered(webhook: &MutatingWebhookConfiguration, bundle: Option<&str>, path: &str) -> Option<Value> {
    let mut changed = false;
    let mut webhooks = Vec::new();
    for hook in webhook.webhooks.iter().flatten() {
        let config = &hook.client_config;
        let mut wanted = json!({});
        if let Some(bundle) = bundle {
            changed |= config.ca_bundle.as_ref().is_none_or(|current| current.0 != bundle.as_bytes());
            wanted["caBundle"] = STANDARD.encode(bundle).into();
        }
        if let Some(service) = &config.service {
            changed |= service.path.as_deref() != Some(path);
            wanted["service"] = json!({"path": path});
        } else if let Some(Ok(url)) = config.url.as_ref().map(|url| url.parse::<http::Uri>()) {
            changed |= url.path() != path;
            wanted["url"] = format!("https://{}{path}", url.authority().map_or("", |it| it.as_str())).into();
        }
        webhooks.push(json!({"name": hook.name, "clientConfig": wanted}));
    }
    changed.then(|| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": webhook.metadata.name},
            "webhooks": webhooks,
        })
    })
}

#[cfg(test)]
#[path = "published_tests.rs"]
mod tests;
