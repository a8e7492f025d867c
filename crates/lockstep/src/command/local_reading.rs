//! Reads this machine once with the agent's readers, for commands that have no agent.

use std::path::Path;

use agent::{AgentConfig, AgentError, MetricsConfig, NodeSnapshot, NvmlSource};
use domain::ident::NodeName;

/// Reads what an agent would read under `root`: with the simulator, another NVML library, or the system's own. Stores nothing and serves
/// nothing.
pub(super) async fn read_machine(
    root: &Path,
    library: Option<&Path>,
    simulate: Option<&str>,
) -> Result<NodeSnapshot, AgentError> {
    let nvml = match (simulate, library) {
        (Some(spec), library) => NvmlSource::Simulated {
            library: library.map(Path::to_owned),
            spec: spec.to_owned(),
        },
        (None, Some(path)) => NvmlSource::Path(path.to_owned()),
        (None, None) => NvmlSource::System,
    };
    agent::snapshot(AgentConfig {
        collector: None,
        join_token: None,
        node: NodeName::new("here").expect("a well-formed name"),
        rack: None,
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
