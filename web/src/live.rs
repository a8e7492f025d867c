//! The one event stream of this tab: lists that every page shows, and watches that a page holds while it is open.
//!
//! Reconnects by itself, with a growing pause, and asks for every open watch again; so a page never notices more than a gap.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use domain::api::alerts::Diagnosis;
use domain::api::nodes::NodeView;
use domain::api::runs::RunSummary;
use domain::api::stream::{Push, Request};
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::{SinkExt, StreamExt, future};
use gloo_net::websocket::Message;
use gloo_net::websocket::futures::WebSocket;
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;

/// Pause before connecting again: the first, and the longest.
const PAUSE_MS: (u32, u32) = (500, 8_000);

/// What arrives by the stream. Cheap to copy; provided as context.
#[derive(Clone, Copy)]
pub(crate) struct Live {
    /// Whether the stream is up.
    pub(crate) connected: RwSignal<bool>,
    /// All runs, newest first; `None` until the first arrive.
    pub(crate) runs: RwSignal<Option<Vec<RunSummary>>>,
    /// Active diagnoses, worst first.
    pub(crate) diagnoses: RwSignal<Option<Vec<Diagnosis>>>,
    /// All nodes.
    pub(crate) nodes: RwSignal<Option<Vec<NodeView>>>,
    watches: StoredValue<Rc<RefCell<Watches>>, LocalStorage>,
}

type Handler = Rc<dyn Fn(Push)>;

#[derive(Default)]
struct Watches {
    last_id: u32,
    open: HashMap<u32, (Request, Handler)>,
    /// The way to the socket, while there is one.
    socket: Option<UnboundedSender<Request>>,
}

impl Watches {
    fn send(&self, request: Request) {
        if let Some(socket) = &self.socket {
            // A socket that has just closed: the watch is asked for again on the next one.
            let _closed = socket.unbounded_send(request);
        }
    }
}

impl Live {
    /// Connects, and keeps connected for as long as the page lives.
    pub(crate) fn start() -> Self {
        let live = Self {
            connected: RwSignal::new(false),
            runs: RwSignal::new(None),
            diagnoses: RwSignal::new(None),
            nodes: RwSignal::new(None),
            watches: StoredValue::new_local(Rc::default()),
        };
        spawn_local(live.stay_connected());
        live
    }

    /// Watches until the current owner (component or effect run) is cleaned up.
    pub(crate) fn watch(self, request: impl FnOnce(u32) -> Request, handler: impl Fn(Push) + 'static) {
        let watches = self.watches.get_value();
        let mut inner = watches.borrow_mut();
        inner.last_id += 1;
        let id = inner.last_id;
        let request = request(id);
        inner.open.insert(id, (request.clone(), Rc::new(handler)));
        inner.send(request);
        drop(inner);
        let guard = StoredValue::new_local(watches);
        on_cleanup(move || {
            let watches = guard.get_value();
            let mut inner = watches.borrow_mut();
            inner.open.remove(&id);
            inner.send(Request::Unwatch { id });
        });
    }

    async fn stay_connected(self) {
        let mut pause_ms = PAUSE_MS.0;
        loop {
            if self.connect().await {
                pause_ms = PAUSE_MS.0;
            }
            self.connected.set(false);
            TimeoutFuture::new(pause_ms).await;
            pause_ms = (pause_ms * 2).min(PAUSE_MS.1);
        }
    }

    /// Serves one connection to its end; says whether it ever worked.
    async fn connect(self) -> bool {
        let Some(socket) = stream_url().and_then(|url| WebSocket::open(&url).ok()) else {
            return false;
        };
        let (mut write, mut read) = socket.split();
        let (sender, mut requests) = unbounded();
        let watches = self.watches.get_value();
        for (request, _) in watches.borrow().open.values() {
            let _open = sender.unbounded_send(request.clone());
        }
        watches.borrow_mut().socket = Some(sender);
        let sending = async {
            while let Some(request) = requests.next().await {
                let Ok(text) = serde_json::to_string(&request) else {
                    continue;
                };
                if write.send(Message::Text(text)).await.is_err() {
                    return;
                }
            }
        };
        let mut worked = false;
        let receiving = async {
            while let Some(Ok(Message::Text(text))) = read.next().await {
                worked = true;
                if let Ok(push) = serde_json::from_str(&text) {
                    self.take(push);
                }
            }
        };
        future::select(Box::pin(sending), Box::pin(receiving)).await;
        watches.borrow_mut().socket = None;
        worked
    }

    fn take(self, push: Push) {
        match push {
            Push::Welcome { .. } => self.connected.set(true),
            Push::Runs { runs } => self.runs.set(Some(runs)),
            Push::Diagnoses { diagnoses } => self.diagnoses.set(Some(diagnoses)),
            Push::Nodes { nodes } => self.nodes.set(Some(nodes)),
            Push::Frame { id, .. }
            | Push::Log { id, .. }
            | Push::Run { id, .. }
            | Push::Failed { id, .. } => {
                let handler = self
                    .watches
                    .get_value()
                    .borrow()
                    .open
                    .get(&id)
                    .map(|(_, handler)| Rc::clone(handler));
                if let Some(handler) = handler {
                    handler(push);
                }
            }
        }
    }
}

fn stream_url() -> Option<String> {
    let location = web_sys::window()?.location();
    let scheme = if location.protocol().ok()? == "https:" {
        "wss"
    } else {
        "ws"
    };
    Some(format!("{scheme}://{}/api/stream", location.host().ok()?))
}
