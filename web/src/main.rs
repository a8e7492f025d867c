//! The dashboard: a client-side Leptos program that uses the collector's public API and its one event stream.
//!
//! Everything shown here is available with `curl`. It depends on `domain` only, so a form accepts exactly what the server accepts.

#![expect(
    unreachable_pub,
    reason = "`#[component]` writes `pub` on what it makes; a program exports nothing anyway"
)]

mod app;
mod crash;
mod route;

mod api;
mod json;
mod language;
mod live;
mod session;

mod chart;
mod page;
mod ui;

fn main() {
    crash::show_panics();
    leptos::mount::mount_to_body(app::App);
}
