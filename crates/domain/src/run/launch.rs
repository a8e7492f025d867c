//! What the shim of a node starts: torchrun, directly or in a container.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::run::container::{ContainerHandle, ContainerOptions, Place};

/// The command that a shim starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables set in addition to the inherited ones.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub workdir: String,
    /// Processes on this node.
    pub nproc: u32,
    /// Global rank of the first of them.
    pub first_rank: u32,
    /// Folder in which torchrun creates one folder per rank for its output.
    pub log_dir: String,
    /// The container in which everything runs; the program is then the one of its runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerHandle>,
}

impl Launch {
    /// Returns the command line, for display and for repeating it in a shell.
    #[must_use]
    pub fn shell_line(&self) -> String {
        let words: Vec<String> = self.argv.iter().map(|word| quoted(word)).collect();
        words.join(" ")
    }

    /// Returns the same command inside a container. `secrets` are the names of further variables; `inject` is the folder for the start of
    /// `PYTHONPATH`.
    #[must_use]
    pub(in crate::run) fn inside(
        self,
        options: &ContainerOptions,
        place: &Place,
        secrets: impl IntoIterator<Item = String>,
        inject: &str,
        own_python_path: bool,
    ) -> Self {
        let contained = ContainerHandle {
            runtime: place.runtime,
            name: place.name.clone(),
            pid_file: place.pid_file.clone(),
            env_file: place.env_file.clone(),
        };
        let mut env = place.env.clone();
        env.extend(self.env);
        if !own_python_path {
            // The image's own path stays after ours.
            env.remove("PYTHONPATH");
        }
        let names = env.keys().cloned().chain(secrets);
        let mut command = vec!["-c".to_owned(), ENTER.to_owned(), "lockstep".to_owned()];
        command.extend([contained.pid_file.clone(), inject.to_owned()]);
        command.extend(self.argv);
        let container = Container {
            workdir: Some(self.workdir.clone()),
            ..options.container(place, command, names, &contained.env_file)
        };
        Self {
            argv: container.run(place.runtime),
            env,
            container: Some(contained),
            ..self
        }
    }
}

/// Writes the id of the container's first process, which becomes torchrun's: the machine's process ids are shared. Then replaces itself
/// with torchrun, with the probe at the start of the image's `PYTHONPATH`.
const ENTER: &str = r#"echo $$ >"$1.new" && mv "$1.new" "$1" || exit 1; case ":$PYTHONPATH:" in *":$2:"*) ;; *) export PYTHONPATH="$2${PYTHONPATH:+:$PYTHONPATH}";; esac; shift 2; exec "$@""#;

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{Mount, Runtime};

    fn place(runtime: Runtime, has_gpus: bool) -> Place {
        let same = |path: &str, read_only| Mount {
            source: path.into(),
            target: path.into(),
            read_only,
        };
        Place {
            runtime,
            name: "lockstep-ddp-1.2-c0ffee00".into(),
            pid_file: "/data/runs/ddp-1.2/container.pid".into(),
            env_file: "/data/runs/ddp-1.2/container.env".into(),
            mounts: vec![
                same("/data/runs/ddp-1.2", false),
                same("/data/lib/c0ffee", true),
                same("/home/ann/code", false),
            ],
            has_gpus,
            user: Some("1000:1000".into()),
            env: [("HOME".to_owned(), "/data/runs/ddp-1.2".to_owned())].into(),
        }
    }

    fn torchrun() -> Launch {
        let env = [
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("HTTPS_PROXY", "http://proxy"),
            ("LD_LIBRARY_PATH", "/opt/lib"),
            ("LOCKSTEP_RUN", "ddp-1"),
            ("PYTHONPATH", "/data/lib/c0ffee/inject"),
        ];
        Launch {
            argv: ["python3", "-m", "torch.distributed.run", "train.py"]
                .map(str::to_owned)
                .into(),
            env: env
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            workdir: "/home/ann/code".into(),
            nproc: 2,
            ..Launch::default()
        }
    }

    fn line(options: &ContainerOptions, place: &Place) -> Vec<String> {
        let secrets = ["WANDB_API_KEY".to_owned(), "SSH_KEY".to_owned()];
        let inject = "/data/lib/c0ffee/inject";
        let launch = torchrun().inside(options, place, secrets, inject, false);
        assert!(!launch.env.contains_key("PYTHONPATH") && launch.env.len() == 5);
        launch.argv
    }

    #[test]
    fn a_run_with_gpus_under_docker_and_without_under_podman() {
        const INSIDE: &str = "lockstep /data/runs/ddp-1.2/container.pid /data/lib/c0ffee/inject python3 -m \
                              torch.distributed.run train.py";
        let options: ContainerOptions = serde_json::from_str("\"team/train:24\"").expect("an image");
        let words = line(&options, &place(Runtime::Docker, true));
        let text = words.join(" ").replace(ENTER, "ENTER");
        assert_eq!(
            text,
            format!(
                "docker run --rm --pull=never --name lockstep-ddp-1.2-c0ffee00 --label lockstep=run --log-driver none \
                 --gpus all --ipc=host --pid=host --network host --ulimit memlock=-1 --ulimit stack=67108864 \
                 -v /data/runs/ddp-1.2:/data/runs/ddp-1.2 -v /data/lib/c0ffee:/data/lib/c0ffee:ro \
                 -v /home/ann/code:/home/ann/code --user 1000:1000 --workdir /home/ann/code -e CUDA_VISIBLE_DEVICES \
                 -e LOCKSTEP_RUN -e WANDB_API_KEY --env-file /data/runs/ddp-1.2/container.env --entrypoint /bin/sh \
                 team/train:24 -c ENTER {INSIDE}"
            )
        );
        let options: ContainerOptions = serde_json::from_str(
            r#"{"image": "team/train:24", "runtime": "podman", "mounts": ["/fast:/home/ann/code:ro", "/d"], "user": "0",
                "shm_size": "8g", "ulimits": [], "options": ["--cap-add=SYS_PTRACE"]}"#,
        )
        .expect("a table");
        assert_eq!(options.problems(), []);
        let text = line(&options, &place(Runtime::Podman, false))
            .join(" ")
            .replace(ENTER, "ENTER");
        assert_eq!(
            text,
            format!(
                "podman run --rm --pull=never --name lockstep-ddp-1.2-c0ffee00 --label lockstep=run --log-driver none \
                 --shm-size=8g --pid=host --network host -v /data/runs/ddp-1.2:/data/runs/ddp-1.2 \
                 -v /data/lib/c0ffee:/data/lib/c0ffee:ro -v /fast:/home/ann/code:ro -v /d:/d --user 0 \
                 --workdir /home/ann/code -e CUDA_VISIBLE_DEVICES -e LOCKSTEP_RUN -e WANDB_API_KEY --env-file \
                 /data/runs/ddp-1.2/container.env --entrypoint /bin/sh --cap-add=SYS_PTRACE team/train:24 -c ENTER {INSIDE}"
            )
        );
    }
}
