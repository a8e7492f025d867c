//! The other side of the protocol: a collector that stores what it receives, and answers as a test wants.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

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
pub(crate) struct Behaviour {
    /// It acknowledges nothing.
    pub(crate) silent: bool,
    /// It refuses every batch with this number.
    pub(crate) refuse_seq: Option<u64>,
    /// How far the collector's clock is ahead, in milliseconds.
    pub(crate) clock_ahead_ms: i64,
    /// It requests the burst of the last minutes.
    pub(crate) wants_burst: bool,
    /// It accepts another hello on the same stream.
    pub(crate) takes_more_hellos: bool,
    /// It ends the stream after this number of batches on one connection.
    pub(crate) close_after: Option<u64>,
}

/// What the collector has received.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) tokens: Vec<String>,
    pub(crate) inventories: Vec<Inventory>,
    pub(crate) events: Vec<Event>,
    /// The samples of each series by time. A repeated sample must have the same value.
    pub(crate) series: HashMap<String, BTreeMap<i64, f64>>,
    /// The segment and number of each batch that was not refused, in the order of arrival.
    pub(crate) batches: Vec<(String, u64)>,
    dictionaries: HashMap<String, Vec<String>>,
}

impl Received {
    /// Returns the values of a series in the order of time.
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
    received: Arc<Mutex<Received>>,
    behaviour: Arc<Mutex<Behaviour>>,
}

/// A collector that runs until dropped. It has its own runtime, so that its connections end with it.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    service: Service,
    runtime: Option<Runtime>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    /// Starts at the address of an earlier collector, when that one has released it.
    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut bound = std::net::TcpListener::bind(address);
        until("the address", || {
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

    pub(crate) fn received(&self) -> MutexGuard<'_, Received> {
        self.service.received.lock().unwrap()
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.service.behaviour.lock().unwrap() = behaviour;
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
    service.received.lock().unwrap().tokens.push(token.clone());
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
        let messages = [
            control_down::Message::Hello(welcome()),
            control_down::Message::Burst(burst),
        ];
        let messages = messages.map(|message| {
            Ok(ControlDown {
                message: Some(message),
            })
        });
        let wants_burst = self.behaviour.lock().unwrap().wants_burst;
        let messages = tokio_stream::iter(messages.into_iter().filter(move |_| wants_burst));
        Ok(Response::new(Box::pin(messages.chain(tokio_stream::pending()))))
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
            let behaviour = *self.behaviour.lock().unwrap();
            if let Some(answer) = answer
                && !(behaviour.silent && matches!(answer, Down::Ack(_)))
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
            if behaviour.close_after.is_some_and(|after| batches >= after) {
                return;
            }
        }
    }

    fn answer(&self, message: Up) -> Option<Down> {
        let mut received = self.received.lock().unwrap();
        match message {
            Up::Hello(hello) => {
                assert_eq!(hello.node, "n1");
                received
                    .inventories
                    .push(serde_json::from_str(&hello.inventory_json).unwrap());
                Some(Down::Hello(HelloAck {
                    takes_more_hellos: self.behaviour.lock().unwrap().takes_more_hellos,
                    ..welcome()
                }))
            }
            Up::Definitions(definitions) => {
                let names = definitions.series.iter().map(|series| {
                    let labels = wire::labels::decode(series, "n1").unwrap();
                    labels.with("node", "").to_string()
                });
                let dictionary = received.dictionaries.entry(definitions.segment).or_default();
                dictionary.truncate(definitions.first as usize);
                assert_eq!(dictionary.len(), definitions.first as usize);
                dictionary.extend(names);
                None
            }
            Up::Batch(batch) => {
                let (segment, seq) = (batch.segment.clone(), batch.seq);
                if self.behaviour.lock().unwrap().refuse_seq == Some(seq) {
                    return Some(Down::Refusal(Refusal {
                        segment,
                        seq,
                        reason: "as the test wants".into(),
                    }));
                }
                received.take(&batch);
                let ahead_us = self.behaviour.lock().unwrap().clock_ahead_ms * 1_000;
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
                received
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
