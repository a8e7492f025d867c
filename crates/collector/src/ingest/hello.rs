//! The first message of a stream: the protocol versions, the agent, and its node.
//!
//! A join token is accepted until it expires or is revoked, for any node. The answer contains a permanent credential bound to the node's
//! name, which the agent uses from then on. A credential of one node is never valid for another node.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use domain::api::session::Role;
use domain::ident::{NodeName, RackName};
use domain::time::TimestampMs;
use domain::topology::Inventory;
use listener::AddressKey;
use prost::Message as _;
use store::state::StateError;
use store::state::nodes::NodeRecord;
use tonic::Status;
use wire::busy;
use wire::proto::{Hello, HelloAck};
use wire::version::HELLO_BYTES_MAX;

use super::handles::Ingest;
use super::hello_slots::{self, HelloSlot};
use crate::clock;
use crate::live::Heartbeat;
use crate::runs::{AgentProcess, NameInUse};
use crate::tokens::Principal;

/// How long an agent may take to send its first message.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Maximum size of an inventory, in bytes. 16 GPUs with every field filled need about 8 KiB.
const INVENTORY_BYTES_MAX: usize = 256 << 10;
/// Maximum number of characters kept of a free text that the agent sends.
const TEXT_CHARS_MAX: usize = 64;

/// An agent whose hello was accepted.
#[derive(Debug, Clone)]
pub(super) struct AgentSession {
    /// The agent's node.
    pub(super) node: NodeName,
    /// The agent's process.
    pub(super) process: AgentProcess,
    /// Updated with each message.
    pub(super) heartbeat: Heartbeat,
    /// The protocol version that both sides use.
    pub(super) protocol: u32,
    /// By how much the node's clock was behind when the agent connected, in milliseconds.
    pub(super) clock_behind_ms: i64,
}

/// A stream that may send its hello.
pub(super) struct Admitted {
    principal: Principal,
    /// Released when the hello is answered.
    _slot: HelloSlot,
}

/// Checks the token in a stream's headers, and takes a slot among the streams without a hello. Nothing of the stream is read before this.
///
/// # Errors
/// Returns the status that ends the stream, with [`busy::RETRY_AFTER`] if no slot is free.
pub(super) fn admit(ingest: &Ingest, headers: &HeaderMap, address: AddressKey) -> Result<Admitted, Status> {
    let principal = identify(ingest, headers)?;
    let slot = ingest.bounds.hello_slots.take(address);
    let slot = slot.ok_or_else(|| busy::status(hello_slots::no_free_slot(), hello_slots::RETRY_AFTER_S))?;
    Ok(Admitted {
        principal,
        _slot: slot,
    })
}

/// Returns the owner of the token in a stream's headers.
fn identify(ingest: &Ingest, headers: &HeaderMap) -> Result<Principal, Status> {
    let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = header.and_then(|value| value.strip_prefix("Bearer ")) else {
        return Err(Status::unauthenticated(
            "an agent must send its token; get one with `lockstep token join` and pass it as --join",
        ));
    };
    let Some(principal) = ingest.tokens.authenticate(token, clock::now_ms()) else {
        ingest.metrics.auth_failures.inc();
        return Err(Status::unauthenticated(
            "the agent's token is unknown, expired or revoked; get a new one with `lockstep token join`",
        ));
    };
    if !principal.role.allows(Role::Join) {
        return Err(Status::permission_denied(
            "this token does not allow an agent to join; get one with `lockstep token join`",
        ));
    }
    Ok(principal)
}

/// The status for a hello that is longer than any inventory needs.
pub(super) fn too_long() -> Status {
    Status::invalid_argument(format!("the hello is longer than {HELLO_BYTES_MAX} bytes"))
}

/// The status if no hello arrived in time.
pub(super) fn late() -> Status {
    Status::deadline_exceeded(format!("no hello within {} seconds", HELLO_WITHIN.as_secs()))
}

/// The status if the first message is not a hello.
pub(super) fn missing() -> Status {
    Status::invalid_argument("the first message must be a hello")
}

/// Handles a later hello of a connected agent, which reports what the agent found out about its node meanwhile.
pub(super) async fn again(ingest: &Ingest, node: &NodeName, hello: Hello) -> Result<(), Status> {
    if hello.node != node.as_str() {
        return Err(Status::invalid_argument(
            "the hello names another node than the stream",
        ));
    }
    let now_ms = clock::now_ms();
    let record = record(node.clone(), &hello, now_ms)?;
    register(ingest, record, now_ms).await.map(drop)
}

/// Admits an agent, or returns the status that says why not.
pub(super) async fn greet(
    ingest: &Ingest,
    admitted: Admitted,
    hello: Hello,
) -> Result<(AgentSession, HelloAck), Status> {
    if hello.encoded_len() > HELLO_BYTES_MAX {
        return Err(too_long());
    }
    let now_ms = clock::now_ms();
    let protocol = wire::version::agree(&hello).map_err(|error| {
        tracing::warn!(node = shortened(&hello.node), %error, "an agent was not admitted");
        Status::failed_precondition(format!("{error}; see docs/upgrade.md"))
    })?;
    let node =
        NodeName::new(hello.node.clone()).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let principal = &admitted.principal;
    check_node(principal, &node)?;
    let record = record(node.clone(), &hello, now_ms)?;
    let credential = match principal.node {
        Some(_) => String::new(),
        None => enrol(ingest, principal, &node, now_ms).await?,
    };
    let heartbeat = register(ingest, record, now_ms).await?;
    tracing::info!(%node, version = hello.agent_version, protocol, "an agent connected");
    let collector_version = env!("CARGO_PKG_VERSION").to_owned();
    Ok((
        AgentSession {
            node,
            process: process(&hello),
            heartbeat,
            protocol,
            clock_behind_ms: clock_behind_ms(&hello, now_ms),
        },
        HelloAck {
            protocol,
            now_ms,
            credential,
            collector_version,
            takes_more_hellos: true,
        },
    ))
}

/// Checks that no other agent has a control stream with the name of this one. Telemetry streams are not checked: they end no attempt.
///
/// # Errors
/// Returns the status that ends the stream. The agent tries again later.
pub(super) fn check_name(ingest: &Ingest, admitted: &Admitted, hello: &Hello) -> Result<(), Status> {
    // An invalid name is refused later.
    let Ok(node) = NodeName::new(hello.node.clone()) else {
        return Ok(());
    };
    // An agent of another node only learns that the name is not its own.
    check_node(&admitted.principal, &node)?;
    let checked = ingest.runs.agents.check_name(&node, &process(hello));
    checked.map_err(|error| name_in_use(&error))
}

/// The status for an agent that has the name of another connected agent.
pub(super) fn name_in_use(error: &NameInUse) -> Status {
    tracing::warn!(%error, "an agent was not admitted");
    Status::already_exists(error.to_string())
}

/// Checks that a credential of one node is not used for another node.
fn check_node(principal: &Principal, node: &NodeName) -> Result<(), Status> {
    match &principal.node {
        Some(own) if own != node => Err(Status::permission_denied(format!(
            "this credential belongs to node {own}, not to {node}; join again under the new name with `lockstep token join`"
        ))),
        _ => Ok(()),
    }
}

async fn enrol(
    ingest: &Ingest,
    principal: &Principal,
    node: &NodeName,
    now_ms: TimestampMs,
) -> Result<String, Status> {
    ingest
        .events
        .audit(&principal.id, "node_join", node.as_str())
        .await
        .map_err(|error| failed(&error))?;
    let credential = ingest
        .tokens
        .enrol(node, now_ms)
        .await
        .map_err(|error| failed(&error))?;
    Ok(credential.expose().to_owned())
}

async fn register(ingest: &Ingest, record: NodeRecord, now_ms: TimestampMs) -> Result<Heartbeat, Status> {
    ingest
        .state
        .upsert_node(&record)
        .await
        .map_err(|error| failed(&error))?;
    let heartbeat = ingest.live.hello(record, now_ms);
    ingest.changes.send(crate::changes::Change::Nodes);
    Ok(heartbeat)
}

fn record(name: NodeName, hello: &Hello, now_ms: TimestampMs) -> Result<NodeRecord, Status> {
    Ok(NodeRecord {
        name,
        agent_version: shortened(&hello.agent_version),
        clock_offset_ms: hello.now_ms.saturating_sub(now_ms),
        inventory: inventory(&hello.inventory_json)?,
        seen_ms: now_ms,
    })
}

/// Returns by how much the node's clock is behind the collector's, including the time that the hello took to arrive. Returns 0 if it is ahead:
/// if it is set right later, its samples must not look old.
pub(super) fn clock_behind_ms(hello: &Hello, now_ms: TimestampMs) -> i64 {
    now_ms.saturating_sub(hello.now_ms).max(0)
}

fn process(hello: &Hello) -> AgentProcess {
    AgentProcess {
        instance: shortened(&hello.instance),
        lock: shortened(&hello.lock),
    }
}

fn inventory(json: &str) -> Result<Inventory, Status> {
    if json.len() > INVENTORY_BYTES_MAX {
        return Err(Status::invalid_argument(format!(
            "the inventory is larger than {INVENTORY_BYTES_MAX} bytes"
        )));
    }
    let read: Result<Inventory, _> = serde_json::from_str(json);
    let mut inventory =
        read.map_err(|error| Status::invalid_argument(format!("the inventory cannot be read: {error}")))?;
    // A node without a rack is better than a node that cannot connect because of the name of its rack.
    inventory.rack = inventory.rack.filter(|rack| RackName::new(rack.as_str()).is_ok());
    Ok(inventory)
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// Logs the store's error. The agent only receives the request to try again.
fn failed(error: &StateError) -> Status {
    tracing::error!(%error, "an agent could not be admitted");
    Status::unavailable("the collector cannot read its state right now; try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_that_is_behind_shifts_the_age_of_samples() {
        let behind_ms = |hello_ms| {
            let hello = Hello {
                now_ms: hello_ms,
                ..Hello::default()
            };
            clock_behind_ms(&hello, 1_000_000)
        };
        assert_eq!(behind_ms(400_000), 600_000);
        assert_eq!(behind_ms(1_000_000), 0);
        assert_eq!(behind_ms(1_600_000), 0);
        assert_eq!(behind_ms(i64::MIN), i64::MAX, "an agent may send anything");
    }

    #[test]
    fn a_rack_is_kept_if_its_name_is_valid_and_an_older_agent_names_none() {
        let rack = |rack: Option<&str>| {
            let sent = Inventory {
                rack: rack.map(str::to_owned),
                ..Inventory::default()
            };
            let json = serde_json::to_string(&sent).expect("an inventory is plain data");
            assert_eq!(json.contains("rack"), rack.is_some(), "{json}");
            inventory(&json).expect("a valid inventory").rack
        };
        assert_eq!(rack(None), None);
        assert_eq!(rack(Some("R01.a")).as_deref(), Some("R01.a"));
        for bad in ["", "row 1", "r\n1", "r".repeat(254).as_str()] {
            assert_eq!(rack(Some(bad)), None, "{bad:?}");
        }
    }
}
