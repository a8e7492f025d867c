//! The agent from outside: its readings of simulated GPUs and of a made-up host, and what reaches a collector.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod collector;
mod errors;
mod exposition;
mod host;
mod nvml;
mod nvml_driver;
mod nvml_signals;
mod support;
mod uplink;
