//! The watches of this tab, and the channel to the socket while there is one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use domain::api::stream::Request;
use futures::channel::mpsc::UnboundedSender;

use super::StreamMessage;

/// A range query with at most this step is pushed often enough to notice a lost connection.
const FREQUENT_MS: i64 = 2_000;

type Handler = Rc<dyn Fn(StreamMessage)>;

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
    /// Starts a watch: requests it now and again on each new connection.
    pub(super) fn open(
        &self,
        request: impl FnOnce(u32) -> Request,
        handler: impl Fn(StreamMessage) + 'static,
    ) -> u32 {
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

    /// Returns true if a watch gets messages about every second.
    pub(super) fn expects_messages(&self) -> bool {
        let frequent = |(request, _): &(Request, Handler)| match request {
            Request::WatchInstant { .. } => true,
            Request::WatchRange { step_ms, .. } => *step_ms <= FREQUENT_MS,
            _ => false,
        };
        self.0.borrow().open.values().any(frequent)
    }

    /// Sets the socket and requests all watches on it.
    pub(super) fn connected(&self, socket: UnboundedSender<Request>) {
        let mut inner = self.0.borrow_mut();
        inner.socket = Some(socket);
        inner
            .open
            .values()
            .for_each(|(request, _)| inner.send(request.clone()));
    }

    /// Removes the socket.
    pub(super) fn disconnected(&self) {
        self.0.borrow_mut().socket = None;
    }

    /// Passes a message to its watch. A watch that has just ended gets nothing.
    pub(super) fn dispatch(&self, id: u32, message: StreamMessage) {
        // The handler may open and close watches, so nothing may be borrowed while it runs.
        let handler = self
            .0
            .borrow()
            .open
            .get(&id)
            .map(|(_, handler)| Rc::clone(handler));
        if let Some(handler) = handler {
            handler(message);
        }
    }
}

impl Inner {
    fn send(&self, request: Request) {
        if let Some(socket) = &self.socket {
            // The socket has just closed: the next one requests the watch again.
            let _closed = socket.unbounded_send(request);
        }
    }
}
