//! Agents and collectors of different versions: real runs across an upgrade, and recorded conversations of earlier releases.
//!
//! ```text
//! rows.rs       old agent and new collector, new agent and old collector, a shim that outlives both upgrades: cargo xtask lab upgrade
//! record.rs     records a conversation of two old programs: cargo xtask lab upgrade --record
//! playback.rs   a recorded collector with the agent under test; runs with every change
//! pair.rs       a collector and an agent, each with its own version
//! agent_server.rs  the server that an agent connects to: passes on each message of its two streams
//! ```
//! The other direction, a recorded agent with the collector under test, is a test of the collector.

mod agent_server;
mod pair;
mod playback;
mod record;
mod rows;
