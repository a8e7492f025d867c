//! One tab: its requests, its watches, and the messages pushed to it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket};
use domain::api::stream::{FrameEncoding, Push, Request};
use domain::ident::RunId;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, SinkExt, StreamExt};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::coalesce::{Answer, Coalesced};
use super::credential::Credential;
use super::frame::frame;
use super::lists::TabLists;
use super::outbox::{Outbox, outbox};
use super::sources::Sources;
use super::watch::{Due, Kind, QueryWatch, RunWatch, Watches};
use crate::changes::Change;
use crate::clock;

/// How often changed lists are sent and due queries are evaluated.
const TICK: Duration = Duration::from_millis(250);
/// How often a ping is sent. A tab that sends nothing for three times as long is gone.
const PING_EVERY: Duration = Duration::from_secs(15);
/// How often the credential of the stream is checked again.
const RECHECK_EVERY: Duration = Duration::from_secs(30);
/// How long the close message to a slow tab may take.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);
/// Maximum size of the log text in one message, in bytes.
const LOG_BYTES_MAX: u64 = 64 << 10;

/// WebSocket close codes (RFC 6455, 7.4.1): going away, policy violation, try again later.
const AWAY: u16 = 1001;
const POLICY: u16 = 1008;
const AGAIN: u16 = 1013;

/// The close code and the reason with which the collector closes a tab.
type CloseReason = (u16, &'static str);

/// Serves a tab until either side closes it.
pub(super) async fn serve(
    sources: Sources,
    coalesced: Coalesced,
    lists: TabLists,
    credential: Credential,
    encoding: FrameEncoding,
    socket: WebSocket,
) {
    let (mut sink, mut requests) = socket.split();
    let (outbox, mut outgoing) = outbox();
    let mut tab = Tab {
        changes: sources.changes.subscribe(),
        logs: sources.changes.subscribe_logs(),
        coalesced,
        encoding,
        outbox,
        watches: Watches::default(),
        answers: FuturesUnordered::new(),
        lists,
        unread_logs: BTreeSet::new(),
        heard: Instant::now(),
        sources: sources.clone(),
    };
    let close_reason = tokio::select! {
        close_reason = tab.run(&mut requests, &credential) => close_reason,
        () = outgoing.write_to(&mut sink) => None,
        () = sources.tasks.stopping().cancelled() => Some((AWAY, "the collector is stopping; connect again")),
    };
    if let Some((code, reason)) = close_reason {
        if code == AGAIN {
            sources.metrics.tabs_dropped.inc();
        }
        let close = Message::Close(Some(CloseFrame {
            code,
            reason: Utf8Bytes::from_static(reason),
        }));
        let _too_slow_or_gone = tokio::time::timeout(LAST_WORDS_WITHIN, sink.send(close)).await;
    }
}

struct Tab {
    sources: Sources,
    coalesced: Coalesced,
    changes: broadcast::Receiver<Change>,
    logs: broadcast::Receiver<RunId>,
    /// How frames are sent.
    encoding: FrameEncoding,
    outbox: Outbox,
    watches: Watches,
    answers: FuturesUnordered<BoxFuture<'static, (Due, Answer)>>,
    lists: TabLists,
    /// Runs whose watched logs contain more than was sent.
    unread_logs: BTreeSet<RunId>,
    heard: Instant,
}

impl Tab {
    async fn run(
        &mut self,
        requests: &mut (impl StreamExt<Item = Result<Message, axum::Error>> + Unpin),
        credential: &Credential,
    ) -> Option<CloseReason> {
        let (mut ticks, mut pings, mut checks) =
            (interval(TICK), interval(PING_EVERY), interval(RECHECK_EVERY));
        for timer in [&mut ticks, &mut pings, &mut checks] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Skip);
        }
        checks.reset();
        let version = env!("CARGO_PKG_VERSION").into();
        if let Err(close_reason) = self.push(&Push::Welcome {
            now_ms: clock::now_ms(),
            version,
        }) {
            return Some(close_reason);
        }
        loop {
            let done = tokio::select! {
                request = requests.next() => match request {
                    Some(Ok(message)) => self.receive(message).await,
                    Some(Err(_)) | None => return None,
                },
                change = self.changes.recv() => self.note(change).await,
                run = self.logs.recv() => self.note_log(run).await,
                Some((due, answer)) = self.answers.next() => self.answer(&due, answer),
                _ = ticks.tick() => self.tick().await,
                _ = pings.tick() => self.ping(),
                _ = checks.tick() => if credential.is_valid(&self.sources.tokens) { Ok(()) } else {
                    Err((POLICY, "the session or token has ended; log in again"))
                },
            };
            if let Err(close_reason) = done {
                return Some(close_reason);
            }
        }
    }

    async fn receive(&mut self, message: Message) -> Result<(), CloseReason> {
        self.heard = Instant::now();
        match message {
            Message::Text(text) => match serde_json::from_str::<Request>(&text) {
                Ok(request) => self.request(request).await,
                Err(_) => Err((POLICY, "a message is invalid; reload the page")),
            },
            Message::Binary(_) => Err((POLICY, "messages must be JSON text")),
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => Ok(()),
        }
    }

    async fn request(&mut self, request: Request) -> Result<(), CloseReason> {
        let (id, kind) = match request {
            Request::Unwatch { id } => {
                self.watches.remove(id);
                return Ok(());
            }
            Request::WatchRange {
                id,
                query,
                range_ms,
                step_ms,
                extremes,
                end_ms,
            } => {
                let watch = QueryWatch::range(query, range_ms, step_ms, extremes, end_ms);
                (id, watch.map(Kind::Query))
            }
            Request::WatchInstant { id, query } => (id, Ok(Kind::Query(QueryWatch::instant(query)))),
            Request::WatchRun { id, run } => (id, run_id(run).map(|run| Kind::Run(RunWatch::new(run)))),
            Request::WatchLog {
                id,
                run,
                source,
                tail_bytes,
            } => {
                let kind = match run_id(run) {
                    Ok(run) => self.tail(run, source, tail_bytes).await,
                    Err(message) => Err(message),
                };
                (id, kind)
            }
        };
        match kind.and_then(|kind| self.watches.add(id, kind)) {
            Ok(()) => self.show(id).await,
            Err(message) => self.push(&Push::Failed { id, message }),
        }
    }

    /// Returns a log watch that begins `tail_bytes` before the current end of the log.
    async fn tail(
        &mut self,
        run: RunId,
        source: domain::api::runs::LogSource,
        tail_bytes: u64,
    ) -> Result<Kind, String> {
        let end = self
            .sources
            .runs
            .logs
            .read(&run, &source, 0, 0)
            .await
            .map_err(|error| error.to_string())?;
        Ok(Kind::Log {
            run,
            source,
            offset: end.length.saturating_sub(tail_bytes),
        })
    }

    /// Sends what a new watch shows at once. Queries are due at the next tick.
    async fn show(&mut self, id: u32) -> Result<(), CloseReason> {
        let of_log = self.watches.iter_mut().find_map(|(at, watch)| match &watch.kind {
            Kind::Log { run, .. } if at == id => Some(run.clone()),
            _ => None,
        });
        if let Some(run) = of_log {
            return self.send_logs(&run, Some(id)).await;
        }
        self.send_due_views().await?;
        self.evaluate_due()
    }

    /// Sends the views of changed runs, at most as often as allowed.
    async fn send_due_views(&mut self) -> Result<(), CloseReason> {
        for (id, run) in self.watches.due_views(clock::now_ms()) {
            let push = match self.sources.runs.view(&run).await {
                Ok(view) => Push::Run {
                    id,
                    run: Box::new(view),
                },
                Err(error) => Push::Failed {
                    id,
                    message: error.to_string(),
                },
            };
            self.push(&push)?;
        }
        Ok(())
    }

    /// Sends what was added to the watched logs of a run, or only to one of them.
    async fn send_logs(&mut self, run: &RunId, only: Option<u32>) -> Result<(), CloseReason> {
        let runs = Arc::clone(&self.sources.runs);
        let (mut pushes, mut more) = (Vec::new(), false);
        for (id, watch) in self
            .watches
            .iter_mut()
            .filter(|(id, _)| only.is_none_or(|only| only == *id))
        {
            let Kind::Log {
                run: watched,
                source,
                offset,
            } = &mut watch.kind
            else {
                continue;
            };
            if watched != run {
                continue;
            }
            match runs.logs.read(run, source, *offset, LOG_BYTES_MAX).await {
                Ok(piece) if piece.next_offset > *offset || only.is_some() => {
                    *offset = piece.next_offset;
                    // The rest is sent with the next tick, so that one long log does not delay everything else in the tab.
                    more |= piece.next_offset < piece.length;
                    pushes.push(Push::Log { id, piece });
                }
                Ok(_) => {}
                Err(error) => pushes.push(Push::Failed {
                    id,
                    message: error.to_string(),
                }),
            }
        }
        if more {
            self.unread_logs.insert(run.clone());
        }
        pushes.iter().try_for_each(|push| self.push(push))
    }

    async fn note(&mut self, change: Result<Change, RecvError>) -> Result<(), CloseReason> {
        match change {
            // A tick sends the lists if their counts have grown.
            Ok(Change::Nodes | Change::Diagnoses | Change::Events) => {}
            Ok(Change::Run(run)) => {
                self.watches.run_changed(&run);
                return self.send_due_views().await;
            }
            // Some changes were missed, and any watched run may be among them.
            Err(RecvError::Lagged(_)) => self.watches.all_runs_changed(),
            Err(RecvError::Closed) => {}
        }
        Ok(())
    }

    async fn note_log(&mut self, run: Result<RunId, RecvError>) -> Result<(), CloseReason> {
        match run {
            Ok(run) => self.send_logs(&run, None).await,
            Err(RecvError::Lagged(_)) => {
                self.unread_logs.extend(self.watches.runs_with_logs());
                Ok(())
            }
            Err(RecvError::Closed) => Ok(()),
        }
    }

    async fn tick(&mut self) -> Result<(), CloseReason> {
        for message in self.lists.news(&self.sources).await {
            self.enqueue(Message::Text(message))?;
        }
        self.send_due_views().await?;
        for run in std::mem::take(&mut self.unread_logs) {
            self.send_logs(&run, None).await?;
        }
        self.evaluate_due()
    }

    fn evaluate_due(&mut self) -> Result<(), CloseReason> {
        let now_ms = clock::now_ms();
        for due in self.watches.due(now_ms) {
            let (coalesced, evaluator) = (&self.coalesced, &self.sources.evaluator);
            let evaluation = coalesced.evaluate(evaluator, &due.text, due.when, due.extremes);
            self.answers
                .push(evaluation.map(move |answer| (due, answer)).boxed());
        }
        for (id, message) in self.watches.failures_to_repeat(now_ms) {
            self.push(&Push::Failed { id, message })?;
        }
        Ok(())
    }

    fn answer(&mut self, due: &Due, answer: Answer) -> Result<(), CloseReason> {
        let Due {
            id,
            serial,
            when,
            reset,
            ..
        } = *due;
        let Some(watch) = self.watches.same(id, serial) else {
            return Ok(());
        };
        let Kind::Query(query) = &mut watch.kind else {
            return Ok(());
        };
        let made = answer.map_err(|error| error.to_string()).and_then(|evaluated| {
            let made = frame(reset, &when, &evaluated)?;
            query.sent(&when, reset, evaluated.extremes.is_some());
            Ok(made)
        });
        if let Err(message) = &made {
            query.failed(&when, reset, message);
        }
        match (made, self.encoding) {
            (Ok(frame), FrameEncoding::Binary) => {
                let message = query.encoder.encode(id, &frame);
                self.enqueue(Message::Binary(message.into()))
            }
            (Ok(frame), FrameEncoding::Json) => self.push(&Push::Frame {
                id,
                reset,
                times_ms: frame.times_ms,
                series: frame.series,
            }),
            (Err(message), _) => self.push(&Push::Failed { id, message }),
        }
    }

    fn ping(&mut self) -> Result<(), CloseReason> {
        if self.heard.elapsed() > PING_EVERY * 3 {
            return Err((AWAY, "this tab does not respond"));
        }
        self.enqueue(Message::Ping(Default::default()))
    }

    fn push(&self, push: &Push) -> Result<(), CloseReason> {
        let text = serde_json::to_string(push).map_err(|_| (AWAY, "a message could not be written"))?;
        self.enqueue(Message::Text(text.into()))
    }

    fn enqueue(&self, message: Message) -> Result<(), CloseReason> {
        self.outbox
            .push(message)
            .map_err(|_| (AGAIN, "this tab reads too slowly; connect again"))
    }
}

fn run_id(run: String) -> Result<RunId, String> {
    RunId::new(run).map_err(|error| error.to_string())
}
