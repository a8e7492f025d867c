//! The image of a workspace: its Dockerfile is in the binary. This module builds images and checks them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use domain::container::Runtime;
use serde::Deserialize;

use super::discovery::Config;
use super::engine::Engine;
use super::settings::UserIds;
use crate::failure::Failure;

/// Files that an image is built from: name, text, mode.
const FILES: [(&str, &str, u32); 3] = [
    (DOCKERFILE, include_str!("../../../workspace/Dockerfile"), 0o644),
    (
        "sshd_config",
        include_str!("../../../workspace/sshd_config"),
        0o644,
    ),
    ("start.sh", include_str!("../../../workspace/start.sh"), 0o755),
];
const DOCKERFILE: &str = "Dockerfile";
/// Set by the Dockerfile: the UID of the image's only user.
const UID_LABEL: &str = "lockstep.workspace.uid";

/// Print the Dockerfile of the image, or write it and the files it needs.
#[derive(Args)]
pub(super) struct Dockerfile {
    /// Write Dockerfile, sshd_config and start.sh into this folder, for `docker build`.
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

impl Dockerfile {
    pub(super) fn execute(self) -> Result<(), Failure> {
        match self.to {
            Some(folder) => write(&folder)?,
            None => crate::say::write(FILES[0].1),
        }
        Ok(())
    }
}

/// Returns the name of the default image of a user. Each user has their own image, because it contains their UID and GID.
pub(super) fn of(user: UserIds) -> String {
    format!("lockstep-workspace:uid{}", user.uid)
}

/// Returns the command that builds an image from a folder with the Dockerfile.
pub(super) fn build_line(
    runtime: Runtime,
    image: &str,
    base: Option<&str>,
    user: UserIds,
    folder: &str,
) -> Vec<String> {
    let mut arguments = Vec::new();
    if let Some(base) = base {
        arguments.push(("BASE", base.to_owned()));
    }
    arguments.push(("WORKSPACE_UID", user.uid.to_string()));
    arguments.push(("WORKSPACE_GID", user.gid.to_string()));
    runtime.build(image, &arguments, folder)
}

/// Builds the image. The runtime's own progress goes to stderr.
pub(super) async fn build(
    engine: Engine,
    image: &str,
    base: Option<&str>,
    user: UserIds,
) -> Result<(), Failure> {
    let folder = std::env::temp_dir().join(format!("lockstep-workspace-{:016x}", rand::random::<u64>()));
    write(&folder)?;
    let line = build_line(engine.runtime, image, base, user, &folder.to_string_lossy());
    let built = engine.show(&line).await;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    built.map_err(|error| {
        anyhow::anyhow!(
            "the image {image} could not be built ({error}); see the last lines above. If the base image cannot be pulled, choose another with --base IMAGE"
        )
        .into()
    })
}

/// Checks that an image exists on this machine and was made for this user.
///
/// # Errors
/// If it does not exist or was made for another user; the error includes the next step.
pub(super) async fn verify(engine: Engine, image: &str, user: UserIds) -> Result<(), Failure> {
    let asked = engine.ask(&engine.runtime.inspect_image(image)).await;
    let text = asked.map_err(|error| {
        anyhow::anyhow!(
            "there is no image {image} here ({error}); `lockstep workspace start --build` builds one, `{} pull {image}` fetches it if a registry has it",
            engine.runtime
        )
    })?;
    let uid = user.uid;
    match uid_of(&text).with_context(|| format!("{} describes {image} in an unknown way", engine.runtime))? {
        None => Err(Failure::Failed(anyhow::anyhow!(
            "{image} is not a workspace image: it lacks Jupyter, SSH and the label {UID_LABEL}; build one on it with `lockstep workspace start --build --base {image}`"
        ))),
        Some(built_for) if built_for != uid.to_string() => Err(Failure::Failed(anyhow::anyhow!(
            "{image} was built for uid {built_for} and cannot write the files of uid {uid}; build your own with --build (and without --image, or with another name), or start it for its user with --user {built_for}:GID"
        ))),
        Some(_) => Ok(()),
    }
}

fn write(folder: &Path) -> Result<(), Failure> {
    let put = || {
        std::fs::create_dir_all(folder)?;
        for (name, text, mode) in FILES {
            let path = folder.join(name);
            std::fs::write(&path, text)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
        }
        Ok::<_, std::io::Error>(())
    };
    put().with_context(|| format!("cannot write the image's files into {}", folder.display()))?;
    Ok(())
}

/// The output of `image inspect`. Both runtimes have the labels under `Config`; they are null if there are none.
#[derive(Deserialize)]
struct Described {
    #[serde(rename = "Config")]
    config: Config,
}

fn uid_of(text: &str) -> anyhow::Result<Option<String>> {
    let described: Vec<Described> = serde_json::from_str(text)?;
    let labels = described.into_iter().next().and_then(|image| image.config.labels);
    Ok(labels.and_then(|mut labels| labels.remove(UID_LABEL)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn the_dockerfile_copies_its_files_and_sets_the_expected_labels() {
        let dockerfile = FILES[0].1;
        for (name, ..) in &FILES[1..] {
            assert!(dockerfile.contains(&format!("COPY {name} ")), "{name}");
        }
        assert!(dockerfile.contains(&format!("{UID_LABEL}=\"${{WORKSPACE_UID}}\"")));
    }

    #[test]
    fn an_image_names_the_user_it_was_built_for() {
        let labelled = r#"[{"Id":"1","Config":{"User":"7:7","Labels":{"lockstep.workspace.uid":"7"}}}]"#;
        assert_eq!(uid_of(labelled).unwrap().as_deref(), Some("7"));
        for without in [
            r#"[{"Config":{"Labels":null}}]"#,
            r#"[{"Config":{}}]"#,
            r#"[{"Config":{"Labels":{"a":"b"}}}]"#,
        ] {
            assert_eq!(uid_of(without).unwrap(), None);
        }
        uid_of("no such image").unwrap_err();
    }
}
