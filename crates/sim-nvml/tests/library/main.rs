//! The built library as its clients meet it: opened with `dlopen`, read through `nvml-wrapper`, and called
//! raw where the wrapper stands in the way.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(unsafe_code, reason = "raw NVML calls are what is tested")]

mod contract;
mod driver;
mod mig;
mod reading;
mod scenario_file;
mod scenarios;
mod simulator;
