//! One look at this machine with the agent's own readers, for commands that have no agent.

use std::path::Path;

use agent::{AgentConfig, AgentError, MetricsConfig, NvmlSource, Seen};
use domain::ident::NodeName;

/// What the agent would see under `root`: with the simulator, another NVML library, or the machine's own. Nothing is kept and
/// nothing is served.
pub(super) async fn look(
    root: &Path,
    library: Option<&Path>,
    simulate: Option<&str>,
) -> Result<Seen, AgentError> {
    let nvml = match (simulate, library) {
        (Some(spec), library) => NvmlSource::Simulated {
            library: library.map(Path::to_owned),
            spec: spec.to_owned(),
        },
        (None, Some(path)) => NvmlSource::Path(path.to_owned()),
        (None, None) => NvmlSource::System,
    };
    agent::look(AgentConfig {
        collector: None,
        join_token: None,
        node: NodeName::new("here").expect("a well-formed name"),
        data_dir: std::env::temp_dir(),
        root: root.to_owned(),
        nvml,
        metrics: MetricsConfig::default(),
        accepts_runs: false,
        python: None,
        tls_ca: None,
        watch_jobs: Some(false),
        spool_bytes_max: agent::config::SPOOL_BYTES_MAX,
    })
    .await
}
