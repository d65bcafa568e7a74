//! The two objects of the webhook: what they say, and what they should say. Pure but for fresh tokens.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::authority::{Authorities, InvalidAuthorities};

/// Fields of the Secret.
const CERTIFICATES: &str = "ca.crt";
const KEYS: &str = "ca.key";
const TOKEN: &str = "token";

/// The authorities that a Secret holds; none if it is empty.
///
/// # Errors
///
/// It holds something else.
pub(super) fn authorities(secret: &Secret) -> Result<Authorities, InvalidAuthorities> {
    Authorities::read(&text(secret, CERTIFICATES), &text(secret, KEYS))
}

/// The token that a Secret holds; empty if there is none.
pub(super) fn token(secret: &Secret) -> String {
    text(secret, TOKEN)
}

fn text(secret: &Secret, field: &str) -> String {
    let bytes = secret.data.as_ref().and_then(|data| data.get(field));
    bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
}

/// A token that nobody guesses.
pub(super) fn fresh_token() -> String {
    rand::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// With the version that it is based on: of two replicas that renew at the same time, one succeeds.
pub(super) fn secret_with(secret: &Secret, authorities: &Authorities, token: &str) -> Value {
    let data = [(CERTIFICATES, authorities.certificates()), (KEYS, authorities.keys()), (TOKEN, token.to_owned())];
    let data: serde_json::Map<String, Value> =
        data.into_iter().map(|(name, text)| (name.to_owned(), STANDARD.encode(text).into())).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret.metadata.name, "resourceVersion": secret.metadata.resource_version},
        "data": data,
    })
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

/// What to apply so that the apiserver trusts and asks us; none if it does.
pub(super) fn registered(webhook: &MutatingWebhookConfiguration, bundle: &str, path: &str) -> Option<Value> {
    let mut changed = false;
    let mut webhooks = Vec::new();
    for hook in webhook.webhooks.iter().flatten() {
        let config = &hook.client_config;
        changed |= config.ca_bundle.as_ref().is_none_or(|current| current.0 != bundle.as_bytes());
        let mut wanted = json!({"caBundle": STANDARD.encode(bundle)});
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
