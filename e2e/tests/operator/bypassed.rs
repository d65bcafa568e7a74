//! Tests Services that bypass the agents, and policies that exempt every request.

use k8s_openapi::api::core::v1::Service;

use super::*;

impl Stage {
    /// Creates a pod with an agent in front of port 8080. According to the pod's spec, the agent listens at 8480.
    async fn guarded_pod(&self, name: &str) -> Result<Agent> {
        let agent = Agent::start(&self.files.path().join(name)).await?;
        let args = ["--listen=[::]:8480", "--upstream=127.0.0.1:8080"];
        let sidecar = json!({"name": "weir-agent", "image": "none", "args": args,
            "ports": [{"name": "http", "containerPort": 8480}]});
        let app = json!({"name": "app", "image": "none", "ports": [{"containerPort": 8080}]});
        self.pod_of(name, agent.port()?, &json!([app, sidecar])).await?;
        Ok(agent)
    }

    /// Runs the program of `helm test`. Returns its exit code and its output.
    async fn bypasses(&self) -> Result<(Option<i32>, String)> {
        let mut look = Command::new(program("weir-operator")?);
        look.arg("bypasses").env("KUBECONFIG", self.control_plane.kubeconfig()).kill_on_drop(true);
        let output = timeout(PATIENCE, look.output()).await??;
        Ok((output.status.code(), String::from_utf8([output.stdout, output.stderr].concat())?))
    }

    async fn service(&self, name: &str, spec: &Value) -> Result<()> {
        let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
        object["spec"]["selector"] = json!({"app": "web"});
        let parameters = PatchParams::apply("test").force();
        self.api::<Service>().patch(name, &parameters, &Patch::Apply(&object)).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_service_that_leads_past_the_agents_is_told_until_it_leads_to_them() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;
    let _agent = stage.guarded_pod("a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until_healthy("enforced", "Current", "Healthy").await?;

    stage.service("web", &json!({"ports": [{"port": 80, "targetPort": 8080}]})).await?;
    stage.until_healthy("bypassed", "Failed", "Degraded").await?;
    let status = stage.until("the way", |status| condition(status, "Bypassable").is_some()).await?;
    ensure!(enforced(&status) == ("False", "Bypassed") && count(&status) == "1/1", "{status:#?}");
    let way = condition(&status, "Bypassable").context("the condition is missing")?;
    let told = "port 80 of Service web leads to port 8080 of the pods, past the agent: set its targetPort to 8480";
    ensure!(way.reason == "ServicePort" && way.message.contains(told), "{way:#?}");
    stage.until_event("Bypassable", told).await?;
    let (code, said) = stage.bypasses().await?;
    ensure!(code == Some(1) && said.contains(&format!("shop/checkout: {told}")), "{code:?}: {said}");

    stage.service("web", &json!({"ports": [{"port": 80, "targetPort": "http"}]})).await?;
    stage.until_healthy("enforced", "Current", "Healthy").await?;
    let status = stage.until("no way", |status| condition(status, "Bypassable").is_none()).await?;
    ensure!(enforced(&status) == ("True", "Enforced"), "{status:#?}");

    // A headless Service, as for the pod names of a StatefulSet, is reported. The policy still counts as enforced,
    // because clients use the other Service.
    stage.service("peers", &json!({"clusterIP": "None", "ports": [{"port": 8080, "targetPort": "http"}]})).await?;
    let is_told = |status: &RateLimitPolicyStatus| {
        condition(status, "Bypassable").is_some_and(|way| way.reason == "HeadlessService")
    };
    let status = stage.until("the names", is_told).await?;
    ensure!(enforced(&status) == ("True", "Enforced"), "{status:#?}");
    let (code, said) = stage.bypasses().await?;
    ensure!(code == Some(0) && said.contains("but look at these:\n  shop/checkout: "), "{code:?}: {said}");

    // Another policy for the same pods exempts every request.
    let open = json!({"selector": selector()["selector"], 
        "rules": [{"name": "open", "action": "Bypass", "match": [{"paths": ["/**"]}]}]});
    let open = RateLimitPolicy::new("open", serde_json::from_value(open)?);
    stage.api().create(&PostParams::default(), &open).await?;
    stage.until_healthy("bypassed-by-policy", "Failed", "Degraded").await?;
    let told = "rule open of policy open lets every request to these pods through";
    stage.until_event("Bypassable", told).await?;
    let (code, said) = stage.bypasses().await?;
    ensure!(code == Some(1) && said.contains(told), "{code:?}: {said}");
    Ok(())
}
