//! Tests of the built plugin as NCCL loads it: a C program that does what NCCL does plays traces into it, and the datagrams are compared
//! with the traces. No GPU and no NCCL are needed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod golden;
mod harness;
mod library;
mod trace;
