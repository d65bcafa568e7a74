use std::net::Ipv4Addr;

use futures::FutureExt as _;
use kube::{Client, client::Body as KubeBody};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use tower::{ServiceExt as _, service_fn};

use super::*;
use crate::{
    inject::{annotations::Resources, settings::Settings, sidecar::Images},
    world::{Membership, ObjectKey, Workload, WorkloadKind},
};

/// Returns the webhook's router, which asks this engine. Its secret path ends in `secret`.
fn webhook(engine: mpsc::Sender<ContentRequest>) -> Router {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["webhook.test".to_owned()]).unwrap();
    let tls = serve::tls(vec![cert.into()], signing_key.into()).unwrap();
    let (_, serving) = watch::channel(Some(Arc::new(Serving { tls, tokens: vec!["secret".to_owned()] })));
    let empty_answers =
        |_: http::Request<KubeBody>| async { Ok::<_, tower::BoxError>(http::Response::new(KubeBody::empty())) };
    let images = Images { agent: "weir/agent:1".to_owned(), pull_policy: None, redirect: None };
    let cluster =
        ClusterSettings { images, resources: Resources::default(), settings: Settings::default(), native: true };
    router(Arc::new(Reviewer {
        cluster: watch::channel(cluster).1,
        quotas: QuotaSource(Client::new(service_fn(empty_answers), "weir-system")),
        identity: None,
        refuse: false,
        engine,
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
        webhook(mpsc::channel(1).0).oneshot(http::Request::post(path(token)).extension(connection).body(never).unwrap())
    };
    let stranger = ask("guess").now_or_never().expect("an answer without the body").unwrap();
    assert_eq!(stranger.status(), StatusCode::NOT_FOUND);
    let mut known = Box::pin(ask("secret"));
    assert!(known.as_mut().now_or_never().is_none(), "the body is read");
    assert_eq!(known.await.unwrap().status(), StatusCode::BAD_REQUEST);
}

/// The operator may not have received the workload yet.
#[tokio::test(start_paused = true)]
async fn the_engine_is_asked_for_a_pod_of_its_workload() {
    let metadata = json!({
        "generateName": "web-7d4b9-",
        "labels": {"app": "web", "pod-template-hash": "7d4b9"},
        "ownerReferences":
            [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d4b9", "uid": "1", "controller": true}],
    });
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}});
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1",
        "kind": kind, "resource": resource, "namespace": "shop", "operation": "CREATE", "userInfo": {}, "object": pod}});
    let (engine, mut requests) = mpsc::channel(1);
    let connection = Arc::new(Connection::of(Ipv4Addr::LOCALHOST.into()));
    let request =
        http::Request::post(path("secret")).extension(connection).body(Body::from(review.to_string())).unwrap();
    let (response, asked) = tokio::join!(webhook(engine).oneshot(request), requests.recv());
    assert_eq!(response.unwrap().status(), StatusCode::OK);
    let ContentRequest { namespace, membership, .. } = asked.expect("a request");
    let Membership::Pod { labels, controller, .. } = membership else { panic!("a pod of a cluster") };
    let web = Workload { kind: WorkloadKind::Deployment, key: ObjectKey::new("shop", "web") };
    assert_eq!((&*namespace, &*labels["app"], controller), ("shop", "web", Some(web)));
}
