//! Starts and stops the collector: data folder, store, background tasks, one port.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use domain::api::session::Role;
use listener::{Connections, HEAD_TIMEOUT, Limits, OpenFiles};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use store::Store;
use store::state::StateError;
use tokio::task::JoinHandle;

use crate::analysis::{AnalysisParts, Attempts, FedQueue, Findings, feed};
use crate::app::{App, Checking, StartedAt};
use crate::changes::Changes;
use crate::config::{Config, Secret, TlsFiles};
use crate::diagnose::{Alerts, Engine};
use crate::error::StartError;
use crate::evaluator::Evaluator;
use crate::event_log::EventLog;
use crate::http::remote_write::RemoteWrite;
use crate::incidents::Incidents;
use crate::ingest::{Bounds, Ingest};
use crate::live::Live;
use crate::notify::Notifier;
use crate::own_series::OwnSeries;
use crate::runs::Runs;
use crate::self_metrics::SelfMetrics;
use crate::state_series::StateSeries;
use crate::tasks::Tasks;
use crate::tokens::Tokens;
use crate::{analysis, clock, disk_space, live, notify, runs, state_series, tokens};

/// How long open requests may take after the collector stops.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum number of connections: two of each of a thousand agents, one tab of each of 512 viewers, and room to spare. One takes about 20
/// KiB.
const CONNECTIONS_MAX: usize = 8_192;
/// Maximum number of connections without a valid token so far: at most 60 MiB of memory.
const UNAUTHENTICATED_MAX: usize = 4_096;
/// The same per address: a thousand agents may connect from one address at the same moment, and each is authenticated after some
/// milliseconds.
const UNAUTHENTICATED_PER_ADDRESS_MAX: usize = 1_024;
/// Open files reserved for everything but connections: databases, logs of runs, webhooks.
const FILES_RESERVED: usize = 1_024;

/// A running collector.
pub struct Running {
    /// The address it listens on.
    pub local_addr: SocketAddr,
    /// The admin token, if it was generated at this start. It is shown once.
    pub admin_token_created: Option<String>,
    /// Its parts, for the surrounding process.
    pub app: App,
    handle: Handle<SocketAddr>,
    serving: JoinHandle<io::Result<()>>,
}

/// Opens the data folder and starts to serve.
///
/// # Errors
/// See [`StartError`].
pub async fn start(config: Config) -> Result<Running, StartError> {
    config.check()?;
    // One provider per process, also for the client that delivers webhooks. The first installed one is used.
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let listener = listener::listen(config.listen).map_err(|source| StartError::Listen {
        listen: config.listen,
        source,
    })?;
    let tls = config.tls.as_ref().map(server_tls).transpose()?;
    let (app, background, admin_token_created) = assemble(config).await?;
    spawn_tasks(&app, background).await?;
    let local_addr = listener.local_addr().map_err(|source| StartError::Listen {
        listen: app.config.listen,
        source,
    })?;
    let handle = Handle::new();
    let serving = tokio::spawn(listener::serve(
        listener,
        tls,
        crate::http::router(app.clone()),
        Connections::new(
            connection_limits(OpenFiles::current()),
            app.config.trusted_proxies.clone(),
        ),
        handle.clone(),
    ));
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
    /// Waits until serving ends, which is an error without [`Running::shutdown`].
    ///
    /// # Errors
    /// Returns the error that ended it.
    pub async fn wait(&mut self) -> io::Result<()> {
        (&mut self.serving)
            .await
            .unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }

    /// The URL of the collector.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.app.config.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.local_addr)
    }

    /// Creates a short-lived token for the agent of this machine.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn join_token(&self) -> Result<String, StateError> {
        self.app
            .events
            .audit("system", "token_create", "join token of the local agent")
            .await?;
        let lifetime_s = Some(tokens::JOIN_LIFETIME_S);
        let token = self
            .app
            .tokens
            .create(Role::Join, "the local agent", lifetime_s, clock::now_ms())
            .await?;
        Ok(token.token)
    }

    /// Ends streams, lets open requests finish, writes what is not written yet, and closes the store.
    pub async fn shutdown(self) {
        self.app.tasks.cancel();
        self.handle.graceful_shutdown(Some(GRACE));
        if !self.serving.is_finished() {
            let _stopped_either_way = self.serving.await;
        }
        self.app.tasks.join().await;
        let App { series, state, .. } = self.app;
        Store { series, state }.close().await;
        tracing::info!("the collector has stopped");
    }
}

async fn assemble(config: Config) -> Result<(App, Background, Option<Secret>), StartError> {
    let store = Store::open(config.store.clone())
        .await
        .map_err(|source| StartError::Store {
            path: config.store.data_dir.clone(),
            source: Box::new(source),
        })?;
    let (tokens, created) = Tokens::open(&config, store.state.clone(), clock::now_ms()).await?;
    let nodes = store.state.nodes().await;
    let nodes = nodes.map_err(|error| StartError::load("nodes", error))?;
    let (metrics, changes) = (Arc::new(SelfMetrics::default()), Changes::default());
    let incidents = Incidents::load(store.state.clone(), changes.clone()).await;
    let incidents = incidents.map_err(|error| StartError::load("user actions on alerts", error))?;
    let alerts = Alerts::load(&config, metrics.registry(), incidents.clone());
    let alerts = alerts.map_err(|error| StartError::Setting(error.to_string()))?;
    let (series, state) = (store.series.clone(), store.state.clone());
    let (tasks, notifier) = (Tasks::default(), Notifier::default());
    let (live, tokens) = (Arc::new(Live::from_records(nodes)), Arc::new(tokens));
    let evaluator = Evaluator::new(series.clone(), &metrics);
    let events = EventLog::new(state.clone(), changes.clone());
    let state_series = Arc::new(StateSeries::default());
    let (attempts, findings) = (Arc::new(Attempts::default()), Arc::new(Findings::default()));
    let (feed, fed) = feed(
        metrics.analysis_dropped.clone(),
        metrics.analysis_wait_seconds.clone(),
    );
    let known_alerts = alerts.clone();
    let runs = Arc::new(Runs::new(
        &config,
        runs::Parts {
            state: state.clone(),
            changes: changes.clone(),
            evaluator: evaluator.clone(),
            events: events.clone(),
            tasks: tasks.clone(),
            live: Arc::clone(&live),
            state_series: Arc::clone(&state_series),
            attempts: Arc::clone(&attempts),
            metrics: Arc::clone(&metrics),
            critical_nodes: Box::new(move || known_alerts.critical_nodes()),
        },
    ));
    let engine = Arc::new(Engine {
        evaluator: evaluator.clone(),
        series: series.clone(),
        state: state.clone(),
        changes: changes.clone(),
        metrics: Arc::clone(&metrics),
        runs: Arc::clone(&runs),
        findings: Arc::clone(&findings),
        incidents: incidents.clone(),
        notifier: notifier.clone(),
        external_url: config.external_url(),
        tasks: tasks.clone(),
    });
    let ingest = Arc::new(Ingest {
        series: series.clone(),
        state: state.clone(),
        live: Arc::clone(&live),
        runs: Arc::clone(&runs),
        tokens: Arc::clone(&tokens),
        analysis: feed,
        events: events.clone(),
        changes: changes.clone(),
        metrics: Arc::clone(&metrics),
        tasks: tasks.clone(),
        bounds: Bounds::default(),
    });
    let app = App {
        started: StartedAt(clock::now_ms()),
        remote_write: Arc::new(RemoteWrite::new(series.clone(), Arc::clone(&metrics))),
        evaluator: evaluator.apart(),
        config: Arc::new(config),
        store: Arc::new(store),
        checking: Checking::default(),
        series,
        state,
        live,
        runs,
        alerts,
        incidents,
        engine,
        findings,
        tokens,
        ingest,
        events,
        changes,
        metrics,
        tasks,
    };
    let background = Background {
        own: Arc::clone(evaluator.own()),
        state_series,
        attempts,
        fed,
        notifier,
    };
    Ok((app, background, created))
}

/// The parts that only background tasks use.
struct Background {
    own: Arc<OwnSeries>,
    state_series: Arc<StateSeries>,
    attempts: Arc<Attempts>,
    fed: FedQueue,
    notifier: Notifier,
}

async fn spawn_tasks(app: &App, background: Background) -> Result<(), StartError> {
    let App {
        tasks,
        series,
        state,
        events,
        live,
        ..
    } = app;
    let Background {
        own,
        state_series,
        attempts,
        fed,
        notifier,
    } = background;
    let watch = live::watch(
        Arc::clone(live),
        state.clone(),
        app.changes.clone(),
        events.clone(),
    );
    tasks.spawn(watch);
    tasks.spawn(Arc::clone(&app.remote_write).forget_idle());
    tasks.spawn(disk_space::watch(series.clone(), own, events.clone()));
    tasks.spawn(tokens::store_uses(Arc::clone(&app.tokens)));
    app.runs.start(&app.config).await?;
    tasks.spawn(state_series::write(
        state_series,
        Arc::clone(live),
        series.clone(),
        app.engine.evaluator.clone(),
    ));
    let hangs = analysis::hangs_before(state).await;
    let hangs = hangs.map_err(|error| StartError::load("diagnoses", error))?;
    let parts = AnalysisParts {
        hangs,
        evaluator: app.engine.evaluator.clone(),
        attempts,
        findings: Arc::clone(&app.findings),
        runs: Arc::clone(&app.runs),
        series: series.clone(),
        events: events.clone(),
        tasks: tasks.clone(),
    };
    tasks.spawn(analysis::run(parts, fed));
    app.alerts.start(&app.engine).await?;
    notify::start(notifier, state.clone(), app.config.external_url(), tasks)
}

/// Returns the connection limits, reduced to what the process's limit of open files allows.
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
        head_timeout: HEAD_TIMEOUT,
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
