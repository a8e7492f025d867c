//! Tests with ranks that answer, ranks that cannot, and servers that answer with arbitrary data.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use domain::run::inspect::{ProcessState, TraceLength, parse_threads};
use domain::run::secret::SecretValue;
use domain::run::spec::Spec;
use domain::run::state::Start;
use rustix::process::{Pid, Signal, kill_process};
use shim::{Reports, SHIM_IDS_FROM};

use super::*;
use crate::launch::companions;
use crate::launch::testing::python_with_torch;

const SOON: Duration = Duration::from_millis(400);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The folder of an attempt whose ranks are these processes.
struct Scene {
    data: tempfile::TempDir,
    folder: Folder,
    children: Vec<Child>,
}

impl Scene {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path().join("runs").join("r.1"));
        folder.create().unwrap();
        Self {
            data,
            folder,
            children: Vec::new(),
        }
    }

    fn has_rank(&self, rank: u32, pid: u32) {
        let mut reports = Reports::open(&self.folder.file(files::SHIM_REPORTS), SHIM_IDS_FROM).unwrap();
        let started = NodeReport::RankStarted {
            rank: Rank(rank),
            local_rank: rank,
            pid,
        };
        reports.add(1, started).unwrap();
    }

    fn spawn(&mut self, rank: u32, command: &mut Command) -> u32 {
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        self.children.push(child);
        self.has_rank(rank, pid);
        pid
    }

    /// Starts a rank's server that answers each request with these bytes, and then holds or closes the connection.
    fn serves(&self, rank: u32, answer: impl Into<Vec<u8>>, holds: bool) {
        serve(&self.folder.rank_socket(rank), answer.into(), holds);
    }

    async fn ask(&self, what: What) -> Vec<Answer> {
        let (said, mut answers) = mpsc::channel(8);
        let folder = self.folder.clone();
        let question = Question { rank: None, what };
        let asked = tokio::spawn(async move { answer(&folder, question, &said).await });
        let mut all = Vec::new();
        while let Some((answer, _)) = answers.recv().await {
            all.push(answer);
        }
        asked.await.unwrap();
        all
    }

    async fn ask_rank(&self, what: What) -> RankAnswer {
        match &self.ask(what).await[..] {
            [Answer::Rank(answer)] => (**answer).clone(),
            other => panic!("one rank, one answer: {other:?}"),
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

fn serve(path: &Path, answer: Vec<u8>, holds: bool) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut held) = (stream.unwrap(), [0; 1_024]);
            let _heard = stream.read(&mut held);
            let _gone = stream.write_all(&answer);
            while holds && stream.read(&mut held).is_ok_and(|bytes| bytes > 0) {}
        }
    });
}

fn http(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn every_answer_of_a_server_is_bounded_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(9 << 20));
    let endless_head = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(1 << 20));
    for (n, (answer, holds, expected)) in [
        (http("200 OK", "pong"), false, Ok("pong")),
        (endless, false, Err("answered with more than 8388608 bytes")),
        (endless_head, true, Err("answered with invalid HTTP")),
        (String::new(), true, Err("did not answer within 0 s")),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".into(),
            true,
            Err("did not answer within 0 s"),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".into(),
            false,
            Err("answered with invalid HTTP"),
        ),
        (
            "nonsense\r\n\r\n".into(),
            false,
            Err("answered with invalid HTTP"),
        ),
        (
            http("404 Not Found", ""),
            false,
            Err("its PyTorch does not support this request"),
        ),
        (
            http("500 Internal Server Error", "no disk"),
            false,
            Err("answered with HTTP status 500"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let socket = folder.path().join(format!("{n}.sock"));
        serve(&socket, answer.into_bytes(), holds);
        let silent = matches!(expected, Err(expected) if expected.starts_with("did not answer"));
        let within = if silent { SOON } else { WAIT_MAX };
        match (server::ask(&socket, "ping", within).await, expected) {
            (Ok(body), Ok(expected)) => assert_eq!(body, expected.as_bytes()),
            (Err(error), Err(expected)) => assert!(error.to_string().starts_with(expected), "{n}: {error}"),
            (heard, _) => panic!("{n}: {heard:?}"),
        }
    }
}

#[tokio::test]
async fn the_error_for_a_missing_server_names_the_likely_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join("left.sock");
    drop(UnixListener::bind(&left).unwrap());
    for socket in [&left, &folder.path().join("none.sock")] {
        let error = server::ask(socket, "ping", SOON).await.unwrap_err().to_string();
        assert!(error.contains("LOCKSTEP_WORKER_SERVER=off"), "{error}");
    }
}

#[tokio::test]
async fn a_socket_in_a_folder_with_a_long_name_is_reached() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("x".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let short = folder.path().join("rank-0.sock");
    serve(&short, http("200 OK", "pong").into_bytes(), false);
    std::fs::rename(&short, deep.join("rank-0.sock")).unwrap();
    let body = server::ask(&deep.join("rank-0.sock"), "ping", WAIT_MAX)
        .await
        .unwrap();
    assert_eq!(body, b"pong");
}

#[tokio::test]
async fn a_stopped_rank_is_read_from_the_kernel_without_a_wait() {
    let mut scene = Scene::new();
    let pid = scene.spawn(0, Command::new("sleep").arg("600"));
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let sleeping = scene.ask_rank(What::Stacks).await;
    assert!(
        sleeping.problem.starts_with("cannot be inspected"),
        "{}",
        sleeping.problem
    );
    kill_process(pid, Signal::STOP).unwrap();
    let stopped = loop {
        let answer = scene.ask_rank(What::Stacks).await;
        if answer.problem.contains("is stopped") {
            break answer;
        }
    };
    let state = stopped.process.unwrap();
    assert_eq!(
        (stopped.text, state.state.as_str()),
        (None, "T (stopped by a signal)")
    );
    kill_process(pid, Signal::KILL).unwrap();
    scene.children[0].wait().unwrap();
    assert_eq!(
        scene.ask(What::Stacks).await,
        [],
        "a rank that has ended is not asked"
    );
}

#[tokio::test]
async fn answers_are_read_as_what_they_are_and_secrets_stay_hidden() {
    let scene = Scene::new();
    let secret = [("TOKEN".to_owned(), SecretValue::new("hf_0123456789abcdef"))];
    Secrets::note(&scene.folder, &secret.into()).unwrap();
    let own = std::process::id();
    let stack = "Thread 0x1 (most recent call first):\n  File \"/x/hf_0123456789abcdef.py\", line 7 in f\n";
    for (rank, body) in [
        stack.to_owned(),
        r#"{"a": {"total_calls": 1}, "b": "hf_0123456789abcdef"}"#.to_owned(),
        "[".repeat(100_000),
        format!("\"{}\"", "x".repeat(300_000)),
    ]
    .into_iter()
    .enumerate()
    {
        let rank = u32::try_from(rank).unwrap();
        scene.has_rank(rank, own);
        scene.serves(rank, http("200 OK", &body), false);
    }
    let of = async |what| {
        let answers = scene.ask(what).await.into_iter().map(|answer| match answer {
            Answer::Rank(answer) => *answer,
            other => panic!("{other:?}"),
        });
        let mut all: Vec<RankAnswer> = answers.collect();
        all.sort_by_key(|answer| answer.rank);
        all
    };
    let stacks = of(What::Stacks).await;
    let threads = parse_threads(stacks[0].text.as_deref().unwrap()).threads;
    assert_eq!(threads[0].frames[0].file, "/x/*******************.py");
    assert!(
        stacks[3].cut
            && stacks[3]
                .text
                .as_ref()
                .is_some_and(|text| text.len() == STACKS_BYTES_MAX)
    );
    let counters = of(What::WaitCounters).await;
    assert!(counters[0].problem.contains("invalid JSON"), "{:?}", counters[0]);
    assert_eq!(counters[1].json.as_ref().unwrap()["b"], "[redacted]");
    assert!(
        counters[2].problem.contains("invalid JSON"),
        "an abyss of brackets: {:?}",
        counters[2].problem
    );
    assert!(
        counters[3].problem.contains("more than the 262144"),
        "{:?}",
        counters[3].problem
    );
}

/// Starts a rank's server with one answer per handler name.
fn serve_handlers(path: &Path, answers: &[(&'static str, String)]) {
    let (listener, answers) = (UnixListener::bind(path).unwrap(), answers.to_vec());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut held) = (stream.unwrap(), [0; 1_024]);
            let length = stream.read(&mut held).unwrap_or(0);
            let question = String::from_utf8_lossy(&held[..length]).into_owned();
            let asked = |(name, _): &&(&str, String)| question.contains(&format!("/handler/{name} "));
            let answer = answers.iter().find(asked).map(|(_, answer)| answer.as_str());
            let _gone = stream.write_all(answer.unwrap_or(&http("404 Not Found", "")).as_bytes());
        }
    });
}

#[tokio::test]
async fn the_dump_of_one_recorder_is_reported_when_the_other_fails() {
    let gloo = r#"{"entries": [{"record_id": 7}]}"#;
    let failed = http("500 Internal Server Error", "");
    for (answers, expected) in [
        (
            [
                ("fr_trace_json", http("200 OK", gloo)),
                ("dump_nccl_trace_json", failed.clone()),
            ],
            (true, "answered with HTTP status 500"),
        ),
        (
            [
                ("fr_trace_json", http("200 OK", "{")),
                ("dump_nccl_trace_json", http("200 OK", gloo)),
            ],
            (true, "answered with invalid JSON"),
        ),
        (
            [
                ("fr_trace_json", failed.clone()),
                ("dump_nccl_trace_json", failed.clone()),
            ],
            (false, "answered with HTTP status 500"),
        ),
        (
            [
                ("fr_trace_json", http("200 OK", gloo)),
                ("another", failed.clone()),
            ],
            (true, ""),
        ),
    ] {
        let scene = Scene::new();
        scene.has_rank(0, std::process::id());
        serve_handlers(&scene.folder.rank_socket(0), &answers);
        let answer = scene.ask_rank(What::Flight).await;
        let told = answer
            .json
            .as_ref()
            .is_some_and(|json| json["entries"][0]["record_id"] == 7);
        assert_eq!(told, expected.0, "{answer:?}");
        assert!(answer.problem.starts_with(expected.1), "{answer:?}");
        assert_eq!(answer.problem.is_empty(), expected.1.is_empty(), "{answer:?}");
    }
}

#[tokio::test]
async fn secrets_are_hidden_in_what_json_means() {
    let scene = Scene::new();
    let secrets = [("A", "say \"friend\" and enter"), ("B", "12345678")];
    let secrets = secrets.map(|(name, value)| (name.to_owned(), SecretValue::new(value)));
    Secrets::note(&scene.folder, &secrets.into()).unwrap();
    scene.has_rank(0, std::process::id());
    let body = serde_json::json!({
        "said": "say \"friend\" and enter", "by 12345678": [{"x": "a 12345678 b"}], "time": 1_123_456_789,
    });
    scene.serves(0, http("200 OK", &body.to_string()), false);
    let told = scene.ask_rank(What::WaitCounters).await;
    let expected = serde_json::json!({
        "said": "[redacted]", "by [redacted]": [{"x": "a [redacted] b"}], "time": 1_123_456_789,
    });
    assert_eq!(told.json, Some(expected), "{}", told.problem);
}

const RANK: &str = r"
import ctypes, pathlib, sys, time
import torch
def waits_here():
    time.sleep(600)
def holds_the_lock():
    pathlib.Path(sys.argv[1]).touch()
    ctypes.PyDLL(None).sleep(600)
waits_here() if len(sys.argv) == 1 else holds_the_lock()
";

#[tokio::test]
async fn stacks_of_a_rank_with_torch_and_of_one_that_holds_pythons_lock() {
    let Some(python) = python_with_torch() else { return };
    let mut scene = Scene::new();
    let inject = companions::unpack(scene.data.path()).unwrap().join("inject");
    let held = scene.data.path().join("held");
    for rank in 0..2 {
        let mut command = Command::new(&python);
        command
            .args(["-c", RANK])
            .env("PYTHONPATH", &inject)
            .env("LOCKSTEP_PROBE_SOCKET", scene.folder.file(files::PROBE_SOCKET))
            .envs(
                [
                    ("RANK", rank),
                    ("LOCAL_RANK", rank),
                    ("WORLD_SIZE", 2),
                    ("TORCHELASTIC_RUN_ID", 1),
                ]
                .map(|(name, n)| (name, n.to_string())),
            );
        if rank == 1 {
            command.arg(&held);
        }
        scene.spawn(rank, &mut command);
    }
    let began = Instant::now();
    let (first, second) = loop {
        assert!(
            began.elapsed() < WAIT_MAX * 3,
            "the ranks never came to their places"
        );
        let answers = if held.exists() {
            scene.ask(What::Stacks).await
        } else {
            Vec::new()
        };
        let of = |rank| {
            answers.iter().find_map(|answer| match answer {
                Answer::Rank(answer) if answer.rank == Rank(rank) => Some((**answer).clone()),
                _ => None,
            })
        };
        match (of(0), of(1)) {
            (Some(first), Some(second))
                if first
                    .text
                    .as_ref()
                    .is_some_and(|text| text.contains("waits_here")) =>
            {
                break (first, second);
            }
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    let threads = parse_threads(&first.text.unwrap()).threads;
    let main: Vec<&str> = threads
        .last()
        .unwrap()
        .frames
        .iter()
        .map(|frame| frame.function.as_str())
        .collect();
    assert_eq!(main, ["waits_here", "<module>"]);
    assert!(
        second.problem.starts_with("did not answer within 5 s"),
        "{}",
        second.problem
    );
    let ProcessState { state, wchan, .. } = second.process.unwrap();
    assert!(
        state.starts_with('S') && (wchan.is_empty() || wchan.contains("sleep")),
        "{state} {wchan}"
    );
}

// === Kineto ===

fn started_for_traces(scene: &Scene, kineto: bool) {
    started(
        scene,
        Spec {
            kineto,
            ..Spec::default()
        },
    );
}

fn started(scene: &Scene, spec: Spec) {
    let start = Start {
        spec,
        ..Start::default()
    };
    scene.folder.write_json(files::START, &start).unwrap();
}

#[tokio::test]
async fn a_trace_is_refused_where_no_profiler_waits_and_while_another_is_recorded() {
    let scene = Scene::new();
    let what = What::Trace(TraceLength::Seconds(1));
    started_for_traces(&scene, false);
    let refused = async |expected: &str| match &scene.ask(what.clone()).await[..] {
        [Answer::Failed { message }] => assert!(message.contains(expected), "{message}"),
        other => panic!("{other:?}"),
    };
    refused("`kineto = true`").await;
    started_for_traces(&scene, true);
    let lock = std::fs::File::create(kineto::prepare(&scene.folder).unwrap().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    refused("is being recorded already").await;
}

fn request(kind: i32) -> Vec<u8> {
    let mut message = vec![0_u8; 40];
    message[..8].copy_from_slice(&24_u64.to_ne_bytes());
    message[8..11].copy_from_slice(b"req");
    for number in [kind, 1, 0, 0, 1, 0] {
        message.extend(number.to_ne_bytes());
    }
    message
}

/// A stand-in for Kineto that sends a request among meaningless datagrams, and writes the requested file.
#[tokio::test]
async fn a_profiler_gets_its_settings_once_and_its_file_is_fetched_in_pieces() {
    let scene = Scene::new();
    started_for_traces(&scene, true);
    scene.has_rank(3, std::process::id());
    let meeting = kineto::prepare(&scene.folder).unwrap();
    let client = |name: &str, patience| {
        let socket = UnixDatagram::bind(meeting.join(name)).unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        socket
    };
    let (ours, stranger) = (client("dynoconfigclient-1", WAIT_MAX), client("another", SOON));
    let daemon = meeting.join("dynolog");
    let body = format!("{{\"traceEvents\": [\"{}\"]}}", "x".repeat(3 << 20));
    let expected = body.clone();
    let profiler = std::thread::spawn(move || {
        let began = Instant::now();
        // A datagram that is sent before the daemon is there is lost, as with Kineto.
        while stranger.send_to(&request(2), &daemon).is_err() {
            assert!(began.elapsed() < WAIT_MAX);
            std::thread::sleep(Duration::from_millis(10));
        }
        for hostile in [&b""[..], b"x", &[0; 40], &[255; 4_000], &request(0)] {
            let _full = ours.send_to(hostile, &daemon);
        }
        ours.send_to(&request(2), &daemon).unwrap();
        let mut bytes = [0; 4_096];
        let length = ours.recv(&mut bytes).unwrap();
        let config = String::from_utf8_lossy(&bytes[40..length]).into_owned();
        let size = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
        assert_eq!((size as usize, &bytes[8..11]), (length - 40, &b"req"[..]));
        assert!(
            stranger.recv(&mut bytes).is_err(),
            "a socket that is none of Kineto's is not written to"
        );
        let file = config
            .lines()
            .find_map(|line| line.strip_prefix("ACTIVITIES_LOG_FILE="))
            .unwrap();
        std::fs::write(file.replace(".json", "_77.json.tmp"), "{").unwrap();
        std::fs::write(file.replace(".json", "_77.json.new"), body).unwrap();
        std::fs::rename(
            file.replace(".json", "_77.json.new"),
            file.replace(".json", "_77.json"),
        )
        .unwrap();
        config
    });
    let answer = scene.ask_rank(What::Trace(TraceLength::Steps(3))).await;
    let config = profiler.join().unwrap();
    assert!(config.contains("ACTIVITIES_ITERATIONS=3"), "{config}");
    let trace = answer.trace.expect(&answer.problem);
    assert_eq!(trace.bytes, expected.len() as u64);
    let mut fetched = Vec::new();
    while (fetched.len() as u64) < trace.bytes {
        let (answer, piece) = trace_piece(&scene.folder, &trace.file, fetched.len() as u64).unwrap();
        assert!(answer == Answer::Piece { length: trace.bytes } && !piece.is_empty());
        fetched.extend(piece);
    }
    assert!(fetched == expected.as_bytes());
    let (_, behind) = trace_piece(&scene.folder, &trace.file, u64::MAX).unwrap();
    assert!(behind.is_empty());
}

/// The file is sparse. It stands for a trace that is too large.
#[tokio::test]
async fn a_trace_that_would_never_be_fetched_does_not_stay() {
    let scene = Scene::new();
    started_for_traces(&scene, true);
    scene.has_rank(0, std::process::id());
    let meeting = kineto::prepare(&scene.folder).unwrap();
    let client = UnixDatagram::bind(meeting.join("dynoconfigclient-1")).unwrap();
    client.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let profiler = std::thread::spawn(move || {
        let began = Instant::now();
        while client.send_to(&request(2), meeting.join("dynolog")).is_err() {
            assert!(began.elapsed() < WAIT_MAX);
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut bytes = [0; 4_096];
        let length = client.recv(&mut bytes).unwrap();
        let config = String::from_utf8_lossy(&bytes[40..length]).into_owned();
        let file = config
            .lines()
            .find_map(|line| line.strip_prefix("ACTIVITIES_LOG_FILE="))
            .unwrap();
        let (whole, begun) = (
            file.replace(".json", "_7.json"),
            file.replace(".json", "_7.json.tmp"),
        );
        let trace = std::fs::File::create(&begun).unwrap();
        trace.set_len(TRACE_BYTES_MAX + 1).unwrap();
        std::fs::rename(begun, &whole).unwrap();
        whole
    });
    let answer = scene.ask_rank(What::Trace(TraceLength::Seconds(1))).await;
    let file = profiler.join().unwrap();
    assert!(
        answer.trace.is_none() && answer.problem.contains("record fewer steps"),
        "{answer:?}"
    );
    assert!(!Path::new(&file).exists());
}

/// Starts a run that records traces and has the secret `TOKEN`.
fn started_with_secret(scene: &Scene) {
    let spec = Spec {
        kineto: true,
        secrets: [("TOKEN".to_owned(), SecretValue::default())].into(),
        ..Spec::default()
    };
    started(scene, spec);
}

#[test]
fn a_trace_is_returned_without_secrets_or_not_at_all() {
    let scene = Scene::new();
    started_with_secret(&scene);
    let values = [("TOKEN".to_owned(), SecretValue::new("hf_0123456789abcdef"))];
    Secrets::note(&scene.folder, &values.into()).unwrap();
    let file = "rank-0-1_7.json";
    std::fs::create_dir(scene.folder.file(files::TRACES)).unwrap();
    let trace = scene.folder.file(files::TRACES).join(file);
    std::fs::write(trace, b"{\"x\": \"hf_0123456789abcdef\"}").unwrap();
    let (_, piece) = trace_piece(&scene.folder, file, 0).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&piece),
        "{\"x\": \"*******************\"}"
    );
    let (_, middle) = trace_piece(&scene.folder, file, 10).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&middle),
        "****************\"}",
        "three bytes of it lie before"
    );
    Secrets::remove(&scene.folder);
    let error = trace_piece(&scene.folder, file, 0).unwrap_err().to_string();
    assert!(error.contains("the secret TOKEN is no longer kept"), "{error}");
}

#[tokio::test]
async fn lanes_of_a_trace_are_read_on_the_node_also_when_its_secrets_are_no_longer_kept() {
    let scene = Scene::new();
    started_with_secret(&scene);
    std::fs::create_dir(scene.folder.file(files::TRACES)).unwrap();
    let ask = async |file: &str, content: &str| {
        std::fs::write(scene.folder.file(files::TRACES).join(file), content).unwrap();
        let file = file.to_owned();
        match scene.ask(What::TraceLanes { file }).await.pop() {
            Some(Answer::Lanes(answer)) => *answer,
            other => panic!("{other:?}"),
        }
    };
    let kernel = |name: &str, start: u32| {
        format!(
            r#"{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {start}.000, "dur": 10.000}}"#
        )
    };
    let (gather, gemm) = (kernel("ncclDevKernel_AllGather_RING_LL", 0), kernel("gemm", 6));
    let trace = format!(r#"{{"traceEvents": [{gather}, {gemm}], "note": "hf_0123456789abcdef"}}"#);
    let answer = ask("rank-0-1_7.json", &trace).await;
    let lanes = answer.lanes.expect(&answer.problem);
    assert_eq!(
        (lanes.steps[0].communication_ns, lanes.steps[0].exposed_ns),
        (10_000, 6_000)
    );
    let answer = ask("rank-0-2_7.json", "{\"traceEvents\": []}").await;
    assert!(
        answer.lanes.is_none() && answer.problem.contains("neither GPU kernels"),
        "{answer:?}"
    );
    let file = "rank-0-3_7.json".to_owned();
    match &scene.ask(What::TraceLanes { file }).await[..] {
        [Answer::Failed { message }] => assert!(message.contains("cannot be read on the node"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_a_regular_file_is_read_as_a_trace() {
    let scene = Scene::new();
    let traces = scene.folder.file(files::TRACES);
    std::fs::create_dir(&traces).unwrap();
    let elsewhere = scene.data.path().join("elsewhere.json");
    std::fs::write(&elsewhere, "{}").unwrap();
    std::os::unix::fs::symlink(&elsewhere, traces.join("rank-0-1_7.json")).unwrap();
    std::fs::create_dir(traces.join("rank-0-2_7.json")).unwrap();
    let pipe = traces.join("rank-0-3_7.json");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    for file in ["rank-0-1_7.json", "rank-0-2_7.json", "rank-0-3_7.json"] {
        assert!(open_trace(&scene.folder, file).is_err(), "{file}");
    }
    std::fs::rename(&elsewhere, traces.join("rank-0-4_7.json")).unwrap();
    assert_eq!(open_trace(&scene.folder, "rank-0-4_7.json").unwrap().1, 2);
}

#[test]
fn no_name_leads_out_of_the_folder_of_traces() {
    let scene = Scene::new();
    for name in [
        "",
        "rank-.json",
        "../start.json",
        "rank-/../../x.json",
        "rank-0.json/..",
        "start.json",
        "rank-0-1.txt",
    ] {
        let error = trace_piece(&scene.folder, name, 0).unwrap_err();
        assert!(
            error.to_string().contains("is not the name of a trace"),
            "{name:?}: {error}"
        );
    }
}

#[test]
fn a_folder_too_deep_for_the_profilers_sockets_is_refused_with_what_to_do() {
    let deep = Folder::at(format!("/var/lib/{}/runs/r.1", "x".repeat(40)));
    let error = kineto::meeting_folder(&deep).unwrap_err();
    assert!(error.contains("shorter --data-dir"), "{error}");
    let usual = Folder::at("/home/somebody/.local/share/lockstep/agent/runs/a-very-long-name.1");
    assert!(kineto::meeting_folder(&usual).is_ok());
}

// === digests of the Flight Recorder ===

/// A recorder's answer with these collectives of the default process group: number, retired.
fn recorded(collectives: &[(u64, bool)]) -> String {
    let entry = |(sequence, retired): &(u64, bool)| {
        serde_json::json!({
            "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce", "collective_seq_id": sequence,
            "is_p2p": false, "retired": retired, "state": "scheduled", "input_sizes": [[4]], "input_dtypes": ["Float"],
        })
    };
    let entries: Vec<_> = collectives.iter().map(entry).collect();
    http("200 OK", &serde_json::json!({"entries": entries}).to_string())
}

#[tokio::test]
async fn a_digest_is_returned_only_if_it_accuses_no_rank_wrongly() {
    let nothing = recorded(&[]);
    let sleeping = |kept: Option<&str>| {
        let mut command = Command::new("sleep");
        command.arg("600").env_remove("TORCH_FR_BUFFER_SIZE");
        kept.into_iter().for_each(|kept| {
            command.env("TORCH_FR_BUFFER_SIZE", kept);
        });
        command
    };
    for (kept, recorder, expected) in [
        (Some("2000"), Some(recorded(&[(1, true), (2, false)])), Ok(2)),
        (None, Some(recorded(&[(1, true)])), Ok(1)),
        (Some("2000"), Some(nothing.clone()), Ok(0)),
        (
            Some("0"),
            Some(nothing.clone()),
            Err("records nothing: TORCH_FR_BUFFER_SIZE is 0"),
        ),
        (None, Some(nothing.clone()), Err("may record nothing")),
        (
            Some("2000"),
            None,
            Err("has recorded nothing: with Gloo its PyTorch has no Flight Recorder; 2.8"),
        ),
        (
            Some("2000"),
            Some(http("500 Internal Server Error", "")),
            Err("answered with HTTP status 500"),
        ),
        (
            Some("2000"),
            Some(http("200 OK", "{")),
            Err("answered with invalid JSON"),
        ),
    ] {
        let mut scene = Scene::new();
        scene.spawn(0, &mut sleeping(kept));
        let mut handlers = vec![("dump_nccl_trace_json", nothing.clone())];
        handlers.extend(recorder.map(|answer| ("fr_trace_json", answer)));
        serve_handlers(&scene.folder.rank_socket(0), &handlers);
        std::fs::write(
            scene.folder.rank_groups(0),
            r#"{"0": "0-3", "1": "0,2", "2": "x"}"#,
        )
        .unwrap();
        let answer = scene.ask_rank(What::FlightDigest).await;
        assert_eq!(answer.json, None);
        match (answer.digest, expected) {
            (Some(digest), Ok(last)) => {
                assert_eq!(answer.problem, "");
                let told: Vec<_> = digest
                    .groups
                    .iter()
                    .map(|group| (&*group.name, group.members.to_string()))
                    .collect();
                assert_eq!(told, [("0", "0-3".to_owned()), ("1", "0,2".to_owned())]);
                assert_eq!(digest.groups[0].last_enqueued.unwrap_or(0), last);
            }
            (None, Err(problem)) => assert!(answer.problem.starts_with(problem), "{}", answer.problem),
            (digest, _) => panic!("{kept:?}: {digest:?} {}", answer.problem),
        }
    }
}

const HANGS: &str = r#"
import ctypes, os, signal
import torch, torch.distributed as dist
dist.init_process_group("gloo")
pair = dist.new_group([0, 3], group_desc="pair")
rank = dist.get_rank()
for _ in range(3):
    dist.all_reduce(torch.ones(4))
if rank in (0, 3):
    dist.all_reduce(torch.ones(2), group=pair)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 2:
    ctypes.PyDLL(None).sleep(600)
dist.all_reduce(torch.ones(2, 3))
"#;

/// Ranks below a torchrun. They are killed at the end, whatever their launcher does.
struct Torchrun(Vec<Process>);

impl Drop for Torchrun {
    fn drop(&mut self) {
        self.0.iter().for_each(|rank| rank.signal(Signal::KILL));
    }
}

impl Torchrun {
    async fn of(scene: &mut Scene, python: &Path, script: &str, count: u32) -> Self {
        let inject = companions::unpack(scene.data.path()).unwrap().join("inject");
        let file = scene.data.path().join("train.py");
        std::fs::write(&file, script).unwrap();
        let launcher = Command::new(python)
            .args(["-m", "torch.distributed.run", "--standalone"])
            .arg(format!("--nproc-per-node={count}"))
            .arg(file)
            .envs([
                ("PYTHONPATH", inject.as_os_str()),
                (
                    "LOCKSTEP_PROBE_SOCKET",
                    scene.folder.file(files::PROBE_SOCKET).as_os_str(),
                ),
                ("TORCH_FR_BUFFER_SIZE", "2000".as_ref()),
                ("OMP_NUM_THREADS", "1".as_ref()),
            ])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(launcher.id()).unwrap();
        scene.children.push(launcher);
        let (mut ranks, began) = (Self(Vec::new()), Instant::now());
        while ranks.0.len() < count as usize {
            assert!(
                began.elapsed() < WAIT_MAX * 2,
                "torchrun has not started its ranks"
            );
            for child in shim::children(pid) {
                let process = Process::of(child).filter(|process| !ranks.0.contains(process));
                if let (Some(process), Some((_, rank))) = (process, shim::RankProcess::recognise(child)) {
                    shim::page::create(&scene.folder, rank.rank).unwrap();
                    scene.has_rank(rank.rank, child.unsigned_abs());
                    ranks.0.push(process);
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        ranks
    }
}

#[tokio::test]
async fn the_digest_of_a_hang_shows_which_ranks_wait_and_which_are_missing() {
    let Some(python) = python_with_torch() else { return };
    let mut scene = Scene::new();
    let _ranks = Torchrun::of(&mut scene, &python, HANGS, 4).await;
    let began = Instant::now();
    let is_there = |answers: &[RankAnswer]| {
        let world = |rank: usize| answers.get(rank)?.digest.as_ref()?.groups.first();
        // The fourth collective is the one that hangs: an earlier one may be seen while it is still under way.
        let waits = |rank| {
            world(rank)
                .is_some_and(|group| group.last_enqueued == Some(4) && group.oldest_unfinished.is_some())
        };
        let has_come = world(2).is_some_and(|group| group.last_enqueued == Some(3));
        waits(0) && waits(3) && has_come && answers[1].problem.contains("is stopped")
    };
    let answers = loop {
        let all = scene
            .ask(What::FlightDigest)
            .await
            .into_iter()
            .map(|answer| match answer {
                Answer::Rank(answer) => *answer,
                other => panic!("{other:?}"),
            });
        let mut answers: Vec<RankAnswer> = all.collect();
        answers.sort_by_key(|answer| answer.rank);
        if is_there(&answers) {
            break answers;
        }
        assert!(
            began.elapsed() < WAIT_MAX * 3,
            "the ranks never came to their places: {answers:#?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let world = |rank: usize| answers[rank].digest.as_ref().unwrap().groups[0].clone();
    for rank in [0, 3] {
        let group = world(rank);
        let unfinished = group.oldest_unfinished.clone().unwrap();
        assert_eq!(
            (
                group.members.to_string(),
                group.last_enqueued,
                group.last_completed
            ),
            ("0-3".into(), Some(4), Some(3))
        );
        assert_eq!(
            (
                unfinished.sequence,
                &*unfinished.name,
                &*unfinished.sizes,
                &*unfinished.dtypes
            ),
            (4, "gloo:all_reduce", "[[2,3]]", "Float")
        );
        let pair = &answers[rank].digest.as_ref().unwrap().groups[1];
        assert_eq!(
            (&*pair.description, pair.members.to_string()),
            ("pair", "0,3".into())
        );
    }
    let spinning = world(2);
    assert_eq!(
        (
            spinning.members.to_string(),
            spinning.last_enqueued,
            spinning.oldest_unfinished
        ),
        ("0-3".into(), Some(3), None)
    );
    assert_eq!(answers[1].digest, None);
    let groups: Vec<usize> = [0, 2, 3]
        .map(|rank| answers[rank].digest.as_ref().unwrap().groups.len())
        .into();
    assert_eq!(groups, [2, 1, 2]);
    // The pages also report the ranks that cannot answer.
    let phase = |rank: u32| {
        shim::page::Page::open(&scene.folder, rank)
            .unwrap()
            .read()
            .unwrap()
            .phase
    };
    assert_eq!([0, 1, 2, 3].map(phase), [10, 3, 3, 10]);
}
