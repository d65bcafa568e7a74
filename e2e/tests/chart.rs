//! Tests the charts with a real helm and a real apiserver. The apiserver accepts all rendered objects, invalid values
//! are refused, and an installation can be upgraded, rolled back and removed.
//!
//! The apiserver has only Kubernetes' own kinds, and refuses unknown fields. It also checks rules that no schema
//! contains, such as the Pod Security Standard of a namespace. There are no nodes, so no pod starts.

#[path = "chart/conformity.rs"]
mod conformity;
#[path = "chart/network.rs"]
mod network;
#[path = "chart/rate_limit_service.rs"]
mod rate_limit_service;
#[path = "chart/rendered.rs"]
mod rendered;
#[path = "chart/strings.rs"]
mod strings;
#[path = "chart/values.rs"]
mod values;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::{api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde::Deserialize as _;
use serde_json::{Value, json};
use weir_testbed::ControlPlane;

use self::conformity::Conformity;

const NAMESPACE: &str = "weir-system";
/// The attempts to list objects of a changed definition.
const MOST_ATTEMPTS: u32 = 300;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);
const CRD: &str = "ratelimitpolicies.weir.dev";
/// The account of pods in a dry run.
const ACCOUNT: &str = "any";

/// All kinds of objects that a release can create. After an uninstallation, none of these objects is left.
const KINDS: &str = "deployments,services,secrets,configmaps,serviceaccounts,poddisruptionbudgets,networkpolicies,roles,\
    rolebindings,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,pods,leases";

struct Stage {
    control_plane: ControlPlane,
    home: tempfile::TempDir,
}

impl Stage {
    async fn set() -> Result<Self> {
        let stage = Self { control_plane: ControlPlane::start().await?, home: tempfile::tempdir()? };
        // `helm test` would create the last three namespaces.
        let tests = ["weir-operator-test", "weir-limiter-operator-test", "limiter-test"];
        for namespace in [NAMESPACE, "shop", "bank"].into_iter().chain(tests) {
            let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
            let object = serde_json::from_value(json!({"metadata": {"name": namespace, "labels": labels}}))?;
            Api::<Namespace>::all(stage.control_plane.client()).create(&PostParams::default(), &object).await?;
        }
        Ok(stage)
    }

    /// Runs helm for this control plane, with separate folders for helm's files.
    fn helm(&self, args: &[&str]) -> Result<Output> {
        let mut helm = self.control_plane.helm();
        for place in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            helm.env(place, self.home.path().join(place));
        }
        helm.args(args).args(["--namespace", NAMESPACE, "--kubeconfig"]).arg(self.control_plane.kubeconfig());
        helm.output().context("run helm")
    }

    /// Runs helm, and returns its output. Fails if helm fails.
    fn done(&self, args: &[&str]) -> Result<String> {
        let output = self.helm(args)?;
        ensure!(output.status.success(), "helm {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs helm, which must fail. Returns its error message.
    fn refused(&self, args: &[&str]) -> Result<String> {
        let output = self.helm(args)?;
        ensure!(!output.status.success(), "helm {} did not fail", args.join(" "));
        Ok(String::from_utf8(output.stderr)?)
    }

    fn kubectl(&self, args: &[&str], input: &str) -> Result<Output> {
        let file = self.home.path().join("input.yaml");
        fs::write(&file, input)?;
        let mut kubectl: Command = self.control_plane.kubectl();
        kubectl.args(args).stdin(Stdio::from(fs::File::open(file)?)).output().context("run kubectl")
    }

    /// Applies these objects in a dry run. The inner error is the reason why the apiserver refuses them.
    fn dry_run(&self, objects: &str) -> Result<std::result::Result<(), String>> {
        let args = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"];
        let output = self.kubectl(&args, objects)?;
        Ok(if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr)?) })
    }

    /// Reads the apiserver's OpenAPI document, when it includes the CRDs of Weir.
    fn openapi(&self) -> Result<String> {
        // Each try starts kubectl, so this loop waits for more than a minute.
        for _ in 0..1_000 {
            let output = self.kubectl(&["get", "--raw", "/openapi/v2"], "")?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let document = String::from_utf8(output.stdout)?;
            if document.contains("dev.weir.v1alpha1.RateLimitPolicy") {
                return Ok(document);
            }
        }
        anyhow::bail!("the apiserver does not describe {CRD}")
    }

    /// Lists the objects of a release, as `kind/name`.
    fn objects_of(&self, release: &str) -> Result<Vec<String>> {
        let selector = format!("app.kubernetes.io/instance={release}");
        let output = self.kubectl(&["get", KINDS, "--all-namespaces", "--output=name", "--selector", &selector], "")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
    }
}

fn chart(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts").join(name);
    Ok(path.to_str().context("the path is not UTF-8")?.to_owned())
}

/// The files of values that the `helm` stage also lints. None stands for the default values.
fn values(chart: &str) -> Result<Vec<Option<PathBuf>>> {
    let mut files = vec![None];
    for entry in fs::read_dir(Path::new(chart).join("ci"))? {
        files.push(Some(entry?.path()));
    }
    ensure!(files.len() > 1, "{chart}/ci has no values");
    Ok(files)
}

/// Parses the objects of a rendered chart that a plain cluster supports. It omits the kinds of the Prometheus operator
/// and of cert-manager.
fn known(rendered: &str) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(rendered) {
        let object = Value::deserialize(document)?;
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let is_others = ["monitoring.coreos.com/", "cert-manager.io/"].iter().any(|group| version.starts_with(group));
        if !object.is_null() && !is_others {
            objects.push(object);
        }
    }
    Ok(objects)
}

fn lines(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{object}\n")).collect()
}

#[tokio::test]
async fn an_apiserver_takes_what_the_charts_render_to() -> Result<()> {
    let stage = Stage::set().await?;
    stage.control_plane.install_crd().await?;
    let created = stage.kubectl(&["create", "serviceaccount", ACCOUNT, "--namespace", NAMESPACE], "")?;
    ensure!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let conformity = Conformity::read(&stage.openapi()?)?;
    for name in ["weir-crds", "weir"] {
        let chart = chart(name)?;
        for file in values(&chart)? {
            let file = file.map(|file| format!("--values={}", file.display()));
            let mut args = vec!["template", "weir", &chart];
            args.extend(file.as_deref());
            let objects = known(&stage.done(&args)?)?;
            ensure!(!objects.is_empty(), "{args:?} renders nothing");
            if let Err(fault) = stage.dry_run(&lines(&objects))? {
                panic!("{args:?}: {fault}");
            }
            if let Err(fault) = conformity.judge(&lines(&objects))? {
                panic!("{args:?}: {fault}");
            }
            // The apiserver checks the Pod Security Standard only for pods: for a Deployment it only warns.
            for mut pod in objects.iter().filter(|object| object["kind"] == "Deployment").map(pod_of) {
                if pod["spec"]["hostNetwork"] == true {
                    let fault =
                        stage.dry_run(&pod.to_string())?.expect_err("the namespace refuses pods with hostNetwork");
                    ensure!(fault.contains("host namespaces"), "{fault}");
                    continue;
                }
                if let Err(fault) = stage.dry_run(&pod.to_string())? {
                    panic!("{args:?}: {fault}");
                }
                pod["spec"]["securityContext"]["runAsNonRoot"] = json!(false);
                let fault =
                    stage.dry_run(&pod.to_string())?.expect_err("the namespace refuses pods that are not restricted");
                ensure!(fault.contains("violates PodSecurity \"restricted"), "{fault}");
            }
            let mut wrong = objects[0].clone();
            wrong["metadata"]["lables"] = json!({});
            let fault = stage.dry_run(&wrong.to_string())?.expect_err("no such field");
            ensure!(fault.contains("metadata.lables"), "{fault}");
            let fault = conformity.judge(&wrong.to_string())?.expect_err("no such field");
            ensure!(fault.contains("lables"), "{fault}");
        }
    }
    Ok(())
}

/// Creates a pod as the Deployment's controller would create it.
fn pod_of(deployment: &Value) -> Value {
    let mut spec = deployment["spec"]["template"]["spec"].clone();
    // These objects do not exist in a dry run, so the pod must not name them. A pod with a projected token needs an
    // account.
    spec["serviceAccountName"] = json!(ACCOUNT);
    spec["priorityClassName"] = json!(null);
    spec["runtimeClassName"] = json!(null);
    spec["automountServiceAccountToken"] = json!(false);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator", "namespace": NAMESPACE},
        "spec": spec,
    })
}

/// cert-manager's CRDs are not available, so this test checks the fields that cert-manager's controllers read.
#[test]
fn with_cert_manager_all_names_of_the_webhook_certificate_agree() -> Result<()> {
    let chart = chart("weir")?;
    let objects = |settings: &[&str]| {
        let rendered = render(&chart, settings)?;
        serde_yaml::Deserializer::from_str(&rendered).map(|it| Ok(Value::deserialize(it)?)).collect::<Result<Vec<_>>>()
    };
    let of = |objects: &[Value], kind: &str| -> Vec<Value> {
        objects.iter().filter(|object| object["kind"] == kind).cloned().collect()
    };
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();

    let without = objects(&[])?;
    ensure!(
        of(&without, "Certificate").is_empty() && of(&without, "Issuer").is_empty(),
        "certificates without certManager.enabled"
    );
    let enabled = "injection.certManager.enabled=true";
    ensure!(
        of(&objects(&[enabled, "injection.enabled=false"])?, "Certificate").is_empty(),
        "certificates without the webhook"
    );

    for issuer in [None, Some("injection.certManager.issuerRef.name=company")] {
        let objects = objects(&[&[enabled][..], issuer.as_slice()].concat())?;
        let certificates = of(&objects, "Certificate");
        let serving =
            certificates.iter().find(|it| it["spec"]["isCA"].is_null()).context("no certificate for the webhook")?;
        let webhook = of(&objects, "MutatingWebhookConfiguration").pop().context("a webhook")?;
        let service = &webhook["webhooks"][0]["clientConfig"]["service"];
        let host = format!("{}.{}.svc", service["name"].as_str().unwrap_or_default(), NAMESPACE);
        ensure!(serving["spec"]["dnsNames"] == json!([host]), "{serving:#}");
        let trusted = &webhook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        ensure!(trusted == &json!(format!("{NAMESPACE}/{}", name(serving))), "{trusted}");

        let pod = &of(&objects, "Deployment").pop().context("a Deployment")?["spec"]["template"]["spec"];
        let secret = &pod["volumes"][0]["secret"]["secretName"];
        ensure!(*secret == serving["spec"]["secretName"], "{secret}");
        let operator = &pod["containers"][0];
        let mount = &operator["volumeMounts"][0];
        ensure!(mount["name"] == pod["volumes"][0]["name"] && mount["subPath"].is_null(), "{mount}");
        let flag = format!("--inject-certificate={}", mount["mountPath"].as_str().unwrap_or_default());
        ensure!(operator["args"].as_array().is_some_and(|args| args.contains(&json!(flag))), "{flag}");
        // The operator uses a different Secret, which contains the path of the webhook.
        ensure!(
            of(&objects, "Secret").iter().all(|it| json!(name(it)) != *secret),
            "helm and cert-manager would share a Secret"
        );

        let issuers = of(&objects, "Issuer");
        let signer = &serving["spec"]["issuerRef"];
        if issuer.is_some() {
            ensure!(issuers.is_empty() && certificates.len() == 1 && signer["name"] == "company", "{signer}");
            continue;
        }
        let authority =
            issuers.iter().find(|it| json!(name(it)) == signer["name"]).context("no issuer of the certificate")?;
        let root =
            certificates.iter().find(|it| it["spec"]["isCA"] == true).context("no certificate of an authority")?;
        ensure!(authority["spec"]["ca"]["secretName"] == root["spec"]["secretName"], "{authority:#}");
        let first = issuers
            .iter()
            .find(|it| json!(name(it)) == root["spec"]["issuerRef"]["name"])
            .context("no issuer of the authority")?;
        ensure!(first["spec"]["selfSigned"] == json!({}), "{first:#}");
    }
    Ok(())
}

/// Renders the chart with these values. This needs no cluster.
fn render(chart: &str, settings: &[&str]) -> Result<String> {
    let folder = std::env::var_os("WEIR_KUBE_BIN").context("WEIR_KUBE_BIN is not set")?;
    let mut helm = Command::new(Path::new(&folder).join("helm"));
    helm.args(["template", "weir", chart, "--namespace", NAMESPACE]);
    let output = helm.args(settings.iter().flat_map(|setting| ["--set", setting])).output().context("run helm")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[tokio::test]
async fn an_installation_comes_changes_and_goes() -> Result<()> {
    let stage = Stage::set().await?;
    let (crds, weir) = (chart("weir-crds")?, chart("weir")?);
    let definitions: Api<extensions::CustomResourceDefinition> = Api::all(stage.control_plane.client());

    // The operator needs its CRDs. Without them, the installation fails, and the error message contains the fix.
    let said = stage.refused(&["install", "weir", &weir])?;
    ensure!(said.contains("install the chart weir-crds"), "{said}");
    ensure!(stage.objects_of("weir")?.is_empty(), "objects of a failed installation are left");

    stage.done(&["install", "weir-crds", &crds, "--wait", "--timeout=60s"])?;
    // With the definitions, the chart lists no Secrets, so an installer whose releases are elsewhere needs no right to.
    let installer = ["--kube-as-user=installer", "--kube-as-group=system:authenticated"];
    let output = stage.helm(&[&["template", "weir", &weir, "--dry-run=server"], &installer[..]].concat())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!said.contains("calling lookup"), "{said}");
    let notes = stage.done(&["install", "weir", &weir, "--wait=false"])?;
    ensure!(notes.contains("rollout status deployment/weir-operator"), "{notes}");
    let installed = stage.objects_of("weir")?;
    ensure!(installed.iter().any(|object| object == "deployment.apps/weir-operator"), "{installed:?}");

    // An upgrade adds objects, and a rollback removes them.
    stage.done(&[
        "upgrade", "weir", &weir, "--reset-then-reuse-values", "--set", "networkPolicy.enabled=true,replicas=3",
        "--wait=false",
    ])?;
    let upgraded = stage.objects_of("weir")?;
    let added: Vec<_> = upgraded.iter().filter(|object| !installed.contains(object)).collect();
    ensure!(added == ["networkpolicy.networking.k8s.io/weir-operator"], "{added:?}");
    stage.done(&["rollback", "weir", "1", "--wait=false"])?;
    ensure!(stage.objects_of("weir")? == installed, "{:?}", stage.objects_of("weir")?);

    // The Secret of the operator's CAs changes only together with the CAs, in both directions.
    let ca = |name: &str| {
        let metadata = json!({"name": name, "namespace": NAMESPACE});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"ca.key": "a2V5"}});
        let applied = stage.kubectl(&["apply", "--server-side", "-f", "-"], &secret.to_string())?;
        ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
        anyhow::Ok(())
    };
    ca("weir-operator-identity")?;
    for (secret, now, next) in [
        ("identity.existingSecret=kept", "weir-operator-identity", "kept"),
        ("identity.existingSecret=", "kept", "weir-operator-identity"),
    ] {
        let args = ["upgrade", "weir", &weir, "--wait=false", "--take-ownership", "--set", secret];
        let said = stage.refused(&args)?;
        let copy = format!("kubectl get secret {now} -n {NAMESPACE} -o json | jq");
        ensure!(said.contains(&copy) && said.contains(&format!("the Secret {next} has none")), "{said}");
        ca(next)?;
        stage.done(&args)?;
    }
    stage.done(&["rollback", "weir", "1", "--wait=false"])?;

    // The CRDs are templates of a separate chart, because helm never updates the folder `crds` of a chart.
    let label = |definition: &extensions::CustomResourceDefinition| {
        let annotations = definition.metadata.annotations.clone().unwrap_or_default();
        annotations.contains_key("helm.sh/resource-policy")
    };
    ensure!(label(&definitions.get(CRD).await?), "the CRD has no annotation that keeps it");
    stage.done(&["upgrade", "weir-crds", &crds, "--set", "keep=false", "--wait", "--timeout=60s"])?;
    ensure!(!label(&definitions.get(CRD).await?), "the upgrade did not change the CRD");
    stage.done(&["rollback", "weir-crds", "1", "--wait", "--timeout=60s"])?;

    // Only the CRDs and the policies survive an uninstallation.
    let policy = json!({
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "RateLimitPolicy",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "rules": [{"name": "all", "limits": [{"name": "rate", "requests": 1, "per": "1s"}]}],
        },
    });
    let applied = stage.kubectl(&["apply", "-f", "-"], &policy.to_string())?;
    ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    stage.done(&["uninstall", "weir", "--wait=false"])?;
    stage.done(&["uninstall", "weir-crds", "--wait=false"])?;
    ensure!(stage.objects_of("weir")?.is_empty(), "{:?}", stage.objects_of("weir")?);
    let there = stage.kubectl(&["get", "ratelimitpolicies", "--namespace=shop", "--output=name"], "")?;
    ensure!(String::from_utf8_lossy(&there.stdout).contains("/web"), "{}", String::from_utf8_lossy(&there.stderr));

    // A new release can adopt the existing CRDs.
    let said = stage.refused(&["install", "crds-again", &crds])?;
    ensure!(said.contains("weir-crds"), "{said}");
    stage.done(&["install", "weir-crds", &crds, "--take-ownership", "--set", "keep=false"])?;
    // After a change of a definition, the apiserver renews its storage. A deletion that fails in the meantime is
    // repeated only after a long time.
    let list = ["get", "ratelimitpolicies,ratelimitstores", "--all-namespaces"];
    let mut attempts = 0;
    while !stage.kubectl(&list, "")?.status.success() {
        attempts += 1;
        ensure!(attempts < MOST_ATTEMPTS, "the apiserver lists no policies and stores");
        tokio::time::sleep(BETWEEN_ATTEMPTS).await;
    }
    if let Err(error) = stage.done(&["uninstall", "weir-crds", "--wait", "--timeout=60s"]) {
        // The CRDs in the apiserver show whether helm or the apiserver caused the error.
        let left = definitions.list(&ListParams::default()).await?.items;
        let left = left.iter().map(|it| (&it.metadata.name, it.status.as_ref().map(|status| &status.conditions)));
        return Err(error.context(format!("the apiserver has {:?}", left.collect::<Vec<_>>())));
    }
    ensure!(definitions.get_opt(CRD).await?.is_none(), "the CRD exists although keep is false");
    Ok(())
}
