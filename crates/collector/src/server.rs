//! Starting and stopping: data folder, store, background tasks, one port.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum_server::Handle;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::RustlsConfig;
use domain::api::session::Role;
use listener::{Connections, HEAD_WITHIN, Limits, OpenFiles, guard};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use store::state::StateError;
use store::{Store, StoreConfig};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::{App, Shared};
use crate::changes::Changes;
use crate::config::{Config, Secret, TlsFiles};
use crate::error::StartError;
use crate::evaluator::Evaluator;
use crate::ingest::WaitingStreams;
use crate::ingest::remote_write::{self, RemoteWrite};
use crate::ingest::telemetry;
use crate::ingest::telemetry::node_series::NodeSeries;
use crate::live::Live;
use crate::self_metrics::SelfMetrics;
use crate::state_series::{self, StateSeries};
use crate::tokens::Tokens;

/// How long open requests may take once the collector stops.
const GRACE: Duration = Duration::from_secs(5);
/// Connections at once: two of each of a thousand agents, a tab of each of 512 viewers, and as many again. One takes about 20 KiB.
const CONNECTIONS_MAX: usize = 8_192;
/// Those that have not shown a valid token: 60 MiB of memory at the most.
const UNAUTHENTICATED_MAX: usize = 4_096;
/// Those of one address: a thousand agents may come from behind one address at the same moment, each of which is known after
/// some milliseconds.
const UNAUTHENTICATED_PER_ADDRESS_MAX: usize = 1_024;
/// Open files for everything but connections: databases, logs of runs, webhooks.
const FILES_RESERVED: usize = 1_024;

/// A running collector.
pub struct Running {
    /// Where it listens.
    pub local_addr: SocketAddr,
    /// The admin token, when it was made at this start: to be shown once.
    pub admin_token_created: Option<String>,
    /// Its parts, for the process around it.
    pub app: Shared,
    handle: Handle<SocketAddr>,
    serving: JoinHandle<io::Result<()>>,
}

/// Opens the data folder and starts serving.
///
/// # Errors
/// See [`StartError`].
pub async fn start(config: Config) -> Result<Running, StartError> {
    config.check()?;
    // One provider in the process, also for the client that delivers webhooks; whoever was first decided.
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let listener = listener::listen(config.listen).map_err(|source| StartError::Listen {
        listen: config.listen,
        source,
    })?;
    let tls = config.tls.as_ref().map(server_tls).transpose()?;
    let (app, admin_token_created) = assemble(config).await?;
    spawn_tasks(&app).await?;
    let local_addr = listener.local_addr().map_err(|source| StartError::Listen {
        listen: app.config.listen,
        source,
    })?;
    let handle = Handle::new();
    let serving = serve(listener, tls, &app, handle.clone()).map_err(|source| StartError::Listen {
        listen: local_addr,
        source,
    })?;
    tracing::info!(%local_addr, tls = app.config.tls.is_some(), "the collector is listening");
    Ok(Running {
        local_addr,
        admin_token_created: admin_token_created.map(|token| token.expose().to_owned()),
        app,
        handle,
        serving,
    })
}

impl Running {
    /// Waits until serving ends, which without [`Running::shutdown`] is an error.
    ///
    /// # Errors
    /// What ended it.
    pub async fn wait(&mut self) -> io::Result<()> {
        (&mut self.serving)
            .await
            .unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }

    /// Where to reach it.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.app.config.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.local_addr)
    }

    /// A short-lived token for the agent of this machine.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn join_token(&self) -> Result<String, StateError> {
        self.app
            .audit("system", "token_create", "join token of the local agent")
            .await?;
        let lifetime_s = Some(crate::tokens::JOIN_LIFETIME_S);
        let token = self
            .app
            .tokens
            .create(Role::Join, "the local agent", lifetime_s, self.app.now_ms())
            .await?;
        Ok(token.token)
    }

    /// Ends streams, lets open requests finish, writes out what is not yet written, and closes the store.
    pub async fn shutdown(self) {
        self.app.stopping.cancel();
        self.handle.graceful_shutdown(Some(GRACE));
        if !self.serving.is_finished() {
            let _stopped_either_way = self.serving.await;
        }
        self.app.tasks.close();
        self.app.tasks.wait().await;
        let Store { series, state } = &self.app.store;
        Store {
            series: series.clone(),
            state: state.clone(),
        }
        .close()
        .await;
        tracing::info!("the collector has stopped");
    }
}

async fn assemble(config: Config) -> Result<(Shared, Option<Secret>), StartError> {
    let mut store_config = StoreConfig::new(&config.data_dir);
    if let Some(retention_ms) = config.retention_ms {
        store_config.retention_ms = retention_ms;
    }
    if let Some(out_of_order_ms) = config.out_of_order_ms {
        store_config.out_of_order_ms = out_of_order_ms;
    }
    if let Some(series_max) = config.series_max {
        store_config.series_max = series_max;
    }
    if let Some(rollup_1m_ms) = config.retention_1m_ms {
        store_config.rollup_1m_ms = rollup_1m_ms;
    }
    if let Some(rollup_1h_ms) = config.retention_1h_ms {
        store_config.rollup_1h_ms = rollup_1h_ms;
    }
    store_config.size_max_bytes = config.retention_bytes;
    store_config.min_free_bytes = config.min_free_bytes;
    store_config.chunk_cache_bytes_max = config.query_cache_bytes;
    let store = Store::open(store_config)
        .await
        .map_err(|source| StartError::Store {
            path: config.data_dir.clone(),
            source: Box::new(source),
        })?;
    let (tokens, created) = Tokens::open(&config, store.state.clone(), crate::clock::now_ms()).await?;
    let nodes = store.state.nodes().await.map_err(|error| StartError::Load {
        what: "nodes",
        source: Box::new(error),
    })?;
    let metrics = SelfMetrics::default();
    let alerts = crate::diagnose::Alerts::load(&config, metrics.registry());
    let alerts = alerts.map_err(|error| StartError::Setting(error.to_string()))?;
    let changes = Changes::default();
    let evaluator = Evaluator::new(store.series.clone(), &metrics);
    let app = App {
        started_ms: crate::clock::now_ms(),
        runs: crate::runs::Runs::new(&config, store.state.clone(), changes.clone(), evaluator.clone()),
        client_evaluator: evaluator.apart(),
        evaluator,
        live: Live::from_records(nodes),
        alerts,
        tokens,
        waiting_streams: WaitingStreams::default(),
        telemetry_room: Arc::new(Semaphore::new(telemetry::SAMPLES_TOGETHER_MAX)),
        telemetry_turns: Arc::new(Semaphore::new(telemetry::TURNS)),
        node_series: NodeSeries::default(),
        state_series: StateSeries::default(),
        remote_write: RemoteWrite::default(),
        changes,
        metrics,
        checking: Arc::new(Semaphore::new(1)),
        stopping: CancellationToken::new(),
        tasks: TaskTracker::new(),
        store,
        config,
    };
    Ok((Arc::new(app), created))
}

async fn spawn_tasks(app: &Shared) -> Result<(), StartError> {
    app.spawn(crate::live::watch(app.clone()));
    app.spawn(remote_write::forget_idle(app.clone()));
    app.spawn(crate::space::watch(app.clone()));
    app.spawn(crate::tokens::store_uses(app.clone()));
    crate::runs::start(app).await?;
    app.spawn(state_series::write(app.clone()));
    crate::diagnose::start(app).await?;
    crate::notify::start(app).await?;
    Ok(())
}

/// Without delay: the last piece of a long answer would wait until the client's system acknowledges the one before it, which it
/// puts off for 40 ms.
fn serve(
    tcp: TcpListener,
    tls: Option<RustlsConfig>,
    app: &Shared,
    handle: Handle<SocketAddr>,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let service = crate::http::router(app.clone()).into_make_service_with_connect_info::<SocketAddr>();
    let limits = connection_limits(OpenFiles::current());
    let connections = Connections::new(limits, app.config.trusted_proxies.clone());
    Ok(match tls {
        None => {
            let server = axum_server::from_tcp(tcp)?.acceptor(NoDelayAcceptor::new());
            tokio::spawn(guard(server, connections).handle(handle).serve(service))
        }
        Some(tls) => {
            let server = axum_server::from_tcp_rustls(tcp, tls)?
                .map(|acceptor| acceptor.acceptor(NoDelayAcceptor::new()));
            tokio::spawn(guard(server, connections).handle(handle).serve(service))
        }
    })
}

/// The limits of connections, as far as the process may open files.
fn connection_limits(open_files: OpenFiles) -> Limits {
    let files = open_files
        .soft
        .map_or(usize::MAX, |soft| usize::try_from(soft).unwrap_or(usize::MAX));
    let total = files
        .saturating_sub(FILES_RESERVED.min(files / 4))
        .min(CONNECTIONS_MAX);
    Limits {
        total,
        unauthenticated: UNAUTHENTICATED_MAX.min(total / 2),
        unauthenticated_per_address: UNAUTHENTICATED_PER_ADDRESS_MAX.min(total / 4),
        head_within: HEAD_WITHIN,
    }
}

fn server_tls(files: &TlsFiles) -> Result<RustlsConfig, StartError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| StartError::Tls {
        cert: files.cert.clone(),
        source,
    };
    let read = || -> Result<rustls::ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
        let chain = CertificateDer::pem_file_iter(&files.cert)?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(&files.key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    };
    read()
        .map(|config| RustlsConfig::from_config(Arc::new(config)))
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_open_files_for_the_rest() {
        for (soft, total) in [
            (Some(1_048_576), CONNECTIONS_MAX),
            (None, CONNECTIONS_MAX),
            (Some(4_096), 3_072),
            (Some(1_024), 768),
        ] {
            let limits = connection_limits(OpenFiles { soft, hard: soft });
            assert_eq!(limits.total, total, "{soft:?}");
            assert!(limits.unauthenticated_per_address < limits.unauthenticated);
            assert!(limits.unauthenticated < limits.total);
        }
    }
}
