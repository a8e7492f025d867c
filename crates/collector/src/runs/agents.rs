//! Agents that are connected, and the way to each.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::state::NodeCommand;
use tokio::sync::mpsc;
use wire::proto::{Burst, Command, control_down};

/// Messages that wait to be written to one agent. One that does not fit is sent again when the agent reconnects.
const WAITING_MAX: usize = 256;

/// Who is connected. Of several connections of one node the last counts.
#[derive(Clone, Default)]
pub struct Agents {
    connected: Arc<Mutex<HashMap<NodeName, Way>>>,
    last_id: Arc<AtomicU64>,
}

struct Way {
    connection: u64,
    messages: mpsc::Sender<control_down::Message>,
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

    /// Sends a command if its node is connected. What does not arrive is still in the store, and is sent again.
    pub(super) fn send(
        &self,
        node: &NodeName,
        run: &RunId,
        attempt: AttemptNo,
        n: u32,
        command: &NodeCommand,
    ) {
        let command_json = serde_json::to_string(command).expect("commands are plain data");
        let command = Command {
            run: run.to_string(),
            attempt: attempt.0,
            id: u64::from(n),
            command_json,
        };
        self.tell(node, control_down::Message::Command(command));
    }

    /// Asks a node for what it keeps of the last minutes, because an alert about it fires. One that is away has lost it by the time it
    /// is back.
    pub fn want_burst(&self, node: &NodeName, alert: &str) {
        let alert = alert.to_owned();
        self.tell(node, control_down::Message::Burst(Burst { alert }));
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
    use super::*;

    #[test]
    fn the_last_connection_of_a_node_counts() {
        let (agents, node) = (Agents::default(), NodeName::new("n1").expect("a name"));
        let (old, mut old_commands) = agents.connect(&node);
        let (new, mut new_commands) = agents.connect(&node);
        let run = RunId::new("r").expect("a name");
        agents.send(&node, &run, AttemptNo(1), 7, &NodeCommand::Stop { grace_ms: 5 });
        let is_it = |message| matches!(message, control_down::Message::Command(command) if command.id == 7);
        assert!(is_it(new_commands.try_recv().expect("was sent")));
        assert!(old_commands.try_recv().is_err());
        assert!(!old.close() && agents.is_connected(&node));
        assert!(new.close() && !agents.is_connected(&node));
    }
}
