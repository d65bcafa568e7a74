//! The webhook's two objects: their content, and the content that they should have. This module does no I/O.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret};
use serde_json::{Value, json};

use super::tokens::Tokens;
use crate::authority::{Authorities, DAY, HOUR, Lifecycle, secret};

/// The phases of the authorities that the apiserver trusts. The operator writes these authorities into the webhook's
/// configuration.
pub(super) const LIFECYCLE: Lifecycle =
    Lifecycle { subject: "weir-operator webhook", lives: 365 * DAY, overlap: 120 * DAY, published_for: HOUR };

pub(super) fn secret_with(secret: &Secret, authorities: &Authorities, tokens: &Tokens) -> Value {
    let fields = tokens.fields();
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, text)| (*name, text.as_str())).collect();
    secret::with(secret, authorities, &fields)
}

/// Returns the names and addresses under which the apiserver calls the webhook.
pub(super) fn names(webhook: &MutatingWebhookConfiguration) -> Vec<String> {
    let hosts = webhook.webhooks.iter().flatten().filter_map(|hook| {
        let config = &hook.client_config;
        let of_service = config.service.as_ref().map(|service| format!("{}.{}.svc", service.name, service.namespace));
        let of_url = || config.url.as_ref()?.parse::<http::Uri>().ok()?.host().map(str::to_owned);
        // The host of a URL has brackets around an IPv6 address.
        of_service.or_else(of_url).map(|host| host.trim_matches(['[', ']']).to_owned())
    });
    let mut names: Vec<String> = hosts.collect();
    names.sort();
    names.dedup();
    names
}

/// Returns the patch that makes the apiserver trust and call this webhook, or `None` if no change is needed. Without a
/// `bundle`, the external issuer sets the CA bundle.
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
