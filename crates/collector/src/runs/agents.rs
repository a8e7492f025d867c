//! Connected agents, how to reach them, and what each still holds of ended attempts.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use domain::ident::{AttemptId, NodeName};
use domain::run::inspect;
use domain::run::state::NodeCommand;
use tokio::sync::mpsc;
use wire::proto::{Answer, Burst, Command, Question, control_down};

use super::bursts::BurstRequests;

/// Bound of the queue of messages to one agent. A message that does not fit is sent again when the agent reconnects.
const WAITING_MAX: usize = 256;
/// Bound of the queue of answers to one inspection request: one answer per rank of a node, and the last one. Further answers are dropped.
const ANSWERS_MAX: usize = 64;

/// Connected agents. If an agent has several connections, the last one is used. Another agent with the name of a connected node is refused:
/// it would report that the node no longer holds its attempts, and they would be started a second time.
#[derive(Clone, Default)]
pub struct Agents {
    connected: Arc<Mutex<HashMap<NodeName, AgentChannel>>>,
    /// Inspection requests that wait for answers, by id.
    questions: Arc<Mutex<HashMap<u64, PendingQuestion>>>,
    last_id: Arc<AtomicU64>,
    /// Nodes that were recently requested to send their bursts.
    bursts: Arc<Mutex<BurstRequests>>,
}

struct AgentChannel {
    connection: u64,
    process: AgentProcess,
    messages: mpsc::Sender<control_down::Message>,
    /// Attempts that have ended but that the node still holds. `None` until the node has reported what it holds.
    leftovers: Option<BTreeSet<AttemptId>>,
}

/// A process of an agent, as its hello describes it.
#[derive(Debug, Clone, Default)]
pub struct AgentProcess {
    /// Differs for each start of an agent. Empty if it is unknown.
    pub instance: String,
    /// Identifies the lock of the agent's data folder on its machine. Only one living process holds it. Empty if it is unknown.
    pub lock: String,
}

struct PendingQuestion {
    node: NodeName,
    answers: mpsc::Sender<Answer>,
}

/// The answers of a node to an inspection request. Dropping it ends the request.
pub struct Answers {
    agents: Agents,
    id: u64,
    answers: mpsc::Receiver<Answer>,
}

/// The registration of a connected agent. Dropping it removes the registration.
pub struct Connection {
    agents: Agents,
    node: NodeName,
    id: u64,
}

/// Another agent is connected with the name of this node.
#[derive(Debug, thiserror::Error)]
#[error(
    "another agent is connected as node {0}: two machines or two agents use one name, or the earlier agent of this machine has ended a \
     moment ago. Give each agent a name of its own with --name, and let it join again with `lockstep token join`"
)]
pub struct NameInUse(NodeName);

impl Agents {
    /// Checks that no other agent is connected with the name of this node.
    ///
    /// # Errors
    /// Returns an error if there is one.
    pub fn check_name(&self, node: &NodeName, process: &AgentProcess) -> Result<(), NameInUse> {
        check_name(&self.lock(), node, process)
    }

    /// Registers a connection. The receiver yields the messages for the node.
    ///
    /// # Errors
    /// Returns an error if another agent is connected with the name of this node.
    pub fn connect(
        &self,
        node: &NodeName,
        process: &AgentProcess,
    ) -> Result<(Connection, mpsc::Receiver<control_down::Message>), NameInUse> {
        let (messages, receiver) = mpsc::channel(WAITING_MAX);
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut connected = self.lock();
        check_name(&connected, node, process)?;
        connected.insert(
            node.clone(),
            AgentChannel {
                connection: id,
                process: process.clone(),
                messages,
                leftovers: None,
            },
        );
        drop(connected);
        let connection = Connection {
            agents: self.clone(),
            node: node.clone(),
            id,
        };
        Ok((connection, receiver))
    }

    /// Returns true if commands reach the node now.
    #[must_use]
    pub fn is_connected(&self, node: &NodeName) -> bool {
        self.lock().contains_key(node)
    }

    /// Returns true if a node may get an attempt: it is connected, and it holds no ended attempt. The ranks of an ended attempt would share
    /// GPUs with the new ones.
    #[must_use]
    pub fn is_free(&self, node: &NodeName) -> bool {
        self.lock()
            .get(node)
            .and_then(|channel| channel.leftovers.as_ref())
            .is_some_and(BTreeSet::is_empty)
    }

    /// Sets the ended attempts that a node must end before it gets a new one.
    pub(super) fn set_leftovers(&self, node: &NodeName, leftovers: BTreeSet<AttemptId>) {
        if let Some(channel) = self.lock().get_mut(node) {
            channel.leftovers = Some(leftovers);
        }
    }

    /// Removes an attempt from the ended attempts that a node still holds.
    pub(super) fn remove_leftover(&self, node: &NodeName, attempt: &AttemptId) {
        if let Some(leftovers) = self
            .lock()
            .get_mut(node)
            .and_then(|channel| channel.leftovers.as_mut())
        {
            leftovers.remove(attempt);
        }
    }

    /// Sends a command if the node is connected. A command that does not arrive is still in the store, and is sent again.
    pub(super) fn send(&self, node: &NodeName, attempt: &AttemptId, n: u32, command: &NodeCommand) {
        let command_json = serde_json::to_string(command).expect("commands are plain data");
        let command = Command {
            run: attempt.run.to_string(),
            attempt: attempt.no.0,
            id: u64::from(n),
            command_json,
        };
        self.send_message(node, control_down::Message::Command(command));
    }

    /// Requests the high-resolution samples of the last minutes from a node because an alert about it fires, at most once in ten minutes. A
    /// disconnected node is not asked later: by then it no longer has these samples.
    pub fn request_burst(&self, node: &NodeName, alert: &str) {
        if !self.is_connected(node) {
            return;
        }
        let mut bursts = self.bursts.lock().unwrap_or_else(PoisonError::into_inner);
        if !bursts.take(node, Instant::now()) {
            return;
        }
        let alert = alert.to_owned();
        self.send_message(node, control_down::Message::Burst(Burst { alert }));
    }

    /// Sends an inspection request about an attempt to a node. Returns `None` if the node is not connected.
    pub(super) fn ask(
        &self,
        node: &NodeName,
        attempt: &AttemptId,
        question: &inspect::Question,
    ) -> Option<Answers> {
        if !self.is_connected(node) {
            return None;
        }
        let (answers, receiver) = mpsc::channel(ANSWERS_MAX);
        let id = rand::random();
        let pending = PendingQuestion {
            node: node.clone(),
            answers,
        };
        self.questions().insert(id, pending);
        let question = Question {
            id,
            run: attempt.run.to_string(),
            attempt: attempt.no.0,
            question_json: serde_json::to_string(question).expect("questions are plain data"),
        };
        self.send_message(node, control_down::Message::Question(question));
        Some(Answers {
            agents: self.clone(),
            id,
            answers: receiver,
        })
    }

    /// Passes an answer of a node to its request, or drops it if the request has ended. Returns false if the request went to another node.
    pub(crate) fn answered(&self, node: &NodeName, answer: Answer) -> bool {
        match self.questions().get(&answer.id) {
            Some(pending) if pending.node == *node => {
                let _too_many_or_gone = pending.answers.try_send(answer);
                true
            }
            Some(_) => false,
            None => true,
        }
    }

    fn questions(&self) -> MutexGuard<'_, HashMap<u64, PendingQuestion>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_message(&self, node: &NodeName, message: control_down::Message) {
        if let Some(channel) = self.lock().get(node) {
            let _sent_or_again_later = channel.messages.try_send(message);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, AgentChannel>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_name(
    connected: &HashMap<NodeName, AgentChannel>,
    node: &NodeName,
    process: &AgentProcess,
) -> Result<(), NameInUse> {
    match connected.get(node) {
        Some(channel) if channel.process.may_live_beside(process) => Err(NameInUse(node.clone())),
        _ => Ok(()),
    }
}

impl AgentProcess {
    /// Returns false if a later process is the same, or proves that this one has ended. The connection of an ended process may stay open for a
    /// while, for example behind a proxy.
    fn may_live_beside(&self, later: &Self) -> bool {
        let are_known = !self.instance.is_empty() && !later.instance.is_empty();
        let later_has_its_lock = !self.lock.is_empty() && self.lock == later.lock;
        are_known && self.instance != later.instance && !later_has_its_lock
    }
}

impl Answers {
    /// Returns the next answer, or `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Answer> {
        self.answers.recv().await.filter(|answer| !answer.last)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.agents.questions().remove(&self.id);
    }
}

impl Connection {
    /// Removes the registration. Returns true if no newer connection of the node has replaced it.
    #[must_use]
    pub fn close(self) -> bool {
        self.is_current()
    }

    fn is_current(&self) -> bool {
        self.agents
            .lock()
            .get(&self.node)
            .is_some_and(|channel| channel.connection == self.id)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_current() {
            self.agents.lock().remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::ident::{AttemptNo, RunId};

    use super::*;

    fn attempt(no: u32) -> AttemptId {
        AttemptId::new(RunId::new("r").expect("a name"), AttemptNo(no))
    }

    fn process(instance: &str, lock: &str) -> AgentProcess {
        AgentProcess {
            instance: instance.to_owned(),
            lock: lock.to_owned(),
        }
    }

    #[test]
    fn the_last_connection_of_a_node_counts() {
        let (agents, node) = (Agents::default(), NodeName::new("n1").expect("a name"));
        let agent = process("i", "");
        let (old, mut old_commands) = agents.connect(&node, &agent).expect("no agent is connected");
        let (new, mut new_commands) = agents.connect(&node, &agent).expect("the same agent");
        agents.send(&node, &attempt(1), 7, &NodeCommand::Stop { grace_ms: 5 });
        let is_it = |message| matches!(message, control_down::Message::Command(command) if command.id == 7);
        assert!(is_it(new_commands.try_recv().expect("was sent")));
        assert!(old_commands.try_recv().is_err());
        assert!(!old.close() && agents.is_connected(&node));
        assert!(new.close() && !agents.is_connected(&node));
    }

    /// A machine was cloned. Its agent reported that the node held nothing, and the attempt of the first machine was started again.
    #[test]
    fn another_agent_with_the_name_of_a_connected_node_is_refused() {
        let (agents, node) = (Agents::default(), NodeName::new("n1").expect("a name"));
        let (original, clone) = (process("first", "boot-1:5"), process("second", "boot-2:5"));
        let (first, mut commands) = agents.connect(&node, &original).expect("no agent is connected");
        assert!(agents.check_name(&node, &clone).is_err() && agents.connect(&node, &clone).is_err());
        let unknown = process("second", "");
        assert!(agents.connect(&node, &unknown).is_err());
        agents.send(&node, &attempt(1), 7, &NodeCommand::Stop { grace_ms: 5 });
        assert!(commands.try_recv().is_ok(), "commands still go to the first");
        let other = NodeName::new("n2").expect("a name");
        assert!(agents.check_name(&other, &clone).is_ok());
        assert!(first.close());
        assert!(agents.connect(&node, &clone).is_ok(), "the first has ended");
    }

    /// The agent was killed, and its connection stayed open behind a proxy.
    #[test]
    fn an_agent_that_holds_the_lock_of_the_connected_one_takes_its_place_at_once() {
        let (agents, node) = (Agents::default(), NodeName::new("n1").expect("a name"));
        let (killed, restarted) = (process("first", "boot-1:5"), process("second", "boot-1:5"));
        let (old, _old_commands) = agents.connect(&node, &killed).expect("no agent is connected");
        assert!(agents.check_name(&node, &restarted).is_ok());
        let (_new, mut commands) = agents.connect(&node, &restarted).expect("the first has ended");
        agents.send(&node, &attempt(1), 7, &NodeCommand::Stop { grace_ms: 5 });
        assert!(commands.try_recv().is_ok());
        assert!(
            !old.close() && agents.is_connected(&node),
            "its end is not the node's"
        );
    }

    #[tokio::test]
    async fn an_answer_reaches_its_caller_and_only_from_the_queried_node() {
        let (agents, node) = (Agents::default(), NodeName::new("n1").expect("a name"));
        let question = inspect::Question::default();
        assert!(
            agents.ask(&node, &attempt(1), &question).is_none(),
            "nobody is there"
        );
        let (_connection, mut messages) = agents
            .connect(&node, &process("i", ""))
            .expect("no agent is connected");
        let mut answers = agents.ask(&node, &attempt(1), &question).expect("connected");
        let Ok(control_down::Message::Question(sent)) = messages.try_recv() else {
            panic!("no question was sent")
        };
        let answer = |answer_json: &str, last| Answer {
            id: sent.id,
            answer_json: answer_json.into(),
            last,
            ..Answer::default()
        };
        let other = NodeName::new("n2").expect("a name");
        assert!(!agents.answered(&other, answer("not mine", false)));
        let unasked = Answer {
            id: sent.id ^ 1,
            ..answer("unasked", false)
        };
        assert!(agents.answered(&node, unasked), "nobody waits any more");
        assert!(agents.answered(&node, answer("mine", false)));
        assert!(agents.answered(&node, answer("", true)));
        assert_eq!(
            answers.next().await.map(|answer| answer.answer_json).as_deref(),
            Some("mine")
        );
        assert_eq!(answers.next().await, None);
        drop(answers);
        assert!(agents.questions().is_empty());
    }

    #[test]
    fn a_node_gets_no_attempt_while_it_holds_an_ended_one() {
        let (agents, node) = (Agents::default(), NodeName::new("n1").expect("a name"));
        let (_connection, _commands) = agents
            .connect(&node, &process("i", ""))
            .expect("no agent is connected");
        assert!(!agents.is_free(&node), "it has not said what it holds");
        agents.set_leftovers(&node, BTreeSet::from([attempt(1)]));
        agents.remove_leftover(&node, &attempt(2));
        assert!(!agents.is_free(&node));
        agents.remove_leftover(&node, &attempt(1));
        assert!(agents.is_free(&node));
    }
}
