//! Tests the settings of agents: values of the chart, and annotations of pods that override them.

use std::path::Path;

use super::*;

/// The operator accepts every flag that the chart renders, with its value.
#[tokio::test]
async fn the_operator_takes_what_the_chart_says_with_each_file_of_values() -> Result<()> {
    programs::build_programs().await?;
    let helm = Path::new(&std::env::var_os("WEIR_KUBE_BIN").context("WEIR_KUBE_BIN is not set")?).join("helm");
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/weir");
    for file in std::fs::read_dir(chart.join("ci"))? {
        let file = file?.path();
        let mut template = Command::new(&helm);
        template
            .args(["template", "weir", "--namespace", "weir-system"])
            .args(["--show-only", "templates/deployment.yaml", "--values"])
            .arg(&file)
            .arg(&chart);
        let rendered = template.output().await?;
        ensure!(rendered.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&rendered.stderr));
        let deployment: Value = serde_yaml::from_slice(&rendered.stdout)?;
        let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].as_array().context("args")?;
        let mut operator = Command::new(program("weir-operator")?);
        // `--help` is parsed after all other flags. Then the program exits without running.
        let said = operator.args(args.iter().filter_map(Value::as_str)).arg("--help").output().await?;
        ensure!(said.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&said.stderr));
    }
    let wrong = [r#"--inject-settings={"logFormat": "yaml"}"#, "--help"];
    let said = Command::new(program("weir-operator")?).arg("run").args(wrong).output().await?;
    ensure!(said.status.code() == Some(2), "a wrong value is accepted: {said:?}");
    Ok(())
}

/// Injected agents have the settings of the chart. Annotations of a pod override them.
#[tokio::test]
async fn agents_are_set_up_as_the_charts_values_and_the_pods_annotations_say() -> Result<()> {
    let values = "injection.agent.logFormat=json,injection.agent.logLevel=warn,injection.agent.maxConnections=100,\
        injection.agent.drain=20s,injection.agent.cache=false,injection.agent.jwks.configMap=keys/set.json,\
        injection.agent.env[0].name=WEIR_IDLE_TIMEOUT,injection.agent.env[0].value=90s,\
        injection.agent.securityContext.runAsUser=1000,injection.agent.image.registry=registry.example";
    let stage = Stage::set_with(values).await?;
    stage.namespace("shop", Some("enabled")).await?;
    let _operator = stage.operator()?;
    stage.until_injecting("shop").await?;
    let has = |agent: &Value, arg: &str| agent["args"].as_array().is_some_and(|args| args.contains(&arg.into()));

    let pod = stage.pod("shop", "plain", &json!({})).await?;
    let injected = agent(&pod)?;
    ensure!(injected["image"] == "registry.example/agent:0.1.0", "{injected:#}");
    for arg in ["--log-format=json", "--log-level=warn", "--max-connections=100", "--drain=20s"] {
        ensure!(has(injected, arg), "{arg}: {injected:#}");
    }
    ensure!(has(injected, "--jwks=/var/run/weir.dev/jwks/jwks.json"), "{injected:#}");
    ensure!(!injected["args"].to_string().contains("--snapshot-cache"), "{injected:#}");
    let volumes = pod["spec"]["volumes"].as_array().context("volumes")?;
    ensure!(volumes.iter().any(|it| it["configMap"]["name"] == "keys"), "{volumes:?}");
    ensure!(injected["env"].to_string().contains("WEIR_IDLE_TIMEOUT"), "{injected:#}");
    ensure!(
        injected["securityContext"]["runAsUser"] == 1000 && injected["securityContext"]["runAsNonRoot"] == true,
        "{injected:#}"
    );

    let annotations = json!({"annotations": {
        "weir.dev/agent-log-format": "text",
        "weir.dev/agent-drain": "5s",
        "weir.dev/agent-cache": "enabled",
        "weir.dev/agent-jwks-url": "https://issuer.example/keys",
        "weir.dev/agent-jwks-ca-configmap": "roots",
        "weir.dev/agent-security-context": "{\"runAsUser\": 2000}",
    }});
    let pod = stage.pod("shop", "own", &annotations).await?;
    let injected = agent(&pod)?;
    for arg in ["--log-format=text", "--log-level=warn", "--drain=5s", "--jwks-url=https://issuer.example/keys"] {
        ensure!(has(injected, arg), "{arg}: {injected:#}");
    }
    ensure!(injected["args"].to_string().contains("--snapshot-cache"), "{injected:#}");
    ensure!(injected["securityContext"]["runAsUser"] == 2000, "{injected:#}");
    Ok(())
}
