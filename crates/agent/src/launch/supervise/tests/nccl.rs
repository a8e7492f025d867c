//! Tests of a run with nccl-probe, from the spec to the series: the ranks load the built plugin as NCCL does.

use std::path::PathBuf;
use std::process::Command;

use super::*;

/// Calls the plugin as NCCL 2.28 does: collectives to which rank 1 is 5 ms late. Then it waits to be stopped.
const COLLECTIVES: &str = r#"
import ctypes, os, time
from ctypes import byref, c_char_p, c_int, c_uint64, c_void_p
rank = int(os.environ["RANK"])
print(os.environ.get("NCCL_PROFILER_PLUGIN"), flush=True)
if not os.path.exists(os.environ["NCCL_PROFILER_PLUGIN"]):
    time.sleep(600)
table = (c_void_p * 6).in_dll(ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"]), "ncclProfiler_v5")
init = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, c_void_p, c_char_p, c_int, c_int, c_int, c_void_p)(table[1])
start = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)(table[2])
stop = ctypes.CFUNCTYPE(c_int, c_void_p)(table[3])
record = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)(table[4])
context, mask = c_void_p(), c_int()
assert init(byref(context), 0xC0FFEE, byref(mask), b"dp", 1, 2, rank, None) == 0
texts = [ctypes.create_string_buffer(text) for text in (b"AllReduce", b"ncclFloat32")]
for sequence in range(5):
    handle, channel, collective, kernel = c_void_p(), c_void_p(), (c_uint64 * 14)(), (c_uint64 * 14)()
    collective[0], collective[3], collective[7], collective[10] = 2, sequence, 1 << 20, 1
    collective[4], collective[9] = (ctypes.addressof(text) for text in texts)
    assert start(context, byref(handle), collective) == 0 and handle.value
    kernel[0], kernel[1], kernel[4] = 64, handle.value, 1_000_000_000
    assert start(context, byref(channel), kernel) == 0
    record(channel, 22, byref(c_uint64(1_000_000_000 + (2_000_000 if rank == 1 else 7_000_000))))
    stop(channel)
time.sleep(600)
"#;

/// Returns a folder with the plugin: the one built beside this test, or built now.
fn beside() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let folder = executable.parent().and_then(Path::parent).unwrap();
    let there = |folder: &Path| folder.join("libnccl_probe.so").is_file();
    for folder in [folder.to_owned(), folder.join("deps")] {
        if there(&folder) {
            return folder;
        }
    }
    let built = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["build", "--quiet", "--package", "nccl-probe", "--target-dir"])
        .arg(folder.parent().unwrap())
        .status();
    assert!(
        built.unwrap().success() && there(folder),
        "no plugin in {folder:?}"
    );
    folder.to_owned()
}

impl Agent {
    async fn start_collectives(&self, variables: &[(&str, &str)]) {
        std::fs::write(self.data.path().join("train.py"), COLLECTIVES).unwrap();
        let NodeReport::Prepared(prepared) = self.prepare().await else {
            panic!("cannot prepare")
        };
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let start = Start {
            spec: Spec {
                nccl_probe: true,
                env: variables.collect(),
                ..self.spec()
            },
            nnodes: 1,
            nproc: prepared.nproc_default,
            master_addr: "127.0.0.1".into(),
            master_port: prepared.port,
            ..Start::default()
        };
        self.command(3, NodeCommand::Start(Box::new(start))).unwrap();
    }

    /// A second may end between two collectives, so the last value counts.
    async fn becomes(&self, metric: &str, rank: &str, wanted: f64) {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let value = self.value(metric, rank).await;
            if (value - wanted).abs() < 1e-9 {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{metric} of rank {rank} stays {value}, not {wanted}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn state(&self, wanted: &str) {
        let deadline = Instant::now() + WAIT_MAX;
        let has = |sample: &crate::sample::sink::Sample| {
            sample.series.metric_name() == Some("nccl_probe_state")
                && sample.series.get("state") == Some(wanted)
        };
        while !self.samples.latest().iter().any(has) {
            assert!(Instant::now() < deadline, "the probe's state is never {wanted}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn collectives_of_a_run_become_series_and_the_late_rank_is_named() {
    let mut agent = Agent::new();
    agent.beside(beside()).await;
    agent
        .start_collectives(&[("LOCKSTEP_NCCL_TIMING", "always")])
        .await;
    agent.becomes("nccl_collectives_total", "0", 5.0).await;
    agent.becomes("nccl_bytes_total", "1", 5.0 * 4_194_304.0).await;
    agent.becomes("nccl_collective_seconds", "0", 0.007).await;
    agent.becomes("nccl_arrival_lateness_seconds", "1", 0.005).await;
    agent.becomes("nccl_arrival_lateness_seconds", "0", 0.0).await;
    agent.state("reporting").await;
    agent.command(4, NodeCommand::Stop { grace_ms: 1_000 }).unwrap();
    agent.end().await;
}

#[tokio::test]
async fn a_profiler_of_the_users_own_stays_and_that_is_shown() {
    let mut agent = Agent::new();
    agent.beside(beside()).await;
    agent
        .start_collectives(&[("NCCL_PROFILER_PLUGIN", "/nonexistent/theirs.so")])
        .await;
    agent.state("other_plugin").await;
    let folder = Folder::of(agent.data.path(), &agent.run, AttemptNo(1));
    let log = folder.path().join("ranks/x_1/attempt_0/0/stdout.log");
    let deadline = Instant::now() + WAIT_MAX;
    while std::fs::read_to_string(&log).unwrap_or_default() != "/nonexistent/theirs.so\n" {
        assert!(
            Instant::now() < deadline,
            "the rank does not have the user's plugin"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    agent.command(4, NodeCommand::Stop { grace_ms: 1_000 }).unwrap();
    agent.end().await;
}
