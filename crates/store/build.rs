//! Migrations are embedded by a macro; cargo has to be told that they are input too.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations/sqlite");
}
