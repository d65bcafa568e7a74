//! A program with `weir-client` and no sidecar, with the Deployment of the manual: its pods count as enforcing, have one
//! limit together, and follow a change.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, api::PostParams};

use crate::{load::Load, namespace::TestNamespace, operator, policy};

const GUIDE: &str = include_str!("../../../docs/guides/library-client.md");
/// The image in the manual, and the image of the example.
const IMAGES: [&str; 2] = ["registry.example/shop:1.0.0", "weir.test/shop:e2e"];
/// The operator's authorities: the Secret, and the file in it and in the ConfigMap of the manual.
const AUTHORITIES: (&str, &str, &str) = ("weir-operator-identity", "weir-identity", "ca.crt");
const URL: &str = "http://shop-pods:8080/checkout";
const PODS: u32 = 2;
const SOON: Duration = Duration::from_secs(90);

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: shop-pods}
spec: {clusterIP: None, selector: {app: shop}, ports: [{port: 8080, targetPort: http}]}
";

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    space.apply(&limit(50)).await?;
    copy_authorities(space).await?;
    space.apply(&deployment()?).await?;
    space.apply(SERVICE).await?;
    space.kubectl(&["rollout", "status", "deployment/shop", "--timeout=90s"]).await?;
    policy::wait_enforced(space, "shop", PODS.into(), SOON).await?;
    admits(space, "first", 50).await?;
    space.apply(&limit(80)).await?;
    policy::wait_enforced(space, "shop", PODS.into(), SOON).await?;
    admits(space, "raised", 30).await
}

fn limit(requests: u64) -> String {
    format!(
        "
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: shop}}
spec:
  selector: {{matchLabels: {{app: shop}}}}
  rules:
  - name: all
    scope: Fleet
    match: [{{paths: [/checkout]}}]
    limits: [{{name: together, requests: {requests}, per: 10m, strategy: SlidingWindowLog}}]
"
    )
}

/// Copies the operator's authorities to the namespace, as in the manual.
async fn copy_authorities(space: &TestNamespace) -> Result<()> {
    let (secret, config_map, file) = AUTHORITIES;
    let secrets: Api<Secret> = Api::namespaced(space.client(), operator::NAMESPACE);
    let authorities = secrets.get(secret).await?.data.and_then(|mut data| data.remove(file));
    let authorities = authorities.with_context(|| format!("{secret} has no {file}"))?;
    let mut copy =
        ConfigMap { data: Some([(file.to_owned(), String::from_utf8(authorities.0)?)].into()), ..ConfigMap::default() };
    copy.metadata.name = Some(config_map.to_owned());
    let config_maps: Api<ConfigMap> = Api::namespaced(space.client(), &space.namespace);
    config_maps.create(&PostParams::default(), &copy).await.context("create the ConfigMap").map(drop)
}

/// The Deployment of the manual, with the image of the example.
fn deployment() -> Result<String> {
    let blocks = GUIDE.split("```yaml\n").skip(1).filter_map(|block| block.split("```").next());
    let mut deployments = blocks.filter(|block| block.contains("kind: Deployment"));
    let deployment = deployments.next().context("the manual has no Deployment")?;
    ensure!(deployments.next().is_none(), "the manual has several Deployments");
    let [in_manual, example] = IMAGES;
    ensure!(deployment.contains(in_manual), "the Deployment of the manual has another image");
    Ok(deployment.replace(in_manual, example))
}

/// Sends 200 requests to both pods, and checks the number of admitted ones.
async fn admits(space: &TestNamespace, name: &'static str, wanted: u64) -> Result<()> {
    let load = Load { name, url: URL, addresses: PODS, rate: 50, duration: Duration::from_secs(4) };
    load.admits(space, wanted).await
}
