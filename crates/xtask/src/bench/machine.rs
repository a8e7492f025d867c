//! On what, and from what, figures were taken.

use std::fs;
use std::process::Command;
use std::thread;

use crate::child;
use crate::layout::Layout;

/// Cores, processor and kernel, in one line.
pub(crate) fn describe() -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = rustix::system::uname();
    format!(
        "{cores} cores, {}, Linux {}",
        model(&info),
        kernel.release().to_string_lossy()
    )
}

/// The revision, and whether the checkout differs from it.
pub(crate) fn revision(layout: &Layout) -> String {
    let git = |args: &[&str]| child::output(Command::new("git").args(args).current_dir(&layout.root));
    let Ok(revision) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown (no git)".to_owned();
    };
    // The table itself is written by this program and says nothing about the code.
    match git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ":!docs/benchmarks.md",
    ]) {
        Ok(changes) if changes.is_empty() => revision,
        _ => format!("{revision}-dirty"),
    }
}

fn model(info: &str) -> &str {
    let line = info.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| Some(line.split_once(':')?.1.trim()))
        .unwrap_or("unknown processor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named() {
        assert_eq!(
            model("processor\t: 0\nmodel name\t: Some CPU @ 2.70GHz\n"),
            "Some CPU @ 2.70GHz"
        );
        assert_eq!(model(""), "unknown processor");
        assert!(describe().contains("Linux"));
    }
}
