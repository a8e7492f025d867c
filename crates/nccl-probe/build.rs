//! Links the plugin so that it stays in memory.
//!
//! NCCL closes the plugin when its last communicator is gone, while the plugin's thread may still run its code.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
