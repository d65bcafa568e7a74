//! The policy file of the demo: reads its limit, and changes the limit in the text.
//!
//! The change replaces one number in the text, as a user would do, so that comments stay.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use weir_api::{Action, RateLimitPolicy};

/// The file `policy.yaml` of the folder.
pub(crate) struct PolicyFile {
    pub(crate) path: PathBuf,
}

/// The limit that the demo measures: the first limit of the first rule with action Limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Limit {
    pub(crate) requests: i64,
    per: String,
    period: f64,
}

impl Limit {
    pub(crate) fn per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "the API bounds it at 1e9")]
        let requests = self.requests as f64;
        requests / self.period
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests per {}", self.requests, self.per)
    }
}

impl PolicyFile {
    /// Finds the policy in `folder`.
    pub(crate) fn find(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("policy.yaml");
        ensure!(path.is_file(), "{} is missing", path.display());
        Ok(Self { path })
    }

    /// The path of the file to which the operator writes the policy's status.
    pub(crate) fn status(&self) -> PathBuf {
        self.path.with_extension("status.yaml")
    }

    pub(crate) fn name(&self) -> anyhow::Result<String> {
        parse(&self.text()?)?.metadata.name.context("the policy has no name")
    }

    /// Reads the file. Returns its text, and the limit in it.
    pub(crate) fn read(&self) -> anyhow::Result<(String, Limit)> {
        let text = self.text()?;
        let limit = limit(&text).with_context(|| self.path.display().to_string())?;
        Ok((text, limit))
    }

    /// Replaces the number of requests in `text`. Returns the new text, and the limit in it.
    pub(crate) fn with_requests(&self, text: &str, requests: i64) -> anyhow::Result<(String, Limit)> {
        let changed = replace_requests(text, requests)?;
        let limit = limit(&changed).with_context(|| self.path.display().to_string())?;
        ensure!(limit.requests == requests, "changing `requests` in {} did not change the limit", self.path.display());
        Ok((changed, limit))
    }

    /// Replaces the file atomically, as editors do, so that the operator never reads a partial file.
    pub(crate) fn write(&self, text: &str) -> anyhow::Result<()> {
        let draft = self.path.with_extension("yaml.part");
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &self.path))
            .with_context(|| format!("write {}", self.path.display()))
    }

    fn text(&self) -> anyhow::Result<String> {
        fs::read_to_string(&self.path).with_context(|| format!("read {}", self.path.display()))
    }
}

fn parse(text: &str) -> anyhow::Result<RateLimitPolicy> {
    // The text is converted to JSON first. In JSON, a map with one entry can be an enum variant, but in YAML, serde
    // requires a tag.
    let value: serde_json::Value = serde_yaml::from_str(text).context("not YAML")?;
    serde_json::from_value(value).context("not a RateLimitPolicy")
}

fn limit(text: &str) -> anyhow::Result<Limit> {
    let policy = parse(text)?;
    let rule = policy.spec.rules.iter().find(|rule| rule.action == Action::Limit).context("no rule has a limit")?;
    let rate = rule.limits.first().and_then(weir_api::Limit::rate);
    let (requests, per) = rate.context("the first limit of the rule is no rate")?;
    Ok(Limit { requests, per: per.as_str().to_owned(), period: per.duration().as_secs_f64() })
}

/// Changes the number after the first `requests:` that is not in a comment.
fn replace_requests(text: &str, requests: i64) -> anyhow::Result<String> {
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let code = line.split('#').next().unwrap_or_default();
        if let Some(position) = code.find("requests:") {
            let begin = offset + position + "requests:".len();
            let rest = &text[begin..];
            let number = begin + (rest.len() - rest.trim_start_matches(' ').len());
            let end = number + text[number..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - number);
            return Ok(format!("{}{requests}{}", &text[..number], &text[end..]));
        }
        offset += line.len();
    }
    bail!("no line contains `requests:`")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMO: &str = include_str!("../../../../examples/demo/policy.yaml");

    #[test]
    fn the_limit_is_read_as_a_rate() {
        let limit = limit(DEMO).expect("the demo's policy is valid");
        assert_eq!(
            (limit.requests, limit.per_second(), limit.to_string().as_str()),
            (100, 100.0, "100 requests per 1s")
        );
        let slow = DEMO.replace("per: 1s", "per: 500ms");
        assert_eq!(super::limit(&slow).expect("still a policy").per_second(), 200.0);
    }

    #[test]
    fn one_number_changes_and_everything_else_stays() {
        let changed = replace_requests(DEMO, 150).expect("a limit");
        assert_eq!(changed, DEMO.replace("requests: 100\n", "requests: 150\n"));
        assert_eq!(limit(&changed).expect("still a policy").requests, 150);
    }

    #[test]
    fn a_comment_is_no_limit() {
        let text = "# requests: 1\nlimits: [{name: a, requests: 7, per: 1s}]\n";
        assert_eq!(
            replace_requests(text, 12).expect("a limit"),
            "# requests: 1\nlimits: [{name: a, requests: 12, per: 1s}]\n"
        );
        assert!(replace_requests("# requests: 1\n", 2).is_err());
    }
}
