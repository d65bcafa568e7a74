//! Tests that the rate limit service of the chart fits the operator of the same release: the operator finds its pods,
//! issues their certificates, and recognizes their Secrets.

use super::*;

const SERVICE: &str = "weir-operator-rate-limit";

/// Renders the release with the service and these values.
fn release(settings: &[&str]) -> Result<Vec<Value>> {
    known(&render(&chart("weir")?, &[&["rateLimitService.enabled=true"], settings].concat())?)
}

fn object(objects: &[Value], kind: &str, name: &str) -> Result<Value> {
    let found = objects.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name);
    found.cloned().with_context(|| format!("{kind} {name}"))
}

/// The template of the service's pods.
fn template_of(objects: &[Value]) -> Result<Value> {
    Ok(object(objects, "Deployment", SERVICE)?["spec"]["template"].clone())
}

fn args(container: &Value) -> Vec<String> {
    container["args"].as_array().into_iter().flatten().filter_map(|it| Some(it.as_str()?.to_owned())).collect()
}

fn flag(args: &[String], name: &str) -> Option<String> {
    args.iter().find_map(|arg| Some(arg.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// A headless Service maps no ports, so the pods must listen on its port.
#[test]
fn the_pods_of_a_headless_service_listen_on_its_port() -> Result<()> {
    for (headless, listen) in [("false", 8081), ("true", 9000)] {
        let objects =
            release(&[&format!("rateLimitService.service.headless={headless}"), "rateLimitService.service.port=9000"])?;
        let port = object(&objects, "Service", SERVICE)?["spec"]["ports"][0]["port"].clone();
        ensure!(port == 9000, "{port}");
        let container = template_of(&objects)?["spec"]["containers"][0].clone();
        ensure!(flag(&args(&container), "--listen") == Some(format!("[::]:{listen}")), "{container}");
        ensure!(container["ports"][0]["containerPort"] == listen, "{container}");
    }
    Ok(())
}

/// The volume that is mounted at this folder.
fn volume(pod: &Value, folder: &str) -> Result<Value> {
    let list = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let mounts = list(&pod["spec"]["containers"][0]["volumeMounts"]);
    let mount = mounts.iter().find(|it| it["mountPath"] == folder).with_context(|| format!("no mount at {folder}"))?;
    let volumes = list(&pod["spec"]["volumes"]);
    volumes.into_iter().find(|it| it["name"] == mount["name"]).with_context(|| format!("no volume for {folder}"))
}

#[test]
fn without_the_value_there_is_no_rate_limit_service() -> Result<()> {
    ensure!(!render(&chart("weir")?, &[])?.contains("rate-limit"), "a rate limit service without its value");
    Ok(())
}

#[test]
fn the_operator_finds_the_pods_and_no_service_of_the_operator_does() -> Result<()> {
    let objects = release(&["serviceAccount.name=other", "rateLimitService.podLabels.weir\\.dev/agent=disabled"])?;
    let labels = template_of(&objects)?["metadata"]["labels"].clone();
    for name in ["weir.dev/agent", "weir.dev/rate-limit-service"] {
        ensure!(labels[name] == "enabled", "{name}: {labels}");
    }
    let selects = |selector: &Value| selector.as_object().is_some_and(|it| it.iter().all(|(k, v)| labels[k] == *v));
    let selecting = |kind: &str, path: &str| -> Vec<String> {
        let all = objects.iter().filter(|it| it["kind"] == kind);
        all.filter(|it| it.pointer(path).is_some_and(selects)).map(|it| it["metadata"]["name"].to_string()).collect()
    };
    let service = json!(SERVICE).to_string();
    for (kind, path) in [
        ("Service", "/spec/selector"),
        ("Deployment", "/spec/selector/matchLabels"),
        ("PodDisruptionBudget", "/spec/selector/matchLabels"),
    ] {
        ensure!(selecting(kind, path) == [service.as_str()], "{kind}: {:?}", selecting(kind, path));
    }
    let pod = template_of(&objects)?["spec"].clone();
    object(&objects, "ServiceAccount", pod["serviceAccountName"].as_str().context("an account")?)?;
    ensure!(pod["serviceAccountName"] == SERVICE && pod["automountServiceAccountToken"] == false, "{pod}");
    Ok(())
}

#[test]
fn the_pods_get_certificates_from_the_operator_and_no_key_of_it() -> Result<()> {
    for settings in
        [&[][..], &["identity.existingSecret=kept", "identity.audience=weir.example", "fullnameOverride=weir-operator"]]
    {
        let objects = release(settings)?;
        let operator =
            args(&object(&objects, "Deployment", "weir-operator")?["spec"]["template"]["spec"]["containers"][0]);
        let pod = template_of(&objects)?;
        let agent = args(&pod["spec"]["containers"][0]);
        let url = flag(&agent, "--identity-url");
        ensure!(url.is_some() && url == flag(&operator, "--identity-url"), "{url:?}");
        ensure!(!agent.contains(&"--control-plaintext".to_owned()), "{agent:?}");
        ensure!(pod["metadata"]["annotations"]["weir.dev/control"].is_null(), "{pod}");

        let token = flag(&agent, "--identity-token-file").context("no token")?;
        let authorities = flag(&agent, "--identity-ca").context("no authorities")?;
        let (folder, token) = token.rsplit_once('/').context("a path")?;
        let sources = volume(&pod, folder)?["projected"]["sources"].clone();
        ensure!(sources[0]["serviceAccountToken"]["path"] == token, "{sources}");
        ensure!(
            sources[0]["serviceAccountToken"]["audience"].as_str() == flag(&operator, "--identity-audience").as_deref(),
            "{sources}"
        );
        // The Secret also has the authorities' keys, which would let a pod issue any certificate.
        let secret = &sources[1]["secret"];
        ensure!(secret["name"].as_str() == flag(&operator, "--identity-secret").as_deref(), "{secret}");
        ensure!(secret["items"] == json!([{"key": "ca.crt", "path": "ca.crt"}]), "{secret}");
        ensure!(authorities == format!("{folder}/ca.crt"), "{authorities}");
    }
    Ok(())
}

#[test]
fn without_identities_the_pods_say_that_their_control_port_is_plain() -> Result<()> {
    let pod = template_of(&release(&["identity.enabled=false"])?)?;
    let agent = args(&pod["spec"]["containers"][0]);
    ensure!(agent.contains(&"--control-plaintext".to_owned()), "{agent:?}");
    ensure!(agent.iter().all(|arg| !arg.starts_with("--identity")), "{agent:?}");
    ensure!(pod["metadata"]["annotations"]["weir.dev/control"] == "plaintext", "{pod}");
    ensure!(!pod.to_string().contains("secret"), "{pod}");
    Ok(())
}

/// The names of folders and the annotation must be those of injected agents (`operator/src/inject/sidecar.rs`).
#[test]
fn secrets_of_stores_are_where_the_agent_reads_them_and_the_operator_knows() -> Result<()> {
    let pod = template_of(&release(&[
        "rateLimitService.stores[0].name=limits",
        "rateLimitService.stores[0].credentialsSecret=login",
        "rateLimitService.stores[0].caSecret=roots",
        "rateLimitService.stores[1].name=others",
        "rateLimitService.stores[1].caSecret=roots",
    ])?)?;
    let folder = flag(&args(&pod["spec"]["containers"][0]), "--store-secrets").context("no folder")?;
    let source = |name: &str, store: &str, keys: &[&str]| {
        let item = |key: &&str| json!({"key": key, "path": format!("weir-system.{store}/{key}")});
        json!({"secret": {"name": name, "optional": true, "items": keys.iter().map(item).collect::<Vec<_>>()}})
    };
    let expected = [
        source(
            "login",
            "limits",
            &["username", "password", "sentinel-username", "sentinel-password", "tls.crt", "tls.key"],
        ),
        source("roots", "limits", &["ca.crt"]),
        source("roots", "others", &["ca.crt"]),
    ];
    let sources = volume(&pod, &folder)?["projected"]["sources"].clone();
    ensure!(sources == json!(expected), "{sources}");
    let listed = &pod["metadata"]["annotations"]["weir.dev/store-secrets"];
    ensure!(*listed == "weir-system.limits=login+roots,weir-system.others=+roots", "{listed}");
    Ok(())
}

#[test]
fn the_files_of_tls_are_mounted_and_the_service_names_its_protocol() -> Result<()> {
    let plain = release(&[])?;
    let port =
        |objects: &[Value]| Ok::<_, anyhow::Error>(object(objects, "Service", SERVICE)?["spec"]["ports"][0].clone());
    ensure!(port(&plain)?["appProtocol"] == "kubernetes.io/h2c", "{}", port(&plain)?);
    ensure!(!args(&template_of(&plain)?["spec"]["containers"][0]).join(" ").contains("--tls"), "TLS without a Secret");

    let tls = release(&["rateLimitService.tls.secretName=edge", "rateLimitService.tls.clientCA=clients"])?;
    ensure!(port(&tls)?["appProtocol"] == "https", "{}", port(&tls)?);
    let pod = template_of(&tls)?;
    let args = args(&pod["spec"]["containers"][0]);
    for (name, file, secret) in
        [("--tls-cert", "tls.crt", "edge"), ("--tls-key", "tls.key", "edge"), ("--tls-client-ca", "ca.crt", "clients")]
    {
        let path = flag(&args, name).with_context(|| name.to_owned())?;
        let (folder, named) = path.rsplit_once('/').context("a path")?;
        ensure!(named == file && volume(&pod, folder)?["secret"]["secretName"] == secret, "{name}: {path}");
    }
    // The Service, the container and the listener have one port.
    let target = &port(&tls)?["targetPort"];
    let ports = pod["spec"]["containers"][0]["ports"].as_array().cloned().unwrap_or_default();
    let listening = flag(&args, "--listen").context("no address")?;
    let number = ports.iter().find(|it| it["name"] == *target).map(|it| it["containerPort"].to_string());
    ensure!(number.as_deref() == listening.rsplit(':').next(), "{target} {listening}");
    Ok(())
}

/// Proxies lose the limits for a moment if they still ask a pod that no longer answers.
#[test]
fn a_stopping_pod_answers_until_proxies_have_left_it_and_then_drains() -> Result<()> {
    // Envoy asks for the addresses of a headless Service every 5 s, and DNS servers keep an answer for up to 30 s.
    for (headless, least) in [(false, 5), (true, 5 + 30 + 1)] {
        for drain in [0, 45] {
            let settings = [
                &format!("rateLimitService.service.headless={headless}"),
                &format!("rateLimitService.drainSeconds={drain}"),
            ];
            let pod = template_of(&release(&settings.map(String::as_str))?)?["spec"].clone();
            let hook = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][3].clone();
            let seconds = |text: &str| text.trim_end_matches('s').parse::<u64>();
            let wait = seconds(hook.as_str().and_then(|it| it.strip_prefix("--wait=")).context("no wait")?)?;
            ensure!(wait >= least, "{hook}");
            // The drain counts from the hook.
            let drains = seconds(&flag(&args(&pod["containers"][0]), "--drain").context("no drain")?)?;
            ensure!(drains == wait + drain, "{drains}");
            let grace = pod["terminationGracePeriodSeconds"].as_u64();
            ensure!(grace.is_some_and(|grace| grace > drains), "{grace:?} for a drain of {drains}");
        }
    }
    Ok(())
}
