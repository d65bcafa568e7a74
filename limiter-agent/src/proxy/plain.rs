//! The short path through the proxy for most requests: plain HTTP/1.1, passed on in place.
//!
//! The bytes of a request are read once, parsed in place, and forwarded with the fields that a proxy adds. The response
//! returns in the same way. There is no map of fields, and no task or channel between the two sockets. A small exchange
//! takes four system calls. If a request is not plain ([`request`]), the short path hands it over to hyper, with every
//! byte that was read, before the rules decide. The short path never answers a malformed request and never charges a
//! request that it hands over.
//!
//! The result must equal that of hyper's path, both for the app and for the client.

mod buffer;
mod calls;
mod chunks;
mod client_connection;
mod date;
mod drain;
mod exchange;
mod field;
mod framing;
mod head;
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

pub(super) use self::serve::serve;
use self::{buffer::Buffers, date::Date, drain::Drain, pool::Pool, refusals::Refusals, request::HeadBounds};
use super::{
    headers::Peer,
    open_connection::OpenConnection,
    settings::{Switch, UpstreamHttp2},
    state::Proxy,
    traffic::WorkerCounts,
};

/// The short path of one worker, unless it is disabled. Clones are cheap: each connection takes one.
#[derive(Clone, Debug)]
pub(super) struct ShortPath(Option<Rc<WorkerState>>);

/// The state that the connections of one worker share.
#[derive(Debug)]
struct WorkerState {
    proxy: Arc<Proxy>,
    traffic: Arc<WorkerCounts>,
    pool: Pool,
    buffers: Rc<Buffers>,
    date: Date,
    refusals: Refusals,
    drain: Drain,
    head_bounds: HeadBounds,
}

/// A client, and the state for its requests.
#[derive(Clone, Debug)]
pub(super) struct Client {
    worker: Rc<WorkerState>,
    gate: ConnectionGate,
    peer: Arc<Peer>,
    open: Arc<OpenConnection>,
}

impl ShortPath {
    pub(super) fn new(proxy: &Arc<Proxy>, counts: &Arc<WorkerCounts>) -> Self {
        let settings = &proxy.settings;
        let is_off = settings.in_place == Switch::Off || settings.upstream_http2 == UpstreamHttp2::Always;
        Self((!is_off).then(|| WorkerState::new(proxy, counts)))
    }

    /// The path of one client connection.
    pub(super) fn client(self, gate: ConnectionGate, peer: &Arc<Peer>, open: &Arc<OpenConnection>) -> Option<Client> {
        let (peer, open) = (Arc::clone(peer), Arc::clone(open));
        self.0.map(|worker| Client { worker, gate, peer, open })
    }

    /// Closes idle connections to the app. Call this function every [`IDLE_CHECK`](super::hyper::IDLE_CHECK).
    pub(super) fn close_idle(&self) {
        if let Some(worker) = &self.0 {
            worker.pool.close_idle();
        }
    }

    /// Makes connections close after their current request.
    pub(super) fn end_keep_alive(&self) {
        if let Some(worker) = &self.0 {
            worker.drain.begin();
        }
    }

    /// Lets connections stay open again, because the app accepts connections again.
    pub(super) fn resume_keep_alive(&self) {
        if let Some(worker) = &self.0 {
            worker.drain.call_off();
        }
    }

    /// Detects when the app closes idle connections. Never returns, unless the short path is disabled.
    pub(super) async fn watch(self) {
        let Some(worker) = self.0 else { return };
        loop {
            worker.pool.closed_by_app().await;
            worker.proxy.upstream.suspect();
        }
    }
}

impl WorkerState {
    fn new(proxy: &Arc<Proxy>, counts: &Arc<WorkerCounts>) -> Rc<Self> {
        let settings = &proxy.settings;
        let head_bounds = HeadBounds {
            bytes: settings.max_header_bytes as usize,
            fields: settings.max_headers.into(),
            ambiguous_paths: settings.ambiguous_paths,
        };
        Rc::new(Self {
            proxy: Arc::clone(proxy),
            traffic: Arc::clone(counts),
            pool: Pool::default(),
            buffers: Rc::default(),
            date: Date::new(),
            refusals: Refusals::default(),
            drain: Drain::default(),
            head_bounds,
        })
    }
}
