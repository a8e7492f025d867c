//! Where `top` reads its samples: an agent's `/metrics` page, or the collector.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use domain::api::nodes::GpuView;
use domain::api::prometheus::{Answer, QueryResult};

use super::row::{METRICS, Snapshot};
use crate::client::{Client, Target};
use crate::command::metrics_page;
use crate::failure::Failure;

/// An agent answers from memory, so a longer wait is useless.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

pub(super) enum Source {
    Agent {
        http: reqwest::Client,
        url: String,
        token: Option<String>,
    },
    Collector {
        client: Client,
        query: String,
    },
}

impl Source {
    /// Reads an agent's `/metrics`.
    pub(super) fn agent(url: &str, token_file: Option<&Path>, target: &Target) -> Result<Self, Failure> {
        let read = |path: &Path| {
            std::fs::read_to_string(path)
                .map(|token| token.trim().to_owned())
                .map_err(|error| Failure::Usage(format!("--metrics-token-file {}: {error}", path.display())))
        };
        let groups = ["gpu", "link", "lockstep_agent_simulated"].map(|name| format!("collect[]={name}"));
        let separator = if url.contains('?') { '&' } else { '?' };
        Ok(Self::Agent {
            http: target.http(url, ANSWER_WITHIN)?,
            url: format!("{url}{separator}{}", groups.join("&")),
            token: token_file.map(read).transpose()?,
        })
    }

    /// Reads all GPUs of a collector, or those of `nodes`.
    pub(super) fn collector(client: Client, nodes: &[String]) -> Self {
        Self::Collector {
            client,
            query: query(nodes),
        }
    }

    pub(super) async fn read(&self) -> Result<Snapshot, Failure> {
        match self {
            Self::Agent { http, url, token } => read_agent(http, url, token.as_deref()).await,
            Self::Collector { client, query } => read_collector(client, query).await,
        }
    }
}

/// Returns one query for all metrics.
fn query(nodes: &[String]) -> String {
    let metrics = METRICS.join("|");
    if nodes.is_empty() {
        return format!("{{__name__=~\"{metrics}\"}}");
    }
    let nodes: Vec<String> = nodes
        .iter()
        .map(|node| regex::escape(node).replace('\\', "\\\\"))
        .collect();
    format!("{{__name__=~\"{metrics}\",node=~\"{}\"}}", nodes.join("|"))
}

async fn read_agent(http: &reqwest::Client, url: &str, token: Option<&str>) -> Result<Snapshot, Failure> {
    let address = url.split('?').next().unwrap_or(url);
    let mut request = http.get(url);
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let answer = request.send().await.map_err(|error| {
        Failure::Unreachable(format!(
            "no agent serves metrics at {address}: {error}. Start one with `lockstep agent`, set another address with --metrics, or show the cluster with --cluster"
        ))
    })?;
    let status = answer.status();
    if status == 401 {
        return Err(Failure::Usage(format!(
            "{address} requires a token; use --metrics-token-file"
        )));
    }
    let page = answer
        .text()
        .await
        .context("the agent's response could not be read")?;
    if !status.is_success() {
        return Err(Failure::Failed(anyhow::anyhow!(
            "{address} answered {status}: {}",
            page.trim()
        )));
    }
    let samples = metrics_page::samples(&page);
    let simulated = samples
        .iter()
        .find(|(labels, _)| labels.metric_name() == Some("lockstep_agent_simulated"));
    let simulated = simulated.and_then(|(labels, _)| labels.get("spec").map(str::to_owned));
    Ok(Snapshot { samples, simulated })
}

async fn read_collector(client: &Client, query: &str) -> Result<Snapshot, Failure> {
    let parameters = [("query", query.to_owned())];
    let answer: Answer<QueryResult> = client.get("/api/v1/query", &parameters).await?;
    let samples = match answer.data {
        Some(QueryResult::Vector(samples)) => samples,
        _ => Vec::new(),
    };
    let samples = samples
        .into_iter()
        .filter_map(|sample| Some((sample.metric, sample.value.1.parse().ok()?)))
        .collect();
    let gpus: Vec<GpuView> = client.get("/api/gpus", &[]).await?;
    let simulated = gpus.iter().filter(|gpu| gpu.simulated).count();
    Ok(Snapshot {
        samples,
        simulated: (simulated > 0).then(|| format!("{simulated} of {} GPUs", gpus.len())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_asked_for_by_name_and_not_by_pattern() {
        assert!(query(&[]).starts_with("{__name__=~\"gpu_info|gpu_up|") && !query(&[]).contains("node"));
        let some = query(&["a.b".into(), "c".into()]);
        assert!(some.ends_with(",node=~\"a\\\\.b|c\"}"), "{some}");
    }
}
