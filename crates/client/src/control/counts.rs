//! Returns one key of a rule to its full credit, when a user requests it.

use std::sync::Arc;

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use weir_enforce::NotReset;

use super::{Control, bans::selection, failure};

/// Resets the counts of one key of a rule, and lifts its ban. A rule without a key has one count.
pub(super) async fn reset(State(control): State<Arc<Control>>, RawQuery(query): RawQuery) -> Response {
    let selection = match selection(query.as_deref().unwrap_or_default()) {
        Ok(selection) if selection.policy.is_none() || selection.rule.is_none() => {
            let message = "policy and rule are required, as in /v1/counts?policy=shop/checkout&rule=per-client&key=ann";
            return failure(StatusCode::BAD_REQUEST, "invalid", message);
        }
        Ok(selection) => selection,
        Err(invalid) => return failure(StatusCode::BAD_REQUEST, "invalid", &invalid),
    };
    let rules = control.rules.load();
    match rules.reset_count(&selection, || control.clock.now()).await {
        Ok(reset) => {
            let (policy, rule) = (&selection.policy, &selection.rule);
            tracing::info!(policy, rule, lifted = reset.lifted, "count reset");
            Json(reset).into_response()
        }
        Err(not_reset) => {
            let (status, error) = match &not_reset {
                NotReset::Unknown(_) => (StatusCode::NOT_FOUND, "notFound"),
                NotReset::Ban(_) | NotReset::Store { .. } => (StatusCode::SERVICE_UNAVAILABLE, "storeLost"),
                _ => (StatusCode::BAD_REQUEST, "invalid"),
            };
            failure(status, error, &not_reset.to_string())
        }
    }
}
