//! Services that lead past the agents, and policies that let everything through.

use k8s_openapi::api::core::v1::Service;

use super::*;

impl Stage {
    /// A pod with an agent in front of port 8080, which listens at 8480 as far as the pod says.
    async fn guarded_pod(&self, name: &str) -> Result<Agent> {
        let agent = Agent::start(&self.files.path().join(name)).await?;
        let args = ["--listen=[::]:8480", "--upstream=127.0.0.1:8080"];
        let sidecar = json!({"name": "weir-agent", "image": "none", "args": args,
            "ports": [{"name": "http", "containerPort": 8480}]});
        let app = json!({"name": "app", "image": "none", "ports": [{"containerPort": 8080}]});
        self.pod_of(name, agent.port()?, &json!([app, sidecar])).await?;
        Ok(agent)
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
    stage.until_healthy("True", "Enforced", "Current", "Healthy").await?;

    stage.service("web", &json!({"ports": [{"port": 80, "targetPort": 8080}]})).await?;
    stage.until_healthy("False", "Bypassed", "Failed", "Degraded").await?;
    let status = stage.until("the way", |status| condition(status, "Bypassable").is_some()).await?;
    ensure!(enforced(&status) == ("False", "Bypassed") && count(&status) == "1/1", "{status:#?}");
    let way = condition(&status, "Bypassable").context("it was there")?;
    let told = "port 80 of Service web leads to port 8080 of the pods, past the agent: let its targetPort be 8480";
    ensure!(way.reason == "ServicePort" && way.message.contains(told), "{way:#?}");
    stage.until_event("Bypassable", told).await?;

    stage.service("web", &json!({"ports": [{"port": 80, "targetPort": "http"}]})).await?;
    stage.until_healthy("True", "Enforced", "Current", "Healthy").await?;
    let status = stage.until("no way", |status| condition(status, "Bypassable").is_none()).await?;
    ensure!(enforced(&status) == ("True", "Enforced"), "{status:#?}");

    // The names of a StatefulSet's pods: they are told, and the Service that clients use is what counts.
    stage.service("peers", &json!({"clusterIP": "None", "ports": [{"port": 8080, "targetPort": "http"}]})).await?;
    let is_told = |status: &RateLimitPolicyStatus| {
        condition(status, "Bypassable").is_some_and(|way| way.reason == "HeadlessService")
    };
    let status = stage.until("the names", is_told).await?;
    ensure!(enforced(&status) == ("True", "Enforced"), "{status:#?}");

    // Another policy on the same pods that lets every request through.
    let open = json!({"selector": selector()["selector"], "rules": [{"name": "open", "action": "Bypass"}]});
    let open = RateLimitPolicy::new("open", serde_json::from_value(open)?);
    stage.api().create(&PostParams::default(), &open).await?;
    stage.until_healthy("False", "Bypassed", "Failed", "Degraded").await?;
    stage.until_event("Bypassable", "rule open of policy open lets every request to these pods through").await?;
    Ok(())
}
