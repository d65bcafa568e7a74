use std::net::Ipv4Addr;

use futures::FutureExt as _;
use kube::{Client, client::Body as KubeBody};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tower::{ServiceExt as _, service_fn};

use super::*;
use crate::inject::{annotations::Resources, settings::Settings, sidecar::Images};

/// Returns the webhook's router. Its secret path ends in `secret`.
fn webhook() -> Router {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["webhook.test".to_owned()]).unwrap();
    let tls = serve::tls(vec![cert.into()], signing_key.into()).unwrap();
    let (_, serving) = watch::channel(Some(Arc::new(Serving { tls, token: "secret".to_owned() })));
    let empty_answers =
        |_: http::Request<KubeBody>| async { Ok::<_, tower::BoxError>(http::Response::new(KubeBody::empty())) };
    let images = Images { agent: "weir/agent:1".to_owned(), pull_policy: None, redirect: None };
    let cluster =
        ClusterSettings { images, resources: Resources::default(), settings: Settings::default(), native: true };
    router(Arc::new(Reviewer {
        cluster,
        quotas: QuotaSource(Client::new(service_fn(empty_answers), "weir-system")),
        identity: None,
        refuse: false,
        engine: mpsc::channel(1).0,
        metrics: Metrics::default(),
        serving,
    }))
}

/// A stranger sends the head of a request, and never its body.
#[tokio::test(start_paused = true)]
async fn the_body_is_read_only_on_the_secret_path_and_has_a_time_limit() {
    let ask = |token: &str| {
        let never = Body::from_stream(futures::stream::pending::<std::io::Result<bytes::Bytes>>());
        let connection = Arc::new(Connection::of(Ipv4Addr::LOCALHOST.into()));
        webhook().oneshot(http::Request::post(path(token)).extension(connection).body(never).unwrap())
    };
    let stranger = ask("guess").now_or_never().expect("an answer without the body").unwrap();
    assert_eq!(stranger.status(), StatusCode::NOT_FOUND);
    let mut known = Box::pin(ask("secret"));
    assert!(known.as_mut().now_or_never().is_none(), "the body is read");
    assert_eq!(known.await.unwrap().status(), StatusCode::BAD_REQUEST);
}
