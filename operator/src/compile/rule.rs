//! Compiles one rule, with every default filled in.

use weir_api as api;
use weir_expressions::{Piece, body_template, template};
use weir_wire as wire;

use super::{
    ban,
    faults::Faults,
    limits, matching, override_keys,
    shared::{self, Sharing, StoreSecrets},
};

/// The stores that a policy's rules use, and their Secrets.
#[derive(Debug, Default)]
pub(super) struct UsedStores {
    pub(super) stores: Vec<wire::Store>,
    pub(super) secrets: Vec<StoreSecrets>,
}

pub(super) fn rule(
    rule: &api::Rule,
    sharing: Sharing<'_>,
    path: &str,
    used: &mut UsedStores,
    faults: &mut Faults,
) -> wire::Rule {
    let matches = (rule.matches.iter().enumerate())
        .map(|(i, entry)| matching::entry(entry, &format!("{path}.match[{i}]"), faults))
        .collect();
    let mode = rule.mode.map(mode);
    let action = match rule.action {
        api::Action::Limit => wire::Action::Limit,
        api::Action::Bypass => wire::Action::Bypass,
        api::Action::Deny => wire::Action::Deny,
    };
    if action != wire::Action::Limit {
        ban::check_absent(rule, path, faults);
        let on_limit = (action == wire::Action::Deny).then(|| on_limit(rule, &format!("{path}.onLimit"), faults));
        let without_limits = wire::Rule::without_limits(rule.name.clone(), action, matches);
        return wire::Rule { mode, replaces: rule.replaces.clone(), on_limit, ..without_limits };
    }
    override_keys::check(rule, |key, message| faults.add(format!("{path}.{key}"), message));
    let concurrency = limits::concurrency(rule, path, faults);
    let (limits, overrides) = if concurrency.is_some() {
        (Vec::new(), Vec::new())
    } else {
        let overrides = (rule.overrides.iter().enumerate())
            .map(|(i, entry)| limits::overridden(entry, &rule.limits, &format!("{path}.overrides[{i}]"), faults));
        let overrides: Vec<wire::Override> = overrides.collect();
        (limits::limits(&rule.limits, path, faults), overrides)
    };
    let cost = rule.cost.as_ref().map(|cost| self::cost(cost, &format!("{path}.cost"), faults));
    check_cost(cost.as_ref(), &limits, &overrides, &format!("{path}.cost"), faults);
    if rule.per == api::Per::Message {
        check_messages(rule, path, faults);
    }
    // A concurrent limit tracks exactly the keys with requests in flight.
    let has_max_keys = !rule.key.is_empty() && concurrency.is_none();
    let max_keys = has_max_keys.then(|| faults.number(format!("{path}.maxKeys"), rule.max_keys.into(), 1));
    if let Some(max_keys) = max_keys
        && let Err(wire::LogsTooLarge { path: at, message }) = wire::check_logs(&limits, &overrides, max_keys)
    {
        faults.add(format!("{path}.{at}"), message);
    }
    let ban = ban::ban(rule, max_keys, path, faults);
    let shared = shared::shared(rule, sharing, path, faults).map(|(shared, store)| {
        for (at, numbers) in places(&limits, &overrides) {
            shared::check_numbers(numbers, &format!("{path}.{at}"), faults);
        }
        if let Some(cost) = &cost {
            shared::check_cost(cost, &format!("{path}.cost"), faults);
        }
        if let Some((store, secrets)) = store.filter(|(store, _)| used.stores.iter().all(|it| it.name != store.name)) {
            used.stores.push(store);
            used.secrets.extend(secrets);
        }
        shared
    });
    let on_limit = on_limit(rule, &format!("{path}.onLimit"), faults);
    wire::Rule {
        name: rule.name.clone(),
        action,
        mode,
        matches,
        replaces: rule.replaces.clone(),
        per: match rule.per {
            api::Per::Request => wire::Per::Request,
            api::Per::Message => wire::Per::Message,
        },
        key: rule.key.iter().enumerate().map(|(i, part)| key_part(part, &format!("{path}.key[{i}]"), faults)).collect(),
        limits,
        overrides,
        limit_override: rule.limit_override.as_ref().map(|own| wire::LimitOverride {
            max_requests: faults.number(format!("{path}.limitOverride.maxRequests"), own.max_requests, 1),
            period_millis: own.per.as_millis(),
        }),
        concurrency,
        cost,
        response_headers: {
            let path = format!("{path}.responseHeaders");
            response_headers(&rule.response_headers, on_limit.headers, &path, faults)
        },
        on_limit: Some(on_limit),
        max_keys,
        ban,
        shared,
    }
}

pub(super) fn mode(mode: api::Mode) -> wire::Mode {
    match mode {
        api::Mode::Enforce => wire::Mode::Enforce,
        api::Mode::Shadow => wire::Mode::Shadow,
        api::Mode::Disabled => wire::Mode::Disabled,
    }
}

/// Returns all limits of a rule and of its overrides, with their paths.
fn places<'a>(limits: &'a [wire::Limit], overrides: &'a [wire::Override]) -> Vec<(String, &'a wire::Limit)> {
    let own = limits.iter().enumerate().map(|(i, limit)| (format!("limits[{i}]"), limit));
    let others = overrides.iter().enumerate().flat_map(|(o, entry)| {
        entry.limits.iter().enumerate().map(move |(i, limit)| (format!("overrides[{o}].limits[{i}]"), limit))
    });
    own.chain(others).collect()
}

fn key_part(part: &api::KeyPart, path: &str, faults: &mut Faults) -> wire::KeyPart {
    match part {
        api::KeyPart::Header(name) => wire::KeyPart::Header(name.clone()),
        api::KeyPart::ClientIp(client) => wire::KeyPart::ClientIp {
            trusted_hops: faults.number(format!("{path}.clientIP.trustedHops"), client.trusted_hops.into(), 0),
            ipv6_prefix: faults.number(format!("{path}.clientIP.ipv6Prefix"), client.ipv6_prefix.into(), 1),
        },
        api::KeyPart::Cookie(name) => wire::KeyPart::Cookie(name.clone()),
        api::KeyPart::Query(name) => wire::KeyPart::Query(name.clone()),
        api::KeyPart::PathSegment(segment) => {
            wire::KeyPart::PathSegment(faults.number(format!("{path}.pathSegment"), (*segment).into(), 1))
        }
        api::KeyPart::Path {} => wire::KeyPart::Path {},
        api::KeyPart::Host {} => wire::KeyPart::Host {},
        api::KeyPart::Method {} => wire::KeyPart::Method {},
        api::KeyPart::Descriptor(key) => wire::KeyPart::Descriptor(key.clone()),
        api::KeyPart::JwtClaim(jwt) => wire::KeyPart::JwtClaim { header: jwt.header.clone(), claim: jwt.claim.clone() },
    }
}

fn cost(cost: &api::Cost, path: &str, faults: &mut Faults) -> wire::Cost {
    match cost {
        api::Cost::Requests(requests) => wire::Cost::Fixed(faults.number(format!("{path}.requests"), *requests, 1)),
        api::Cost::Header(header) => wire::Cost::RequestHeader {
            name: header.name.clone(),
            most: faults.number(format!("{path}.header.most"), header.most, 1),
        },
        api::Cost::ResponseHeader(header) => wire::Cost::ResponseHeader {
            name: header.name.clone(),
            most: faults.number(format!("{path}.responseHeader.most"), header.most, 1),
        },
        api::Cost::RequestBytes {} => wire::Cost::RequestBytes,
        api::Cost::ResponseBytes {} => wire::Cost::ResponseBytes,
    }
}

/// Checks that the limits can admit the cost: every request must be admissible at some time, and a limit whose cost is
/// known only after its arrival must allow debt.
fn check_cost(
    cost: Option<&wire::Cost>,
    limits: &[wire::Limit],
    overrides: &[wire::Override],
    path: &str,
    faults: &mut Faults,
) {
    match cost {
        // With at most 1, no request costs more than on its arrival.
        None | Some(wire::Cost::RequestHeader { .. } | wire::Cost::ResponseHeader { most: 1, .. }) => {}
        Some(wire::Cost::Fixed(requests)) => {
            let all = limits.iter().chain(overrides.iter().flat_map(|entry| &entry.limits));
            let smallest = all.min_by_key(|limit| limits::most(limit));
            if let Some(limit) = smallest.filter(|limit| *requests > limits::most(limit)) {
                let most = limits::most(limit);
                let name = &limit.name;
                faults.add(
                    format!("{path}.requests"),
                    format!(
                        "{requests} is more than limit {name:?} ever admits at a time, which is {most}: lower the cost, or raise its burst or requests"
                    ),
                );
            }
        }
        Some(wire::Cost::ResponseHeader { .. } | wire::Cost::RequestBytes | wire::Cost::ResponseBytes) => {
            let rigid = limits.iter().find(|limit| limit.strategy != wire::Strategy::TokenBucketWithDebt);
            if let Some(limit) = rigid {
                let name = &limit.name;
                faults.add(
                    path,
                    format!(
                        "a cost that is known only later needs limits that can be overdrawn: give limit {name:?} strategy TokenBucketWithDebt, or use responseHeader with most: 1"
                    ),
                );
            }
        }
    }
}

/// Checks fields that are valid only for requests.
fn check_messages(rule: &api::Rule, path: &str, faults: &mut Faults) {
    if rule.cost.as_ref().is_some_and(|cost| !matches!(cost, api::Cost::Requests(_))) {
        faults.add(format!("{path}.cost"), "a message has no headers and no response: its cost can only be requests");
    }
    let Some(on_limit) = &rule.on_limit else { return };
    if on_limit.action == api::OnLimitAction::Wait {
        faults.add(format!("{path}.onLimit.action"), "messages do not wait: use action Reject");
    }
    if on_limit.content_type.is_some() {
        faults.add(format!("{path}.onLimit.contentType"), "the answer to a message is always text: remove it");
    }
}

fn response_headers(
    headers: &[api::ResponseHeader],
    style: wire::HeaderStyle,
    path: &str,
    faults: &mut Faults,
) -> Vec<wire::ResponseHeader> {
    for (i, header) in headers.iter().enumerate() {
        if style.names().iter().any(|name| name.eq_ignore_ascii_case(&header.name)) {
            let message = format!("{:?} is a header that onLimit.headers sends, too: use headers: None", header.name);
            faults.add(format!("{path}[{i}].name"), message);
        }
        if let Err(invalid) = template(&header.value) {
            faults.add(format!("{path}[{i}].value"), format!("{:?} {invalid}", header.value));
        }
    }
    headers
        .iter()
        .map(|header| wire::ResponseHeader { name: header.name.clone(), value: header.value.clone() })
        .collect()
}

fn on_limit(rule: &api::Rule, path: &str, faults: &mut Faults) -> wire::OnLimit {
    let on_limit = rule.on_limit.clone().unwrap_or_default();
    let max_wait_millis = match (on_limit.action, &on_limit.max_wait) {
        (api::OnLimitAction::Reject, None) => None,
        (api::OnLimitAction::Wait, Some(max_wait)) => Some(max_wait.as_millis()),
        (api::OnLimitAction::Wait, None) => {
            faults.add(format!("{path}.maxWait"), "is required with action Wait: set how long a request may wait");
            None
        }
        (api::OnLimitAction::Reject, Some(_)) => {
            faults.add(format!("{path}.maxWait"), "is not valid with action Reject: remove it, or use action Wait");
            None
        }
    };
    let on_message = match (rule.per, on_limit.on_message) {
        (api::Per::Message, on_message) => Some(match on_message.unwrap_or_default() {
            api::OnMessage::Notice => wire::OnMessage::Notice,
            api::OnMessage::Close => wire::OnMessage::Close,
        }),
        (api::Per::Request, None) => None,
        (api::Per::Request, Some(_)) => {
            faults.add(format!("{path}.onMessage"), "is valid only with per Message: remove it, or add per: Message");
            None
        }
    };
    let headers = match on_limit.headers {
        // A Deny rule has no quota to describe.
        _ if rule.action == api::Action::Deny => wire::HeaderStyle::None,
        api::HeaderStyle::Ietf => wire::HeaderStyle::Ietf,
        api::HeaderStyle::Legacy => wire::HeaderStyle::Legacy,
        api::HeaderStyle::Both => wire::HeaderStyle::Both,
        api::HeaderStyle::None => wire::HeaderStyle::None,
    };
    let set = response_headers(&on_limit.set, headers, &format!("{path}.set"), faults);
    if rule.action == api::Action::Deny {
        let headers = on_limit.set.iter().enumerate();
        let headers =
            headers.map(|(i, header)| (format!("set[{i}].value"), template(&header.value).unwrap_or_default()));
        let body = on_limit.body.iter().map(|body| ("body".to_owned(), body_template(body)));
        let of_limit = |piece: &Piece| matches!(piece, Piece::Placeholder(placeholder) if placeholder.is_of_limit());
        for (field, _) in headers.chain(body).filter(|(_, pieces)| pieces.iter().any(of_limit)) {
            let message = "has a placeholder of a limit, and a rule with action Deny has none: use {policy} or {rule}";
            faults.add(format!("{path}.{field}"), message);
        }
    }
    let default_status = if rule.action == api::Action::Deny { 403 } else { 429 };
    let default_type = || on_limit.body.as_ref().map(|_| "text/plain; charset=utf-8".to_owned());
    wire::OnLimit {
        max_wait_millis,
        status: faults.number(format!("{path}.status"), on_limit.status.unwrap_or(default_status).into(), 400),
        headers,
        headers_on: match on_limit.headers_on {
            api::HeadersOn::All => wire::HeadersOn::All,
            api::HeadersOn::Refusals => wire::HeadersOn::Refusals,
        },
        set,
        content_type: on_limit.content_type.clone().or_else(default_type),
        body: on_limit.body,
        on_message,
    }
}
