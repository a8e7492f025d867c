//! A collector that repeats the messages of an earlier release, with the agent under test. The run must succeed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::run::state::NodeReport;
use futures::FutureExt as _;
use prost::Message as _;
use serde_json::Value;
use tokio::sync::mpsc;
use wire::proto::telemetry_down::Message as Down;
use wire::proto::telemetry_up::Message as Up;
use wire::proto::{
    Ack, Command, ControlDown, ControlUp, EventAck, LogAck, TelemetryDown, TelemetryUp, control_down,
    control_up,
};
use wire::recording::{self, Recorded, Sender, Stream};

use super::agent_server::{AgentServer, Conversation};
use super::pair::{TIMEOUT, agent, kill_all_of};
use crate::product::environment::program;

#[test]
fn the_agent_trains_under_every_recorded_collector() {
    let recordings = recordings();
    assert!(!recordings.is_empty());
    for (name, messages) in recordings {
        let played = play(Script::of(&messages));
        let end = played
            .end
            .unwrap_or_else(|| panic!("{name}: no end among {:?}", played.reports));
        assert_eq!(end["code"], 0, "{name}: {end}");
        assert_eq!(played.reports["rank_exited"], 2, "{name}");
        assert!(played.logged.contains("step 1 loss"), "{name}: {}", played.logged);
        assert!(played.trained > 0, "{name}: samples of train_step");
    }
}

fn recordings() -> Vec<(String, Vec<Recorded>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/testdata/recorded");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| {
        let messages = recording::read(&std::fs::read(&path).unwrap()).unwrap();
        (path.display().to_string(), messages)
    };
    files.map(read).collect()
}

/// What the recorded collector sent, and when.
#[derive(Clone)]
struct Script {
    /// Its answers to the hello messages of the two streams.
    telemetry_hello: Vec<u8>,
    control_hello: Vec<u8>,
    /// Its commands, each with the number of reports of some kinds that came before it.
    commands: Vec<(Command, BTreeMap<String, usize>)>,
}

/// Reports that a collector waits for before it continues.
const AWAITED: [&str; 2] = ["accepted", "prepared"];

impl Script {
    fn of(messages: &[Recorded]) -> Self {
        let first = |stream| {
            let is_it = |message: &&Recorded| message.stream == stream && message.sender == Sender::Collector;
            messages.iter().find(is_it).unwrap().bytes.clone()
        };
        let (mut commands, mut before) = (Vec::new(), BTreeMap::new());
        for message in messages
            .iter()
            .filter(|message| message.stream == Stream::Control)
        {
            match message.sender {
                Sender::Agent => {
                    if let Some(kind) =
                        kind_of(&message.bytes).filter(|kind| AWAITED.contains(&kind.as_str()))
                    {
                        *before.entry(kind).or_default() += 1;
                    }
                }
                Sender::Collector => {
                    let down = ControlDown::decode(message.bytes.as_slice()).unwrap();
                    if let Some(control_down::Message::Command(command)) = down.message {
                        commands.push((command, before.clone()));
                    }
                }
            }
        }
        Self {
            telemetry_hello: first(Stream::Telemetry),
            control_hello: first(Stream::Control),
            commands,
        }
    }
}

fn kind_of(control_up: &[u8]) -> Option<String> {
    match ControlUp::decode(control_up).unwrap().message? {
        control_up::Message::Event(event) => {
            let report: Value = serde_json::from_str(&event.report_json).unwrap();
            Some(report["report"].as_str()?.to_owned())
        }
        _ => None,
    }
}

/// What the agent did.
#[derive(Debug, Default)]
struct Played {
    reports: BTreeMap<String, usize>,
    /// The port that it leased. The recorded port belongs to another machine.
    port: u16,
    end: Option<Value>,
    logged: String,
    /// Number of samples of `train_step`.
    trained: usize,
    names: BTreeMap<(String, usize), String>,
}

fn play(script: Script) -> Played {
    let folder = tempfile::tempdir().unwrap();
    let played = Arc::new(Mutex::new(Played::default()));
    let into = played.clone();
    let server = AgentServer::open(move |conversation| {
        let (script, played) = (script.clone(), into.clone());
        match conversation.stream {
            Stream::Telemetry => telemetry(script, conversation, played).boxed(),
            Stream::Control => control(script, conversation, played).boxed(),
        }
    });
    let _running = Running {
        agent: agent(
            &program(),
            &folder.path().join("agent"),
            &server.url(),
            "lsj_recorded",
        ),
        folder: folder.path().to_owned(),
    };
    let deadline = Instant::now() + TIMEOUT;
    let all_there =
        |played: &Played| played.end.is_some() && played.trained > 0 && played.logged.contains("step 1 loss");
    while !all_there(&played.lock().unwrap()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    std::mem::take(&mut *played.lock().unwrap())
}

struct Running {
    agent: Child,
    folder: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone_already = self.agent.kill();
        let _gone_already = self.agent.wait();
        kill_all_of(&self.folder);
    }
}

async fn telemetry(script: Script, mut conversation: Conversation, played: Arc<Mutex<Played>>) {
    while let Some(bytes) = conversation.up.recv().await {
        let answer = match TelemetryUp::decode(bytes.as_slice()).unwrap().message.unwrap() {
            Up::Hello(_) => script.telemetry_hello.clone(),
            Up::Batch(batch) => {
                played.lock().unwrap().note_batch(&batch);
                let ack = Ack {
                    segment: batch.segment,
                    seq: batch.seq,
                    ..Ack::default()
                };
                let message = Some(Down::Ack(ack));
                TelemetryDown { message }.encode_to_vec()
            }
            Up::Definitions(definitions) => {
                let mut played = played.lock().unwrap();
                for (index, series) in (definitions.first as usize..).zip(&definitions.series) {
                    let at = series
                        .labels
                        .iter()
                        .position(|label| label == "__name__")
                        .unwrap();
                    let key = (definitions.segment.clone(), index);
                    played.names.insert(key, series.labels[at + 1].clone());
                }
                continue;
            }
            Up::Event(_) => continue,
        };
        if conversation.down.send(answer).await.is_err() {
            return;
        }
    }
}

impl Played {
    fn note_batch(&mut self, batch: &wire::proto::Batch) {
        for frame in wire::frame::decode(batch).unwrap() {
            let is_step = |series: &&u32| {
                let name = self.names.get(&(batch.segment.clone(), **series as usize));
                name.is_some_and(|name| name == "train_step")
            };
            self.trained += frame.series.iter().filter(is_step).count() * frame.times_ms.len();
        }
    }

    fn note_report(&mut self, json: &str) {
        let report: Value = serde_json::from_str(json).unwrap();
        let kind = report["report"].as_str().unwrap().to_owned();
        if let Ok(NodeReport::Prepared(prepared)) = serde_json::from_str(json) {
            self.port = prepared.port;
        }
        if kind == "ended" {
            self.end = Some(report);
        }
        *self.reports.entry(kind).or_default() += 1;
    }
}

async fn control(script: Script, mut conversation: Conversation, played: Arc<Mutex<Played>>) {
    let mut commands = script.commands.into_iter().peekable();
    while let Some(bytes) = conversation.up.recv().await {
        let down = &conversation.down;
        match ControlUp::decode(bytes.as_slice()).unwrap().message.unwrap() {
            control_up::Message::Hello(_) => _ = down.send(script.control_hello.clone()).await,
            control_up::Message::Holding(_) | control_up::Message::Answer(_) => {}
            control_up::Message::Event(event) => {
                played.lock().unwrap().note_report(&event.report_json);
                let ack = EventAck {
                    run: event.run,
                    attempt: event.attempt,
                    id: event.id,
                };
                send(down, control_down::Message::EventAck(ack)).await;
            }
            control_up::Message::Log(chunk) => {
                if chunk.rank == 0 && chunk.stream == "stdout" {
                    played
                        .lock()
                        .unwrap()
                        .logged
                        .push_str(&String::from_utf8_lossy(&chunk.bytes));
                }
                let ack = LogAck {
                    length: chunk.offset + chunk.bytes.len() as u64,
                    run: chunk.run,
                    attempt: chunk.attempt,
                    rank: chunk.rank,
                    stream: chunk.stream,
                };
                send(down, control_down::Message::LogAck(ack)).await;
            }
        }
        while commands
            .peek()
            .is_some_and(|(_, before)| have_come(before, &played))
        {
            if let Some((command, _)) = commands.next() {
                let port = played.lock().unwrap().port;
                send(down, control_down::Message::Command(at_port(command, port))).await;
            }
        }
    }
}

fn have_come(before: &BTreeMap<String, usize>, played: &Mutex<Played>) -> bool {
    let reports = &played.lock().unwrap().reports;
    before
        .iter()
        .all(|(kind, count)| reports.get(kind).is_some_and(|came| came >= count))
}

/// Returns the same command with the port that this agent leased, in place of the recorded port.
fn at_port(command: Command, port: u16) -> Command {
    let mut asked: Value = serde_json::from_str(&command.command_json).unwrap();
    if asked["command"] != "start" {
        return command;
    }
    asked["master_port"] = port.into();
    Command {
        command_json: asked.to_string(),
        ..command
    }
}

async fn send(down: &mpsc::Sender<Vec<u8>>, message: control_down::Message) {
    let message = Some(message);
    let _gone = down.send(ControlDown { message }.encode_to_vec()).await;
}
