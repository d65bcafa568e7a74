//! Tests HTTP/2 clients that reset requests immediately: a proxy does so when some of its many clients leave.

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::{io::AsyncWriteExt, sync::mpsc};

use crate::{
    hostile::{Answer, frames},
    support::{Agent, App, body},
};

/// The limit of the agents in these tests. The bound for resets is twice as high.
const STREAMS: u32 = 100;

/// Requests that are reset in the same packet.
fn reset_at_once(count: u32) -> Vec<u8> {
    let block = frames::block([(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")]);
    let pair = |number: u32| {
        let stream = 2 * number + 3;
        [frames::headers(stream, &block, true), frames::frame(frames::kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])]
            .concat()
    };
    (0..count).flat_map(pair).collect()
}

/// Sends one request, and then requests that are reset. Returns the response to the first request.
async fn first_answer(resets: u32) -> (Answer, Agent, App) {
    let (tell, mut asked) = mpsc::unbounded_channel();
    let app = App::serve(move |request: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(());
            let _ = request.into_body().collect().await;
            Response::new(body("ok"))
        }
    })
    .await;
    let agent = Agent::start(app.address, &["--workers", "1", "--max-streams", &STREAMS.to_string()]);
    let first = frames::block([(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")]);
    let mut client = agent.connect().await;
    client.write_all(&[frames::greeting(), frames::headers(1, &first, false)].concat()).await.expect("sent");
    asked.recv().await.expect("the app was asked");
    // All resets arrive while the agent does not read.
    agent.suspend().await;
    client.write_all(&reset_at_once(resets)).await.expect("sent");
    agent.go_on();
    (frames::ask(client, &frames::data(1, b"", true)).await, agent, app)
}

#[tokio::test]
async fn clients_that_leave_at_once_do_not_end_the_requests_of_others() {
    assert_eq!(first_answer(STREAMS).await.0, Answer::Status(200));
}

/// 11 is ENHANCE_YOUR_CALM.
#[tokio::test]
async fn a_flood_of_resets_ends_its_connection() {
    let (answer, agent, _app) = first_answer(2 * STREAMS + 1).await;
    assert_eq!(answer, Answer::Reset(11));
    assert_eq!(agent.statuses("/", &[], 1).await, [200]);
}
