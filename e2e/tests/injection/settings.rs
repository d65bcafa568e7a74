//! How agents are set up: what the chart hands to the operator, and what pods say instead.

use super::*;

/// What the chart's values say of agents ends up in pods, and a pod's own annotations win.
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
