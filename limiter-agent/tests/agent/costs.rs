//! Tests how many units requests charge to the limits, in an agent process with real connections.

use http::Response;
use serde_json::{Value, json};

use crate::support::{Agent, App, body, header, json_of, policy, rule, snapshot, with};

fn debt(requests: u64, burst: u64, debt: u64, millis: u64) -> Value {
    json!({
        "name": "units", "strategy": "TokenBucketWithDebt", "requests": requests, "periodMillis": millis,
        "burst": burst, "debt": debt,
    })
}

#[tokio::test]
async fn a_response_header_sets_the_cost() {
    for args in [&[][..], &["--in-place", "off"]] {
        cost_of_a_response_header(args).await;
    }
}

/// An app that sends the path of each request as its cost.
async fn app_that_names_costs() -> App {
    App::serve(async |request| {
        let mut response = Response::new(body("ok"));
        let units = request.uri().path()[1..].parse().expect("a number");
        response.headers_mut().insert("x-units", units);
        response
    })
    .await
}

async fn cost_of_a_response_header(args: &[&str]) {
    let app = app_that_names_costs().await;
    let agent = Agent::start(app.address, args);
    let cost = json!({"cost": {"responseHeader": {"name": "x-units", "most": 1000}}});
    agent.apply(&snapshot(1, &[policy("p", &[with(rule("all", &[debt(100, 100, 0, 86_400_000)]), cost)])])).await;
    for (units, status) in [("40", 200), ("59", 200), ("500", 200), ("1", 429)] {
        let response = agent.get(&format!("/{units}"), &[]).await;
        assert_eq!(response.status(), status, "{units}");
        assert_eq!(header(&response, "x-units"), "", "the agent removes the header");
    }
    // 499 of the 500 units are debt, which takes five days to refill. The wait is bounded by 12 hours, plus the time
    // for the unit of the next request.
    let refused = agent.get("/1", &[]).await;
    let seconds: u64 = header(&refused, "retry-after").parse().expect("seconds");
    assert!((43_100..=44_200).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_response_header_of_0_gives_the_request_back() {
    for args in [&[][..], &["--in-place", "off"]] {
        let app = app_that_names_costs().await;
        let agent = Agent::start(app.address, args);
        let cost = json!({"cost": {"responseHeader": {"name": "x-units", "most": 1}}});
        let limit = json!({"name": "l", "strategy": "TokenBucket", "requests": 2, "periodMillis": 86_400_000});
        agent.apply(&snapshot(1, &[policy("p", &[with(rule("all", &[limit]), cost)])])).await;
        for (units, status) in [("0", 200), ("0", 200), ("0", 200), ("1", 200), ("0", 200), ("1", 200), ("0", 429)] {
            let response = agent.get(&format!("/{units}"), &[]).await;
            assert_eq!(response.status(), status, "{units}, {args:?}");
            assert_eq!(header(&response, "x-units"), "", "the agent removes the header");
        }
    }
}

/// Bytes pass no faster than the rate, however fast client and app are.
#[tokio::test(flavor = "multi_thread")]
async fn bandwidth_is_shaped() {
    const LENGTH: usize = 1_000_000;
    let app = App::serve(async |_| Response::new(body(vec![b'x'; LENGTH]))).await;
    let agent = Agent::start(app.address, &[]);
    // The limit is 2 MB per second with a burst of 200 kB and a debt of 100 kB, so 1 MB takes 350 ms.
    let shaped = with(rule("all", &[debt(2_000_000, 200_000, 100_000, 1000)]), json!({"cost": "responseBytes"}));
    agent.apply(&snapshot(1, &[policy("p", &[shaped])])).await;
    let before = uptime(&agent).await;
    let response = agent.get("/", &[]).await;
    let took = uptime(&agent).await - before;
    assert_eq!((response.status().as_u16(), response.body().len()), (200, LENGTH));
    assert_eq!(header(&response, "content-length"), LENGTH.to_string());
    assert!(took >= 349, "{took} ms");
    assert_eq!(agent.counts(0, 0).await, [1, 0, 0]);
}

/// The agent's uptime by its own clock, in milliseconds.
async fn uptime(agent: &Agent) -> u64 {
    json_of(&agent.control("GET", "/v1/status", "").await)["uptimeMillis"].as_u64().expect("milliseconds")
}
