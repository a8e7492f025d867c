//! The collector as its clients see it: a real one on a free port, spoken to over HTTP, gRPC and WebSocket.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod harness;

mod assets;
mod auth;
mod corpus;
mod grafana;
mod hostile;
mod limits;
mod metrics;
mod prometheus;
mod prometheus_writes;
mod promtool;
mod remote_write;
mod rolled_up;
mod rules;
mod runs;
mod start;
mod store;
mod stream;
mod telemetry;
mod webhooks;
