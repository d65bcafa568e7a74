//! The parts that `weir-agent` shares with this crate. Other programs do not need them.

pub use crate::{
    control::certificates,
    leaving::Leaving,
    listen::{BoundSockets, bind, bind_shared, bound_address, close_listener},
    metrics::{counter, counters, gauge, gauges, histogram, text},
    serve::{Answering, Requests, serve_plain},
    slots::{ConnectionSlot, ConnectionSlots, Eviction, Rank},
    watch::{Contents, Watched},
};
