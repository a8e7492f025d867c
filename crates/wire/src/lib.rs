//! The agent–collector protocol: generated messages, the protocol version, and conversions to `domain`.
//!
//! ```text
//! agent                                   collector
//!   ── Telemetry: Hello ──────────────────▶   a WebSocket, see `telemetry`
//!   ◀──────────────────────── HelloAck ────
//!   ── Definitions(segment, names) ───────▶
//!   ── Batch(segment, seq, frames) ───────▶   append, durable …
//!   ◀─────────────────── Ack(segment, seq) ─
//!
//!   ── Control: Hello, Holding ───────────▶   a gRPC stream
//!   ◀───────────────── HelloAck, Command ───
//!   ── RunEvent(id), LogChunk(offset) ────▶
//!   ◀──────────── EventAck(id), LogAck ─────
//! ```

pub mod busy;
pub mod control;
pub mod frame;
#[doc(hidden)]
pub mod fuzzing;
pub mod labels;
#[doc(hidden)]
pub mod recording;
pub mod telemetry;
pub mod version;

/// The messages, generated from `proto/lockstep.proto`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    reason = "generated code; the proto file holds the comments"
)]
pub mod proto {
    tonic::include_proto!("lockstep.wire.v1");
}
