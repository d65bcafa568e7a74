//! Lists banned keys, and lifts bans by hand.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use weir_enforce::{BanSelection, InvalidBanSelection};

use super::{Control, failure};

/// The parameters of a query, in order.
pub(super) type Pairs = Query<Vec<(String, String)>>;

pub(super) async fn list(State(control): State<Arc<Control>>, query: Result<Pairs, QueryRejection>) -> Response {
    let selection = match selection(query) {
        Ok(selection) => selection,
        Err(invalid) => return failure(StatusCode::BAD_REQUEST, "invalid", &invalid),
    };
    answer(control.rules.load().bans(&selection, control.clock.now()))
}

/// Lifts the bans of one rule, or of one key of the rule.
pub(super) async fn lift(State(control): State<Arc<Control>>, query: Result<Pairs, QueryRejection>) -> Response {
    let selection = match selection(query) {
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

/// Reads the parameters. `key` is repeated once for each part of the key.
pub(super) fn selection(query: Result<Pairs, QueryRejection>) -> Result<BanSelection, String> {
    let Query(pairs) = query.map_err(|rejection| rejection.to_string())?;
    let mut selection = BanSelection::default();
    for (name, value) in pairs {
        let place = match name.as_str() {
            "policy" => &mut selection.policy,
            "rule" => &mut selection.rule,
            "key" => {
                selection.key.push(value);
                continue;
            }
            _ => return Err(format!("{name:?} is unknown: the parameters are policy, rule and key")),
        };
        if place.replace(value).is_some() {
            return Err(format!("{name} is given twice: name one"));
        }
    }
    Ok(selection)
}
