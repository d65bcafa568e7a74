//! Caches rendered refusals, and sends them again while only the date differs.
//!
//! A client over its limit usually retries immediately, and gets the same response for a whole second. A cached
//! response must equal a newly rendered one, so the cache compares everything that a refusal depends on.

use std::{cell::RefCell, mem, ops::Range};

use weir_core::Time;
use weir_enforce::{Refusal, TextKey};

use super::write::{self, Ending};

/// The number of cached refusals. The index is the number of seconds in a refusal, so clients that are refused at
/// different times use different entries. Each entry takes at most a few KiB.
const KEPT: usize = 16;

/// The cached refusals of one worker.
#[derive(Debug, Default)]
pub(super) struct Refusals(RefCell<[Written; KEPT]>);

#[derive(Debug, Default)]
struct Written {
    of: Option<(TextKey, Form)>,
    /// The head with a date, and the body.
    bytes: Vec<u8>,
    /// The range of the date.
    date: Range<usize>,
    /// The date is valid until this time.
    until: Option<Time>,
}

/// The properties of a refusal that do not depend on the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    to_head: bool,
    closes: bool,
}

impl Refusals {
    /// Calls `to` with the rendered refusal.
    #[inline(always)] // see the docs of `calls`
    pub(super) fn write<R>(
        &self,
        refused: &Refusal<'_>,
        to_head: bool,
        ending: Ending<'_>,
        to: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let place = usize::try_from(refused.seconds().unwrap_or(0)).unwrap_or(0) % KEPT;
        let written = &mut self.0.borrow_mut()[place];
        let form = Form { to_head, closes: ending.closes };
        if !written.is(refused, form) {
            written.renew(refused, form);
        }
        if written.until.is_none_or(|until| ending.now >= until) {
            written.date_again(ending);
        }
        to(&written.bytes)
    }
}

impl Written {
    fn is(&self, refused: &Refusal<'_>, form: Form) -> bool {
        self.of.as_ref().is_some_and(|(text_key, written)| *written == form && refused.is_for(text_key))
    }

    #[cold]
    fn renew(&mut self, refused: &Refusal<'_>, form: Form) {
        self.bytes.clear();
        let date = write::refused(refused, form.to_head, form.closes, &mut self.bytes);
        (self.date, self.until) = (date..date, None);
        self.of = Some((refused.text_key(), form));
    }

    #[cold]
    fn date_again(&mut self, ending: Ending<'_>) {
        let mut date = Vec::new();
        self.until = Some(ending.date.write(ending.now, &mut date));
        let start = self.date.start;
        let end = start + date.len();
        self.bytes.splice(mem::replace(&mut self.date, start..end), date);
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::Arc, time::Duration};

    use arc_swap::ArcSwap;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use weir_core::Time;
    use weir_enforce::{AmbiguousPaths, FieldLine, GateOptions, Gates, Headers, RulesInForce, lower};
    use weir_tower::MonotonicClock;

    use super::*;
    use crate::proxy::plain::date::Date;

    fn limit(name: &str, millis: u64) -> Value {
        json!({"name": name, "strategy": "FixedWindow", "requests": 1, "periodMillis": millis})
    }

    /// Rules for two paths. Snapshots with different values of `text` are otherwise equal.
    fn snapshot(text: u8) -> weir_wire::Snapshot {
        let rule = |path: &str, headers: &str, own: Value| {
            let mut on_limit = json!({"status": 429, "headers": headers});
            on_limit.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
            // Only the header `RateLimit-Policy` distinguishes these limits from the rule's own.
            let others = json!({"keys": [["c"]], "limits": [limit("short", 3_000), limit("long", 40_000)]});
            json!({
                "name": path, "action": "Limit", "match": [{"paths": [format!("/{path}")]}], "key": [{"header": "x-key"}],
                "limits": [limit("short", 3_000), limit("long", 20_000)], "overrides": [others],
                "onLimit": on_limit, "maxKeys": 100,
            })
        };
        let rules = [rule("own", "Both", json!({})), rule("text", "Legacy", json!({"body": format!("no {text}")}))];
        let policy =
            json!({"uid": "u", "namespace": "n", "name": "p", "revision": "r", "mode": "Enforce", "rules": rules});
        let snapshot = json!({"wireVersion": 1, "sequence": 1, "revision": "r", "policies": [policy]});
        serde_json::from_value(snapshot).expect("a snapshot")
    }

    fn gates(rules: Arc<ArcSwap<RulesInForce>>, clock: MonotonicClock) -> Gates {
        Gates::new(rules, GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: false })
    }

    #[derive(Clone, Debug)]
    enum Event {
        Ask { path: &'static str, key: &'static [u8], to_head: bool, closes: bool },
        Pass(u64),
        Apply(u8),
    }

    fn event() -> impl Strategy<Value = Event> {
        let key = prop::sample::select(vec![&b"a"[..], b"b", b"c"]);
        prop_oneof![
            20 => (prop::sample::select(vec!["/own", "/text"]), key, prop::bool::weighted(0.1), prop::bool::weighted(0.1))
                .prop_map(|(path, key, to_head, closes)| Event::Ask { path, key, to_head, closes }),
            4 => (1..3000_u64).prop_map(Event::Pass),
            1 => (0..3_u8).prop_map(Event::Apply),
        ]
    }

    #[test]
    fn a_cached_refusal_is_used_while_its_date_is_valid() {
        let (time, rule) = (Time::from_nanos, snapshot(0));
        let rules: Arc<ArcSwap<RulesInForce>> = Arc::default();
        let clock = MonotonicClock::start();
        let lowered = lower(&rule).expect("no faults");
        rules.store(Arc::new(rules.load().with_snapshot(rule, lowered, &Default::default(), || clock.now())));
        let gate = gates(rules, clock).of(Ipv4Addr::LOCALHOST.into());
        let lines = [FieldLine { name: b"x-key", value: b"a" }];
        let refusals = Refusals::default();
        let dates = |date: &Date, now| {
            let ending = Ending { closes: false, date, now };
            let text =
                gate.decide_at_once("GET", ("/text", None), Headers::Lines(&lines), 0, |decided| match decided {
                    Err(refused) => {
                        refusals.write(refused, false, ending, |text| String::from_utf8_lossy(text).into_owned())
                    }
                    _ => String::new(),
                });
            let text = text.expect("the rule decides immediately");
            let lines: Vec<_> = text.split("\r\n").collect();
            assert!(text.ends_with("\r\n\r\nno 0"), "{text}");
            lines.iter().filter_map(|line| line.strip_prefix("date: ")).collect::<Vec<_>>().join("+")
        };
        let first = gate.decide_at_once("GET", ("/text", None), Headers::Lines(&lines), 0, |decided| decided.is_ok());
        assert_eq!(first, Some(true), "only the first request passes");
        let (first, second) = (Date::of("date: first\r\n", time(20)), Date::of("date: the second\r\n", time(30)));
        assert_eq!(dates(&first, time(10)), "first");
        assert_eq!(dates(&second, time(19)), "first");
        assert_eq!(dates(&second, time(20)), "the second");
        assert_eq!(dates(&first, time(29)), "the second");
    }

    #[test]
    fn refusals_are_valid_http() {
        let mut rule = snapshot(0);
        rule.policies[0].rules[1].on_limit.as_mut().expect("a form").status = 499;
        let rules: Arc<ArcSwap<RulesInForce>> = Arc::default();
        let clock = MonotonicClock::start();
        let lowered = lower(&rule).expect("no faults");
        rules.store(Arc::new(rules.load().with_snapshot(rule, lowered, &Default::default(), || clock.now())));
        let gate = gates(rules, clock).of(Ipv4Addr::LOCALHOST.into());
        let lines = [FieldLine { name: b"X-Key", value: b"a" }];
        for (path, closes, to_head, head, body) in [
            (
                "/own",
                false,
                false,
                "HTTP/1.1 429 Too Many Requests\r\n\
                 content-type: application/json\r\n\
                 retry-after: SECONDS\r\n\
                 ratelimit-policy: \"short\";q=1;w=3, \"long\";q=1;w=20\r\n\
                 ratelimit: \"short\";r=0;t=SECONDS\r\n\
                 x-ratelimit-limit: 1\r\n\
                 x-ratelimit-remaining: 0\r\n\
                 x-ratelimit-reset: SECONDS\r\n\
                 content-length: LENGTH\r\n",
                "{\"error\":\"rate limited\",\"policy\":\"n/p\",\"rule\":\"own\",\"limit\":\"short\",\
                 \"retryAfterSeconds\":SECONDS}\n",
            ),
            (
                "/text",
                true,
                true,
                "HTTP/1.1 499 <none>\r\n\
                 content-type: text/plain; charset=utf-8\r\n\
                 retry-after: SECONDS\r\n\
                 x-ratelimit-limit: 1\r\n\
                 x-ratelimit-remaining: 0\r\n\
                 x-ratelimit-reset: SECONDS\r\n\
                 connection: close\r\n\
                 content-length: 4\r\n",
                "",
            ),
        ] {
            let ask = || {
                gate.decide_at_once("GET", (path, None), Headers::Lines(&lines), 0, |decided| {
                    let mut text = Vec::new();
                    let date = decided.err().map(|refusal| {
                        let dated_at = write::refused(refusal, to_head, closes, &mut text);
                        (dated_at, refusal.seconds().expect("a time").to_string())
                    });
                    date.map(|(dated_at, seconds)| (text.split_off(dated_at), text, seconds))
                })
            };
            assert_eq!(ask(), Some(None), "the first request passes");
            let (rest, text, seconds) = ask().flatten().expect("the second request is refused");
            let body = body.replace("SECONDS", &seconds);
            let head = head.replace("SECONDS", &seconds).replace("LENGTH", &body.len().to_string());
            assert_eq!(String::from_utf8_lossy(&text), head);
            assert_eq!(String::from_utf8_lossy(&rest), format!("\r\n{body}"));
        }
    }

    proptest! {
        #[test]
        fn a_cached_refusal_equals_a_newly_rendered_one(events in prop::collection::vec(event(), 1..200)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.expect("a runtime").block_on(async move {
                let rules: Arc<ArcSwap<RulesInForce>> = Arc::default();
                let clock = MonotonicClock::of_tokio();
                let apply = |text: u8| {
                    let snapshot = snapshot(text);
                    let lowered = lower(&snapshot).expect("no faults");
                    let next = rules.load().with_snapshot(snapshot, lowered, &Default::default(), || clock.now());
                    rules.store(Arc::new(next));
                };
                apply(0);
                let gate = gates(Arc::clone(&rules), clock).of(Ipv4Addr::LOCALHOST.into());
                let (refusals, date) = (Refusals::default(), Date::new());
                for event in events {
                    let (path, key, to_head, closes) = match event {
                        Event::Ask { path, key, to_head, closes } => (path, key, to_head, closes),
                        Event::Pass(millis) => {
                            tokio::time::advance(Duration::from_millis(millis)).await;
                            continue;
                        }
                        Event::Apply(text) => {
                            apply(text);
                            continue;
                        }
                    };
                    let lines = [FieldLine { name: b"x-key", value: key }];
                    let sent_and_written = gate.decide_at_once("GET", (path, None), Headers::Lines(&lines), 0, |decided| {
                        let Err(refused) = decided else { return None };
                        let ending = Ending { closes, date: &date, now: Time::from_nanos(1) };
                        let sent = refusals.write(refused, to_head, ending, <[u8]>::to_vec);

                        let (mut head, mut now) = (Vec::new(), Vec::new());
                        let dated_at = write::refused(refused, to_head, closes, &mut head);
                        let rest = head.split_off(dated_at);
                        date.write(ending.now, &mut now);
                        Some((sent, [head, now, rest].concat()))
                    });
                    let Some((sent, written)) = sent_and_written.flatten() else { continue };
                    prop_assert_eq!(String::from_utf8_lossy(&sent), String::from_utf8_lossy(&written));
                }
                Ok(())
            })?;
        }
    }
}
