//! The one event stream of this tab: lists that every page shows, and watches that a page holds while it is open.
//!
//! ```text
//! connect ─▶ Welcome (clock, version) ─▶ lists, frames, logs … ─▶ lost ─▶ is the session still good? ─▶ pause ─▶ connect
//!                └ another version: reload                                    └ no: back to the log-in
//! ```
//! Each new connection asks for every open watch again, so a page never notices more than a gap.

mod freshness;
mod keys;
mod list;
mod news;
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

use crate::session::{Phase, Who};
use watches::Watches;

pub(crate) use freshness::{Freshness, Stream};
pub(crate) use list::{Keyed, List, Row, each};
pub(crate) use news::{News, Run, read_diagnoses, read_diagnosis};

/// Pause before connecting again: the first, and the longest.
const PAUSE_MS: (u32, u32) = (500, 8_000);
/// Frames come each second, on a loaded collector a little later.
const QUIET_MS: u32 = 20_000;
/// How often "3 s ago" is looked at.
const CLOCK_MS: u32 = 1_000;

/// What arrives by the stream. Cheap to copy; provided as context.
#[derive(Clone, Copy)]
pub(crate) struct Live {
    /// Whether the stream is up.
    pub(crate) connected: RwSignal<bool>,
    /// All runs, newest first.
    pub(crate) runs: List<RunSummary>,
    /// Active diagnoses, worst first.
    pub(crate) diagnoses: List<Diagnosis>,
    /// All nodes.
    pub(crate) nodes: List<NodeView>,
    /// The collector's clock, to the second.
    pub(crate) now_ms: RwSignal<TimestampMs>,
    /// The viewer has stopped the changes; see [`Live::resume`].
    pub(crate) paused: RwSignal<bool>,
    /// The collector's clock minus the browser's.
    offset_ms: RwSignal<i64>,
    /// When the last message came, by the browser's clock.
    heard_ms: StoredValue<TimestampMs>,
    /// Ends the connection, so that the next one brings everything anew.
    link: StoredValue<Option<AbortHandle>>,
    watches: StoredValue<Watches, LocalStorage>,
}

impl Live {
    /// Not connected yet.
    pub(crate) fn new() -> Self {
        Self {
            connected: RwSignal::new(false),
            runs: List::new(),
            diagnoses: List::new(),
            nodes: List::new(),
            now_ms: RwSignal::new(browser_ms()),
            paused: RwSignal::new(false),
            offset_ms: RwSignal::new(0),
            heard_ms: StoredValue::new(browser_ms()),
            link: StoredValue::new(None),
            watches: StoredValue::new_local(Watches::default()),
        }
    }

    /// Connects, and stays connected until the current owner is cleaned up; then forgets what it heard.
    pub(crate) fn run(self, who: Who) {
        let (running, handle) = future::abortable(future::join(self.stay_connected(who), self.tell_time()));
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
    pub(crate) fn watch(self, request: impl FnOnce(u32) -> Request, handler: impl Fn(News) + 'static) {
        let watches = self.watches.get_value();
        let id = watches.open(request, handler);
        let watches = StoredValue::new_local(watches);
        on_cleanup(move || watches.with_value(|watches| watches.close(id)));
    }

    /// Stops the changes, or lets them go on.
    pub(crate) fn toggle_pause(self) {
        if self.paused.get_untracked() {
            self.resume();
        } else {
            self.paused.set(true);
        }
    }

    /// Lets the page change again. What came meanwhile was dropped, so everything is asked for anew.
    pub(crate) fn resume(self) {
        if !self.paused.get_untracked() {
            return;
        }
        self.paused.set(false);
        if let Some(link) = self.link.get_value() {
            link.abort();
        }
    }

    /// How old what the page shows is, looked at once per second; `past` says whether the page shows a time that is over.
    pub(crate) fn freshness(self, past: Signal<bool>) -> Memo<Freshness> {
        Memo::new(move |_| {
            self.now_ms.track();
            let stream = Stream {
                connected: self.connected.get(),
                paused: self.paused.get(),
                past: past.get(),
                expects_news: self.watches.with_value(Watches::expects_news),
                heard_ms: self.heard_ms.get_value(),
            };
            Freshness::at(browser_ms(), stream)
        })
    }

    async fn tell_time(self) {
        loop {
            self.now_ms.set(browser_ms() + self.offset_ms.get_untracked());
            TimeoutFuture::new(CLOCK_MS).await;
        }
    }

    async fn stay_connected(self, who: Who) {
        let mut pause_ms = PAUSE_MS.0;
        while who.phase_untracked() == Phase::LoggedIn {
            let (link, registration) = AbortHandle::new_pair();
            self.link.set_value(Some(link));
            let ended = Abortable::new(self.connect(who), registration).await;
            self.watches.with_value(Watches::disconnected);
            match ended {
                Ok(true) => pause_ms = PAUSE_MS.0,
                Ok(false) => {}
                // The viewer waits for it.
                Err(_) => continue,
            }
            self.connected.set(false);
            TimeoutFuture::new(pause_ms).await;
            pause_ms = (pause_ms * 2).min(PAUSE_MS.1);
            // A browser does not tell a refused stream from a collector that is away; a plain request does.
            who.is_still_good().await;
        }
    }

    /// Serves one connection to its end; says whether it ever worked.
    async fn connect(self, who: Who) -> bool {
        let Some(socket) = stream_url().and_then(|url| WebSocket::open(&url).ok()) else {
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
            while let Some(Ok(Message::Text(text))) = before_quiet(read.next(), &watches).await {
                worked = true;
                match News::read(&text) {
                    Ok(news) => self.take(news, who),
                    Err(error) => {
                        leptos::logging::error!("a message of the stream was not understood: {error}")
                    }
                }
            }
        };
        future::select(Box::pin(sending), Box::pin(receiving)).await;
        worked
    }

    fn take(self, news: News, who: Who) {
        self.heard_ms.set_value(browser_ms());
        if self.paused.get_untracked() && !matches!(news, News::Welcome { .. }) {
            return;
        }
        if let Some(id) = news.watch() {
            return self.watches.get_value().hand_over(id, news);
        }
        match news {
            News::Welcome { now_ms, version } => self.welcomed(now_ms, &version, who),
            News::Runs(runs) => self.runs.take(runs),
            News::Diagnoses(diagnoses) => self.diagnoses.take(diagnoses),
            News::Nodes(nodes) => self.nodes.take(nodes),
            _ => {}
        }
    }

    fn welcomed(self, now_ms: TimestampMs, version: &str, who: Who) {
        if !who.is_of(version) {
            // The collector was upgraded under this page; the old program may not understand it. Failing to reload is no worse.
            let _reloading = web_sys::window().map(|window| window.location().reload());
            return;
        }
        self.offset_ms.set(now_ms - browser_ms());
        self.connected.set(true);
    }
}

/// What `next` gives; nothing when that takes longer than it can with a collector that is there. A laptop that slept, or a cable
/// that was pulled, leaves a stream that looks open for ever.
async fn before_quiet<T>(next: impl Future<Output = Option<T>> + Unpin, watches: &Watches) -> Option<T> {
    let mut next = next;
    loop {
        match future::select(next, TimeoutFuture::new(QUIET_MS)).await {
            future::Either::Left((news, _)) => return news,
            future::Either::Right(_) if watches.expects_news() => return None,
            future::Either::Right((_, waiting)) => next = waiting,
        }
    }
}

fn browser_ms() -> TimestampMs {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "milliseconds since 1970 fit 53 bits"
    )]
    let now_ms = js_sys::Date::now() as TimestampMs;
    now_ms
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
