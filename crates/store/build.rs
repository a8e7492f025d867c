//! Rebuilds the crate when a migration changes: a macro embeds the migrations, which Cargo does not notice.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations/sqlite");
}
