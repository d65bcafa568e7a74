//! Tests IPv4 and IPv6 clients on one port, and their addresses in limits and at the app.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::json;

use crate::support::{Agent, App, body, daily, policy, rule, snapshot, with};

/// Responds with the forwarding headers that the app received.
async fn told(request: Request<Incoming>) -> Response<crate::support::Body> {
    let field = |name: &str| request.headers().get(name).map_or("-", |value| value.to_str().expect("text")).to_owned();
    Response::new(body(format!("{} {}", field("x-forwarded-for"), field("forwarded"))))
}

#[tokio::test]
async fn ipv4_and_ipv6_clients_are_served_on_one_port() {
    if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        eprintln!("this machine has no IPv6");
        return;
    }
    let app = App::serve(told).await;
    let agent = Agent::start(app.address, &["--listen", "[::]:0", "--telemetry", "[::]:0"]);
    let port = agent.addresses.listen.port();
    let ask = async |ip: IpAddr, headers: &[(&str, &str)]| {
        let url = match ip {
            IpAddr::V4(ip) => format!("http://{ip}:{port}/"),
            IpAddr::V6(ip) => format!("http://[{ip}]:{port}/"),
        };
        let answer = agent.client.get(&url, headers).await;
        (answer.status().as_u16(), String::from_utf8(answer.body().to_vec()).expect("text"))
    };
    let (ipv4, ipv6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    let telemetry = agent.addresses.telemetry.port();
    for host in ["127.0.0.1", "[::1]"] {
        assert_eq!(agent.client.get(&format!("http://{host}:{telemetry}/healthz"), &[]).await.status(), 200, "{host}");
    }

    // The socket of an IPv4 client has an IPv6 address, but limits and the app get its IPv4 address.
    let begun = [("forwarded", "for=192.0.2.1")];
    assert_eq!(ask(ipv4, &[]).await, (200, "127.0.0.1 -".to_owned()));
    assert_eq!(ask(ipv6, &[]).await, (200, "::1 -".to_owned()));
    let appended = |node: &str, host: &str| format!("for=192.0.2.1, {node};host=\"{host}:{port}\";proto=http");
    assert_eq!(ask(ipv4, &begun).await.1, format!("127.0.0.1 {}", appended("for=127.0.0.1", "127.0.0.1")));
    assert_eq!(ask(ipv6, &begun).await.1, format!("::1 {}", appended("for=\"[::1]\"", "[::1]")));

    let key = json!({"key": [{"clientIP": {"trustedHops": 1, "ipv6Prefix": 64}}]});
    let per_client = with(rule("per-client", &[daily("d", "TokenBucket", 1)]), key);
    agent.apply(&snapshot(1, &[policy("p", &[per_client])])).await;
    let forwarded = |by: IpAddr, client: &'static str| (by, [("x-forwarded-for", client)]);
    for (asked, expected) in [
        // These are one client, in different spellings of its address and behind either proxy.
        (forwarded(ipv6, "::ffff:192.0.2.7"), 200),
        (forwarded(ipv4, "192.0.2.7"), 429),
        (forwarded(ipv6, "192.0.2.7:4711"), 429),
        (forwarded(ipv4, "[::ffff:192.0.2.7]:4711"), 429),
        (forwarded(ipv6, "10.0.0.1, ::FFFF:c000:207"), 429),
        // If the header names no address, the peer's address counts.
        (forwarded(ipv6, "127.0.0.1"), 200),
        (forwarded(ipv4, "unknown"), 429),
        (forwarded(ipv4, "[::1]"), 200),
        (forwarded(ipv6, "unknown"), 429),
    ] {
        let (by, headers) = asked;
        assert_eq!(ask(by, &headers).await.0, expected, "{headers:?} by {by}");
    }
}
