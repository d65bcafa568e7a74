//! The agent as Envoy's rate limit service, and envoyproxy/ratelimit with Redis as its peer.

mod answers;
mod client;
mod messages;
mod services;
mod speed;

pub(crate) use self::{
    answers::AnswersArgs,
    speed::{ABOUT_REPLICAS, measure, measure_replicas},
};
