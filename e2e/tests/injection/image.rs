//! Tests `helm test` for an agent's image that no node can pull. The program runs with the arguments and permissions of
//! the chart's test pod. There is no kubelet that pulls images, so the test writes the pod's status.

use super::*;

#[tokio::test]
async fn helm_test_names_the_image_that_cannot_be_pulled() -> Result<()> {
    let stage = Stage::set("Ignore").await?;
    let mut pod = Value::Null;
    for object in stage.rendered("templates/tests/image.yaml")? {
        stage.apply(&object).await?;
        if object["kind"] == "Pod" {
            pod = object;
        }
    }
    let name = pod["metadata"]["name"].as_str().context("the chart has no pod that pulls the image")?;
    let account = pod["spec"]["serviceAccountName"].as_str().context("the pod has no service account")?;
    let files = tempfile::tempdir()?;
    let kubeconfig = stage.kubeconfig_of(account, files.path())?;
    let look = &pod["spec"]["containers"][0];
    let args: Vec<&str> = look["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let said = async |state: Value| {
        let status =
            json!({"name": "agent", "state": state, "image": "", "imageID": "", "ready": false, "restartCount": 0});
        let status = json!({"status": {"containerStatuses": [status]}});
        let pods = stage.api::<Pod>(OPERATOR_NAMESPACE);
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        let mut look = Command::new(program("weir-operator")?);
        look.args(&args).env("POD_NAME", name).env("KUBECONFIG", &kubeconfig).kill_on_drop(true);
        let output = timeout(PATIENCE, look.output()).await??;
        let text = [output.stdout, output.stderr].concat();
        anyhow::Ok((output.status.code(), String::from_utf8(text)?))
    };

    let (code, text) = said(json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such host"}})).await?;
    ensure!(code == Some(1), "{code:?}: {text}");
    ensure!(text.contains("image weir.dev/agent:0.1.0 cannot be pulled (ImagePullBackOff: no such host)"), "{text}");
    ensure!(text.contains("set images.registry and images.tag of the chart"), "{text}");
    let (code, text) = said(json!({"terminated": {"exitCode": 0}})).await?;
    ensure!(code == Some(0) && text.contains("image weir.dev/agent:0.1.0 was pulled"), "{code:?}: {text}");
    Ok(())
}
