//! Putting the parts of an agent together, and taking them apart again in order.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use domain::topology::Inventory;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::AgentConfig;
use crate::sample::Samples;
use crate::uplink::link::LinkError;
use crate::uplink::{Events, Link};

/// Why an agent cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The data folder.
    #[error("cannot use the agent's data folder {path:?}; choose another with --data")]
    DataDir {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The way to the collector.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// What every part of a running agent may use. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    /// As it was told.
    pub config: Arc<AgentConfig>,
    /// Where samples go.
    pub samples: Samples,
    /// Where node events go.
    pub events: Events,
    /// The way to the collector, when there is one.
    pub link: Option<Arc<Link>>,
    /// Cancelled when the agent is to end.
    pub shutdown: CancellationToken,
}

/// Runs an agent until `shutdown` is cancelled.
///
/// # Errors
/// When it cannot start. Trouble afterwards (no collector, no GPU, a full disk) is reported, waited out and survived.
pub async fn run(config: AgentConfig, shutdown: CancellationToken) -> Result<(), AgentError> {
    let folder = |source| AgentError::DataDir {
        path: config.data_dir.clone(),
        source,
    };
    std::fs::create_dir_all(&config.data_dir).map_err(folder)?;
    let (_inventory, inventory) = watch::channel(Arc::new(Inventory::default()));
    let link = Link::new(&config, inventory)?;
    let node = Node {
        config: Arc::new(config),
        samples: Samples::new(),
        events: Events::default(),
        link,
        shutdown: shutdown.clone(),
    };
    let tasks = tokio_util::task::TaskTracker::new();
    // Parts are spawned here, one line each.
    let _ = &node;
    tasks.close();
    shutdown.cancelled().await;
    tasks.wait().await;
    Ok(())
}

/// Reads everything once and returns it as Prometheus text.
///
/// # Errors
/// When it cannot start.
pub async fn once(config: AgentConfig) -> Result<String, AgentError> {
    let _ = config;
    Ok(String::new())
}
