//! The short way through the proxy, for the requests that most clients send: plain HTTP/1.1, passed on in place.
//!
//! The bytes of a request are read once, looked at where they lie, and sent on with the fields that a proxy has to add;
//! the answer comes back the same way. No map of fields is made, no task or channel stands between the two sockets, and
//! a small exchange is four system calls. Whatever is not plain ([`request`]) is handed over to hyper with every byte that
//! was read, before anything was decided about it: the short way never answers a client's mistake, never charges what it
//! then hands over, and knows nothing that the ordinary way does not know better.
//!
//! What comes out of it must be what comes out of the ordinary way, to the app and to the client.

mod buffer;
mod calls;
mod chunks;
mod date;
mod drain;
mod exchange;
mod field;
mod framing;
mod head;
mod line;
mod pause;
mod pool;
mod refusals;
mod request;
mod response;
mod serve;
mod upstream;
mod write;

use std::{rc::Rc, sync::Arc};

use weir_enforce::ConnectionGate;

pub(super) use self::serve::{End, serve};
use self::{buffer::Buffers, date::Date, drain::Drain, pool::Pool, refusals::Refusals, request::Limits};
use super::{
    headers::Peer,
    settings::{Switch, UpstreamHttp2},
    traffic::OfWorker,
    worker::{Open, Proxy},
};

/// What the connections of one worker share.
#[derive(Debug)]
pub(super) struct Shared {
    proxy: Arc<Proxy>,
    traffic: Arc<OfWorker>,
    pool: Pool,
    buffers: Rc<Buffers>,
    date: Date,
    refusals: Refusals,
    drain: Drain,
    limits: Limits,
}

/// Who asks, and on what terms.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) shared: Rc<Shared>,
    pub(super) gate: ConnectionGate,
    pub(super) peer: Rc<Peer>,
    pub(super) open: Arc<Open>,
}

impl Shared {
    /// None if nothing is to go this way.
    pub(super) fn new(proxy: &Arc<Proxy>) -> Option<Rc<Self>> {
        let settings = &proxy.settings;
        if settings.in_place == Switch::Off || settings.upstream_http2 == UpstreamHttp2::Always {
            return None;
        }
        let limits = Limits {
            bytes: settings.max_header_bytes as usize,
            fields: settings.max_headers.into(),
            ambiguous_paths: settings.ambiguous_paths,
        };
        Some(Rc::new(Self {
            proxy: Arc::clone(proxy),
            traffic: proxy.traffic.worker(),
            pool: Pool::default(),
            buffers: Rc::default(),
            date: Date::new(),
            refusals: Refusals::default(),
            drain: Drain::default(),
            limits,
        }))
    }

    /// To be called every [`IDLE_CHECK`](super::app::IDLE_CHECK).
    pub(super) fn close_idle(&self) {
        self.pool.close_idle();
    }

    /// Lets the connections finish what they are at.
    pub(super) fn drain(&self) {
        self.drain.begin();
    }

    /// The app is back: connections may go on.
    pub(super) fn go_on(&self) {
        self.drain.call_off();
    }

    /// Notices when the app closes connections that are idle.
    pub(super) async fn watch(&self) {
        loop {
            self.pool.closed_by_app().await;
            self.proxy.upstream.suspect();
        }
    }
}
