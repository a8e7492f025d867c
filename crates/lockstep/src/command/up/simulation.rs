//! The value of `up --simulate`: what to simulate, and on how many nodes.
//!
//! ```text
//! h100x8:throttle                 this machine's agent reads eight simulated GPUs
//! h100x8:throttle,nodes=4         four agents on this machine, each with eight simulated GPUs of its own
//! h100x8,nodes=200                one generator, because 200 agents are too many for one machine
//! h100x8:idle,nodes=16,node=5     this machine's agent, as the sixth of sixteen such nodes
//! ```
//! Each agent checks the specification of its node. The simulator defines the grammar.

use std::fmt;
use std::str::FromStr;

use domain::bytes::DisplayBytes;

/// Maximum number of simulated nodes. The maximum of `lockstep demo` is the same.
const NODES_MAX: u32 = 1_000;
/// From this number of nodes up, a generator simulates them without agents.
const GENERATED_FROM: u32 = 128;
/// What the generator can simulate.
const GENERATED: [&str; 2] = ["h100x8", "h100x8:idle"];
/// Resident memory of an agent with eight GPUs, see docs/benchmarks.md.
const AGENT_BYTES: u64 = 16 << 20;

/// A simulation of one or more nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Simulation {
    /// The specification that the nodes share, without the key `nodes`. If it has the key `node`, it is the whole text.
    spec: String,
    nodes: u32,
}

/// How the nodes are simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// The agent of this machine.
    LocalAgent,
    /// One agent per node.
    Agents,
    /// One generator for all nodes.
    Generator,
}

/// Why a value of `--simulate` was refused, and what is allowed instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SimulationError {
    #[error("nodes={0:?} is not valid: expected a number from 1 to {max}", max = NODES_MAX)]
    Nodes(String),
    #[error("key \"nodes\" is given twice; remove one")]
    Twice,
    #[error(
        "cannot simulate {0:?} on so many nodes: from {min} nodes up, a generator simulates them, and it supports only {specs}; use fewer nodes or one of these",
        min = GENERATED_FROM,
        specs = GENERATED.join(" and ")
    )]
    Generated(String),
}

impl Simulation {
    pub(super) fn nodes(&self) -> u32 {
        self.nodes
    }

    pub(super) fn method(&self) -> Method {
        match self.nodes {
            1 => Method::LocalAgent,
            nodes if nodes < GENERATED_FROM => Method::Agents,
            _ => Method::Generator,
        }
    }

    /// Returns the specification of one node, from 0, as `agent --simulate` accepts it.
    pub(super) fn spec_of(&self, node: u32) -> String {
        match self.method() {
            Method::LocalAgent => self.spec.clone(),
            Method::Agents | Method::Generator => format!("{self},node={node}"),
        }
    }

    /// Returns an error if the agents need more than half of the machine's memory.
    pub(super) fn check_memory(&self, memory_bytes: u64) -> Result<(), String> {
        let needed = u64::from(self.nodes) * AGENT_BYTES;
        if self.method() != Method::Agents || needed <= memory_bytes / 2 {
            return Ok(());
        }
        Err(format!(
            "{} agents need about {}, and this machine has {} of memory; use at most {} nodes, or {GENERATED_FROM} and more, which a \
             generator simulates without agents",
            self.nodes,
            DisplayBytes(needed),
            DisplayBytes(memory_bytes),
            memory_bytes / 2 / AGENT_BYTES
        ))
    }
}

impl FromStr for Simulation {
    type Err = SimulationError;

    fn from_str(text: &str) -> Result<Self, SimulationError> {
        let text = text.trim();
        let (counts, rest): (Vec<&str>, Vec<&str>) =
            text.split(',').partition(|part| part.starts_with("nodes="));
        if rest.iter().any(|part| part.starts_with("node=")) {
            return Ok(Self {
                spec: text.to_owned(),
                nodes: 1,
            });
        }
        let nodes = match counts.as_slice() {
            [] => 1,
            [count] => parse_nodes(count.strip_prefix("nodes=").unwrap_or_default())?,
            _ => return Err(SimulationError::Twice),
        };
        let simulation = Self {
            spec: rest.join(","),
            nodes,
        };
        if simulation.method() == Method::Generator && !GENERATED.contains(&simulation.spec.as_str()) {
            return Err(SimulationError::Generated(simulation.spec));
        }
        Ok(simulation)
    }
}

/// Writes a text that parses to the same simulation.
impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nodes {
            1 => f.write_str(&self.spec),
            nodes => write!(f, "{},nodes={nodes}", self.spec),
        }
    }
}

fn parse_nodes(text: &str) -> Result<u32, SimulationError> {
    let nodes: Option<u32> = text.parse().ok();
    nodes
        .filter(|nodes| (1..=NODES_MAX).contains(nodes))
        .ok_or_else(|| SimulationError::Nodes(text.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn a_simulation_says_how_many_nodes_and_what_each_has() {
        for (text, method, nodes, last) in [
            ("h100x8", Method::LocalAgent, 1, "h100x8"),
            ("h100x8,nodes=1", Method::LocalAgent, 1, "h100x8"),
            (
                "h100x8:idle,nodes=16,node=5",
                Method::LocalAgent,
                1,
                "h100x8:idle,nodes=16,node=5",
            ),
            ("h100x8,nodes=2", Method::Agents, 2, "h100x8,nodes=2,node=1"),
            (
                " a100x4:throttle,nodes=127,gpu=3\n",
                Method::Agents,
                127,
                "a100x4:throttle,gpu=3,nodes=127,node=126",
            ),
            (
                "h100x8:idle,nodes=128",
                Method::Generator,
                128,
                "h100x8:idle,nodes=128,node=127",
            ),
        ] {
            let simulation: Simulation = text.parse().unwrap();
            assert_eq!(simulation.method(), method, "{text:?}");
            assert_eq!(simulation.nodes(), nodes, "{text:?}");
            assert_eq!(simulation.spec_of(nodes - 1), last, "{text:?}");
            let again: Simulation = simulation.to_string().parse().unwrap();
            assert_eq!(again, simulation, "{text:?}");
        }
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        for (text, expected) in [
            ("h100x8,nodes=0", "a number from 1 to 1000"),
            ("h100x8,nodes=abc", "nodes=\"abc\" is not valid"),
            ("h100x8,nodes=", "a number from 1 to 1000"),
            ("h100x8,nodes=-1", "a number from 1 to 1000"),
            ("h100x8,nodes=1001", "a number from 1 to 1000"),
            ("h100x8,nodes=2,nodes=3", "given twice"),
            ("h100x8:throttle,nodes=128", "only h100x8 and h100x8:idle"),
            ("a100x8,nodes=500", "from 128 nodes up"),
        ] {
            let message = text.parse::<Simulation>().expect_err(text).to_string();
            assert!(message.contains(expected), "{text:?} gave {message:?}");
        }
    }

    #[test]
    fn agents_that_do_not_fit_into_memory_are_refused() {
        let check = |text: &str, memory_bytes: u64| {
            let simulation: Simulation = text.parse().unwrap();
            simulation.check_memory(memory_bytes)
        };
        assert_eq!(check("h100x8,nodes=64", 2 << 30), Ok(()));
        assert_eq!(check("h100x8,nodes=1000", 2 << 30), Ok(()));
        assert_eq!(check("h100x8", 1), Ok(()));
        let refused = check("h100x8,nodes=65", 2 << 30).unwrap_err();
        assert!(refused.contains("at most 64 nodes"), "{refused}");
        assert!(refused.contains("2.0 GiB"), "{refused}");
    }
}
