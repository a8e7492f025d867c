//! Tests of the agent from outside: its readings of simulated GPUs and of a fixture host, and what a collector receives.
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
