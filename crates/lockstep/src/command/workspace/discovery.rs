//! Finds existing workspaces: containers with the label, described by their labels and by the runtime.

use std::collections::BTreeMap;

use domain::container::LABEL;
use jiff::Timestamp;
use serde::Deserialize;

use super::engine::{Engine, RuntimeChoice, RuntimeError};
use super::settings::{KIND, NAME_LABEL, Settings};
use crate::failure::Failure;

/// Number of characters of a container's ID that users write. The agent's series have as many in their label `container`.
const ID_SHOWN: usize = 12;

/// A container that is a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExistingWorkspace {
    pub(super) engine: Engine,
    /// The beginning of its ID, [`ID_SHOWN`] characters.
    pub(super) id: String,
    /// The container's name.
    pub(super) container: String,
    /// The runtime's state: `running`, `exited`, `created`, …
    pub(super) state: String,
    /// Time of its last start. `None` if it was never started.
    pub(super) started: Option<Timestamp>,
    pub(super) settings: Settings,
}

impl ExistingWorkspace {
    pub(super) fn runs(&self) -> bool {
        self.state == "running"
    }
}

/// Returns all workspaces of all runtimes that answer, sorted by name.
pub(super) async fn all(choice: RuntimeChoice) -> Result<Vec<ExistingWorkspace>, Failure> {
    let mut found = Vec::new();
    for engine in choice.engines().await? {
        found.extend(with_label(engine, &format!("{LABEL}={KIND}")).await?);
    }
    found.sort_by(|a, b| a.settings.name.cmp(&b.settings.name));
    Ok(found)
}

/// Returns the workspace with a name, if there is one.
pub(super) async fn named(engines: &[Engine], name: &str) -> Result<Option<ExistingWorkspace>, RuntimeError> {
    for engine in engines {
        let found = with_label(*engine, &format!("{NAME_LABEL}={name}")).await?;
        if let Some(found) = found.into_iter().next() {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

async fn with_label(engine: Engine, label: &str) -> Result<Vec<ExistingWorkspace>, RuntimeError> {
    let names = engine.ask(&engine.runtime.list(label)).await?;
    let mut found = Vec::new();
    for name in names.lines().map(str::trim).filter(|name| !name.is_empty()) {
        // A container that was removed since it was listed is not a workspace any more.
        if let Ok(text) = engine.ask(&engine.runtime.inspect(name)).await {
            found.extend(read(engine, &text));
        }
    }
    Ok(found)
}

/// The fields of `container inspect` that both runtimes print in the same way. Docker's names begin with `/`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Described {
    id: String,
    name: String,
    state: State,
    config: Config,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    status: String,
    /// The year is 1 if the container was never started.
    #[serde(default)]
    started_at: String,
}

/// The labels of a container or an image; null if there are none.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Config {
    #[serde(default)]
    pub(super) labels: Option<BTreeMap<String, String>>,
}

fn read(engine: Engine, text: &str) -> Option<ExistingWorkspace> {
    let described: Vec<Described> = serde_json::from_str(text).ok()?;
    let described = described.into_iter().next()?;
    let started: Option<Timestamp> = described.state.started_at.parse().ok();
    Some(ExistingWorkspace {
        engine,
        id: described.id.chars().take(ID_SHOWN).collect(),
        container: described.name.trim_start_matches('/').to_owned(),
        state: described.state.status,
        started: started.filter(|started| started.as_second() > 0),
        settings: Settings::from_labels(&described.config.labels?)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use domain::container::Runtime;

    use super::*;
    use crate::command::workspace::settings::example;

    fn described(name: &str, state: &str) -> String {
        let labels = serde_json::to_string(&example().labels()).unwrap();
        format!(
            r#"[{{"Id":"{id}","Name":"{name}","State":{state},"Config":{{"Labels":{labels}}}}}]"#,
            id = "0123456789abcdef".repeat(4)
        )
    }

    #[test]
    fn docker_and_podman_describe_the_same_workspace() {
        let docker = described(
            "/lockstep-workspace-ann",
            r#"{"Status":"running","StartedAt":"2026-11-22T07:00:00.123456789Z"}"#,
        );
        let podman = described(
            "lockstep-workspace-ann",
            r#"{"Status":"running","StartedAt":"2026-11-22T08:00:00.123456789+01:00"}"#,
        );
        for (runtime, text) in [(Runtime::Docker, docker), (Runtime::Podman, podman)] {
            let engine = Engine { runtime };
            let expected = ExistingWorkspace {
                engine,
                id: "0123456789ab".into(),
                container: "lockstep-workspace-ann".into(),
                state: "running".into(),
                started: Some("2026-11-22T07:00:00.123456789Z".parse().unwrap()),
                settings: example(),
            };
            assert_eq!(read(engine, &text), Some(expected), "{runtime}");
        }
    }

    #[test]
    fn what_was_never_started_has_no_time_and_what_is_not_ours_is_left_out() {
        let engine = Engine {
            runtime: Runtime::Docker,
        };
        let created = described("/x", r#"{"Status":"created","StartedAt":"0001-01-01T00:00:00Z"}"#);
        assert_eq!(read(engine, &created).unwrap().started, None);
        for other in [
            "[]",
            "",
            r#"[{"Id":"1","Name":"/x","State":{"Status":"running"},"Config":{"Labels":null}}]"#,
        ] {
            assert_eq!(read(engine, other), None, "{other}");
        }
    }
}
