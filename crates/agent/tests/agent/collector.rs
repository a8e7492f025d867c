//! The other end of the protocol: a collector that remembers what it was sent, and answers as a test wants.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response as Answer};
use axum::routing::any;
use domain::event::Event;
use domain::topology::Inventory;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::{Stream, StreamExt as _};
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use wire::proto::telemetry_down::Message as Down;
use wire::proto::telemetry_up::Message as Up;
use wire::proto::uplink_server::{Uplink, UplinkServer};
use wire::proto::{
    Ack, Batch, Burst, ControlDown, ControlUp, HelloAck, Refusal, TelemetryDown, TelemetryUp, control_down,
};

use crate::support::until;

/// How the collector behaves.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manners {
    /// Acknowledges nothing.
    pub(crate) silent: bool,
    /// Refuses every batch with this number.
    pub(crate) refuse_seq: Option<u64>,
    /// How far this collector's clock is ahead.
    pub(crate) clock_ahead_ms: i64,
    /// Asks for what is kept of the last minutes.
    pub(crate) wants_burst: bool,
    /// Takes another hello on the same stream.
    pub(crate) takes_more_hellos: bool,
    /// Ends the stream after this many batches of a connection.
    pub(crate) hang_up_after: Option<u64>,
}

/// What was heard so far.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) tokens: Vec<String>,
    pub(crate) inventories: Vec<Inventory>,
    pub(crate) events: Vec<Event>,
    /// Each series' samples by time; a repeat must bring the same value.
    pub(crate) series: HashMap<String, BTreeMap<i64, f64>>,
    /// Segment and number of each batch, in the order they came, and whether it was acknowledged.
    pub(crate) batches: Vec<(String, u64)>,
    dictionaries: HashMap<String, Vec<String>>,
}

impl Heard {
    /// Values of a series in the order of time.
    pub(crate) fn values(&self, series: &str) -> Vec<f64> {
        self.series
            .get(series)
            .map(|samples| samples.values().copied().collect())
            .unwrap_or_default()
    }

    pub(crate) fn kinds(&self) -> Vec<&str> {
        self.events.iter().map(|event| event.kind.as_str()).collect()
    }

    fn take(&mut self, batch: &Batch) {
        let dictionary = self
            .dictionaries
            .get(&batch.segment)
            .expect("names come before batches");
        for frame in wire::frame::decode(batch).expect("a whole batch") {
            for (s, series) in frame.series.iter().enumerate() {
                let samples = self
                    .series
                    .entry(dictionary[*series as usize].clone())
                    .or_default();
                for (at, value) in frame.times_ms.iter().zip(frame.row(s)) {
                    let before = samples.insert(*at, *value);
                    assert!(before.is_none_or(|before| before.to_bits() == value.to_bits()));
                }
            }
        }
        self.batches.push((batch.segment.clone(), batch.seq));
    }
}

#[derive(Clone, Default)]
struct Service {
    heard: Arc<Mutex<Heard>>,
    manners: Arc<Mutex<Manners>>,
}

/// A collector that runs until dropped, in a runtime of its own, so that its connections end with it.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    service: Service,
    runtime: Option<Runtime>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    /// Starts where another one was, once that one has let go of the address.
    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut bound = std::net::TcpListener::bind(address);
        until("the address", Duration::from_secs(5), || {
            if bound.is_err() {
                bound = std::net::TcpListener::bind(address);
            }
            bound.is_ok()
        })
        .await;
        let listener = bound.unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let service = Service::default();
        let answering = service.clone();
        let uplink = UplinkServer::new(service.clone())
            .accept_compressed(CompressionEncoding::Zstd)
            .send_compressed(CompressionEncoding::Zstd);
        runtime.spawn(async move {
            let telemetry = Router::new().route(wire::telemetry::PATH, any(telemetry));
            let both = Routes::new(uplink)
                .into_axum_router()
                .reset_fallback()
                .merge(telemetry.with_state(answering));
            axum::serve(TcpListener::from_std(listener).unwrap(), both)
                .await
                .unwrap();
        });
        Self {
            address,
            service,
            runtime: Some(runtime),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.service.heard.lock().unwrap()
    }

    pub(crate) fn behave(&self, manners: Manners) {
        *self.service.manners.lock().unwrap() = manners;
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn telemetry(State(service): State<Service>, headers: HeaderMap, upgrade: WebSocketUpgrade) -> Answer {
    let token = headers["authorization"].to_str().unwrap().to_owned();
    service.heard.lock().unwrap().tokens.push(token.clone());
    match token.as_str() {
        "Bearer lsj_test" | "Bearer lsc_credential" => upgrade
            .on_upgrade(|socket| service.converse(socket))
            .into_response(),
        _ => StatusCode::UNAUTHORIZED.into_response(),
    }
}

#[tonic::async_trait]
impl Uplink for Service {
    type ControlStream = Pin<Box<dyn Stream<Item = Result<ControlDown, Status>> + Send>>;

    async fn control(
        &self,
        _: Request<Streaming<ControlUp>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        let burst = Burst {
            alert: "GpuFault".into(),
        };
        let told = [
            control_down::Message::Hello(welcome()),
            control_down::Message::Burst(burst),
        ];
        let told = told.map(|message| {
            Ok(ControlDown {
                message: Some(message),
            })
        });
        let wanted = self.manners.lock().unwrap().wants_burst;
        let told = tokio_stream::iter(told.into_iter().filter(move |_| wanted));
        Ok(Response::new(Box::pin(told.chain(tokio_stream::pending()))))
    }
}

impl Service {
    async fn converse(self, mut socket: WebSocket) {
        let mut batches = 0;
        while let Some(Ok(message)) = socket.recv().await {
            let Message::Binary(bytes) = message else {
                continue;
            };
            let message = TelemetryUp::decode(bytes).unwrap();
            let answer = self.answer(message.message.unwrap());
            batches += u64::from(matches!(answer, Some(Down::Ack(_) | Down::Refusal(_)) | None));
            let manners = *self.manners.lock().unwrap();
            if let Some(answer) = answer
                && !(manners.silent && matches!(answer, Down::Ack(_)))
            {
                let down = TelemetryDown {
                    message: Some(answer),
                };
                if socket
                    .send(Message::Binary(down.encode_to_vec().into()))
                    .await
                    .is_err()
                {
                    return;
                }
            }
            if manners.hang_up_after.is_some_and(|after| batches >= after) {
                return;
            }
        }
    }

    fn answer(&self, message: Up) -> Option<Down> {
        let mut heard = self.heard.lock().unwrap();
        match message {
            Up::Hello(hello) => {
                assert_eq!(hello.node, "n1");
                heard
                    .inventories
                    .push(serde_json::from_str(&hello.inventory_json).unwrap());
                Some(Down::Hello(HelloAck {
                    takes_more_hellos: self.manners.lock().unwrap().takes_more_hellos,
                    ..welcome()
                }))
            }
            Up::Definitions(definitions) => {
                let names = definitions.series.iter().map(|series| {
                    let labels = wire::labels::decode(series, "n1").unwrap();
                    labels.with("node", "").to_string()
                });
                let dictionary = heard.dictionaries.entry(definitions.segment).or_default();
                dictionary.truncate(definitions.first as usize);
                assert_eq!(dictionary.len(), definitions.first as usize);
                dictionary.extend(names);
                None
            }
            Up::Batch(batch) => {
                let (segment, seq) = (batch.segment.clone(), batch.seq);
                if self.manners.lock().unwrap().refuse_seq == Some(seq) {
                    return Some(Down::Refusal(Refusal {
                        segment,
                        seq,
                        reason: "as the test wants".into(),
                    }));
                }
                heard.take(&batch);
                let ahead_us = self.manners.lock().unwrap().clock_ahead_ms * 1_000;
                let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                let now_us = since.unwrap().as_micros() as i64 + ahead_us;
                Some(Down::Ack(Ack {
                    segment,
                    seq,
                    received_us: now_us,
                    sent_us: now_us,
                }))
            }
            Up::Event(event) => {
                heard
                    .events
                    .push(serde_json::from_str(&event.event_json).unwrap());
                None
            }
        }
    }
}

fn welcome() -> HelloAck {
    HelloAck {
        protocol: 1,
        credential: "lsc_credential".into(),
        ..HelloAck::default()
    }
}
