//! Lets the apiserver review a token, to find the token's pod.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::{Api, Client, api::PostParams};
use tokio::time::timeout;

use super::PodIdentity;
use crate::world::ObjectKey;

const TIMEOUT: Duration = Duration::from_secs(5);
const ACCOUNT: &str = "system:serviceaccount:";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// The reason why a token does not identify a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReviewError {
    /// The apiserver does not accept the token.
    #[error("the apiserver does not accept the token for the audience {audience}: {problem}")]
    Unauthenticated { audience: String, problem: String },
    /// The token is valid but does not belong to a pod.
    #[error(
        "the token of {user} names no pod: it must be the projected service account token of the agent's pod (a volume \
         with a serviceAccountToken), not one that was created by hand or is stored in a Secret"
    )]
    NoPod { user: String },
    /// The apiserver gave no answer.
    #[error("the apiserver cannot review the token: {0}")]
    Unavailable(String),
}

pub(super) async fn review(client: &Client, token: &str, audience: &str) -> Result<PodIdentity, ReviewError> {
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![audience.to_owned()]) };
    let review = TokenReview { spec, ..TokenReview::default() };
    let params = PostParams::default();
    let answer = timeout(TIMEOUT, reviews.create(&params, &review));
    let answer = answer.await.map_err(|_| ReviewError::Unavailable(format!("no answer within {TIMEOUT:?}")))?;
    let answer = answer.map_err(|error| ReviewError::Unavailable(error.to_string()))?;
    judge(answer.status.unwrap_or_default(), audience)
}

/// Evaluates the apiserver's answer. An apiserver that does not support audiences returns none. Then the token is
/// treated as one for another audience.
fn judge(status: TokenReviewStatus, audience: &str) -> Result<PodIdentity, ReviewError> {
    let refused = |problem: String| ReviewError::Unauthenticated { audience: audience.to_owned(), problem };
    if status.authenticated != Some(true) {
        let problem = status.error.unwrap_or_else(|| "the apiserver gave no reason".to_owned());
        return Err(refused(problem));
    }
    if !status.audiences.iter().flatten().any(|it| it == audience) {
        return Err(refused("the token is valid only for other audiences".to_owned()));
    }
    let user = status.user.unwrap_or_default();
    let username = user.username.unwrap_or_default();
    let first = |name: &str| user.extra.as_ref()?.get(name)?.first().filter(|value| !value.is_empty()).cloned();
    let namespace = username.strip_prefix(ACCOUNT).and_then(|account| account.split_once(':')).map(|(it, _)| it);
    match (namespace, first(POD_NAME), first(POD_UID)) {
        (Some(namespace), Some(name), Some(uid)) => {
            Ok(PodIdentity { key: ObjectKey::new(namespace, name), uid: uid.into() })
        }
        _ => Err(ReviewError::NoPod { user: username }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn judged(status: Value) -> Result<PodIdentity, ReviewError> {
        judge(serde_json::from_value(status).unwrap(), "weir.dev")
    }

    fn good() -> Value {
        json!({
            "authenticated": true,
            "audiences": ["weir.dev"],
            "user": {
                "username": "system:serviceaccount:shop:default",
                "extra": {
                    "authentication.kubernetes.io/pod-name": ["web-1"],
                    "authentication.kubernetes.io/pod-uid": ["3f0c"],
                    "authentication.kubernetes.io/node-name": ["node"],
                },
            },
        })
    }

    #[test]
    fn a_pods_token_names_the_pod() {
        let pod = judged(good()).unwrap();
        assert_eq!(pod, PodIdentity { key: ObjectKey::new("shop", "web-1"), uid: "3f0c".into() });
    }

    #[test]
    fn only_a_pods_token_for_this_audience_names_a_pod() {
        let without = |pointer: &str, value: Value| {
            let mut status = good();
            *status.pointer_mut(pointer).unwrap() = value;
            judged(status).unwrap_err().to_string()
        };
        let extra = "/user/extra/authentication.kubernetes.io~1";
        for (pointer, value, why) in [
            ("/authenticated".to_owned(), json!(false), "does not accept the token for the audience weir.dev"),
            ("/audiences".to_owned(), json!(["https://kubernetes.default.svc"]), "valid only for other audiences"),
            ("/audiences".to_owned(), json!([]), "valid only for other audiences"),
            ("/user/username".to_owned(), json!("alice"), "the token of alice names no pod"),
            ("/user/username".to_owned(), json!("system:node:a"), "names no pod"),
            (format!("{extra}pod-name"), json!([]), "names no pod"),
            (format!("{extra}pod-uid"), json!([""]), "names no pod"),
            ("/user/extra".to_owned(), json!({}), "names no pod"),
        ] {
            let error = without(&pointer, value);
            assert!(error.contains(why), "{pointer}: {error}");
        }
        let told = judged(json!({"authenticated": false, "error": "token has expired"})).unwrap_err();
        assert!(told.to_string().ends_with("token has expired"), "{told}");
        assert!(judged(json!({})).is_err());
    }
}
