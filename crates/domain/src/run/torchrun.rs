//! The command line and environment of torchrun, as data.
//!
//! Torchrun only starts the processes of one node: without restarts of its own, with a fixed rendezvous and a port leased for the attempt.
//! Its multi-node restart hangs or fails when a single node fails. [`advance`](crate::run::state::advance) restarts all ranks together
//! instead.

pub use crate::run::launch::Launch;

use std::collections::BTreeMap;

use crate::ident::{AttemptId, NodeName};
use crate::run::container::Place;
use crate::run::spec::{Backend, Spec};
use crate::run::state::Start;

/// Seconds between torchrun's checks of its processes. The shim sees an exit immediately by itself. The longer torchrun leaves the dead
/// process unreaped, the more certain it is that its exit status can still be read.
const MONITOR_INTERVAL_S: &str = "0.5";

/// Variables for the number of operations that PyTorch's Flight Recorder keeps. The second is the name in older versions of PyTorch.
pub const FLIGHT_RECORDER_VARIABLES: [&str; 2] = ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"];
/// Number of operations that it keeps by default: enough for one step of any model, at most 1.5 MB of JSON.
pub const FLIGHT_RECORDER_ENTRIES: &str = "2000";

/// Paths on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The Python interpreter.
    pub python: String,
    /// The folder with the unpacked companions: `inject/` and `recipes/`.
    pub companions: String,
    /// The attempt's own folder on the node.
    pub folder: String,
    /// Folder in which torchrun creates one folder per rank for its output.
    pub log_dir: String,
    /// The probe's datagram socket.
    pub probe_socket: String,
    /// The NCCL profiler plugin, if the run uses ours.
    pub nccl_plugin: Option<String>,
    /// Folder of the socket over which PyTorch's profiler gets trace requests, if the run requests that.
    pub kineto: Option<String>,
    /// What the node adds to the run's container; `None` without a container.
    pub container: Option<Place>,
}

/// Returns the command that starts one node's ranks.
#[must_use]
pub fn launch(attempt: &AttemptId, node: &NodeName, start: &Start, paths: &Paths) -> Launch {
    let mut argv = vec![paths.python.clone(), "-m".into(), "torch.distributed.run".into()];
    argv.extend([
        format!("--nnodes={}", start.nnodes),
        format!("--node-rank={}", start.node_rank),
        format!("--nproc-per-node={}", start.nproc),
        "--max-restarts=0".into(),
        "--rdzv-backend=static".into(),
        format!("--rdzv-id={attempt}"),
        format!("--master-addr={}", start.master_addr),
        format!("--master-port={}", start.master_port),
        format!("--monitor-interval={MONITOR_INTERVAL_S}"),
        format!("--log-dir={}", paths.log_dir),
        "--redirects=3".into(),
    ]);
    argv.extend(program(&start.spec, paths));
    argv.extend(resume_arguments(start));
    let mut env = environment(attempt, node, &start.spec, paths);
    if let Some(path) = &start.resume_from {
        env.insert("LOCKSTEP_RESUME_FROM".into(), path.clone());
        let step = start
            .resume_step
            .map(|step| ("LOCKSTEP_RESUME_STEP".into(), step.to_string()));
        env.extend(step);
    }
    let launch = Launch {
        argv,
        env,
        workdir: start.spec.workdir.clone().unwrap_or_else(|| paths.folder.clone()),
        nproc: start.nproc,
        first_rank: start.node_rank * start.nproc,
        log_dir: paths.log_dir.clone(),
        container: None,
    };
    match (&start.spec.container, &paths.container) {
        (Some(options), Some(place)) => {
            let secrets = start.spec.secrets.keys().cloned();
            let own_path = start
                .spec
                .env
                .get("PYTHONPATH")
                .is_some_and(|path| !path.is_empty());
            let inject = format!("{}/inject", paths.companions);
            launch.inside(options, place, secrets, &inject, own_path)
        }
        _ => launch,
    }
}

/// Returns the script and its arguments; settings of a recipe become `--name value`.
fn program(spec: &Spec, paths: &Paths) -> Vec<String> {
    let script = match &spec.recipe {
        Some(recipe) => format!("{}/recipes/{recipe}/main.py", paths.companions),
        None => spec.script.clone().unwrap_or_default(),
    };
    let mut argv = vec![script];
    for (name, value) in &spec.set {
        argv.extend([format!("--{}", name.replace('_', "-")), value.clone()]);
    }
    if let (Some(_), Some(folder)) = (&spec.recipe, &spec.checkpoint_dir)
        && !spec.set.contains_key("checkpoint_dir")
    {
        argv.extend(["--checkpoint-dir".into(), folder.clone()]);
    }
    argv.extend(spec.args.iter().cloned());
    argv
}

/// Returns the checkpoint argument for a script that takes one. It comes after the script's own arguments, so that it wins over the same
/// argument there.
fn resume_arguments(start: &Start) -> Vec<String> {
    match (&start.spec.resume_arg, &start.resume_from) {
        (Some(arg), Some(path)) if arg.ends_with('=') => vec![format!("{arg}{path}")],
        (Some(arg), Some(path)) => vec![arg.clone(), path.clone()],
        _ => Vec::new(),
    }
}

fn environment(attempt: &AttemptId, node: &NodeName, spec: &Spec, paths: &Paths) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    if spec.backend == Backend::Gloo {
        env.insert("CUDA_VISIBLE_DEVICES".to_owned(), String::new());
    }
    // Lines appear in the log when they are printed, not 8 KiB later.
    env.insert("PYTHONUNBUFFERED".into(), "1".into());
    env.extend(spec.env.clone());
    let inject = format!("{}/inject", paths.companions);
    let python_path = match env.get("PYTHONPATH").filter(|path| !path.is_empty()) {
        Some(own) => format!("{inject}:{own}"),
        None => inject,
    };
    env.extend([
        ("PYTHONPATH".into(), python_path),
        ("LOCKSTEP_RUN".into(), attempt.run.to_string()),
        ("LOCKSTEP_ATTEMPT".into(), attempt.no.to_string()),
        ("LOCKSTEP_NODE".into(), node.to_string()),
        ("LOCKSTEP_PROBE_SOCKET".into(), paths.probe_socket.clone()),
    ]);
    if let Some(plugin) = &paths.nccl_plugin {
        // A plugin that the user set stays.
        env.entry("NCCL_PROFILER_PLUGIN".into())
            .or_insert_with(|| plugin.clone());
    }
    if let Some(folder) = &paths.kineto {
        env.insert("KINETO_USE_DAEMON".into(), "1".into());
        env.insert("KINETO_IPC_SOCKET_DIR".into(), folder.clone());
        // Otherwise it writes to the rank's log every 5 s that there is no request.
        env.entry("KINETO_LOG_LEVEL".into()).or_insert_with(|| "5".into());
    }
    env.entry("LOCKSTEP_PROBE".into()).or_insert_with(|| "on".into());
    // PyTorch uses the first one that is set. If the user sets the other one, it must apply.
    if !FLIGHT_RECORDER_VARIABLES
        .iter()
        .any(|name| env.contains_key(*name))
    {
        let sizes =
            FLIGHT_RECORDER_VARIABLES.map(|name| (name.to_owned(), FLIGHT_RECORDER_ENTRIES.to_owned()));
        env.extend(sizes);
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::{AttemptNo, RunId};

    fn paths() -> Paths {
        Paths {
            python: "/venv/bin/python".into(),
            companions: "/lib/c0ffee".into(),
            folder: "/data/runs/ddp-1.2".into(),
            log_dir: "/data/runs/ddp-1.2/ranks".into(),
            probe_socket: "/data/runs/ddp-1.2/probe.sock".into(),
            nccl_plugin: None,
            kineto: None,
            container: None,
        }
    }

    fn line(start: &Start) -> Launch {
        let run = RunId::new("ddp-1").expect("a name");
        let node = NodeName::new("n1").expect("a name");
        launch(&AttemptId::new(run, AttemptNo(2)), &node, start, &paths())
    }

    #[test]
    fn three_nodes_with_four_processes() {
        let spec = Spec {
            recipe: Some("ddp".into()),
            set: [("batch_size", "8"), ("steps", "20")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
            args: vec!["a b".into(), "it's".into()],
            ..Spec::default()
        };
        for node_rank in 0..3 {
            let start = Start {
                spec: spec.clone(),
                node_rank,
                nnodes: 3,
                nproc: 4,
                master_addr: "10.0.0.1".into(),
                master_port: 29_500,
                ..Start::default()
            };
            let launch = line(&start);
            assert_eq!(
                launch.shell_line(),
                format!(
                    "/venv/bin/python -m torch.distributed.run --nnodes=3 --node-rank={node_rank} --nproc-per-node=4 \
                     --max-restarts=0 --rdzv-backend=static --rdzv-id=ddp-1.2 --master-addr=10.0.0.1 \
                     --master-port=29500 --monitor-interval=0.5 --log-dir=/data/runs/ddp-1.2/ranks --redirects=3 \
                     /lib/c0ffee/recipes/ddp/main.py --batch-size 8 --steps 20 'a b' 'it'\\''s'"
                )
            );
            assert_eq!(launch.first_rank, node_rank * 4);
        }
    }

    #[test]
    fn a_resumed_attempt_says_where_by_variable_and_by_argument_when_asked() {
        let resumed = |resume_arg: Option<&str>, from: Option<&str>| {
            let launch = line(&Start {
                spec: Spec {
                    script: Some("/x.py".into()),
                    args: vec!["--epochs".into(), "3".into()],
                    resume_arg: resume_arg.map(Into::into),
                    ..Spec::default()
                },
                resume_from: from.map(Into::into),
                resume_step: Some(7),
                ..Start::default()
            });
            assert_eq!(launch.env.contains_key("LOCKSTEP_RESUME_STEP"), from.is_some());
            let script = launch.argv.iter().position(|word| word == "/x.py").expect("it");
            let variable = launch.env.get("LOCKSTEP_RESUME_FROM").cloned();
            (launch.argv[script + 3..].join(" "), variable)
        };
        let (nothing, path) = (String::new(), Some("/ckpt/step-7".to_owned()));
        assert_eq!(resumed(Some("--resume"), None), (nothing.clone(), None));
        assert_eq!(resumed(None, Some("/ckpt/step-7")), (nothing, path.clone()));
        assert_eq!(
            resumed(Some("--resume"), Some("/ckpt/step-7")),
            ("--resume /ckpt/step-7".into(), path.clone())
        );
        assert_eq!(
            resumed(Some("ckpt.path="), Some("/ckpt/step-7")),
            ("ckpt.path=/ckpt/step-7".into(), path)
        );
    }

    #[test]
    fn the_profiler_is_ours_when_requested_but_never_instead_of_the_users() {
        let with = Paths {
            nccl_plugin: Some("/lib/beef/libnccl_probe.so".into()),
            ..paths()
        };
        let plugin = |own: Option<&str>, paths: &Paths| {
            let own = own.map(|own| ("NCCL_PROFILER_PLUGIN".to_owned(), own.to_owned()));
            let start = Start {
                spec: Spec {
                    env: own.into_iter().collect(),
                    ..Spec::default()
                },
                ..Start::default()
            };
            let (run, node) = (
                RunId::new("ddp-1").expect("a name"),
                NodeName::new("n1").expect("a name"),
            );
            let launch = launch(&AttemptId::new(run, AttemptNo(2)), &node, &start, paths);
            launch.env.get("NCCL_PROFILER_PLUGIN").cloned()
        };
        assert_eq!(plugin(None, &paths()), None);
        assert_eq!(plugin(None, &with).as_deref(), Some("/lib/beef/libnccl_probe.so"));
        assert_eq!(plugin(Some("inspector"), &with).as_deref(), Some("inspector"));
    }

    #[test]
    fn the_profiler_waits_for_requests_only_if_it_is_enabled() {
        let kineto = |paths: &Paths| {
            let (run, node) = (
                RunId::new("ddp-1").expect("a name"),
                NodeName::new("n1").expect("a name"),
            );
            let launch = launch(
                &AttemptId::new(run, AttemptNo(2)),
                &node,
                &Start::default(),
                paths,
            );
            let set = launch
                .env
                .into_iter()
                .filter(|(name, _)| name.starts_with("KINETO"));
            set.map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
        };
        let with = Paths {
            kineto: Some("/data/k/c0ffee".into()),
            ..paths()
        };
        assert_eq!(kineto(&paths()), [""; 0]);
        assert_eq!(
            kineto(&with),
            [
                "KINETO_IPC_SOCKET_DIR=/data/k/c0ffee",
                "KINETO_LOG_LEVEL=5",
                "KINETO_USE_DAEMON=1"
            ]
        );
    }

    #[test]
    fn the_probe_comes_first_and_the_users_variables_stay() {
        let env = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        let spec = Spec {
            script: Some("/home/a/train.py".into()),
            workdir: Some("/home/a".into()),
            env: env(&[("PYTHONPATH", "/home/a/lib"), ("NCCL_DEBUG", "INFO")]),
            backend: Backend::Gloo,
            ..Spec::default()
        };
        let launch = line(&Start {
            spec,
            nnodes: 1,
            nproc: 2,
            ..Start::default()
        });
        assert_eq!(launch.workdir, "/home/a");
        assert_eq!(
            launch.env,
            env(&[
                ("CUDA_VISIBLE_DEVICES", ""),
                ("LOCKSTEP_ATTEMPT", "2"),
                ("LOCKSTEP_NODE", "n1"),
                ("LOCKSTEP_PROBE", "on"),
                ("LOCKSTEP_PROBE_SOCKET", "/data/runs/ddp-1.2/probe.sock"),
                ("LOCKSTEP_RUN", "ddp-1"),
                ("NCCL_DEBUG", "INFO"),
                ("PYTHONPATH", "/lib/c0ffee/inject:/home/a/lib"),
                ("PYTHONUNBUFFERED", "1"),
                ("TORCH_FR_BUFFER_SIZE", "2000"),
                ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"),
            ])
        );
    }

    #[test]
    fn the_flight_recorder_keeps_as_much_as_the_user_says() {
        let sizes = |own: &[(&str, &str)]| {
            let own = own
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let launch = line(&Start {
                spec: Spec {
                    env: own.collect(),
                    ..Spec::default()
                },
                ..Start::default()
            });
            FLIGHT_RECORDER_VARIABLES.map(|name| launch.env.get(name).cloned().unwrap_or_default())
        };
        assert_eq!(sizes(&[]), ["2000", "2000"]);
        assert_eq!(sizes(&[("TORCH_FR_BUFFER_SIZE", "100")]), ["100", ""]);
        assert_eq!(sizes(&[("TORCH_NCCL_TRACE_BUFFER_SIZE", "0")]), ["", "0"]);
    }
}
