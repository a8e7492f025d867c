//! The built plugin as NCCL loads it: a C program that does what NCCL does plays traces into it, and the datagrams that come out are
//! compared with the traces. No GPU and no NCCL take part: the evidence is replay.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod golden;
mod harness;
mod library;
mod trace;
