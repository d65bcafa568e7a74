//! Reads the answers of both ports, and compares them with the answer of a model.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use super::{
    super::messages::{self, Code, CurrentLimit, Request, Response, Unit},
    model::{Answer, Rules, Status},
};

/// What a service told: the fields of the models, and when the window of each descriptor ends.
#[derive(Debug, PartialEq)]
pub(super) struct Told {
    answer: Answer,
    resets: Vec<Option<Duration>>,
}

/// The request in the JSON of protobuf.
pub(super) fn json(request: &Request) -> Value {
    let descriptor = |descriptor: &messages::Descriptor| {
        let entry = |entry: &messages::Entry| json!({ "key": entry.key, "value": entry.value });
        let mut value = json!({ "entries": descriptor.entries.iter().map(entry).collect::<Vec<_>>() });
        if let Some(hits) = descriptor.hits_addend {
            // Numbers of 64 bits are text.
            value["hitsAddend"] = hits.to_string().into();
        }
        value
    };
    let descriptors: Vec<_> = request.descriptors.iter().map(descriptor).collect();
    json!({ "domain": request.domain, "descriptors": descriptors, "hitsAddend": request.hits_addend })
}

impl Told {
    pub(super) fn of_response(response: &Response) -> anyhow::Result<Self> {
        let (mut statuses, mut resets) = (Vec::new(), Vec::new());
        for status in &response.statuses {
            let limit = status.current_limit.as_ref().map(limit).transpose()?;
            statuses.push(Status { code: status.code(), remaining: status.limit_remaining, limit });
            let reset = status.duration_until_reset.map(|reset| {
                let seconds = u64::try_from(reset.seconds).context("a negative duration")?;
                anyhow::Ok(Duration::new(seconds, u32::try_from(reset.nanos).context("a negative duration")?))
            });
            resets.push(reset.transpose()?);
        }
        Ok(Self { answer: Answer { code: response.overall_code(), statuses }, resets })
    }

    pub(super) fn of_json(status: u16, text: &str) -> anyhow::Result<Self> {
        let told: Value = serde_json::from_str(text).with_context(|| format!("{status}: {text}"))?;
        let code = code(&told["overallCode"])?;
        ensure!(status == if code == Code::OverLimit { 429 } else { 200 }, "status {status} for {text}");
        let (mut statuses, mut resets) = (Vec::new(), Vec::new());
        for told in told["statuses"].as_array().with_context(|| format!("no statuses in {text}"))? {
            let number = |value: &Value| {
                // Fields with the value 0 are absent.
                let number = if value.is_null() { Some(0) } else { value.as_u64() };
                number.and_then(|number| u32::try_from(number).ok()).with_context(|| format!("no number: {told}"))
            };
            let limit = match &told["currentLimit"] {
                Value::Null => None,
                limit => Some((number(&limit["requestsPerUnit"])?, unit(&limit["unit"])?)),
            };
            statuses.push(Status {
                code: self::code(&told["code"])?,
                remaining: number(&told["limitRemaining"])?,
                limit,
            });
            let reset = match &told["durationUntilReset"] {
                Value::Null => None,
                reset => Some(duration(reset).with_context(|| format!("no duration: {told}"))?),
            };
            resets.push(reset);
        }
        Ok(Self { answer: Answer { code, statuses }, resets })
    }

    /// Compares the answer with the expected one of these rules. The request was sent and answered at these times. The
    /// peer's reset time is the end of the window. Weir's reset time is when the limit is at full credit again: the end
    /// of the window, or now if the limit has counted nothing in it.
    pub(super) fn check(&self, expected: &Answer, rules: Rules, [before, after]: [Duration; 2]) -> anyhow::Result<()> {
        ensure!(self.answer == *expected, "told {:?}", self.answer);
        for (status, reset) in expected.statuses.iter().zip(&self.resets) {
            match (status.limit, reset) {
                (None, None) => {}
                (Some((requests, _)), Some(reset)) if rules == Rules::Weir && status.remaining == requests => {
                    ensure!(reset.is_zero(), "reset after {reset:?} of a limit that has counted nothing");
                }
                (Some((_, unit)), Some(reset)) => {
                    // The peer counts whole seconds.
                    let second = Duration::from_secs(1);
                    let window = Duration::from_secs(unit.seconds());
                    let end = Duration::from_secs((before.as_secs() / window.as_secs() + 1) * window.as_secs());
                    let (earliest, latest) = (end.saturating_sub(after + second), end - before + second);
                    ensure!((earliest..=latest).contains(reset), "reset after {reset:?}, and not {latest:?}");
                }
                (limit, reset) => bail!("reset after {reset:?} of the limit {limit:?}"),
            }
        }
        Ok(())
    }
}

fn limit(limit: &CurrentLimit) -> anyhow::Result<(u32, Unit)> {
    ensure!(limit.unit_multiplier.is_none_or(|multiplier| multiplier == 1), "several units: {limit:?}");
    Ok((limit.requests_per_unit, limit.unit()))
}

fn code(value: &Value) -> anyhow::Result<Code> {
    Ok(match value.as_str() {
        Some("OK") => Code::Ok,
        Some("OVER_LIMIT") => Code::OverLimit,
        _ => bail!("no code: {value}"),
    })
}

fn unit(value: &Value) -> anyhow::Result<Unit> {
    let units = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day];
    let named = |unit: &Unit| value.as_str().is_some_and(|text| text == unit.name().to_ascii_uppercase());
    units.into_iter().find(named).with_context(|| format!("no unit: {value}"))
}

/// Seconds with a fraction, such as `1.5s`.
fn duration(value: &Value) -> Option<Duration> {
    Duration::try_from_secs_f64(value.as_str()?.strip_suffix('s')?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of envoyproxy/ratelimit, and the same over gRPC.
    #[test]
    fn both_ports_tell_the_same() -> anyhow::Result<()> {
        let text = r#"{"overallCode":"OVER_LIMIT", "statuses":[
            {"code":"OVER_LIMIT", "currentLimit":{"requestsPerUnit":3, "unit":"HOUR"}, "durationUntilReset":"2288s"},
            {"code":"OK", "limitRemaining":4294967295}, {"code":"OK"}]}"#;
        let told = Told::of_json(429, text)?;
        assert!(Told::of_json(200, text).is_err(), "the status contradicts the code");
        let status = |code: Code, limit_remaining| messages::DescriptorStatus {
            code: code.into(),
            limit_remaining,
            ..messages::DescriptorStatus::default()
        };
        let over = messages::DescriptorStatus {
            current_limit: Some(CurrentLimit { requests_per_unit: 3, unit: Unit::Hour.into(), unit_multiplier: None }),
            duration_until_reset: Some(messages::Duration { seconds: 2_288, nanos: 0 }),
            ..status(Code::OverLimit, 0)
        };
        let response = Response {
            overall_code: Code::OverLimit.into(),
            statuses: vec![over, status(Code::Ok, u32::MAX), status(Code::Ok, 0)],
        };
        assert_eq!(told, Told::of_response(&response)?);

        // 2,288 seconds before the end of an hour.
        let at = Duration::from_secs(3_600 - 2_288);
        let later = at + Duration::from_secs(5);
        let mut other = told.answer.clone();
        other.statuses[2].remaining = 1;
        for rules in [Rules::Peer, Rules::Weir] {
            assert!(told.check(&told.answer.clone(), rules, [at, at]).is_ok());
            assert!(told.check(&told.answer.clone(), rules, [later, later]).is_err());
            assert!(told.check(&other, rules, [at, at]).is_err());
        }
        Ok(())
    }

    /// If a limit has counted nothing, the peer's reset time is still the end of the window.
    #[test]
    fn a_limit_of_weir_at_full_credit_resets_now() -> anyhow::Result<()> {
        let at = Duration::from_secs(3_600 - 2_288);
        for (reset, of_peer, of_weir) in [(2_288, true, false), (0, false, true)] {
            let text = format!(
                r#"{{"overallCode":"OK", "statuses":[{{"code":"OK", "limitRemaining":3,
                "currentLimit":{{"requestsPerUnit":3, "unit":"HOUR"}}, "durationUntilReset":"{reset}s"}}]}}"#
            );
            let told = Told::of_json(200, &text)?;
            let good = |rules| told.check(&told.answer.clone(), rules, [at, at]).is_ok();
            assert_eq!([good(Rules::Peer), good(Rules::Weir)], [of_peer, of_weir], "{reset}");
        }
        Ok(())
    }

    #[test]
    fn the_json_of_a_request_is_that_of_protobuf() {
        let entry = messages::Entry { key: "path".to_owned(), value: "x".to_owned() };
        let descriptor = messages::Descriptor { entries: vec![entry], hits_addend: Some(0) };
        let request = Request { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 2 };
        let expected = json!({
            "domain": "d",
            "descriptors": [{ "entries": [{ "key": "path", "value": "x" }], "hitsAddend": "0" }],
            "hitsAddend": 2,
        });
        assert_eq!(json(&request), expected);
    }
}
