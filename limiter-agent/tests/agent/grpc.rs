//! Tests gRPC statuses, streams and refusals, with an agent between tonic's health client and its health service.

use std::net::SocketAddr;

use serde_json::json;
use tokio::net::TcpListener;
use tonic::{
    Code,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_check_response::ServingStatus as Told, health_client::HealthClient},
    server::{HealthReporter, health_reporter},
};

use crate::support::{Agent, daily, policy, rule, snapshot, with};

const CHECK: &str = "/grpc.health.v1.Health/Check";

async fn health() -> (SocketAddr, HealthReporter) {
    let (reporter, service) = health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
    (address, reporter)
}

async fn client(agent: &Agent) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_shared(agent.url("")).expect("an address");
    HealthClient::new(endpoint.connect().await.expect("connected"))
}

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[tokio::test]
async fn calls_over_the_limit_are_resource_exhausted_and_others_continue() {
    let (app, _reporter) = health().await;
    let agent = Agent::start(app, &[]);
    let limited = with(rule("checks", &[daily("limit", "FixedWindow", 3)]), json!({"match": [{"paths": [CHECK]}]}));
    agent.apply(&snapshot(1, &[policy("grpc", &[limited])])).await;
    let mut client = client(&agent).await;
    let mut codes = Vec::new();
    for _ in 0..5 {
        codes.push(client.check(of("")).await.map_or_else(|status| status.code(), |_| Code::Ok));
    }
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::Ok, Code::ResourceExhausted, Code::ResourceExhausted]);
    let refusal = client.check(of("")).await.expect_err("beyond the limit");
    assert!(!refusal.message().is_empty());
    let mut watched = client.watch(of("")).await.expect("no limit on this method").into_inner();
    let first = watched.message().await.expect("the stream continues").expect("a message");
    assert_eq!(first.status(), Told::Serving);
}

#[tokio::test]
async fn an_error_of_the_app_comes_through_as_it_is() {
    let (app, _reporter) = health().await;
    let agent = Agent::start(app, &[]);
    let status = client(&agent).await.check(of("unheard.of")).await.expect_err("there is no such service");
    assert_eq!((status.code(), status.message()), (Code::NotFound, "service not registered"));
}

#[tokio::test]
async fn messages_of_a_stream_come_one_by_one_while_it_stays_open() {
    let (app, reporter) = health().await;
    let agent = Agent::start(app, &[]);
    reporter.set_service_status("shop", ServingStatus::Serving).await;
    let mut watched = client(&agent).await.watch(of("shop")).await.expect("a stream").into_inner();
    for (next, told) in [
        (ServingStatus::NotServing, Told::Serving),
        (ServingStatus::Serving, Told::NotServing),
        (ServingStatus::NotServing, Told::Serving),
    ] {
        let message = watched.message().await.expect("the stream continues").expect("a message");
        assert_eq!(message.status(), told);
        reporter.set_service_status("shop", next).await;
    }
}
