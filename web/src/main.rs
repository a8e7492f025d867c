//! The dashboard: a client-side Leptos program over the collector's public API and its one event stream.
//!
//! Anything shown here can be had with `curl`. Depends on `domain` only, so what a form accepts is what the server accepts.

#![expect(
    unreachable_pub,
    reason = "`#[component]` writes `pub` on what it makes; a program exports nothing anyway"
)]

mod app;
mod crash;
mod route;

mod api;
mod json;
mod live;
mod session;

mod chart;
mod page;
mod ui;

fn main() {
    crash::show_panics();
    leptos::mount::mount_to_body(app::App);
    // The page said that it was loading until here.
    crash::remove("loading");
}
