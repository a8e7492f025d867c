//! The dashboard: a client-side Leptos program over the collector's public API.

use leptos::prelude::*;

fn main() {
    leptos::mount::mount_to_body(Root);
}

/// The page until its parts are mounted: proves that the wasm runs and reacts.
#[component]
fn Root() -> impl IntoView {
    let (count, set_count) = signal(0);
    view! { <button class="btn btn-primary" on:click=move |_| set_count.update(|n| *n += 1)>"Lockstep " {count}</button> }
}
