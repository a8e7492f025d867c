//! Links the plugin so that it stays in memory.
//!
//! NCCL closes the plugin when its last communicator is gone, while our thread may still be running its code.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
