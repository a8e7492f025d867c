//! The collector: receives and stores samples, diagnoses, controls runs, and serves the API and the dashboard.
//!
//! ```text
//!  agents ── gRPC, WebSocket ──▶ ingest ──▶ store ◀── evaluator ◀── http (API, stream, /metrics), diagnose (rules)
//!                                   │                                 ▲
//!                                   └──▶ live, runs, events ── Change ┘  one broadcast that feeds every browser tab
//! ```
//! One TCP port serves HTTP/1.1, HTTP/2 and gRPC, with or without TLS. All queries go through the one [`evaluator`], so the dashboard,
//! rules and Grafana always show the same values.

pub mod app;
pub mod changes;
pub mod clock;
pub mod config;
pub mod error;
pub mod server;

pub mod evaluator;
pub mod live;
pub mod own_series;
pub mod self_metrics;
pub mod tokens;

mod analysis;
mod append;
mod disk_space;
mod event_log;
mod identity_hash;
mod spec_draft;
mod state_series;
mod tasks;

pub mod ingest;

pub mod diagnose;
pub mod incidents;
pub mod notify;
pub mod runs;

pub mod http;

pub use app::App;
pub use config::{Config, Secret, TlsFiles};
pub use error::StartError;
pub use server::{Running, start};
