//! Reads and writes authorities in a Secret that all replicas share.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::{Authorities, InvalidAuthorities, Lifecycle};

const CERTIFICATES: &str = "ca.crt";
const KEYS: &str = "ca.key";

/// Reads the valid authorities of a Secret, and returns the fault if the Secret has anything else.
pub(crate) fn authorities(lifecycle: Lifecycle, secret: &Secret) -> (Authorities, Result<(), InvalidAuthorities>) {
    Authorities::read(lifecycle, &text(secret, CERTIFICATES), &text(secret, KEYS))
}

/// Returns a field of a Secret; empty if it is absent.
pub(crate) fn text(secret: &Secret, field: &str) -> String {
    let bytes = secret.data.as_ref().and_then(|data| data.get(field));
    bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
}

/// Returns the Secret with these authorities and additional fields, and with the resource version that it is based on.
/// If two replicas renew at the same time, one write succeeds.
pub(crate) fn with(secret: &Secret, authorities: &Authorities, others: &[(&str, &str)]) -> Value {
    let mut data = json!({
        CERTIFICATES: STANDARD.encode(authorities.certificates()),
        KEYS: STANDARD.encode(authorities.keys()),
    });
    for (name, text) in others {
        data[*name] = STANDARD.encode(text).into();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret.metadata.name, "resourceVersion": secret.metadata.resource_version},
        "data": data,
    })
}
