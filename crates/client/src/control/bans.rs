//! Lists banned keys, and lifts bans that a user selects.

use std::sync::Arc;

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use weir_enforce::{BanSelection, InvalidBanSelection};

use super::{Control, failure};

pub(super) async fn list(State(control): State<Arc<Control>>, RawQuery(query): RawQuery) -> Response {
    let selection = match selection(query.as_deref().unwrap_or_default()) {
        Ok(selection) => selection,
        Err(invalid) => return failure(StatusCode::BAD_REQUEST, "invalid", &invalid),
    };
    answer(control.rules.load().bans(&selection, control.clock.now()))
}

/// Lifts the bans of one rule, or of one key of the rule.
pub(super) async fn lift(State(control): State<Arc<Control>>, RawQuery(query): RawQuery) -> Response {
    let selection = match selection(query.as_deref().unwrap_or_default()) {
        Ok(selection) if selection.policy.is_none() || selection.rule.is_none() => {
            let message = "policy and rule are required, as in /v1/bans?policy=shop/checkout&rule=per-client&key=ann; without key, all bans of the rule are lifted";
            return failure(StatusCode::BAD_REQUEST, "invalid", message);
        }
        Ok(selection) => selection,
        Err(invalid) => return failure(StatusCode::BAD_REQUEST, "invalid", &invalid),
    };
    let rules = control.rules.load();
    let in_stores = match rules.lift_bans_in_stores(&selection, control.clock.now()).await {
        Ok(lifted) => lifted,
        Err(error) => return failure(StatusCode::SERVICE_UNAVAILABLE, "storeLost", &error.to_string()),
    };
    let mut lifted = rules.lift_bans(&selection, control.clock.now());
    if let Ok(lifted) = &mut lifted {
        lifted.lifted += in_stores;
        let BanSelection { policy, rule, .. } = &selection;
        tracing::info!(policy, rule, lifted = lifted.lifted, "bans lifted");
    }
    answer(lifted)
}

fn answer(result: Result<impl serde::Serialize, InvalidBanSelection>) -> Response {
    match result {
        Ok(reply) => Json(reply).into_response(),
        Err(invalid @ InvalidBanSelection::Key { .. }) => {
            failure(StatusCode::BAD_REQUEST, "invalid", &invalid.to_string())
        }
        Err(unknown) => failure(StatusCode::NOT_FOUND, "notFound", &unknown.to_string()),
    }
}

/// Reads the parameters. `key` is repeated once for each part of the key. Its values are bytes, because clients can have
/// keys that are not UTF-8.
pub(super) fn selection(query: &str) -> Result<BanSelection, String> {
    let mut selection = BanSelection::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name)?, decoded(value)?);
        let place = match &name[..] {
            b"policy" => &mut selection.policy,
            b"rule" => &mut selection.rule,
            b"key" => {
                selection.key.push(value);
                continue;
            }
            _ => {
                let name = String::from_utf8_lossy(&name);
                return Err(format!("{name:?} is unknown: the parameters are policy, rule and key"));
            }
        };
        let name = String::from_utf8_lossy(&name);
        let value = String::from_utf8(value).map_err(|_| format!("{name} is not UTF-8: names are ASCII"))?;
        if place.replace(value).is_some() {
            return Err(format!("{name} is given twice: name one"));
        }
    }
    Ok(selection)
}

/// Decodes a name or a value, as in a form. A wrong escape is an error: with another key, an answer would look like a
/// success.
fn decoded(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let decoded = digit().zip(digit()).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
                decoded.ok_or_else(|| format!("{text:?} has a % without two hexadecimal digits: write %25 for a %"))?
            }
            byte => byte,
        });
    }
    Ok(bytes)
}
