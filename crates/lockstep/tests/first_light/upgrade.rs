//! Agents and collectors of different versions: real runs across an upgrade, and recorded conversations of earlier releases.
//!
//! ```text
//! rows.rs       old agent and new collector, new agent and old collector, a shim that lives through both upgrades: cargo xtask lab upgrade
//! record.rs     writes a conversation of two old programs: cargo xtask lab upgrade --record
//! playback.rs   a recorded collector against the agent under test; with every change
//! pair.rs       a collector and an agent, each of its own version
//! agent_server.rs  where an agent connects to: hands on each message of its two streams
//! ```
//! The other direction, a recorded agent against the collector under test, is a test of the collector.

mod agent_server;
mod pair;
mod playback;
mod record;
mod rows;
