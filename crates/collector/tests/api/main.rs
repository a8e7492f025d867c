//! Tests of the collector through its interfaces: a real one on a free port, over HTTP, gRPC and WebSocket.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod harness;

mod actions;
mod admission;
mod assets;
mod auth;
mod bursts;
mod checkpoints;
mod clocks;
mod corpus;
mod diagnoses;
mod goodput;
mod grafana;
mod hostile;
mod inspect;
mod knobs;
mod limits;
mod logs;
mod metrics;
mod openapi;
mod prometheus;
mod prometheus_writes;
mod promtool;
mod recorded;
mod remote_write;
mod reports;
mod restores;
mod rolled_up;
mod rules;
mod run_check;
mod runs;
mod secrets;
mod start;
mod store;
mod stream;
mod stream_lists;
mod telemetry;
mod watched;
mod webhooks;

/// The allocator and its settings are those of the product: the memory left by a query depends on them.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// As in the binary, where the reason is documented.
#[expect(
    unsafe_code,
    reason = "the allocator finds its settings by this name alone; nothing else has it"
)]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: &[u8; 47] = b"narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0\0";
