//! A real HTTP receiver of webhooks that rejects the first delivery.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::Value;

#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) id: String,
    pub(crate) signature: String,
    pub(crate) body: Value,
}

type Deliveries = Arc<Mutex<Vec<Delivery>>>;

pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    deliveries: Deliveries,
    _runtime: tokio::runtime::Runtime,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let deliveries = Deliveries::default();
        let router = axum::Router::new()
            .route("/hook", post(take))
            .with_state(Arc::clone(&deliveries));
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self {
            address,
            deliveries,
            _runtime: runtime,
        }
    }

    pub(crate) fn deliveries(&self) -> Vec<Delivery> {
        self.deliveries.lock().unwrap().clone()
    }
}

async fn take(
    State(deliveries): State<Deliveries>,
    headers: HeaderMap,
    body: axum::Json<Value>,
) -> StatusCode {
    let header = |name: &str| {
        headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    let delivery = Delivery {
        id: header("webhook-id"),
        signature: header("webhook-signature"),
        body: body.0,
    };
    let mut all = deliveries.lock().unwrap();
    all.push(delivery);
    if all.len() == 1 {
        StatusCode::INTERNAL_SERVER_ERROR
    } else {
        StatusCode::NO_CONTENT
    }
}
