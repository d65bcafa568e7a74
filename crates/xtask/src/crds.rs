//! Writes the files that are generated from the types of the API: the custom resource definitions, their templates in
//! the chart weir-crds, and the pages that explain every field.
//!
//! The types in `crates/api` are the only source. Never edit the output by hand.

use std::{path::Path, process::ExitCode};

use anyhow::Context as _;
use weir_api::Definition;

use crate::{reference, workspace::Workspace};

/// The paths of the files that are generated for one definition.
struct Files {
    definition: &'static str,
    /// The definition as a template of a chart. `helm upgrade` updates templates, but never files in a chart's `crds/`
    /// folder.
    template: &'static str,
    /// The page that explains every field.
    page: &'static str,
}

fn files(definition: Definition) -> Files {
    match definition {
        Definition::Policy => Files {
            definition: "crds/weir.dev_ratelimitpolicies.yaml",
            template: "charts/weir-crds/templates/ratelimitpolicies.yaml",
            page: "docs/api.md",
        },
        Definition::Store => Files {
            definition: "crds/weir.dev_ratelimitstores.yaml",
            template: "charts/weir-crds/templates/ratelimitstores.yaml",
            page: "docs/api-store.md",
        },
    }
}

#[derive(clap::Args)]
pub(crate) struct CrdsArgs {
    /// Write nothing; exit with 1 if a file is out of date
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &CrdsArgs) -> anyhow::Result<ExitCode> {
    let mut stale = false;
    for kind in Definition::ALL {
        let (yaml, files) = (kind.yaml(), files(kind));
        let (template, page) = (template(&yaml)?, reference::page(&yaml)?);
        for (file, wanted) in [(files.definition, &yaml), (files.template, &template), (files.page, &page)] {
            stale |= !write(workspace, file, wanted, args.check)?;
        }
    }
    Ok(if stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Writes a file, or only compares it. Returns false if the file is out of date.
fn write(workspace: &Workspace, file: &str, wanted: &str, only_check: bool) -> anyhow::Result<bool> {
    let path = workspace.root().join(file);
    if is_current(&path, wanted) {
        println!("{file} is up to date");
    } else if only_check {
        println!("{file} differs from crates/api: run `cargo xtask crds` and commit the result");
        return Ok(false);
    } else {
        let folder = path.parent().expect("every path has a folder");
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, wanted))
            .with_context(|| format!("write {}", path.display()))?;
        println!("{file} written");
    }
    Ok(true)
}

/// Adds the chart's labels to a definition, and the annotation that makes Helm keep it on uninstall.
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
