//! Agents that are connected, the way to each, and what each still holds of attempts that are over.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use domain::ident::{AttemptId, NodeName};
use domain::run::inspect;
use domain::run::state::NodeCommand;
use tokio::sync::mpsc;
use wire::proto::{Answer, Burst, Command, Question, control_down};

use super::bursts;

/// Messages that wait to be written to one agent. One that does not fit is sent again when the agent reconnects.
const WAITING_MAX: usize = 256;
/// Answers to one question that wait to be looked at: one of each rank a node may have, and the last. More are nobody's.
const ANSWERS_MAX: usize = 64;

/// Who is connected. Of several connections of one node the last counts.
#[derive(Clone, Default)]
pub struct Agents {
    connected: Arc<Mutex<HashMap<NodeName, Way>>>,
    /// Questions that are waited for, by id.
    questions: Arc<Mutex<HashMap<u64, Asked>>>,
    last_id: Arc<AtomicU64>,
    /// Nodes that were asked for their bursts.
    bursts: Arc<Mutex<bursts::Asked>>,
}

struct Way {
    connection: u64,
    messages: mpsc::Sender<control_down::Message>,
    /// Attempts that are over for us but not on the node, once it has said what it holds.
    leftovers: Option<BTreeSet<AttemptId>>,
}

struct Asked {
    node: NodeName,
    answers: mpsc::Sender<Answer>,
}

/// What a node answers to a question; given up when dropped.
pub struct Answers {
    agents: Agents,
    id: u64,
    answers: mpsc::Receiver<Answer>,
}

/// An agent's place among the connected; given up when dropped.
pub struct Connection {
    agents: Agents,
    node: NodeName,
    id: u64,
}

impl Agents {
    /// Notes a connection. What is for the node comes out of the receiver.
    #[must_use]
    pub fn connect(&self, node: &NodeName) -> (Connection, mpsc::Receiver<control_down::Message>) {
        let (messages, receiver) = mpsc::channel(WAITING_MAX);
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        self.lock().insert(
            node.clone(),
            Way {
                connection: id,
                messages,
                leftovers: None,
            },
        );
        (
            Connection {
                agents: self.clone(),
                node: node.clone(),
                id,
            },
            receiver,
        )
    }

    /// Whether commands reach a node now.
    #[must_use]
    pub fn is_connected(&self, node: &NodeName) -> bool {
        self.lock().contains_key(node)
    }

    /// Whether a node may be given an attempt: it is connected, and nothing of an attempt that is over is left on it. Its ranks would
    /// share GPUs with the new ones.
    #[must_use]
    pub fn is_free(&self, node: &NodeName) -> bool {
        self.lock()
            .get(node)
            .and_then(|way| way.leftovers.as_ref())
            .is_some_and(BTreeSet::is_empty)
    }

    /// Notes what a node has to be rid of before it is given anything.
    pub(super) fn holds(&self, node: &NodeName, leftovers: BTreeSet<AttemptId>) {
        if let Some(way) = self.lock().get_mut(node) {
            way.leftovers = Some(leftovers);
        }
    }

    /// Nothing of an attempt is left on a node.
    pub(super) fn is_rid_of(&self, node: &NodeName, attempt: &AttemptId) {
        if let Some(leftovers) = self.lock().get_mut(node).and_then(|way| way.leftovers.as_mut()) {
            leftovers.remove(attempt);
        }
    }

    /// Sends a command if its node is connected. What does not arrive is still in the store, and is sent again.
    pub(super) fn send(&self, node: &NodeName, attempt: &AttemptId, n: u32, command: &NodeCommand) {
        let command_json = serde_json::to_string(command).expect("commands are plain data");
        let command = Command {
            run: attempt.run.to_string(),
            attempt: attempt.no.0,
            id: u64::from(n),
            command_json,
        };
        self.tell(node, control_down::Message::Command(command));
    }

    /// Asks a node for what it keeps of the last minutes, because an alert about it fires; the same node once in ten minutes. One that is
    /// away has lost it by the time it is back.
    pub fn want_burst(&self, node: &NodeName, alert: &str) {
        if !self.is_connected(node) {
            return;
        }
        let mut asked = self.bursts.lock().unwrap_or_else(PoisonError::into_inner);
        if !asked.take(node, Instant::now()) {
            return;
        }
        let alert = alert.to_owned();
        self.tell(node, control_down::Message::Burst(Burst { alert }));
    }

    /// Asks a node something about an attempt; none when it is not connected.
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
        let asked = Asked {
            node: node.clone(),
            answers,
        };
        self.questions().insert(id, asked);
        let question = Question {
            id,
            run: attempt.run.to_string(),
            attempt: attempt.no.0,
            question_json: serde_json::to_string(question).expect("questions are plain data"),
        };
        self.tell(node, control_down::Message::Question(question));
        Some(Answers {
            agents: self.clone(),
            id,
            answers: receiver,
        })
    }

    /// Takes an answer of a node; one that nobody waits for is dropped. Returns false if another node was asked.
    pub(crate) fn answered(&self, node: &NodeName, answer: Answer) -> bool {
        match self.questions().get(&answer.id) {
            Some(asked) if asked.node == *node => {
                let _too_many_or_gone = asked.answers.try_send(answer);
                true
            }
            Some(_) => false,
            None => true,
        }
    }

    fn questions(&self) -> MutexGuard<'_, HashMap<u64, Asked>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, node: &NodeName, message: control_down::Message) {
        if let Some(way) = self.lock().get(node) {
            let _sent_or_again_later = way.messages.try_send(message);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Way>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answers {
    /// The next one; none behind the last.
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
    /// Gives the place up; says whether no newer connection of the node has taken it.
    #[must_use]
    pub fn close(self) -> bool {
        self.is_current()
    }

    fn is_current(&self) -> bool {
        self.agents
            .lock()
            .get(&self.node)
            .is_some_and(|way| way.connection == self.id)
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

    #[test]
    fn the_last_connection_of_a_node_counts() {
        let (agents, node) = (Agents::default(), NodeName::new("n1").expect("a name"));
        let (old, mut old_commands) = agents.connect(&node);
        let (new, mut new_commands) = agents.connect(&node);
        agents.send(&node, &attempt(1), 7, &NodeCommand::Stop { grace_ms: 5 });
        let is_it = |message| matches!(message, control_down::Message::Command(command) if command.id == 7);
        assert!(is_it(new_commands.try_recv().expect("was sent")));
        assert!(old_commands.try_recv().is_err());
        assert!(!old.close() && agents.is_connected(&node));
        assert!(new.close() && !agents.is_connected(&node));
    }

    #[tokio::test]
    async fn an_answer_reaches_who_asked_and_only_from_the_node_that_was_asked() {
        let (agents, node) = (Agents::default(), NodeName::new("n1").expect("a name"));
        let question = inspect::Question::default();
        assert!(
            agents.ask(&node, &attempt(1), &question).is_none(),
            "nobody is there"
        );
        let (_connection, mut messages) = agents.connect(&node);
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
    fn a_node_is_given_nothing_before_it_is_rid_of_what_is_over() {
        let (agents, node) = (Agents::default(), NodeName::new("n1").expect("a name"));
        let (_connection, _commands) = agents.connect(&node);
        assert!(!agents.is_free(&node), "it has not said what it holds");
        agents.holds(&node, BTreeSet::from([attempt(1)]));
        agents.is_rid_of(&node, &attempt(2));
        assert!(!agents.is_free(&node));
        agents.is_rid_of(&node, &attempt(1));
        assert!(agents.is_free(&node));
    }
}
