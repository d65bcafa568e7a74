//! Checks the commands of the pages: their files, charts, values, fields of policies, and flags of Weir's programs must
//! exist. For other programs, only the flags in this file are accepted. Add a flag after you have tested it.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use clap::Parser as _;
use serde_json::Value;

use super::{fields::Fields, markdown::Page};
use crate::{Cli, tidy::charts, workspace::Workspace};

/// Programs whose arguments are not checked.
const OTHERS: [&str; 7] = ["curl", "jq", "kind", "mdbook", "vi", "cat", "cd"];

const HELM: [&str; 10] =
    ["install", "upgrade", "uninstall", "rollback", "test", "show", "history", "get", "lint", "template"];
const HELM_FLAGS: [&str; 9] = [
    "--namespace", "--create-namespace", "--wait", "--set", "--reset-then-reuse-values", "--install",
    "--take-ownership", "--values", "--show-only",
];

const KUBECTL: [&str; 13] = [
    "apply", "create", "get", "patch", "delete", "describe", "logs", "rollout", "run", "label", "port-forward",
    "explain", "replace",
];
const KUBECTL_FLAGS: [&str; 22] = [
    "-f", "-o", "-n", "-p", "--type", "--namespace", "--all-namespaces", "--selector", "--field-selector",
    "--from-file", "--follow", "--image", "--restart", "--rm", "--attach", "--recursive", "--watch", "--force",
    "--prefix", "--tail", "--server-side", "--container",
];
/// The names of policies in kubectl.
const POLICY: [&str; 4] = ["rlp", "ratelimitpolicy", "ratelimitpolicies", "ratelimitpolicies.weir.dev"];

pub(super) struct Commands<'a> {
    workspace: &'a Workspace,
    root: PathBuf,
    programs: PathBuf,
    fields: Fields,
    /// The help texts of Weir's programs, by program and subcommand.
    help: RefCell<BTreeMap<String, String>>,
}

type Checked = Result<(), String>;

impl<'a> Commands<'a> {
    /// Creates the checker. `programs` is the folder of Weir's programs.
    pub(super) fn new(workspace: &'a Workspace, programs: &Path) -> anyhow::Result<Self> {
        let (root, programs) = (workspace.root().to_owned(), programs.to_owned());
        Ok(Self { workspace, root, programs, fields: Fields::new()?, help: RefCell::default() })
    }

    /// Checks a command of a page. The error describes the fault.
    pub(super) fn check(&self, words: &[String], page: &Page) -> Checked {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let Some((program, rest)) = words.split_first() else { return Ok(()) };
        match (*program, rest) {
            ("cargo", ["xtask", ..]) => {
                Cli::try_parse_from(&words[1..]).map(drop).or_else(|error| match error.kind() {
                    clap::error::ErrorKind::DisplayHelp
                    | clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Ok(()),
                    _ => Err(error.to_string()),
                })
            }
            ("cargo", ["run", "-p", package, "--example", example]) => self.example(package, example),
            ("helm", rest) => self.helm(rest),
            ("kubectl", rest) => self.kubectl(rest, page),
            ("docker", ["build", "--target", target, "-t", _, "."]) => self.target(target),
            ("weir-operator" | "weir-agent", rest) => self.ours(program, rest),
            (other, _) if OTHERS.contains(&other) => Ok(()),
            // This is a script of the checkout.
            (other, _) if other.contains('/') => self.file(other),
            (other, _) => Err(format!("{other} with these arguments is not known to `cargo xtask manual`")),
        }
    }

    fn file(&self, path: &str) -> Checked {
        if self.root.join(path).exists() { Ok(()) } else { Err(format!("{path} does not exist")) }
    }

    fn example(&self, package: &str, example: &str) -> Checked {
        let packages = &self.workspace.metadata.packages;
        let found = packages.iter().find(|it| it.name.as_str() == package).ok_or(format!("no package {package}"))?;
        let named = found.targets.iter().any(|target| target.name == example && target.is_example());
        if named { Ok(()) } else { Err(format!("{package} has no example {example}")) }
    }

    fn target(&self, target: &str) -> Checked {
        let text = fs::read_to_string(self.root.join("Dockerfile")).map_err(|error| error.to_string())?;
        let named = text.lines().any(|line| line.starts_with("FROM ") && line.ends_with(&format!(" AS {target}")));
        if named { Ok(()) } else { Err(format!("the Dockerfile has no target {target}")) }
    }

    fn helm(&self, words: &[&str]) -> Checked {
        let verb = words.first().copied().unwrap_or_default();
        if !HELM.contains(&verb) {
            return Err(format!("helm {verb} is not known to `cargo xtask manual`"));
        }
        flags(words, &HELM_FLAGS)?;
        let chart = words.iter().find(|word| word.starts_with("charts/"));
        if let Some(chart) = chart {
            self.file(&format!("{chart}/Chart.yaml"))?;
        }
        for file in words.windows(2).filter(|pair| pair[0] == "--show-only").map(|pair| pair[1]) {
            self.file(&format!("{}/{file}", chart.ok_or("--show-only without a chart of Weir")?))?;
        }
        for settings in words.windows(2).filter(|pair| pair[0] == "--set").map(|pair| pair[1]) {
            let chart = chart.ok_or("--set without a chart of Weir")?;
            let schema = fs::read_to_string(self.root.join(chart).join("values.schema.json"));
            let schema = schema.map_err(|error| error.to_string())?;
            let schema: Value = serde_json::from_str(&schema).map_err(|error| error.to_string())?;
            for setting in settings.split(',') {
                let (name, _) = setting.split_once('=').ok_or(format!("{setting} sets nothing"))?;
                if !charts::knows(&schema, name) {
                    return Err(format!("{chart} has no value {name}"));
                }
            }
        }
        Ok(())
    }

    fn kubectl(&self, words: &[&str], page: &Page) -> Checked {
        let verb = words.first().copied().unwrap_or_default();
        if !KUBECTL.contains(&verb) {
            return Err(format!("kubectl {verb} is not known to `cargo xtask manual`"));
        }
        // The words after `--` belong to the container.
        let own = words.split(|word| *word == "--").next().unwrap_or_default();
        flags(own, &KUBECTL_FLAGS)?;
        let after = |flag: &str| own.windows(2).find(|pair| pair[0] == flag).map(|pair| pair[1]);
        if let Some(file) = after("-f").filter(|file| *file != "-" && !page.quoted.contains(*file)) {
            self.file(file).map_err(|error| format!("{error}, and the page does not introduce it"))?;
        }
        if verb == "explain" {
            let path = own.get(1).and_then(|path| path.split_once('.')).map_or("", |(_, path)| path);
            return self.fields.path(path);
        }
        if !own.get(1).is_some_and(|kind| POLICY.contains(kind)) {
            return Ok(());
        }
        if let Some(path) = after("-o").and_then(|output| output.strip_prefix("jsonpath={")) {
            self.fields.path(path.trim_end_matches('}'))?;
        }
        after("-p").map_or(Ok(()), |patch| self.fields.patch(patch))
    }

    /// Checks a command of one of Weir's programs: the help text must contain the subcommand and the flags.
    fn ours(&self, program: &str, words: &[&str]) -> Checked {
        let subcommand = words.first().filter(|word| !word.starts_with('-')).copied();
        let help = self.help_of(program, subcommand).map_err(|error| format!("{error:#}"))?;
        for word in words.iter().filter(|word| word.starts_with("--")) {
            let flag = word.split('=').next().unwrap_or(word);
            if !help.split([' ', ',', '\n', '[']).any(|known| known == flag) {
                return Err(format!("{program} has no flag {flag}"));
            }
        }
        Ok(())
    }

    fn help_of(&self, program: &str, subcommand: Option<&str>) -> anyhow::Result<String> {
        let key = format!("{program} {}", subcommand.unwrap_or_default());
        if let Some(help) = self.help.borrow().get(&key) {
            return Ok(help.clone());
        }
        let mut command = Command::new(self.programs.join(program));
        let output = command.args(subcommand).arg("--help").output().with_context(|| format!("run {key} --help"))?;
        anyhow::ensure!(output.status.success(), "{key} --help: {}", String::from_utf8_lossy(&output.stderr));
        let help = String::from_utf8(output.stdout)?;
        self.help.borrow_mut().insert(key, help.clone());
        Ok(help)
    }
}

fn flags(words: &[&str], known: &[&str]) -> Checked {
    let unknown = words.iter().find(|word| {
        let name = word.split('=').next().unwrap_or(word);
        name.len() > 1 && name.starts_with('-') && !known.contains(&name)
    });
    unknown.map_or(Ok(()), |flag| Err(format!("the flag {flag} is not known to `cargo xtask manual`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_what_there_is() {
        let workspace = Workspace::find().expect("the workspace");
        let commands = Commands::new(&workspace, Path::new("nowhere")).expect("a definition");
        let page = Page::parse("Save it as `mine.yaml`.\n");
        let check = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            commands.check(&words, &page)
        };
        for good in [
            "cargo xtask",
            "cargo xtask test --only helm",
            "cargo run -p weir-tower --example axum",
            "docker build --target agent -t x .",
            "helm install weir charts/weir --set replicas=2,injection.failurePolicy=Fail",
            "helm uninstall weir --namespace weir-system",
            "helm template weir charts/weir --show-only templates/rbac.yaml",
            "kubectl apply -f examples/quickstart.yaml",
            "kubectl apply -f mine.yaml",
            "kubectl get rlp x -o jsonpath={.status.traffic}",
            "kubectl patch rlp x --type merge -p {\"spec\":{\"mode\":\"Shadow\"}}",
            "kubectl explain rlp.spec --recursive",
            "kubectl run load --image=x -- load --url=y",
            "e2e/images/build.sh",
            "curl -s localhost",
        ] {
            check(good).expect(good);
        }
        for bad in [
            "cargo xtask tset",
            "cargo xtask test --onyl helm",
            "cargo run -p weir-tower --example none",
            "docker build --target none -t x .",
            "helm instal weir charts/weir",
            "helm install weir charts/wier",
            "helm install weir charts/weir --set replica=2",
            "helm install weir charts/weir --wiat",
            "helm template weir charts/weir --show-only templates/rabc.yaml",
            "kubectl aply -f mine.yaml",
            "kubectl apply -f examples/none.yaml",
            "kubectl apply -f other.yaml",
            "kubectl get rlp x -o jsonpath={.status.trafic}",
            "kubectl patch rlp x --type merge -p {\"spec\":{\"mod\":\"Shadow\"}}",
            "kubectl explain rlp.spek",
            "kubectl get rlp --wide",
            "e2e/none.sh",
            "rm -rf x",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
