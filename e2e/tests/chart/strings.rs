//! Tests that a string stays a string in the objects, even if YAML reads the same characters as a number or a boolean.

use super::{values::Chart, *};

/// Names that Kubernetes allows. Without quotes, YAML reads them as other types.
const WORDS: [&str; 4] = ["123", "true", "1e3", "null"];
/// A name that YAML reads as a string without quotes, too.
const PLAIN: &str = "odd";

/// The ways in which a value can contain a string.
fn shapes(default: &Value, word: &str) -> Vec<Value> {
    match default {
        Value::String(_) => vec![json!(word)],
        Value::Array(_) => vec![json!([word]), json!([{"name": word}])],
        Value::Object(_) => vec![json!({"other": word})],
        _ => Vec::new(),
    }
}

/// Lists the numbers, booleans and nulls of all objects, in order.
fn without_strings(rendered: &str) -> Result<Vec<String>> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            Value::Object(fields) => fields.values().for_each(|value| collect(value, found)),
            Value::String(_) => {}
            other => found.push(other.to_string()),
        }
    }
    let mut found = Vec::new();
    for document in serde_yaml::Deserializer::from_str(rendered) {
        collect(&Value::deserialize(document)?, &mut found);
    }
    found.sort();
    Ok(found)
}

/// What a base says about a value.
enum Outcome {
    Tested,
    /// The value has no effect, or contradicts other values of this base.
    NoEffect,
    /// The schema refuses the value, also with other bases.
    Refused,
}

/// Returns true if the chart refuses the full name of a release.
fn is_of_full_name(fault: &str) -> bool {
    ["at '/fullnameOverride'", "cannot be the name of a Service"].iter().any(|part| fault.contains(part))
}

/// Compares the chart with each word to the chart with the plain name.
fn stay_strings(rendered: &str, with: impl Fn(&str) -> Result<std::result::Result<String, String>>) -> Result<Outcome> {
    let plain = match with(PLAIN)? {
        Ok(plain) if plain != rendered => plain,
        Err(fault) if fault.contains("values don't meet the specifications") => return Ok(Outcome::Refused),
        _ => return Ok(Outcome::NoEffect),
    };
    let expected = without_strings(&plain)?;
    for word in WORDS {
        let now = match with(word)? {
            Ok(now) => now,
            // All objects have the full name, and no Service can have a name that begins with a digit.
            Err(fault) if word.starts_with(|first: char| first.is_ascii_digit()) && is_of_full_name(&fault) => continue,
            Err(fault) => anyhow::bail!("{word}: {fault}"),
        };
        let found = without_strings(&now).with_context(|| word.to_owned())?;
        ensure!(found == expected, "{word} is not a string everywhere");
    }
    Ok(Outcome::Tested)
}

#[test]
fn a_string_that_looks_like_another_type_stays_a_string() -> Result<()> {
    let mut seen = Vec::new();
    for name in ["weir-crds", "weir"] {
        let chart = Chart::read(name)?;
        for (path, default) in chart.all()? {
            for shape in 0..shapes(&default, PLAIN).len() {
                for (args, rendered) in &chart.bases {
                    let outcome = stay_strings(rendered, |word| {
                        let set = format!("--set-json={path}={}", shapes(&default, word)[shape]);
                        values::template(&chart.path, &[&args[..], &[set]].concat())
                    });
                    match outcome.with_context(|| format!("{path} with {args:?}"))? {
                        Outcome::NoEffect => {}
                        Outcome::Refused => break,
                        Outcome::Tested => {
                            seen.push(path.clone());
                            // All objects contain the full name. Each other value is in few objects, so one base set of
                            // values is enough for it.
                            if path != "fullnameOverride" {
                                break;
                            }
                        }
                    }
                }
            }
        }
        for (args, rendered) in &chart.bases {
            stay_strings(rendered, |word| {
                let place = ["--namespace".to_owned(), word.to_owned()];
                values::template_as(word, &chart.path, &[&args[..], &place].concat())
            })
            .with_context(|| format!("the name of the release and its namespace with {args:?}"))?;
        }
    }
    for path in ["commonLabels", "serviceAccount.name", "identity.existingSecret", "dashboards.namespace", "podLabels"]
    {
        ensure!(seen.iter().any(|it| it == path), "{path} is not tested");
    }
    Ok(())
}

/// The kubelet expands `$(NAME)` in the operator's arguments, with the variables of the operator's pod.
#[test]
fn variables_of_agents_are_not_expanded_in_the_operators_pod() -> Result<()> {
    const VALUE: &str = "$(POD_NAME) costs $5 or $$5";
    let env = format!("--set-json=injection.agent.env={}", json!([{"name": "A", "value": VALUE}]));
    let rendered = values::template(&chart("weir")?, &[env])?.map_err(anyhow::Error::msg)?;
    let objects = known(&rendered)?;
    let pods = objects.iter().filter(|it| it["kind"] == "Deployment").map(|it| &it["spec"]["template"]["spec"]);
    let args = pods.filter_map(|pod| pod["containers"][0]["args"].as_array()).flatten().filter_map(Value::as_str);
    let settings: Vec<_> = args.filter_map(|arg| arg.strip_prefix("--inject-settings=")).collect();
    let [settings] = settings[..] else { anyhow::bail!("{settings:?}") };
    ensure!(!settings.replace("$$", "").contains('$'), "the kubelet would expand {settings}");
    let read: Value = serde_json::from_str(&settings.replace("$$", "$"))?;
    ensure!(read["env"][0]["value"] == VALUE, "{read}");
    Ok(())
}
