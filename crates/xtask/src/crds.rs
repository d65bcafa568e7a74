//! Writes everything that is generated from the API's types: the custom resource definition, its template in the chart
//! weir-crds, and the page that explains every field.
//!
//! The types in `crates/api` are the only source. Never edit the output by hand.

use std::{path::Path, process::ExitCode};

use anyhow::Context as _;

use crate::{reference, workspace::Workspace};

/// The definition.
const DEFINITION: &str = "crds/weir.dev_ratelimitpolicies.yaml";

/// The definition as a template, which `helm upgrade` updates. Helm never updates files in a chart's `crds/` folder.
const TEMPLATE: &str = "charts/weir-crds/templates/ratelimitpolicies.yaml";

/// The page.
const REFERENCE: &str = "docs/api.md";

#[derive(clap::Args)]
pub(crate) struct CrdsArgs {
    /// Write nothing; exit with 1 if a file is out of date
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &CrdsArgs) -> anyhow::Result<ExitCode> {
    let definition = weir_api::crd_yaml();
    let template = template(&definition)?;
    let page = reference::page(&definition)?;
    let mut stale = false;
    for (file, wanted) in [(DEFINITION, &definition), (TEMPLATE, &template), (REFERENCE, &page)] {
        let path = workspace.root().join(file);
        if is_current(&path, wanted) {
            println!("{file} is current");
        } else if args.check {
            println!("{file} is not what crates/api says: run `cargo xtask crds` and commit the result");
            stale = true;
        } else {
            let folder = path.parent().expect("every file is in a folder");
            std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::write(&path, wanted))
                .with_context(|| format!("write {}", path.display()))?;
            println!("{file} written");
        }
    }
    Ok(if stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The definition with the chart's labels, and with the annotation that makes Helm keep it on uninstall.
fn template(definition: &str) -> anyhow::Result<String> {
    const LABELS: &str = "metadata:\n  labels:\n";
    // Escapes text that Helm would read as a template action.
    let text = definition.replace("{{", "{{ \"{{\" }}");
    let (before, after) = text.split_once(LABELS).context("the definition has no labels")?;
    Ok(format!(
        "{before}metadata:
  {{{{- if .Values.keep }}}}
  annotations:
    helm.sh/resource-policy: keep
  {{{{- end }}}}
  labels:
    {{{{- include \"weir-crds.labels\" . | nindent 4 }}}}
{after}"
    ))
}

fn is_current(path: &Path, wanted: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_the_definition_and_what_helm_adds() {
        let text = template("# head\nmetadata:\n  labels:\n    a: b\n  name: x\nspec: '{{ y }}'\n").expect("labels");
        assert_eq!(
            text,
            "# head
metadata:
  {{- if .Values.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
  labels:
    {{- include \"weir-crds.labels\" . | nindent 4 }}
    a: b
  name: x
spec: '{{ \"{{\" }} y }}'
"
        );
        assert!(template("metadata: {}").is_err());
    }
}
