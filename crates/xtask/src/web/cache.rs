//! Built dashboards by the fingerprint of their inputs, in the cache folder. A fresh clone with known inputs builds nothing.
//!
//! ```text
//! CACHE/web/FINGERPRINT/     the files of one web/dist
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result};

use crate::fingerprint;
use crate::layout::Layout;

/// Number of dashboards kept, a few MB each: enough for the branches in use.
const KEPT: usize = 4;

/// Copies a cached dashboard into the empty folder `stage`. Returns false if there is none.
pub(super) fn restore(layout: &Layout, inputs: &str, stage: &Path) -> Result<bool> {
    let cached = folder(layout).join(inputs);
    if !cached.is_dir() {
        return Ok(false);
    }
    copy(&cached, stage)?;
    Ok(true)
}

/// Adds a dashboard and removes the oldest ones.
pub(super) fn keep(layout: &Layout, inputs: &str, dist: &Path) -> Result<()> {
    let all = folder(layout);
    // Renamed when complete, so that an interrupted copy is never used.
    let unfinished = all.join(format!("unfinished-{}", std::process::id()));
    fs::create_dir_all(&unfinished).with_context(|| format!("cannot make {}", unfinished.display()))?;
    copy(dist, &unfinished)?;
    let cached = all.join(inputs);
    if cached.exists() {
        fs::remove_dir_all(&cached).with_context(|| format!("cannot remove {}", cached.display()))?;
    }
    fs::rename(&unfinished, &cached).with_context(|| format!("cannot make {}", cached.display()))?;
    remove_oldest(&all)
}

fn folder(layout: &Layout) -> PathBuf {
    layout.cache.join("web")
}

/// Copies all files below a folder.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    for file in fingerprint::files(from, &[])? {
        let copy = to.join(file.strip_prefix(from).context("a file lies in its folder")?);
        let parent = copy.parent().context("a file lies in a folder")?;
        fs::create_dir_all(parent)
            .and_then(|()| fs::copy(&file, &copy))
            .with_context(|| format!("cannot copy {} to {}", file.display(), copy.display()))?;
    }
    Ok(())
}

fn remove_oldest(all: &Path) -> Result<()> {
    let entries = fs::read_dir(all).with_context(|| format!("cannot list {}", all.display()))?;
    let mut dashboards: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    dashboards.sort();
    let surplus = dashboards.len().saturating_sub(KEPT);
    for (_, oldest) in dashboards.into_iter().take(surplus) {
        fs::remove_dir_all(&oldest).with_context(|| format!("cannot remove {}", oldest.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn a_dashboard_comes_back_whole_and_old_ones_go() {
        let root = std::env::temp_dir().join(format!("xtask-web-cache-{}", std::process::id()));
        let layout = Layout {
            root: root.join("checkout"),
            cache: root.join("cache"),
        };
        let dist = root.join("dist");
        fs::create_dir_all(dist.join("fonts")).unwrap();
        for name in ["a", "b", "c", "d", "e"] {
            fs::write(dist.join("fonts/index"), name).unwrap();
            keep(&layout, name, &dist).unwrap();
        }
        let stage = root.join("stage");
        assert!(restore(&layout, "e", &stage).unwrap());
        assert_eq!(fs::read_to_string(stage.join("fonts/index")).unwrap(), "e");
        assert_eq!(fs::read_dir(folder(&layout)).unwrap().count(), KEPT);
        assert!(!restore(&layout, "unknown", &stage).unwrap());
        fs::remove_dir_all(root).unwrap();
    }
}
