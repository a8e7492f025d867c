//! The one event stream of this tab: the lists that every page shows, and the watches that a page holds while it is open.
//!
//! ```text
//! connect ─▶ Welcome (clock, version) ─▶ lists, frames, logs … ─▶ lost ─▶ is the session still good? ─▶ pause ─▶ connect
//!                └ another version: reload                                    └ no: back to the log-in
//! ```
//! Each new connection requests every open watch again, so a page sees at most a gap.

mod freshness;
mod kept_focus;
mod keys;
mod list;
mod message;
mod watches;

use domain::api::alerts::Diagnosis;
use domain::api::nodes::NodeView;
use domain::api::runs::RunSummary;
use domain::api::stream::Request;
use domain::time::TimestampMs;
use futures::channel::mpsc::unbounded;
use futures::stream::{AbortHandle, Abortable};
use futures::{SinkExt, StreamExt, future};
use gloo_net::websocket::Message;
use gloo_net::websocket::futures::WebSocket;
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::json::Unreadable;
use crate::session::{Phase, UserSession};
use watches::Watches;

pub(crate) use freshness::{Freshness, Stream};
pub(crate) use list::{Keyed, List, Row, each};
pub(crate) use message::{Run, StreamMessage, read_diagnoses, read_diagnosis, without_backticks};

/// First and longest pause before a reconnect.
const PAUSE_MS: (u32, u32) = (500, 8_000);
/// Frames arrive each second; on a loaded collector a little later.
const RECEIVE_TIMEOUT_MS: u32 = 20_000;
/// Update interval of texts such as "3 s ago".
const CLOCK_MS: u32 = 1_000;

/// The data of the stream. Cheap to copy; provided as context.
#[derive(Clone, Copy)]
pub(crate) struct Live {
    /// Whether the stream is connected.
    pub(crate) connected: RwSignal<bool>,
    /// All runs, newest first.
    pub(crate) runs: List<RunSummary>,
    /// Active diagnoses, worst first.
    pub(crate) diagnoses: List<Diagnosis>,
    /// All nodes.
    pub(crate) nodes: List<NodeView>,
    /// The collector's clock, in whole seconds.
    pub(crate) now_ms: RwSignal<TimestampMs>,
    /// Whether the user has paused updates; see [`Live::resume`].
    pub(crate) paused: RwSignal<bool>,
    /// The collector's clock minus the browser's clock.
    offset_ms: RwSignal<i64>,
    /// When the last message arrived, by the browser's clock.
    last_message_ms: StoredValue<TimestampMs>,
    /// Whether the collector sends whole lists after each change. Set when a message could not be used, because then changes may not fit.
    whole_lists: StoredValue<bool>,
    /// Aborts the connection, so that the next one sends everything again.
    link: StoredValue<Option<AbortHandle>>,
    watches: StoredValue<Watches, LocalStorage>,
}

impl Live {
    /// Creates a disconnected stream.
    pub(crate) fn new() -> Self {
        Self {
            connected: RwSignal::new(false),
            runs: List::new(),
            diagnoses: List::new(),
            nodes: List::new(),
            now_ms: RwSignal::new(browser_ms()),
            paused: RwSignal::new(false),
            offset_ms: RwSignal::new(0),
            last_message_ms: StoredValue::new(browser_ms()),
            whole_lists: StoredValue::new(false),
            link: StoredValue::new(None),
            watches: StoredValue::new_local(Watches::default()),
        }
    }

    /// Connects, and reconnects until the current owner is cleaned up. Then removes all received data.
    pub(crate) fn run(self, session: UserSession) {
        let (running, handle) =
            future::abortable(future::join(self.stay_connected(session), self.update_clock()));
        spawn_local(async move {
            let _aborted = running.await;
        });
        on_cleanup(move || {
            handle.abort();
            self.watches.with_value(Watches::disconnected);
            self.connected.set(false);
            self.paused.set(false);
            self.runs.forget();
            self.diagnoses.forget();
            self.nodes.forget();
        });
    }

    /// Watches until the current owner (component or effect run) is cleaned up.
    pub(crate) fn watch(
        self,
        request: impl FnOnce(u32) -> Request,
        handler: impl Fn(StreamMessage) + 'static,
    ) {
        let watches = self.watches.get_value();
        let id = watches.open(request, handler);
        let watches = StoredValue::new_local(watches);
        on_cleanup(move || watches.with_value(|watches| watches.close(id)));
    }

    /// Pauses or resumes updates.
    pub(crate) fn toggle_pause(self) {
        if self.paused.get_untracked() {
            self.resume();
        } else {
            self.paused.set(true);
        }
    }

    /// Resumes updates. Messages were dropped during the pause, so everything is requested again.
    pub(crate) fn resume(self) {
        if !self.paused.get_untracked() {
            return;
        }
        self.paused.set(false);
        if let Some(link) = self.link.get_value() {
            link.abort();
        }
    }

    /// Returns the age of the values on the page, updated once per second. `past`: whether the page shows a past period.
    pub(crate) fn freshness(self, past: Signal<bool>) -> Memo<Freshness> {
        Memo::new(move |_| {
            self.now_ms.track();
            let stream = Stream {
                connected: self.connected.get(),
                paused: self.paused.get(),
                past: past.get(),
                expects_messages: self.watches.with_value(Watches::expects_messages),
                last_message_ms: self.last_message_ms.get_value(),
            };
            Freshness::at(browser_ms(), stream)
        })
    }

    async fn update_clock(self) {
        loop {
            self.now_ms.set(browser_ms() + self.offset_ms.get_untracked());
            TimeoutFuture::new(CLOCK_MS).await;
        }
    }

    async fn stay_connected(self, session: UserSession) {
        let mut pause_ms = PAUSE_MS.0;
        while session.phase_untracked() == Phase::LoggedIn {
            let (link, registration) = AbortHandle::new_pair();
            self.link.set_value(Some(link));
            let ended = Abortable::new(self.connect(session), registration).await;
            self.watches.with_value(Watches::disconnected);
            match ended {
                Ok(true) => pause_ms = PAUSE_MS.0,
                Ok(false) => {}
                // The user is waiting for it.
                Err(_) => continue,
            }
            self.connected.set(false);
            TimeoutFuture::new(pause_ms).await;
            pause_ms = (pause_ms * 2).min(PAUSE_MS.1);
            // A browser reports a refused stream like an unreachable collector; a plain request distinguishes them.
            session.refresh().await;
        }
    }

    /// Serves one connection until it ends. Returns true if it ever worked.
    async fn connect(self, session: UserSession) -> bool {
        let whole_lists = self.whole_lists.get_value();
        let Some(socket) = stream_url(whole_lists).and_then(|url| WebSocket::open(&url).ok()) else {
            return false;
        };
        let (mut write, mut read) = socket.split();
        let (sender, mut requests) = unbounded();
        let watches = self.watches.get_value();
        watches.connected(sender);
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
            while let Some(Ok(message)) = next_message(read.next(), &watches).await {
                worked = true;
                let is_usable = match message {
                    Message::Text(text) => match StreamMessage::read(&text) {
                        Ok(message) => self.take(message, session),
                        Err(error) => {
                            report(error);
                            false
                        }
                    },
                    Message::Bytes(frame) => watches
                        .read_frame(&frame)
                        .is_none_or(|message| self.take(message, session)),
                };
                if !is_usable && !whole_lists {
                    leptos::logging::error!("the stream continues with whole lists");
                    self.whole_lists.set_value(true);
                    return;
                }
            }
        };
        future::select(Box::pin(sending), Box::pin(receiving)).await;
        worked
    }

    /// Takes a message. Returns false if it contains changes that do not fit their list.
    fn take(self, message: StreamMessage, session: UserSession) -> bool {
        self.last_message_ms.set_value(browser_ms());
        let watches = self.watches.get_value();
        let id = message.watch();
        // What the user opens or chooses during a pause has no values without its first message.
        let is_first =
            matches!(message, StreamMessage::Welcome { .. }) || id.is_some_and(|id| watches.is_new(id));
        if self.paused.get_untracked() && !is_first {
            return true;
        }
        if let Some(id) = id {
            watches.dispatch(id, message);
            return true;
        }
        match message {
            StreamMessage::Welcome { now_ms, version } => self.welcomed(now_ms, &version, session),
            StreamMessage::Runs(runs) => self.runs.take(runs),
            StreamMessage::Diagnoses(diagnoses) => self.diagnoses.take(diagnoses),
            StreamMessage::Nodes(nodes) => self.nodes.take(nodes),
            StreamMessage::RunsChanged(changes) => return self.runs.follow(changes),
            StreamMessage::DiagnosesChanged(changes) => return self.diagnoses.follow(changes),
            StreamMessage::NodesChanged(changes) => return self.nodes.follow(changes),
            _ => {}
        }
        true
    }

    fn welcomed(self, now_ms: TimestampMs, version: &str, session: UserSession) {
        if !session.is_of(version) {
            // The collector was upgraded, and the old page may not be able to read its messages. A failed reload does no harm.
            let _reloading = web_sys::window().map(|window| window.location().reload());
            return;
        }
        self.offset_ms.set(now_ms - browser_ms());
        self.connected.set(true);
    }
}

/// Returns the result of `next`, or `None` on a timeout. After a laptop slept or a cable was unplugged, a stream can look open forever.
async fn next_message<T>(next: impl Future<Output = Option<T>> + Unpin, watches: &Watches) -> Option<T> {
    let mut next = next;
    loop {
        match future::select(next, TimeoutFuture::new(RECEIVE_TIMEOUT_MS)).await {
            future::Either::Left((message, _)) => return message,
            future::Either::Right(_) if watches.expects_messages() => return None,
            future::Either::Right((_, waiting)) => next = waiting,
        }
    }
}

fn report(error: Unreadable) {
    leptos::logging::error!("cannot read a message of the stream: {error}");
}

fn browser_ms() -> TimestampMs {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "milliseconds since 1970 fit 53 bits"
    )]
    let now_ms = js_sys::Date::now() as TimestampMs;
    now_ms
}

fn stream_url(whole_lists: bool) -> Option<String> {
    let location = web_sys::window()?.location();
    let scheme = if location.protocol().ok()? == "https:" {
        "wss"
    } else {
        "ws"
    };
    let lists = if whole_lists { "whole" } else { "changes" };
    Some(format!(
        "{scheme}://{}/api/stream?lists={lists}&frames=binary",
        location.host().ok()?
    ))
}
