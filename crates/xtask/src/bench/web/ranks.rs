//! The page of a run with 1,024 ranks that train.

use anyhow::Result;

use super::browser::Browser;
use super::demo::{Demo, RANKS};
use super::figures::Measured;
use super::grid::{Subject, frames};
use crate::layout::Layout;

pub(super) fn measure(layout: &Layout, browser: &Browser) -> Result<Measured> {
    let (demo, run) = Demo::with_large_run(layout, "bench-web-ranks")?;
    let what = format!("page of a run with {RANKS} ranks");
    let path = format!("/runs/{run}");
    frames(layout, browser, &demo.address, &path, Subject::Charts, &what)
}
