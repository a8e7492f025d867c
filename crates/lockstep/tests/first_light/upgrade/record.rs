//! Records the conversation of an agent and a collector of an earlier release during a short run.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::FutureExt as _;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use wire::proto::uplink_client::UplinkClient;
use wire::proto::{ControlUp, TelemetryDown, TelemetryUp};
use wire::recording::{self, Recorded, Sender, Stream};
use wire::telemetry::Endpoint;

use super::agent_server::{AgentServer, Conversation};
use super::pair::{Pair, old_program};

/// Steps of the recorded run.
const STEPS: u64 = 12;

#[test]
#[ignore = "writes a file that is kept: cargo xtask lab upgrade --record"]
fn a_conversation_of_the_old_programs() {
    let file = std::env::var_os("LOCKSTEP_RECORD_TO").expect("where to write the recording");
    let program = old_program();
    let mut pair = Pair::collector(&program);
    let log = Log::default();
    let (url, into) = (pair.api.url.clone(), log.clone());
    let server =
        AgentServer::open(move |conversation| relay(url.clone(), conversation, into.clone()).boxed());
    pair.start_agent(&program, &server.url());
    let run = pair.submit(STEPS, 20);
    let view = pair.ended(&run);
    assert_eq!(view["state"], "succeeded", "{view}");
    pair.reached(&run, STEPS);
    pair.wait("the log", || {
        pair.log(&run, 0)
            .contains(&format!("step {STEPS} "))
            .then_some(())
    });
    // Late acknowledgements are part of the recording.
    pair.wait("a quiet moment", || log.is_quiet().then_some(()));
    let messages = log.take();
    std::fs::write(PathBuf::from(file), recording::write(&messages)).unwrap();
}

/// The messages so far. Cheap to clone; all clones share one list.
#[derive(Clone)]
struct Log(Arc<Mutex<Vec<Recorded>>>, Instant);

impl Default for Log {
    fn default() -> Self {
        Self(Arc::default(), Instant::now())
    }
}

impl Log {
    fn note(&self, stream: Stream, sender: Sender, bytes: &[u8]) {
        self.0.lock().unwrap().push(Recorded {
            stream,
            sender,
            at_ms: self.now_ms(),
            bytes: bytes.to_vec(),
        });
    }

    fn now_ms(&self) -> u32 {
        u32::try_from(self.1.elapsed().as_millis()).unwrap()
    }

    /// Returns true if the control stream had no message for two seconds.
    fn is_quiet(&self) -> bool {
        let messages = self.0.lock().unwrap();
        let last = messages.iter().rfind(|message| message.stream == Stream::Control);
        last.is_some_and(|last| self.now_ms() - last.at_ms > 2_000)
    }

    fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

async fn relay(url: String, conversation: Conversation, log: Log) {
    match conversation.stream {
        Stream::Telemetry => relay_telemetry(url, conversation, log).await,
        Stream::Control => relay_control(url, conversation, log).await,
    }
}

async fn relay_telemetry(url: String, conversation: Conversation, log: Log) {
    let Conversation {
        token, mut up, down, ..
    } = conversation;
    let endpoint = Endpoint::new(&url, None).unwrap();
    let (mut sending, mut receiving) = endpoint.open(&token).await.unwrap();
    let upwards = async {
        while let Some(bytes) = up.recv().await {
            log.note(Stream::Telemetry, Sender::Agent, &bytes);
            let message = TelemetryUp::decode(bytes.as_slice()).unwrap().message.unwrap();
            if sending.send(message).await.is_err() {
                return;
            }
        }
    };
    let downwards = async {
        while let Ok(Some(message)) = receiving.next().await {
            let message = Some(message);
            let bytes = TelemetryDown { message }.encode_to_vec();
            log.note(Stream::Telemetry, Sender::Collector, &bytes);
            if down.send(bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = upwards => {}
        () = downwards => {}
    }
}

async fn relay_control(url: String, conversation: Conversation, log: Log) {
    let Conversation {
        token, mut up, down, ..
    } = conversation;
    let mut client = UplinkClient::connect(url).await.unwrap();
    let (outgoing, receiver) = mpsc::channel(64);
    let mut request = Request::new(ReceiverStream::new(receiver));
    let bearer = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    let mut incoming = client.control(request).await.unwrap().into_inner();
    let upwards = async {
        while let Some(bytes) = up.recv().await {
            log.note(Stream::Control, Sender::Agent, &bytes);
            let message = ControlUp::decode(bytes.as_slice()).unwrap();
            if outgoing.send(message).await.is_err() {
                return;
            }
        }
    };
    let downwards = async {
        while let Ok(Some(message)) = incoming.message().await {
            let bytes = message.encode_to_vec();
            log.note(Stream::Control, Sender::Collector, &bytes);
            if down.send(bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = upwards => {}
        () = downwards => {}
    }
}
