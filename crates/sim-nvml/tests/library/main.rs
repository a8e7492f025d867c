//! Tests of the built library as its clients use it: opened with `dlopen`, read through `nvml-wrapper`, and called directly where the
//! wrapper does not allow a call.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(unsafe_code, reason = "raw NVML calls are what is tested")]

mod contract;
mod driver;
mod mig;
mod reading;
mod scenario_file;
mod scenarios;
mod simulator;
