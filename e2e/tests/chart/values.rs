//! Tests that every value of the charts has an effect, and that unknown names are refused.
//!
//! Each value of values.yaml is replaced by another one that the schema accepts. This is done with the default values
//! and with each file in `ci`. In at least one case, the rendered chart must change.

use std::collections::BTreeMap;

use super::*;

/// Other values to try. One of them must be accepted by the schema and have an effect.
fn others(default: &Value) -> Vec<Value> {
    let short = [
        "other", "Other", "7s", "720h", "7%", "5m", "json", "debug", "Always", "Fail", "Recreate", "Default",
        "Unconfined", "IfHealthyBudget", "SingleStack", "NodePort", "https://other.example",
        "registry.example/other:1", "512Mi",
    ];
    let long = [
        "sha256:01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b",
        "-----BEGIN CERTIFICATE-----\nother\n-----END CERTIFICATE-----\n",
    ];
    match default {
        Value::Bool(is) => vec![json!(!is)],
        Value::Number(number) => match number.as_i64() {
            Some(whole) => vec![json!(whole + 1), json!(whole - 1)],
            None => vec![json!(number.as_f64().unwrap_or_default() / 2.0)],
        },
        Value::Array(_) => vec![
            json!(["other"]),
            json!(["--other"]),
            json!([7]),
            json!(["10.7.0.0/16"]),
            json!([{"name": "other", "topologyKey": "other", "mountPath": "/other", "value": "other"}]),
            json!([{"name": "other"}]),
            json!([{"key": "other", "operator": "Exists"}]),
            json!([{"podSelector": {}}]),
            json!([{"ports": [{"port": 7}]}]),
            json!([{"name": "other", "caSecret": "other"}]),
            json!(["IPv6"]),
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}]),
        ],
        Value::Object(_) => {
            vec![json!({"other": "other"}), json!({"nodeAffinity": {"other": "other"}}), json!({"searches": ["other"]})]
        }
        _ => short.iter().chain(&long).map(|word| json!(word)).collect(),
    }
}

/// Collects the values of a chart that contain no other values, by path.
fn leaves(value: &Value, path: &str, found: &mut BTreeMap<String, Value>) {
    match value.as_object().filter(|fields| !fields.is_empty()) {
        Some(fields) => {
            for (name, inner) in fields {
                // A dot in a name does not separate names.
                let name = name.replace('.', "\\.");
                leaves(inner, &if path.is_empty() { name } else { format!("{path}.{name}") }, found);
            }
        }
        None => drop(found.insert(path.to_owned(), value.clone())),
    }
}

/// Collects the paths of values that contain other values.
fn folders(value: &Value, path: &str, found: &mut Vec<String>) {
    let Some(fields) = value.as_object() else { return };
    found.push(path.to_owned());
    for (name, inner) in fields {
        folders(inner, &if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, found);
    }
}

pub(crate) struct Chart {
    pub(crate) path: String,
    /// Arguments of helm, and the chart rendered with them.
    pub(crate) bases: Vec<(Vec<String>, String)>,
}

impl Chart {
    pub(crate) fn read(name: &str) -> Result<Self> {
        let path = chart(name)?;
        let mut bases = Vec::new();
        for file in values(&path)? {
            let args: Vec<_> = file.iter().map(|file| format!("--values={}", file.display())).collect();
            let rendered = template(&path, &args)?.map_err(|fault| anyhow::anyhow!("{args:?}: {fault}"))?;
            bases.push((args, rendered));
        }
        // The longest base has the most features enabled, so it comes first.
        bases.sort_by_key(|(_, rendered)| std::cmp::Reverse(rendered.len()));
        Ok(Self { path, bases })
    }

    fn defaults(&self) -> Result<Value> {
        Ok(serde_yaml::from_str(&fs::read_to_string(Path::new(&self.path).join("values.yaml"))?)?)
    }

    /// Returns the default of every value that contains no other values, by path.
    pub(crate) fn all(&self) -> Result<BTreeMap<String, Value>> {
        let mut all = BTreeMap::new();
        leaves(&self.defaults()?, "", &mut all);
        Ok(all)
    }

    /// Returns true if a value has an effect with one of the bases.
    fn has_effect(&self, path: &str, default: &Value) -> Result<bool> {
        for other in others(default) {
            for (args, rendered) in &self.bases {
                let set = format!("--set-json={path}={other}");
                match template(&self.path, &[&args[..], &[set]].concat())? {
                    Ok(now) if now != *rendered => return Ok(true),
                    Ok(_) => {}
                    // The schema refuses the value. It would also refuse the value with the other bases.
                    Err(fault) if fault.contains("values don't meet the specifications") => break,
                    Err(_) => {}
                }
            }
        }
        Ok(false)
    }
}

/// Renders a chart. The inner error is the error of helm.
pub(crate) fn template(chart: &str, args: &[String]) -> Result<std::result::Result<String, String>> {
    template_as("weir", chart, args)
}

/// Renders a chart as a release with this name.
pub(crate) fn template_as(release: &str, chart: &str, args: &[String]) -> Result<std::result::Result<String, String>> {
    let folder = std::env::var_os("WEIR_KUBE_BIN").context("WEIR_KUBE_BIN is not set")?;
    let mut helm = Command::new(Path::new(&folder).join("helm"));
    let output = helm.args(["template", release, chart, "--namespace", NAMESPACE]).args(args).output()?;
    let text = |bytes| String::from_utf8(bytes).context("the output of helm is not UTF-8");
    Ok(if output.status.success() { Ok(text(output.stdout)?) } else { Err(text(output.stderr)?) })
}

#[test]
fn every_value_has_an_effect() -> Result<()> {
    for name in ["weir-crds", "weir"] {
        let chart = Chart::read(name)?;
        let all = chart.all()?;
        ensure!(!all.is_empty(), "{name} has no values");
        let mut idle = Vec::new();
        for (path, default) in &all {
            if !chart.has_effect(path, default)? {
                idle.push(path);
            }
        }
        ensure!(idle.is_empty(), "{name}: these values have no effect: {idle:?}");
    }
    Ok(())
}

#[test]
fn names_that_are_no_values_are_refused_at_every_depth() -> Result<()> {
    for name in ["weir-crds", "weir"] {
        let chart = Chart::read(name)?;
        let mut all = Vec::new();
        folders(&chart.defaults()?, "", &mut all);
        for folder in all {
            let path = if folder.is_empty() { "nonsense".to_owned() } else { format!("{folder}.nonsense") };
            // Labels and similar values accept any name, but no boolean. Fields of Kubernetes are rendered without a
            // change, if the object is rendered.
            let set = format!("--set-json={path}=true");
            let mut is_ignored = true;
            for (args, plain) in &chart.bases {
                let taken = template(&chart.path, &[&args[..], std::slice::from_ref(&set)].concat())?;
                is_ignored = taken.as_ref() == Ok(plain);
                if !is_ignored {
                    break;
                }
            }
            ensure!(!is_ignored, "{name} accepts {path}, but ignores it");
        }
    }
    Ok(())
}

/// Returns the rows of a table in text. A line that begins with blanks continues its row.
fn rows(table: &str) -> Vec<String> {
    table.trim().replace("\n    ", " ").lines().map(str::to_owned).collect()
}

/// Checks that each row `setting & setting => message` is refused with its message.
fn are_refused(table: &str) -> Result<()> {
    are_refused_by("weir", table)
}

fn are_refused_by(name: &str, table: &str) -> Result<()> {
    for row in rows(table) {
        let (settings, expected) = row.split_once(" => ").context("a row without a message")?;
        let settings: Vec<_> = settings.split(" & ").collect();
        let Err(fault) = render(&chart(name)?, &settings) else { anyhow::bail!("{row}: the chart is rendered") };
        ensure!(fault.to_string().contains(expected), "{row}: {fault}");
    }
    Ok(())
}

/// Settings, and the images with them. Older versions had no value for all images. Their values `image.repository` and
/// `injection.agent.image.repository` must still work.
const IMAGES: &str = r#"
replicas=2 => weir.dev/agent:0.1.0 weir.dev/operator:0.1.0
images.registry=weir.test & images.tag=e2e => weir.test/agent:e2e weir.test/operator:e2e
images.registry=a.b:5000/mirror => a.b:5000/mirror/agent:0.1.0 a.b:5000/mirror/operator:0.1.0
images.registry=weir.test & injection.agent.image.registry=a.b & injection.agent.image.tag=v2 => a.b/agent:v2 weir.test/operator:0.1.0
image.repository=localhost/op & injection.agent.image.repository=a.b/c/agent => a.b/c/agent:0.1.0 localhost/op:0.1.0
image.digest=sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
    => weir.dev/agent:0.1.0 weir.dev/operator@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
images.registry=a.b & injection.redirect.image=iptables:1 => a.b/agent:0.1.0 a.b/iptables:1 a.b/operator:0.1.0
images.registry=a.b & injection.redirect.image=c.d/iptables@sha256:12 => a.b/agent:0.1.0 a.b/operator:0.1.0 c.d/iptables@sha256:12
"#;

/// An older manual set the first values for offline clusters. Then every pod with an agent would wait for the image
/// weir.dev/agent.
const OTHER_IMAGES: &str = r#"
image.repository=weir.test/operator & image.tag=e2e
    => the operator's image is weir.test/operator:e2e, and pods would get the agent weir.dev/agent:0.1.0: set images.registry
image.tag=e2e => pods would get the agent weir.dev/agent:0.1.0
image.tag=e2e & injection.enabled=false & rateLimitService.enabled=true => pods would get the agent weir.dev/agent:0.1.0
image.registry=a.b => the operator's image is a.b/operator:0.1.0
image.registry=a.b & image.repository=c.d/op & injection.agent.image.tag=v1 => registry a.b is not valid with repository c.d/op
"#;

/// Renders the chart, and returns the images of its objects.
fn images(settings: &[&str]) -> Result<Vec<String>> {
    let rendered = render(&chart("weir")?, settings)?;
    let image = |line: &str| {
        let line = line.trim().trim_start_matches("- ");
        line.strip_prefix("image: ")
            .or(line.strip_prefix("--inject-image="))
            .or(line.strip_prefix("--inject-redirect-image="))
            .map(|it| it.trim_matches('"').to_owned())
    };
    let mut images: Vec<_> = rendered.lines().filter_map(image).collect();
    images.sort();
    images.dedup();
    Ok(images)
}

#[test]
fn one_value_moves_all_images_and_one_alone_is_not_forgotten() -> Result<()> {
    for row in rows(IMAGES) {
        let (settings, expected) = row.split_once(" => ").context("a row without images")?;
        let found = images(&settings.split(" & ").collect::<Vec<_>>())?;
        ensure!(found.join(" ") == expected, "{row}: {found:?}");
    }
    ensure!(images(&["images.registry=a.b:5000/mirror/"]).is_err(), "a slash at the end");
    are_refused(OTHER_IMAGES)?;
    ensure!(
        images(&["image.tag=e2e", "injection.enabled=false"])? == ["weir.dev/operator:e2e"],
        "an agent image without injection"
    );
    Ok(())
}

/// Renders the Prometheus rules with these values. Returns each alert by its name.
fn alerts(settings: &[&str]) -> Result<BTreeMap<String, Value>> {
    alerts_in(&render(&chart("weir")?, &[&["prometheusRule.enabled=true"], settings].concat())?)
}

fn alerts_in(rendered: &str) -> Result<BTreeMap<String, Value>> {
    let mut objects = serde_yaml::Deserializer::from_str(rendered).map(Value::deserialize);
    let rule =
        objects.find_map(|it| it.ok().filter(|it| it["kind"] == "PrometheusRule")).context("a PrometheusRule")?;
    named_alerts(&rule["spec"])
}

pub(crate) fn named_alerts(rules: &Value) -> Result<BTreeMap<String, Value>> {
    let groups = rules["groups"].as_array().context("groups")?;
    let rules = groups.iter().flat_map(|group| group["rules"].as_array()).flatten();
    Ok(rules.filter_map(|rule| Some((rule["alert"].as_str()?.to_owned(), rule.clone()))).collect())
}

#[test]
fn each_alert_can_be_tuned_and_turned_off_and_is_as_its_file_says_otherwise() -> Result<()> {
    let file: Value = serde_yaml::from_str(&fs::read_to_string(Path::new(&chart("weir")?).join("alerts/weir.yaml"))?)?;
    let written = named_alerts(&file)?;
    ensure!(alerts(&[])? == written, "values.yaml and alerts/weir.yaml differ");
    for name in written.keys() {
        let set = |field: &str| format!("prometheusRule.alerts.{name}.{field}");
        ensure!(!alerts(&[&set("enabled=false")])?.contains_key(name), "{name} is not disabled");
        let page = "prometheusRule.runbookUrl=https://a.example/alerts.md";
        let tuned = alerts(&[&set("for=17m"), &set("severity=page"), "prometheusRule.alertLabels.team=x", page])?;
        let tuned = &tuned[name];
        ensure!(tuned["for"] == "17m" && tuned["labels"] == json!({"severity": "page", "team": "x"}), "{tuned:#}");
        let url = format!("https://a.example/alerts.md#{}", name.to_lowercase());
        ensure!(tuned["annotations"]["runbook_url"] == url, "{tuned:#}");
        let compared = alerts(&[&set("threshold=0.375")]);
        if name == "WeirNoLeader" {
            ensure!(compared.is_err(), "a threshold for an alert that has none");
        } else {
            let expression = compared?[name]["expr"].as_str().context("no expression")?.to_owned();
            let of_file = written[name]["expr"].as_str().context("no expression")?;
            ensure!(expression.matches("0.375").count() == 1 && !of_file.contains("0.375"), "{name}: {expression}");
        }
    }
    Ok(())
}

/// Alerts about operators select those of the release, because each installation has its own leader.
#[test]
fn alerts_about_operators_watch_the_release_alone() -> Result<()> {
    let chart = Chart::read("weir")?;
    let args = ["--namespace=limits", "--set=prometheusRule.enabled=true"].map(str::to_owned);
    let alerts = alerts_in(&template(&chart.path, &args)?.map_err(anyhow::Error::msg)?)?;
    for name in ["WeirPolicyNotAccepted", "WeirPodsDrifted", "WeirPushesFailing", "WeirNoLeader"] {
        let expression = alerts[name]["expr"].as_str().context("no expression")?;
        let selected = expression.matches("{namespace=\"limits\"").count();
        ensure!(selected == expression.matches("weir_operator_").count(), "{name}: {expression}");
    }
    Ok(())
}

/// In the network of a node, a new operator finds no free ports until the old one has ended.
#[test]
fn operators_on_the_network_of_nodes_can_be_replaced() -> Result<()> {
    let strategy = |settings: &[&str]| -> Result<Value> {
        let objects = known(&render(&chart("weir")?, settings)?)?;
        let deployment = objects.iter().find(|it| it["kind"] == "Deployment").context("a Deployment")?;
        Ok(deployment["spec"]["strategy"].clone())
    };
    let rolling = |surge: u64, unavailable: u64| json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
    let unavailable = "strategy.rollingUpdate.maxUnavailable";
    for (settings, expected) in [
        (&[][..], rolling(1, 0)),
        (&["hostNetwork=true"], rolling(0, 1)),
        (&["hostNetwork=true", &format!("{unavailable}=2")], rolling(1, 2)),
        (&["hostNetwork=true", &format!("{unavailable}=49%")], rolling(0, 1)),
        (&["hostNetwork=true", "strategy.rollingUpdate=null"], rolling(0, 1)),
        (&["hostNetwork=true", "strategy.type=Recreate"], json!({"type": "Recreate"})),
    ] {
        let strategy = strategy(settings)?;
        ensure!(strategy == expected, "{settings:?}: {strategy}");
    }
    Ok(())
}

/// A platform such as OpenShift gives pods their users, and refuses pods that name another one.
#[test]
fn the_pods_of_helm_test_have_the_user_of_the_operator() -> Result<()> {
    for (settings, expected) in [
        (&["podSecurityContext.runAsUser=null", "podSecurityContext.runAsGroup=null"][..], json!([null, null])),
        (&["podSecurityContext.runAsUser=1000"], json!([1000, 65532])),
    ] {
        let objects = known(&render(&chart("weir")?, settings)?)?;
        let pods: Vec<_> = objects.iter().filter(|it| it["kind"] == "Pod").map(|it| &it["spec"]).collect();
        ensure!(pods.len() == 3, "{} pods", pods.len());
        for pod in pods {
            let context = &pod["securityContext"];
            ensure!(json!([context["runAsUser"], context["runAsGroup"]]) == expected, "{settings:?}: {context}");
            ensure!(context["runAsNonRoot"] == true, "{settings:?}: {context}");
        }
    }
    Ok(())
}

#[test]
fn those_who_may_view_or_edit_a_namespace_may_do_so_with_its_policies() -> Result<()> {
    let objects = known(&render(&chart("weir")?, &[])?)?;
    let role = |to: &str| {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{to}");
        let roles =
            objects.iter().filter(move |it| it["kind"] == "ClusterRole" && it["metadata"]["labels"][&label] == "true");
        let verbs =
            roles.flat_map(|it| it["rules"].as_array().into_iter().flatten()).flat_map(|rule| rule["verbs"].as_array());
        let mut verbs: Vec<_> = verbs.flatten().filter_map(|verb| verb.as_str().map(str::to_owned)).collect();
        verbs.sort();
        verbs.join(" ")
    };
    ensure!(role("view") == "get list watch", "{}", role("view"));
    for to in ["edit", "admin"] {
        ensure!(role(to) == "create delete deletecollection get list patch update watch", "{to}: {}", role(to));
    }
    Ok(())
}

/// The objects that grant permissions, by kind, namespace and name.
fn rights(rendered: &str) -> Result<BTreeMap<String, Value>> {
    let rights = known(rendered)?.into_iter().filter(|it| it["apiVersion"] == "rbac.authorization.k8s.io/v1");
    let name = |it: &Value| format!("{} {} {}", it["kind"], it["metadata"]["namespace"], it["metadata"]["name"]);
    Ok(rights.map(|it| (name(&it), it)).collect())
}

/// Without `rbac.create`, an administrator creates the objects that grant permissions. The file in `charts` must print
/// exactly the objects that the chart omits.
#[test]
fn without_rbac_create_there_are_no_roles_and_one_file_prints_what_the_operator_needs() -> Result<()> {
    let chart = chart("weir")?;
    for file in values(&chart)? {
        let mut args: Vec<_> = file.iter().map(|file| format!("--values={}", file.display())).collect();
        let mut rendered = |more: &[&str]| {
            let own = args.len();
            args.extend(more.iter().map(|&it| it.to_owned()));
            let rendered = template(&chart, &args)?.map_err(|fault| anyhow::anyhow!("{args:?}: {fault}"));
            args.truncate(own);
            rendered
        };
        let none = rendered(&["--set=rbac.create=false"])?;
        ensure!(rights(&none)?.is_empty(), "{file:?}: {:?}", rights(&none)?.keys());
        ensure!(!none.contains("helm.sh/hook"), "{file:?}: a test without permissions");
        ensure!(!none.contains("weir-test"), "{file:?}: a test without its hook");

        let create = "--set=rbac.create=true";
        let mut all = rights(&rendered(&[create])?)?;
        // The chart also omits the permissions of `helm test`, and the operator does not need the roles for users.
        all.retain(|_, it| it["metadata"]["annotations"]["helm.sh/hook"] != "test");
        all.retain(|_, it| !it["metadata"]["labels"].to_string().contains("/aggregate-to-"));
        let printed = rights(&rendered(&[create, "--show-only=templates/rbac.yaml"])?)?;
        ensure!(!all.is_empty() && printed == all, "{file:?}: {:?} of {:?}", printed.keys(), all.keys());
    }
    Ok(())
}

const WRONG_OF_CRDS: &str = r#"
kep=true => 'kep' not allowed
keep=perhaps => /keep
keep=null => missing property 'keep'
commonLabels.a=x y => /commonLabels/a
commonLabels.a/b/c=x => 'a/b/c' not allowed
"#;

const WRONG: &str = r#"
commonLabels.a/b/c=x => 'a/b/c' not allowed
replica=2 => 'replica' not allowed
extraArgs={lease-renewal} => /extraArgs/0
extraContainers[0].image=a => /extraContainers/0
extraObjects[0].kind=ConfigMap => /extraObjects/0
services.ipFamilies={ipv4} => /services/ipFamilies/0
services.ipFamilyPolicy=SingleStack,services.ipFamilies={IPv4,IPv6} => /services/ipFamilies': maxItems: got 2, want 1
livenessProbe.periods=1 => 'periods' not allowed
prometheusRule.alerts.WeirNoLeaders.enabled=false => 'WeirNoLeaders' not allowed
prometheusRule.alerts.WeirNoLeader.threshold=2 => /prometheusRule/alerts
prometheusRule.alerts.WeirPodsDrifted.for=soon => /prometheusRule/alerts/WeirPodsDrifted/for
imagePullSecrets={registry} => /imagePullSecrets/0
watchNamespaces={Shop} => /watchNamespaces/0
injection.enable=true => 'enable' not allowed
injection.namespaceExpressions[0].key=env => /injection/namespaceExpressions/0
injection.namespaceExpressions[0].key=a,injection.namespaceExpressions[0].operator=In => missing property 'values'
injection.namespaceExpressions[0].key=a,injection.namespaceExpressions[0].operator=Exists,injection.namespaceExpressions[0].values={b} => /injection/namespaceExpressions/0/values
injection.certManager.issuerRef.nam=company => 'nam' not allowed
injection.agent.resources.requests.disk=1Gi => 'disk' not allowed
injection.agent.resources.requests.cpu=abc => /injection/agent/resources/requests/cpu
injection.agent.resources.requests.cpu=1' => /injection/agent/resources/requests/cpu
injection.agent.resources.requests.cpu=0m => /injection/agent/resources/requests/cpu
injection.agent.resources.limits.memory=64MB => /injection/agent/resources/limits/memory
injection.agent.env[0].name=A,injection.agent.env[0].value=5 => /injection/agent/env/0/value
injection.agent.env[0].value=a => /injection/agent/env/0
injection.agent.securityContext.runAsUser=x => /injection/agent/securityContext/runAsUser
injection.agent.securityContext.runAsUsers=1 => 'runAsUsers' not allowed
injection.agent.securityContext.seccompProfile.type=null => missing property 'type'
injection.redirect.tag=1 => 'tag' not allowed
injection.redirect.image=https://x/iptables:1 => /injection/redirect/image
injection.agent.jwks.url=https://a/my keys => /injection/agent/jwks/url
rateLimitService.enable=true => 'enable' not allowed
rateLimitService.service.type=ExternalName => /rateLimitService/service/type
rateLimitService.stores={limits} => /rateLimitService/stores/0
rateLimitService.stores[0].name=limits => /rateLimitService/stores/0
rateLimitService.extraEnv[0].name=A,rateLimitService.extraEnv[0].value=5 => /extraEnv/0/value
rateLimitService.networkPolicy.from[0].namespace=edge => 'namespace' not allowed
resources.memory=1Gi => 'memory' not allowed
podLabels.a/b/c=x => 'a/b/c' not allowed
affinity.nodes=1 => 'nodes' not allowed
networkPolicy.apiServer.ports={https} => /networkPolicy/apiServer/ports/0
networkPolicy.apiServer.ports={70000} => /networkPolicy/apiServer/ports/0
networkPolicy.apiServer.cidrs={10.0.0.1} => /networkPolicy/apiServer/cidrs/0
networkPolicy.metricsFrom[0].namespace=monitoring => 'namespace' not allowed
podMonitor.label.a=b => 'label' not allowed
serviceMonitor.sampleLimit=5 => 'sampleLimit' not allowed
"#;

/// Values that are refused with their path.
const WRONG_AT_THEIR_PATHS: &[&str] = &[
    "commonLabels.a=x y", "replicas=0", "replicas=2.5", "replicas=many", "image=weir.dev/operator",
    "image.repository=", "image.pullPolicy=Sometimes", "image.digest=sha256:1", "images.registry=",
    "images.registry=weir.test/", "images.registry=https://x", "image.repository=https://x/operator",
    "fullnameOverride=Weir", "injection.port=0", "injection.certificate.caBundle=MIIB", "logFormat=yaml",
    "lease.duration=1", "lease.renewal=often", "lease.renewal=0", "identity.lifetime=1d", "identity.lifetime=5s1h",
    "identity.authorityLifetime=", "identity.audience=", "hostUsers=perhaps", "strategy.type=OnDelete",
    "strategy.rollingUpdate.maxSurge=few", "livenessProbe.successThreshold=2", "readinessProbe.periodSeconds=-1",
    "watchNamespaces=shop", "watchNamespaces={shop,shop}", "injection.failurePolicy=fail",
    "injection.timeoutSeconds=31", "injection.certManager=true", "injection.certManager.issuerRef.kind=",
    "injection.agent.logLevel=", "injection.redirect.image=a b", "injection.agent.logFormat=yaml",
    "injection.agent.drain=soon", "injection.agent.drain=5s1m", "injection.agent.jwks.url=http://a/keys",
    "injection.agent.jwks.configMap=a/b/c", "rateLimitService.replicas=0", "rateLimitService.service.port=grpc",
    "rateLimitService.tls.secretName=Edge", "rateLimitService.drainSeconds=20s",
    "rateLimitService.drainSeconds=1000000", "logLevel=", "resources.requests.memory=much",
    "serviceAccount.annotations.a=1", "podLabels.tier=1", "podLabels.tier=x y", "rateLimitService.podLabels.tier=-x",
    "networkPolicy.enabled=yes", "dashboards.labels=grafana", "serviceMonitor.interval=often",
    "podMonitor.sampleLimit=-1", "podMonitor.labelLimit=many", "prometheusRule.runbookUrl=docs",
];

#[test]
fn wrong_values_are_refused_by_name() -> Result<()> {
    are_refused_by("weir-crds", WRONG_OF_CRDS)?;
    are_refused(WRONG)?;
    for setting in WRONG_AT_THEIR_PATHS {
        let (path, _) = setting.split_once('=').context("a setting without a value")?;
        are_refused(&format!("{setting} => at '/{}':", path.replace(['.', '['], "/").replace(']', "")))?;
    }
    Ok(())
}

const CONTRADICTIONS: &str = r#"
serviceAccount.create=false => set serviceAccount.name to the ServiceAccount of the operator
injection.certificate.existingSecret=tls => name the CA that the apiserver trusts, in injection.certificate.caBundle
injection.certificate.existingSecret=tls & injection.certManager.enabled=true => remove one of them
injection.certificate.caBundle=-----BEGIN CERTIFICATE----- => name that Secret, or remove the bundle
hostNetwork=true & hostUsers=false => hostUsers false is not valid with hostNetwork
dnsPolicy=None => dnsPolicy None: set dnsConfig.nameservers
readinessProbe.terminationGracePeriodSeconds=3 => readinessProbe.terminationGracePeriodSeconds: Kubernetes accepts this field only in a livenessProbe
podDisruptionBudget.maxUnavailable=150% => '150%' does not match
strategy.rollingUpdate.maxUnavailable=101% => '101%' does not match
injection.agent.securityContext.runAsUser=0 => injection.agent.securityContext: runAsUser 0 contradicts runAsNonRoot: set another user
injection.agent.securityContext.capabilities.add={CAP_SYS_ADMIN}
    => privileged and CAP_SYS_ADMIN contradict allowPrivilegeEscalation false: remove them
injection.agent.securityContext.seccompProfile.type=Localhost & injection.agent.securityContext.seccompProfile.localhostProfile=/a.json
    => '/a.json' does not match
injection.agent.resources.limits.memory=8Mi & injection.agent.resources.requests.memory=8Mi
    => injection.agent.resources.limits.memory 8Mi is less than 16Mi, which an agent needs: raise it
rateLimitService.service.headless=true & rateLimitService.service.port=80
    => rateLimitService.service.port 80: the pods of a headless Service listen on this port
injection.agent.securityContext.seccompProfile.type=Localhost & injection.agent.securityContext.seccompProfile.localhostProfile=a/../b.json
    => injection.agent.securityContext.seccompProfile.localhostProfile a/../b.json contains ..: write the path
injection.agent.securityContext.seccompProfile.type=Localhost => missing property 'localhostProfile'
injection.agent.env[0].name=A\=B => 'A=B' does not match pattern
injection.agent.env[0].name=A & injection.agent.env[0].valueFrom.secretRef.name=b
    => injection.agent.env: valueFrom of A must have one of configMapKeyRef, secretKeyRef
injection.agent.env[0].name=A & injection.agent.env[0].value=b & injection.agent.env[0].valueFrom.fieldRef.fieldPath=metadata.name
    => injection.agent.env: A has value and valueFrom: remove one
injection.agent.env[0].name=A & injection.agent.env[0].valueFrom.secretKeyRef.nam=b => 'nam' not allowed
injection.agent.env[0].name=A & injection.agent.env[0].valueFrom.secretKeyRef.name=My_Secret & injection.agent.env[0].valueFrom.secretKeyRef.key=k
    => valueFrom.secretKeyRef of A has the name "My_Secret", which no object can have: use lower-case letters
injection.agent.env[0].name=A & injection.agent.env[0].valueFrom.configMapKeyRef.name=a..b & injection.agent.env[0].valueFrom.configMapKeyRef.key=k
    => valueFrom.configMapKeyRef of A has the name "a..b"
injection.agent.env[0].name=A & injection.agent.env[0].valueFrom.configMapKeyRef.name=a & injection.agent.env[0].valueFrom.configMapKeyRef.key=..k
    => valueFrom.configMapKeyRef of A has the key "..k", which no object can have: use letters
injection.agent.env[0].name=A & injection.agent.env[0].valueFrom.fieldRef.fieldPath=metadata.labels['']
    => valueFrom.fieldRef of A has the fieldPath "metadata.labels['']": use the path of a name
injection.agent.env[0].name=A & injection.agent.env[0].valueFrom.resourceFieldRef.resource=cpu
    => valueFrom.resourceFieldRef of A has the resource "cpu": use limits or requests
injection.agent.env[0].name=A & injection.agent.env[0].valueFrom.resourceFieldRef.resource=limits.cpu
    & injection.agent.env[0].valueFrom.resourceFieldRef.divisor=1
    => valueFrom.resourceFieldRef of A has the number 1 as divisor: write it in quotes
imagePullSecrets[0].name=My_Secret => at '/imagePullSecrets/0/name': 'My_Secret' does not match
identity.existingSecret=a..b => at '/identity/existingSecret': 'a..b' does not match
priorityClassName=High => at '/priorityClassName': 'High' does not match
injection.certManager.issuerRef.name=My_Issuer => at '/injection/certManager/issuerRef/name'
injection.agent.jwks.configMap=a-/k => at '/injection/agent/jwks/configMap': 'a-/k' does not match
injection.agent.jwks.configMap=a/..k => at '/injection/agent/jwks/configMap': 'a/..k' does not match
rateLimitService.service.headless=true & rateLimitService.service.port=8482
    => rateLimitService.service.port 8482: the pods of a headless Service listen on this port
strategy.rollingUpdate.maxSurge=0% => strategy.rollingUpdate.maxSurge 0% and maxUnavailable 0 allow no update: raise one of them
podDisruptionBudget.maxUnavailable=0 => podDisruptionBudget.maxUnavailable 0 blocks every drain
podDisruptionBudget.minAvailable=2 => podDisruptionBudget.minAvailable 2 blocks every drain of a node with 2 replicas: set less
podDisruptionBudget.minAvailable=51% => podDisruptionBudget.minAvailable 51% blocks every drain
rateLimitService.enabled=true & rateLimitService.podDisruptionBudget.minAvailable=100% & rateLimitService.replicas=null
    => rateLimitService.podDisruptionBudget.minAvailable 100% blocks every drain of a node: set less
rateLimitService.enabled=true & rateLimitService.podDisruptionBudget.maxUnavailable=0%
    => rateLimitService.podDisruptionBudget.maxUnavailable 0% blocks every drain
networkPolicy.enabled=true & networkPolicy.apiServer.cidrs={10.0.0.0/33} => networkPolicy.apiServer.cidrs: 10.0.0.0/33 is not a range
networkPolicy.enabled=true & networkPolicy.apiServer.cidrs={10.0.0.256/32} => 10.0.0.256/32 is not a range of addresses
rateLimitService.enabled=true & rateLimitService.networkPolicy.enabled=true & rateLimitService.networkPolicy.egress[0].to[0].ipBlock.cidr=fd00::/129
    => rateLimitService.networkPolicy.egress.to.ipBlock: fd00::/129 is not a range of addresses
networkPolicy.enabled=true & networkPolicy.apiServer.cidrs={192.168.77.130/17}
    => networkPolicy.apiServer.cidrs: 192.168.77.130/17 has bits after its prefix: write 192.168.0.0/17, or 192.168.77.130/32
networkPolicy.enabled=true & networkPolicy.metricsFrom[0].ipBlock.cidr=0.0.0.1/0
    => networkPolicy.metricsFrom.ipBlock: 0.0.0.1/0 has bits after its prefix: write 0.0.0.0/0
networkPolicy.enabled=true & networkPolicy.apiServer.cidrs={fd00::1/64}
    => networkPolicy.apiServer.cidrs: fd00::1/64 has bits after its prefix: set these bits to zero, or write fd00::1/128
networkPolicy.enabled=true & networkPolicy.metricsFrom[0].ipBlock.cidr=fd00:0:0:1::/63
    => networkPolicy.metricsFrom.ipBlock: fd00:0:0:1::/63 has bits after its prefix
networkPolicy.enabled=true & networkPolicy.apiServer.cidrs={::ffff:10.0.0.0/104}
    => ::ffff:10.0.0.0/104 is IPv4 in IPv6 notation, which no packet matches: write it as IPv4
volumes[0].name=identity-authority & identity.authority.existingSecret=a
    => volumes contains the name identity-authority, which the chart itself uses: choose another name
volumes[0].name=webhook-certificate & injection.certManager.enabled=true => volumes contains the name webhook-certificate, which the chart itself uses
volumes[0].name=a & volumes[1].name=a => volumes contains the name a, which another entry uses
extraContainers[0].name=operator => extraContainers contains the name operator, which the chart itself uses
extraContainers[0].name=agent-image => extraContainers contains the name agent-image
identity.existingSecret=a & injection.existingSecret=a
    => identity.existingSecret and injection.existingSecret are both a, so agents and the webhook would share one CA
rateLimitService.enabled=true & rateLimitService.stores[0].name=a & rateLimitService.stores[0].caSecret=b & rateLimitService.stores[1].name=a
    & rateLimitService.stores[1].caSecret=c
    => rateLimitService.stores contains a twice: remove one of the entries
injection.port=8490 => injection.port and telemetry.port are both 8490
identity.port=8491 => identity.port and injection.port are both 8491
injection.enabled=false & telemetry.port=8492 => identity.port and telemetry.port are both 8492
identity.lifetime=0h0s => identity.lifetime 0h0s is too short: set at least 1s
injection.agent.drain=0s => injection.agent.drain 0s is too short: set at least 1s
injection.agent.jwks.refresh=0s => injection.agent.jwks.refresh 0s is too short: set at least 1s
injection.agent.drain=277777h46m40s => injection.agent.drain 277777h46m40s is too long
injection.agent.jwks.refresh=277777h46m40s => injection.agent.jwks.refresh 277777h46m40s is too long
identity.lifetime=1h0m1s & identity.authorityLifetime=12h => identity.authorityLifetime 12h is less than twelve times identity.lifetime 1h0m1s
injection.agent.resources.requests.memory=0.2G => injection.agent.resources.requests.memory 0.2G is more than limits.memory 128Mi: lower the request
resources.limits.cpu=0.04 => resources.requests.cpu 50m is more than limits.cpu 0.04
image.repository=a.b:5000/op:v1 => image.repository a.b:5000/op:v1 contains a tag: remove the tag
injection.agent.image.repository=a:1 => and set injection.agent.image.tag
injection.agent.env[0].name=WEIR_DRAIN => WEIR_DRAIN: remove it, and set the value of injection.agent
injection.agent.env[0].name=WEIR_LISTEN => WEIR_LISTEN, which Weir sets itself: remove it
logLevel=info\,loud => logLevel: "loud" is not a log level: set error, warn, info
injection.agent.logLevel=loud=? => injection.agent.logLevel: "loud=?" is not a log level
injection.agent.logLevel=[x]=info => injection.agent.logLevel: "[x]=info" is not a log level
rateLimitService.logLevel=info: x => rateLimitService.logLevel: "info: x" is not a log level
lease.renewal=0.0000000001 => lease.renewal 0.0000000001 is not above zero
lease.renewal=3 => lease.renewal 3 leaves no time for a second attempt in a lease.duration of 8
lease.renewal=0.7 & lease.duration=2 => lease.renewal 0.7 leaves no time
injection.agent.jwks.url=https://a/k => set caConfigMap to the authorities
injection.agent.jwks.refresh=5m => are valid only with url
injection.agent.jwks.url=https://a..b/k & injection.agent.jwks.caConfigMap=a
    => injection.agent.jwks.url https://a..b/k: write a DNS name or an IP address as host
injection.agent.jwks.url=https://a/k & injection.agent.jwks.caConfigMap=a & injection.agent.jwks.configMap=b => both set the source of the keys
rateLimitService.enabled=true & watchNamespaces={shop}
    => does not watch the namespace weir-system, in which the service runs: add it to watchNamespaces
rateLimitService.service.headless=true & rateLimitService.service.type=NodePort => valid only with type ClusterIP
rateLimitService.tls.clientCA=edge => name the Secret with the service's certificate
"#;

/// Combinations of values that are invalid together are refused, and the message contains the fix.
#[test]
fn values_that_contradict_each_other_are_refused_with_the_fix() -> Result<()> {
    are_refused(CONTRADICTIONS)
}

#[test]
fn wrong_ipv6_networks_and_urls_are_refused() -> Result<()> {
    for address in
        ["12345::", "1::2::3", ":::", ":", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7::8", "1:2:3:4:5:6:7:8:9", "::1.2.3.256"]
    {
        let settings = format!("networkPolicy.enabled=true & networkPolicy.apiServer.cidrs={{{address}/128}}");
        are_refused(&format!("{settings} => {address}/128 is not a range of addresses"))?;
    }
    for host in ["-", "a-.b", "10.0.0.256", "[1::2::3]", "[::1", "a:0", "a:65536", "a:1:2"] {
        let settings = format!("injection.agent.jwks.url=https://{host}/k & injection.agent.jwks.caConfigMap=a");
        are_refused(&format!("{settings} => https://{host}/k: write a DNS name"))?;
    }
    Ok(())
}

const ACCEPTED: &str = r#"
identity.lifetime=1h & identity.authorityLifetime=12h
identity.lifetime=1h & identity.authorityLifetime=1m & identity.enabled=false
injection.enabled=false & telemetry.port=8491
injection.agent.resources.requests.memory=128Mi & injection.agent.resources.requests.cpu=.5
injection.agent.resources.requests.memory=0.134217728G
injection.agent.resources.limits.memory=null & injection.agent.resources.requests.memory=1Gi
logLevel=info\,weir_operator=debug\,[request{path=1}]=trace & injection.agent.logLevel=INFO
rateLimitService.drainSeconds=99999 & rateLimitService.enabled=true
lease.renewal=2.666666667 & lease.duration=9
strategy.type=Recreate & strategy.rollingUpdate=null
strategy.type=Recreate & strategy.rollingUpdate.maxSurge=0
strategy.rollingUpdate.maxSurge=0 & strategy.rollingUpdate.maxUnavailable=null
dnsPolicy=None & dnsConfig.nameservers={10.0.0.10}
replicas=3 & podDisruptionBudget.minAvailable=66%
replicas=1 & podDisruptionBudget.maxUnavailable=0
podDisruptionBudget.enabled=false & podDisruptionBudget.maxUnavailable=0
rateLimitService.replicas=null & rateLimitService.podDisruptionBudget.minAvailable=100
networkPolicy.enabled=true & networkPolicy.apiServer.cidrs={255.255.255.255/32,0.0.0.0/0,::/0,fd00::1/128}
networkPolicy.enabled=true & networkPolicy.apiServer.cidrs={FD00:0:0:1::/64,1:2:3:4:5:6:7:8/128,8000::/1,64:ff9b::192.0.2.0/120,2001:db8::8000:0/97}
networkPolicy.enabled=false & networkPolicy.apiServer.cidrs={10.0.0.0/33}
injection.agent.env[0].name=A & injection.agent.env[0].valueFrom.secretKeyRef.name=a-1.b & injection.agent.env[0].valueFrom.secretKeyRef.key=.k_.-Z
    & injection.agent.env[1].name=B & injection.agent.env[1].valueFrom.fieldRef.fieldPath=metadata.annotations['Example.com/A_b.c']
    & injection.agent.env[2].name=C & injection.agent.env[2].valueFrom.resourceFieldRef.resource=limits.cpu
injection.agent.securityContext.seccompProfile.type=Localhost & injection.agent.securityContext.seccompProfile.localhostProfile=a/b..c.json
injection.agent.jwks.configMap=a-1.b/.k_
injection.agent.jwks.url=https://[::1]:8443/k?x=1 & injection.agent.jwks.caConfigMap=a
injection.agent.jwks.url=https://10.0.0.1 & injection.agent.jwks.caConfigMap=a
injection.agent.jwks.url=https://a_b.c:65535/k & injection.agent.jwks.caConfigMap=a
rateLimitService.podDisruptionBudget.maxUnavailable=0
livenessProbe.periodSeconds=0
livenessProbe.successThreshold=0 & readinessProbe.successThreshold=2
networkPolicy.enabled=true & networkPolicy.apiServer.cidrs={10.0.0.0/8,192.168.77.130/31,128.0.0.0/1}
volumes[0].name=identity-authority & volumes[1].name=operator
extraContainers[0].name=agent-image & injection.enabled=false
identity.existingSecret=a & injection.existingSecret=a & injection.enabled=false
images.registry=a.b:5000/c-d/e & injection.redirect.image=a.b:5000/c@sha256:12
commonLabels.example\.com/a=X_1.y & podLabels.a=
services.ipFamilyPolicy=PreferDualStack & services.ipFamilies={IPv6,IPv4}
"#;

/// Values at the bounds of what the operator and the agent accept.
#[test]
fn values_at_their_bounds_are_accepted() -> Result<()> {
    for row in rows(ACCEPTED) {
        let settings: Vec<_> = row.split(" & ").collect();
        render(&chart("weir")?, &settings).with_context(|| row.clone())?;
    }
    Ok(())
}

/// A value that looks like YAML reaches the operator and the agent unchanged.
#[test]
fn arguments_keep_every_character() -> Result<()> {
    let settings = ["rateLimitService.enabled=true", "identity.audience=a: 'b' \"c\" #d $(HOME)", "replicas=9"];
    let objects = known(&render(&chart("weir")?, &settings)?)?;
    let mut deployments = objects.iter().filter(|it| it["kind"] == "Deployment");
    let audience = "a: 'b' \"c\" #d $(HOME)";
    // The kubelet replaces two dollar signs by one.
    let argument = json!(format!("--identity-audience={}", audience.replace('$', "$$")));
    let operator = deployments.clone().find(|it| it["metadata"]["name"] == "weir-operator").context("the operator")?;
    let args = &operator["spec"]["template"]["spec"]["containers"][0]["args"];
    ensure!(args.as_array().is_some_and(|args| args.contains(&argument)), "{args:#}");
    let service = deployments
        .find(|it| it["metadata"]["name"] == "weir-operator-rate-limit")
        .context("the rate limit service")?;
    let volumes = service["spec"]["template"]["spec"]["volumes"].as_array().context("volumes")?;
    let tokens = volumes.iter().flat_map(|it| it["projected"]["sources"].as_array().into_iter().flatten());
    let mut audiences = tokens.map(|it| &it["serviceAccountToken"]["audience"]).filter(|it| !it.is_null());
    ensure!(audiences.all(|it| it == audience), "{volumes:#?}");
    // Helm reads whole numbers as floating point, which a template prints as 1e+06.
    for setting in ["revisionHistoryLimit=1000000", "terminationGracePeriodSeconds=1000000"] {
        let rendered = render(&chart("weir")?, &[setting])?;
        let line = setting.replace('=', ": ");
        ensure!(rendered.lines().any(|it| it.trim() == line), "{setting}: no line {line:?}");
    }
    Ok(())
}

/// Fields of Kubernetes objects, and the labels of dashboards: null removes a default.
const REMOVABLE: [&str; 12] = [
    "resources.", "securityContext.", "podSecurityContext.", "livenessProbe.", "readinessProbe.",
    "strategy.rollingUpdate", "dashboards.labels.", "rateLimitService.replicas", "rateLimitService.resources.",
    "rateLimitService.securityContext.", "rateLimitService.podSecurityContext.",
    // The operator uses the agent's default for a setting that is absent.
    "injection.agent.",
];

/// Helm removes a value that is null before it checks the schema. If the chart accepted this, it would render wrong
/// objects. For example, a rule of a NetworkPolicy without ports allows all traffic.
#[test]
fn null_is_refused_unless_the_default_is_empty() -> Result<()> {
    for name in ["weir-crds", "weir"] {
        let chart = Chart::read(name)?;
        let defaults = chart.defaults()?;
        let (mut all, mut sections) = (BTreeMap::new(), Vec::new());
        leaves(&defaults, "", &mut all);
        folders(&defaults, "", &mut sections);
        sections.retain(|section| !section.is_empty() && !all.contains_key(section));
        let everything = sections.iter().map(|path| (path, None)).chain(all.iter().map(|it| (it.0, Some(it.1))));
        for (path, default) in everything {
            let is_removable = REMOVABLE.iter().any(|prefix| path.starts_with(prefix));
            let empty = default.filter(|it| [json!(""), json!([]), json!({})].contains(it));
            let args = &chart.bases[0].0;
            let with =
                |value: &Value| template(&chart.path, &[&args[..], &[format!("--set-json={path}={value}")]].concat());
            match (with(&Value::Null)?, empty) {
                (Err(fault), None) => {
                    let last = path.rsplit('.').next().unwrap_or_default();
                    let is_named = fault.contains("missing propert") && fault.contains(&format!("'{last}'"));
                    ensure!(is_named, "{name}: {path}=null: {fault}");
                }
                (Ok(rendered), _) if is_removable => {
                    ensure!(!rendered.contains("<nil>") && !rendered.contains("%!"), "{name}: {path}=null");
                }
                // An empty map would keep the entries of the base.
                (Ok(_), Some(Value::Object(_))) => {}
                (without, Some(empty)) => {
                    ensure!(without == with(empty)?, "{name}: {path}=null differs from {empty}");
                }
                (Ok(_), None) => anyhow::bail!("{name}: {path}=null is accepted"),
            }
        }
    }
    Ok(())
}

/// Helm accepts names of releases that cannot be names of Services.
#[test]
fn a_release_whose_name_no_service_can_have_is_refused() -> Result<()> {
    let chart = Chart::read("weir")?;
    for release in ["weir.prod", "1weir"] {
        let fault = template_as(release, &chart.path, &[])?.expect_err("a wrong name");
        ensure!(fault.contains("cannot be the name of a Service: set fullnameOverride"), "{fault}");
        template_as(release, &chart.path, &["--set=fullnameOverride=weir".to_owned()])?.map_err(anyhow::Error::msg)?;
    }
    let long = "w".repeat(51);
    let rendered = template_as(&long, &chart.path, &["--set=serviceMonitor.enabled=true".to_owned()])?;
    let objects = known(&rendered.map_err(anyhow::Error::msg)?)?;
    let services = objects.iter().filter(|object| object["kind"] == "Service");
    let names: Vec<_> = services.filter_map(|service| service["metadata"]["name"].as_str()).collect();
    ensure!(names.len() == 3 && names.iter().all(|name| name.len() <= 63), "{names:?}");
    Ok(())
}

/// The namespace of the pod of `helm test`, and its labels if the test creates it.
fn place_of_the_test(args: &[&str]) -> Result<Option<(String, Option<Value>)>> {
    let chart = Chart::read("weir")?;
    let args: Vec<_> = ["--namespace=weir-system"].iter().chain(args).map(|&arg| arg.to_owned()).collect();
    let rendered = template(&chart.path, &args)?.map_err(anyhow::Error::msg)?;
    let objects = known(&rendered)?;
    let Some(pod) = objects.iter().find(|it| it["kind"] == "Pod" && it["metadata"]["name"] == "weir-operator-test")
    else {
        return Ok(None);
    };
    let namespace = pod["metadata"]["namespace"].as_str().context("no namespace")?.to_owned();
    let own = objects.iter().find(|it| it["kind"] == "Namespace" && it["metadata"]["name"] == *namespace);
    Ok(Some((namespace, own.map(|it| it["metadata"]["labels"].clone()))))
}

/// The pod of `helm test` gets an agent only in a namespace that the operator watches, and whose pods the webhook gets.
#[test]
fn the_pod_of_helm_test_is_where_pods_get_agents() -> Result<()> {
    let place = place_of_the_test(&["--set=watchNamespaces={weir-system,shop}"])?;
    ensure!(place == Some(("shop".to_owned(), None)), "{place:?}");
    let excluded = ["--set=watchNamespaces={shop,bank}", "--set=injection.excludeNamespaces={shop}"];
    let place = place_of_the_test(&excluded)?;
    ensure!(place == Some(("bank".to_owned(), None)), "{place:?}");
    let place = place_of_the_test(&["--set=watchNamespaces={weir-system}"])?;
    ensure!(place.is_none(), "{place:?}");
    let watched = ["--set=watchNamespaces={shop,bank}", "--set=tests.namespace=bank"];
    for chosen in [&watched[..], &watched[1..]] {
        let place = place_of_the_test(chosen)?;
        ensure!(place == Some(("bank".to_owned(), None)), "{place:?}");
    }
    for refused in ["kube-system", "weir-system", "shop"] {
        let chosen = format!("--set=tests.namespace={refused}");
        let fault = place_of_the_test(&["--set=watchNamespaces={bank,kube-system,weir-system}", &chosen]);
        let fault = fault.expect_err("no pod gets an agent there").to_string();
        ensure!(fault.contains(&format!("tests.namespace: pods in {refused} get no agent")), "{fault}");
    }
    for (operator, expected) in [("In", "bank"), ("NotIn", "shop")] {
        let expressions = json!([{"key": "kubernetes.io/metadata.name", "operator": operator, "values": ["bank"]}]);
        let expressions = format!("--set-json=injection.namespaceExpressions={expressions}");
        let watched = ["--set=watchNamespaces={shop,bank}", &expressions];
        let place = place_of_the_test(&watched)?;
        ensure!(place.as_ref().is_some_and(|(namespace, _)| namespace == expected), "{operator}: {place:?}");
        let place = place_of_the_test(&[&expressions])?;
        ensure!(place.is_some() == (operator == "NotIn"), "{operator}: {place:?}");
    }
    let expressions = json!([
        {"key": "env", "operator": "In", "values": ["staging", "test"]},
        {"key": "team", "operator": "Exists"},
        {"key": "closed", "operator": "DoesNotExist"},
    ]);
    let expressions = format!("--set-json=injection.namespaceExpressions={expressions}");
    let (namespace, labels) = place_of_the_test(&[&expressions])?.context("no test")?;
    let labels = labels.context("the test creates no namespace")?;
    ensure!(namespace == "weir-operator-test" && labels["env"] == "staging", "{namespace}: {labels}");
    ensure!(labels["team"].is_string() && labels.get("closed").is_none(), "{labels}");
    Ok(())
}
