//! Agents of earlier releases, message by message: recordings of `cargo xtask lab upgrade --record`, replayed against this collector.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use domain::ident::RunId;
use domain::run::state::{Machine, NodeCommand, RunState};
use domain::run::stored::V1;
use prost::Message as _;
use store::state::runs::{RunAction, RunRecord};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};
use wire::proto::uplink_client::UplinkClient;
use wire::proto::{
    Command, ControlDown, ControlUp, TelemetryUp, control_down, control_up, telemetry_down, telemetry_up,
};
use wire::recording::{self, Recorded, Sender, Stream};
use wire::telemetry::{Endpoint, Receiving, Sending};

use crate::harness::{DEADLINE, Server, config, until};
use crate::runs::run_is;

/// Samples are as old as the recording. They must neither be rejected as too late nor expire in the store.
const AGE_MS_MAX: i64 = 100 * 365 * 86_400_000;

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_every_recorded_agent_end_well_with_all_they_sent() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/testdata/recorded");
    let mut replayed = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = std::fs::read(entry.unwrap().path()).unwrap();
        replay(&recording::read(&file).unwrap()).await;
        replayed += 1;
    }
    assert!(replayed > 0);
}

/// What the recording contains about its run.
struct Story {
    run: RunId,
    /// Commands, in order.
    commands: Vec<Command>,
    /// Ids of reports.
    reports: BTreeSet<u64>,
    /// The final length of each log, by rank and stream.
    logs: BTreeMap<(i32, String), u64>,
    /// The last batch of each segment.
    batches: BTreeMap<String, u64>,
    /// Times of `train_step` of rank 0.
    steps_ms: BTreeSet<i64>,
}

async fn replay(messages: &[Recorded]) {
    let story = Story::of(messages);
    assert!(story.steps_ms.len() > 5 && story.commands.len() >= 2);
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.store.retention_ms = AGE_MS_MAX;
    config.store.out_of_order_ms = AGE_MS_MAX;
    let server = Server::start_with(folder, config).await;
    submit(&server, &story).await;
    let mut agent = Replayer::connect(&server, messages).await;
    for message in messages.iter().filter(|message| message.sender == Sender::Agent) {
        agent.send(message).await;
    }
    agent.finish(&story).await;

    let view = run_is(&server, story.run.as_str(), RunState::Succeeded).await;
    assert_eq!((view.attempts.len(), view.unread_reports.len()), (1, 0));
    let last_ms = *story.steps_ms.last().unwrap();
    let query = format!(
        "count_over_time(train_step{{run=\"{}\",rank=\"0\"}}[1d])",
        story.run
    );
    let stored = server.query(&query, last_ms + 1).await;
    assert_eq!(stored[0].1, story.steps_ms.len().to_string(), "{stored:?}");
    for ((rank, stream), length) in &story.logs {
        let rank = if *rank < 0 {
            String::new()
        } else {
            format!("rank={rank}&")
        };
        let (_, piece) = server
            .get(&format!(
                "/api/runs/{}/logs?{rank}node=n1&stream={stream}",
                story.run
            ))
            .await;
        assert_eq!(piece["length"], *length, "{rank}{stream}: {piece}");
    }
    let (_, metrics) = server.get("/metrics").await;
    let refused = metrics
        .as_str()
        .unwrap()
        .lines()
        .find(|line| line.starts_with("lockstep_ingest_refused_total"));
    assert_eq!(refused, None, "nothing was refused");
}

/// Submits the run of the recording, with its own id.
async fn submit(server: &Server, story: &Story) {
    let prepare = serde_json::from_str(&story.commands[0].command_json).unwrap();
    let NodeCommand::Prepare { spec, .. } = prepare else {
        panic!("the first command prepares: {prepare:?}");
    };
    let now_ms = collector::clock::now_ms();
    let (machine, actions) = Machine::submit(story.run.clone(), *spec, now_ms);
    let record = RunRecord {
        id: machine.id.clone(),
        version: 0,
        spec: serde_json::to_value(&machine.spec).unwrap(),
        machine: serde_json::to_value(V1::from(&machine)).unwrap(),
        summary: (&machine).into(),
    };
    let actions: Vec<_> = actions
        .iter()
        .map(|action| RunAction {
            attempt: action.attempt,
            n: action.n,
            action: serde_json::to_value(&action.task).unwrap(),
        })
        .collect();
    let state = &server.running.app.state;
    state.insert_run(&record, &actions, now_ms).await.unwrap();
}

impl Story {
    fn of(messages: &[Recorded]) -> Self {
        let mut story = Self {
            run: RunId::new("none").unwrap(),
            commands: Vec::new(),
            reports: BTreeSet::new(),
            logs: BTreeMap::new(),
            batches: BTreeMap::new(),
            steps_ms: BTreeSet::new(),
        };
        let mut steps = BTreeSet::new();
        for message in messages {
            match (message.stream, message.sender) {
                (Stream::Control, Sender::Agent) => story.note_control(message),
                (Stream::Control, Sender::Collector) => {
                    let down = ControlDown::decode(message.bytes.as_slice()).unwrap();
                    if let Some(control_down::Message::Command(command)) = down.message {
                        story.run = RunId::new(command.run.as_str()).unwrap();
                        story.commands.push(command);
                    }
                }
                (Stream::Telemetry, Sender::Agent) => story.note_telemetry(message, &mut steps),
                (Stream::Telemetry, Sender::Collector) => {}
            }
        }
        story
    }

    fn note_control(&mut self, message: &Recorded) {
        let up = ControlUp::decode(message.bytes.as_slice()).unwrap();
        assert_eq!(
            up.encode_to_vec(),
            message.bytes,
            "this version knows every field"
        );
        match up.message.unwrap() {
            control_up::Message::Event(event) => _ = self.reports.insert(event.id),
            control_up::Message::Log(chunk) => {
                let end = chunk.offset + chunk.bytes.len() as u64;
                let length = self.logs.entry((chunk.rank, chunk.stream)).or_default();
                *length = end.max(*length);
            }
            _ => {}
        }
    }

    fn note_telemetry(&mut self, message: &Recorded, steps: &mut BTreeSet<(String, u32)>) {
        let up = TelemetryUp::decode(message.bytes.as_slice()).unwrap();
        assert_eq!(
            up.encode_to_vec(),
            message.bytes,
            "this version knows every field"
        );
        match up.message.unwrap() {
            telemetry_up::Message::Definitions(definitions) => {
                for (index, series) in (definitions.first..).zip(&definitions.series) {
                    let labels = wire::labels::decode(series, "n1").unwrap();
                    if labels.metric_name() == Some("train_step") && labels.get("rank") == Some("0") {
                        steps.insert((definitions.segment.clone(), index));
                    }
                }
            }
            telemetry_up::Message::Batch(batch) => {
                self.batches.insert(batch.segment.clone(), batch.seq);
                for frame in wire::frame::decode(&batch).unwrap() {
                    for (row, series) in frame.series.iter().enumerate() {
                        if steps.contains(&(batch.segment.clone(), *series)) {
                            let samples = frame.times_ms.iter().zip(frame.row(row));
                            // The last one is only the staleness marker.
                            let samples = samples.filter(|(_, value)| !value.is_nan());
                            self.steps_ms.extend(samples.map(|(time_ms, _)| time_ms));
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// The agent's two streams, and what was received on them.
struct Replayer {
    sending: Sending,
    receiving: Receiving,
    outgoing: mpsc::Sender<ControlUp>,
    incoming: Streaming<ControlDown>,
    /// For each message of the agent on the control stream, the number of commands before it.
    commands_before: Vec<usize>,
    commands: Vec<Command>,
    reports: BTreeSet<u64>,
    logs: BTreeMap<(i32, String), u64>,
}

impl Replayer {
    /// Both hellos are the recorded ones.
    async fn connect(server: &Server, messages: &[Recorded]) -> Self {
        let endpoint = Endpoint::new(&server.running.url(), None).unwrap();
        let (mut sending, mut receiving) = endpoint.open(&server.join_token().await).await.unwrap();
        let hello = |stream| {
            let is_it = |message: &&Recorded| message.stream == stream && message.sender == Sender::Agent;
            messages.iter().find(is_it).unwrap().bytes.as_slice()
        };
        let first = TelemetryUp::decode(hello(Stream::Telemetry))
            .unwrap()
            .message
            .unwrap();
        let telemetry_up::Message::Hello(said) = &first else {
            panic!("the first message is a hello: {first:?}");
        };
        let oldest = said.protocol_max;
        sending.send(first).await.unwrap();
        let Some(telemetry_down::Message::Hello(ack)) = receiving.next().await.unwrap() else {
            panic!("a hello is answered by one");
        };
        assert_eq!(ack.protocol, oldest, "the newest that both speak");

        let mut client = UplinkClient::connect(server.running.url()).await.unwrap();
        let (outgoing, receiver) = mpsc::channel(64);
        let first = ControlUp::decode(hello(Stream::Control)).unwrap();
        outgoing.send(first).await.unwrap();
        let mut request = Request::new(ReceiverStream::new(receiver));
        let bearer = format!("Bearer {}", ack.credential).parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        let mut replayer = Self {
            sending,
            receiving,
            outgoing,
            incoming: client.control(request).await.unwrap().into_inner(),
            commands_before: commands_before(messages),
            commands: Vec::new(),
            reports: BTreeSet::new(),
            logs: BTreeMap::new(),
        };
        replayer.commands_before.reverse();
        // The hello that was sent.
        replayer.commands_before.pop();
        let first = replayer.incoming.message().await.unwrap().unwrap().message;
        assert!(matches!(first, Some(control_down::Message::Hello(_))));
        replayer
    }

    /// Sends a message when everything before it in the recording has arrived.
    async fn send(&mut self, message: &Recorded) {
        match message.stream {
            Stream::Telemetry => {
                let up = TelemetryUp::decode(message.bytes.as_slice())
                    .unwrap()
                    .message
                    .unwrap();
                if !matches!(up, telemetry_up::Message::Hello(_)) {
                    self.sending.send(up).await.unwrap();
                }
            }
            Stream::Control => {
                let up = ControlUp::decode(message.bytes.as_slice()).unwrap();
                if matches!(up.message, Some(control_up::Message::Hello(_))) {
                    return;
                }
                let before = self.commands_before.pop().unwrap();
                while self.commands.len() < before {
                    self.hear().await;
                }
                self.outgoing.send(up).await.unwrap();
            }
        }
    }

    async fn hear(&mut self) {
        let next = tokio::time::timeout(DEADLINE, self.incoming.message()).await;
        match next
            .expect("a message of the collector")
            .unwrap()
            .unwrap()
            .message
        {
            Some(control_down::Message::Command(command)) => {
                // A command that is not accepted yet is sent again.
                if self.commands.iter().all(|known| known.id != command.id) {
                    self.commands.push(command);
                }
            }
            Some(control_down::Message::EventAck(ack)) => _ = self.reports.insert(ack.id),
            Some(control_down::Message::LogAck(ack)) => {
                _ = self.logs.insert((ack.rank, ack.stream), ack.length)
            }
            other => panic!("not in this story: {other:?}"),
        }
    }

    /// Waits until everything is acknowledged, and checks that the commands were the same.
    async fn finish(mut self, story: &Story) {
        while self.reports != story.reports || self.logs != story.logs {
            self.hear().await;
        }
        let named = |command: &Command| {
            let asked: serde_json::Value = serde_json::from_str(&command.command_json).unwrap();
            (command.id, asked["command"].clone())
        };
        let same = |commands: &[Command]| commands.iter().map(named).collect::<Vec<_>>();
        assert_eq!(same(&self.commands), same(&story.commands));
        let mut left = story.batches.clone();
        until("every batch to be acknowledged", async || {
            let next = tokio::time::timeout(Duration::from_secs(1), self.receiving.next()).await;
            if let Ok(Ok(Some(telemetry_down::Message::Ack(ack)))) = next
                && left.get(&ack.segment).is_some_and(|last| *last <= ack.seq)
            {
                left.remove(&ack.segment);
            }
            left.is_empty().then_some(())
        })
        .await;
    }
}

/// For each message of the agent on the control stream, the number of commands before it.
fn commands_before(messages: &[Recorded]) -> Vec<usize> {
    let (mut commands, mut before) = (0, Vec::new());
    for message in messages
        .iter()
        .filter(|message| message.stream == Stream::Control)
    {
        match message.sender {
            Sender::Agent => before.push(commands),
            Sender::Collector => {
                let down = ControlDown::decode(message.bytes.as_slice()).unwrap();
                commands += usize::from(matches!(down.message, Some(control_down::Message::Command(_))));
            }
        }
    }
    before
}
