//! The watches of this tab, and the channel to the socket while there is one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use domain::api::frames::{DecodeError, Decoder, watch_id};
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
    open: BTreeMap<u32, Watch>,
    socket: Option<UnboundedSender<Request>>,
}

struct Watch {
    request: Request,
    handler: Handler,
    decoder: Decoder,
    /// Whether a message was passed to the handler.
    is_answered: bool,
    /// Whether the watch was requested again because a frame could not be read. Cleared by the next readable frame.
    is_renewed: bool,
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
        let watch = Watch {
            request: request.clone(),
            handler: Rc::new(handler),
            decoder: Decoder::default(),
            is_answered: false,
            is_renewed: false,
        };
        inner.open.insert(id, watch);
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
        let frequent = |watch: &Watch| match &watch.request {
            Request::WatchInstant { .. } => true,
            Request::WatchRange {
                step_ms,
                end_ms: None,
                ..
            } => *step_ms <= FREQUENT_MS,
            _ => false,
        };
        self.0.borrow().open.values().any(frequent)
    }

    /// Returns true if a watch has no message yet.
    pub(super) fn is_new(&self, id: u32) -> bool {
        let inner = self.0.borrow();
        inner.open.get(&id).is_some_and(|watch| !watch.is_answered)
    }

    /// Sets the socket and requests all watches on it.
    pub(super) fn connected(&self, socket: UnboundedSender<Request>) {
        let mut inner = self.0.borrow_mut();
        inner.socket = Some(socket);
        for watch in inner.open.values_mut() {
            watch.decoder = Decoder::default();
            watch.is_renewed = false;
        }
        inner
            .open
            .values()
            .for_each(|watch| inner.send(watch.request.clone()));
    }

    /// Removes the socket.
    pub(super) fn disconnected(&self) {
        self.0.borrow_mut().socket = None;
    }

    /// Reads a frame. `None` if its watch has just ended, or if it cannot be read: then the watch is requested again, so that the collector
    /// sends all labels.
    pub(super) fn read_frame(&self, message: &[u8]) -> Option<StreamMessage> {
        let mut inner = self.0.borrow_mut();
        let id = watch_id(message).map_err(report).ok()?;
        let watch = inner.open.get_mut(&id)?;
        match watch.decoder.decode(message) {
            Ok(frame) => {
                watch.is_renewed = false;
                Some(StreamMessage::Frame {
                    id,
                    reset: frame.reset,
                    times_ms: frame.times_ms,
                    series: frame.series,
                })
            }
            // Frames that were sent before the request arrived, or a frame that will never be readable: one request is enough.
            Err(_) if watch.is_renewed => None,
            Err(error) => {
                report(error);
                watch.is_renewed = true;
                let request = watch.request.clone();
                inner.send(request);
                None
            }
        }
    }

    /// Passes a message to its watch. A watch that has just ended gets nothing.
    pub(super) fn dispatch(&self, id: u32, message: StreamMessage) {
        // The handler may open and close watches, so nothing may be borrowed while it runs.
        let handler = self.0.borrow_mut().open.get_mut(&id).map(|watch| {
            watch.is_answered = true;
            Rc::clone(&watch.handler)
        });
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

fn report(error: DecodeError) {
    leptos::logging::error!("cannot read a frame of the stream: {error}");
}

#[cfg(test)]
mod tests {
    use domain::api::frames::{Encoder, Frame};
    use domain::api::stream::Column;
    use domain::series::Labels;
    use futures::channel::mpsc::unbounded;

    use super::*;

    fn frame(at_ms: i64) -> Frame {
        Frame {
            reset: true,
            times_ms: vec![at_ms],
            series: vec![Column {
                labels: Labels::empty(),
                values: vec![Some(0.5)],
                not_finite: vec![],
                min: vec![],
                max: vec![],
            }],
        }
    }

    /// Regression guard: a chart that was opened during a pause showed *Loading…* until the end of the pause.
    #[test]
    fn a_watch_is_new_until_its_first_message() {
        let watches = Watches::default();
        let id = watches.open(
            |id| Request::WatchRun {
                id,
                run: "r".to_owned(),
            },
            |_| {},
        );
        let message = || StreamMessage::Failed {
            id,
            message: "no such run".to_owned(),
        };
        assert!(watches.is_new(id));
        watches.dispatch(id, message());
        assert!(!watches.is_new(id));
        watches.close(id);
        watches.dispatch(id, message());
        assert!(!watches.is_new(id), "it has ended");
    }

    /// Regression guard: values must not be shown with labels of another connection, and the tab must not request in a loop.
    #[test]
    fn a_frame_that_cannot_be_read_requests_its_watch_again_once() {
        let watches = Watches::default();
        let query = "up".to_owned();
        let id = watches.open(|id| Request::WatchInstant { id, query }, |_| {});
        let (socket, mut requests) = unbounded();
        watches.connected(socket);
        assert!(requests.try_recv().is_ok(), "the watch is requested");

        let mut encoder = Encoder::default();
        let whole = encoder.encode(id, &frame(0));
        let next = encoder.encode(id, &frame(1_000));
        assert!(watches.read_frame(&next).is_none(), "its labels did not arrive");
        assert_eq!(
            requests.try_recv().expect("requested again"),
            Request::WatchInstant {
                id,
                query: "up".to_owned()
            }
        );
        assert!(watches.read_frame(&next).is_none());
        assert!(requests.try_recv().is_err(), "not a second time");

        assert!(watches.read_frame(&whole).is_some());
        let read = watches.read_frame(&next);
        assert!(matches!(read, Some(StreamMessage::Frame { times_ms, .. }) if times_ms == [1_000]));
        watches.close(id);
        assert!(watches.read_frame(&whole).is_none(), "the watch has ended");
    }
}
