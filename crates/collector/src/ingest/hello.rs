//! The first message of a stream: which versions are spoken, who speaks, for which node.
//!
//! A join token opens the door once: the answer carries a lasting credential bound to the node's name. A credential of one
//! node never speaks for another.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use domain::api::session::Role;
use domain::ident::NodeName;
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
use super::waiting::{self, Place};
use crate::clock;
use crate::live::Pulse;
use crate::tokens::Principal;

/// How long an agent may take for its first message.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// The largest inventory: 16 GPUs with every field filled need some 8 KiB.
const INVENTORY_BYTES_MAX: usize = 256 << 10;
/// Of an agent's own words this much is kept.
const TEXT_CHARS_MAX: usize = 64;

/// An agent that was let in.
#[derive(Debug, Clone)]
pub(super) struct AgentSession {
    /// The node it speaks for.
    pub(super) node: NodeName,
    /// To be beaten by each message.
    pub(super) pulse: Pulse,
    /// The version that both sides speak.
    pub(super) protocol: u32,
}

/// A stream that may send its hello.
pub(super) struct Admitted {
    principal: Principal,
    /// Given back when the hello is answered.
    _place: Place,
}

/// Checks the token in a stream's head, and takes a place for it among those without a hello. Nothing of the stream is read before.
///
/// # Errors
/// The status that ends the stream; with [`busy::RETRY_AFTER`] when there is no place.
pub(super) fn admit(ingest: &Ingest, headers: &HeaderMap, address: AddressKey) -> Result<Admitted, Status> {
    let principal = identify(ingest, headers)?;
    let place = ingest.bounds.waiting.take(address);
    let place = place.ok_or_else(|| busy::status(waiting::no_place(), waiting::RETRY_AFTER_S))?;
    Ok(Admitted {
        principal,
        _place: place,
    })
}

/// Whose token a stream's head shows.
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
            "this token does not let an agent in; get one with `lockstep token join`",
        ));
    }
    Ok(principal)
}

/// The hello is longer than any inventory needs.
pub(super) fn too_long() -> Status {
    Status::invalid_argument(format!("the hello is longer than {HELLO_BYTES_MAX} bytes"))
}

/// Nothing came.
pub(super) fn late() -> Status {
    Status::deadline_exceeded(format!("no hello within {} seconds", HELLO_WITHIN.as_secs()))
}

/// Something else came.
pub(super) fn missing() -> Status {
    Status::invalid_argument("the first message must be a hello")
}

/// Takes what an agent that is in has found out about its node since.
pub(super) async fn again(ingest: &Ingest, node: &NodeName, hello: Hello) -> Result<(), Status> {
    if hello.node != node.as_str() {
        return Err(Status::invalid_argument(
            "another node's hello on this one's stream",
        ));
    }
    let now_ms = clock::now_ms();
    let record = record(node.clone(), &hello, now_ms)?;
    register(ingest, record, now_ms).await.map(drop)
}

/// Lets an agent in, or says why not.
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
        tracing::warn!(node = shortened(&hello.node), %error, "an agent is not let in");
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
    let pulse = register(ingest, record, now_ms).await?;
    tracing::info!(%node, version = hello.agent_version, protocol, "an agent connected");
    let collector_version = env!("CARGO_PKG_VERSION").to_owned();
    Ok((
        AgentSession {
            node,
            pulse,
            protocol,
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

/// A credential of one node never speaks for another.
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

async fn register(ingest: &Ingest, record: NodeRecord, now_ms: TimestampMs) -> Result<Pulse, Status> {
    ingest
        .state
        .upsert_node(&record)
        .await
        .map_err(|error| failed(&error))?;
    let pulse = ingest.live.hello(record, now_ms);
    ingest.changes.send(crate::changes::Change::Nodes);
    Ok(pulse)
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

fn inventory(json: &str) -> Result<Inventory, Status> {
    if json.len() > INVENTORY_BYTES_MAX {
        return Err(Status::invalid_argument(format!(
            "the inventory is larger than {INVENTORY_BYTES_MAX} bytes"
        )));
    }
    serde_json::from_str(json)
        .map_err(|error| Status::invalid_argument(format!("the inventory cannot be read: {error}")))
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// The store's trouble is logged here; the agent only hears to try again.
fn failed(error: &StateError) -> Status {
    tracing::error!(%error, "an agent could not be let in");
    Status::unavailable("the collector cannot read its state right now; try again")
}
