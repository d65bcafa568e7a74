//! Tests hostile requests over both protocols: each one passes unchanged, or is refused and no part of it reaches the
//! app.
//!
//! The same request goes to one agent as HTTP/1.1 and as HTTP/2. The decision, the counts of the rules and the
//! request at the app must be equal, except for the reasons in `differences.rs`. `tables.rs` is a corpus, and `cargo
//! xtask fuzz protocols --seconds 600` generates more.

mod app;
mod differences;
pub(crate) mod frames;
mod generate;
mod lane;
mod message;
#[cfg(feature = "peers")]
mod peers;
mod raw;
mod tables;
mod words;

use std::sync::Arc;

use tokio::task::JoinSet;

use self::{
    differences::{allowed, laxer},
    lane::Lane,
    message::{Message, Protocol},
    tables::{Expected, Row, rows_of_all, rows_of_bytes},
};
use crate::differential::Budget;

/// The number of agents to test at the same time.
const LANES: usize = 3;

/// The number of cases without a time limit, and the first seed.
const CASES: u64 = 300;
const FIRST_SEED: u64 = 2_000_000;

/// The end of an exchange, from the client's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Status(u16),
    /// An error code of HTTP/2, of the stream or the connection.
    Reset(u32),
    /// The connection was closed without a response.
    Closed,
}

/// The bytes of a text in which each character is one byte.
fn latin(text: &str) -> Vec<u8> {
    text.chars()
        .flat_map(|c| u8::try_from(u32::from(c)).map_or_else(|_| c.to_string().into_bytes(), |byte| vec![byte]))
        .collect()
}

async fn check(lane: &mut Lane, row: &Row) -> Result<(), String> {
    let [http1, http2] = lane.compare(&row.message).await?;
    let passes = match row.expected {
        Expected::Passes => true,
        Expected::Refused => false,
        Expected::Alike => return Ok(()),
    };
    let in_http2 = if passes { allowed(&row.message).is_none() } else { laxer(&row.message).is_some() };
    for (trial, passes) in [(http1, passes), (http2, in_http2)] {
        if (trial.answer == Answer::Status(200)) != passes {
            return Err(format!("{:?}, although it should be {:?}", trial.answer, row.expected));
        }
    }
    Ok(())
}

/// Checks all rows, spread over the lanes.
async fn check_rows(rows: Vec<Row>) {
    let rows = Arc::new(rows);
    let mut lanes = JoinSet::new();
    for number in 0..LANES {
        let rows = Arc::clone(&rows);
        lanes.spawn(async move {
            let (mut lane, mut wrong) = (Lane::start().await, Vec::new());
            for row in rows.iter().skip(number).step_by(LANES) {
                let Row { about, message, .. } = row;
                wrong.extend(check(&mut lane, row).await.err().map(|why| format!("{about}: {message:?}\n{why}\n")));
            }
            wrong
        });
    }
    let wrong: Vec<String> = lanes.join_all().await.into_iter().flatten().collect();
    println!("{} messages, {} fail", rows.len() * 2, wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn hostile_requests_have_one_meaning_over_both_protocols() {
    check_rows(rows_of_all()).await;
}

#[tokio::test]
async fn each_byte_has_one_meaning_over_both_protocols() {
    check_rows(rows_of_bytes()).await;
}

#[tokio::test]
async fn invalid_frames_make_no_request_for_the_app() {
    let lane = Lane::start().await;
    let connections = raw::connections();
    let mut wrong = Vec::new();
    for (name, bytes, end) in &connections {
        let trial = lane.send(Protocol::Http2, bytes).await;
        wrong.extend(raw::check(&trial, *end).err().map(|why| format!("{name}: {why}")));
    }
    println!("{} connections, {} fail", connections.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sends random requests that are made from the words of the tables.
#[tokio::test]
async fn any_request_is_the_same_in_both_protocols() {
    let budget = Arc::new(Budget::told(CASES, FIRST_SEED));
    let mut lanes = JoinSet::new();
    for number in 0..LANES as u64 {
        let budget = Arc::clone(&budget);
        lanes.spawn(async move {
            let (mut lane, mut cases) = (Lane::start().await, 0);
            let mine = (number..budget.cases).step_by(LANES);
            for seed in mine.map(|case| budget.seed + case).take_while(|_| !budget.is_over()) {
                cases += 1;
                let message = generate::message(seed);
                if let Err(why) = lane.compare(&message).await {
                    let (message, why) = smallest(&mut lane, message, why).await;
                    return Err(format!(
                        "seed {seed}, reduced: {message:?}\n{why}\nrun it again with: \
                                        cargo xtask fuzz protocols --replay {seed}"
                    ));
                }
            }
            Ok(cases)
        });
    }
    let outcomes = lanes.join_all().await;
    let wrong: Vec<&String> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    println!("{} requests in both protocols", outcomes.iter().flatten().sum::<u64>());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

async fn smallest(lane: &mut Lane, mut message: Message, mut why: String) -> (Message, String) {
    'smaller: loop {
        for smaller in message.smaller() {
            if let Err(still) = lane.compare(&smaller).await {
                (message, why) = (smaller, still);
                continue 'smaller;
            }
        }
        return (message, why);
    }
}
