//! What this tab watches, and the way to the socket while there is one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use domain::api::stream::Request;
use futures::channel::mpsc::UnboundedSender;

use super::News;

/// A range query with this step or a smaller one is pushed often enough to miss it.
const FREQUENT_MS: i64 = 2_000;

type Handler = Rc<dyn Fn(News)>;

/// A handle to the tab's watches.
#[derive(Clone, Default)]
pub(crate) struct Watches(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    last_id: u32,
    open: BTreeMap<u32, (Request, Handler)>,
    socket: Option<UnboundedSender<Request>>,
}

impl Watches {
    /// Begins a watch; asked for now, and again on each new connection.
    pub(super) fn open(&self, request: impl FnOnce(u32) -> Request, handler: impl Fn(News) + 'static) -> u32 {
        let mut inner = self.0.borrow_mut();
        inner.last_id += 1;
        let id = inner.last_id;
        let request = request(id);
        inner.open.insert(id, (request.clone(), Rc::new(handler)));
        inner.send(request);
        id
    }

    /// Ends a watch.
    pub(super) fn close(&self, id: u32) {
        let mut inner = self.0.borrow_mut();
        inner.open.remove(&id);
        inner.send(Request::Unwatch { id });
    }

    /// Whether something is watched that brings news every second or so.
    pub(super) fn expects_news(&self) -> bool {
        let frequent = |(request, _): &(Request, Handler)| match request {
            Request::WatchInstant { .. } => true,
            Request::WatchRange { step_ms, .. } => *step_ms <= FREQUENT_MS,
            _ => false,
        };
        self.0.borrow().open.values().any(frequent)
    }

    /// There is a socket: everything is asked for on it.
    pub(super) fn connected(&self, socket: UnboundedSender<Request>) {
        let mut inner = self.0.borrow_mut();
        inner.socket = Some(socket);
        inner
            .open
            .values()
            .for_each(|(request, _)| inner.send(request.clone()));
    }

    /// The socket is gone.
    pub(super) fn disconnected(&self) {
        self.0.borrow_mut().socket = None;
    }

    /// Gives what arrived to who watches. A watch that has just ended gets nothing.
    pub(super) fn hand_over(&self, id: u32, news: News) {
        // The handler may open and close watches itself, so nothing may be borrowed while it runs.
        let handler = self
            .0
            .borrow()
            .open
            .get(&id)
            .map(|(_, handler)| Rc::clone(handler));
        if let Some(handler) = handler {
            handler(news);
        }
    }
}

impl Inner {
    fn send(&self, request: Request) {
        if let Some(socket) = &self.socket {
            // A socket that has just closed: the watch is asked for again on the next one.
            let _closed = socket.unbounded_send(request);
        }
    }
}
