//! The shipped rules and their tests, with promtool and with `lockstep rules`. Both tools must agree, also about tests that are wrong on
//! purpose.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::child::{self, Child};
use crate::fingerprint;
use crate::layout::Layout;
use crate::progress::block;
use crate::test::lanes;
use crate::test::setup::Setup;
use crate::test::table::Count;

const LIMIT: Duration = Duration::from_secs(2 * 60);

/// Checks the rule files, runs each test file, and expects each wrong one to fail. Each of these counts as a test.
pub(crate) fn run(layout: &Layout, setup: &Setup) -> Result<Count> {
    let folder = layout.root.join("crates/domain/rules");
    let tests = folder.join("tests");
    let wrong = tests.join("wrong");
    let native = setup.native.path().context("the binary could not be compiled")?;
    let tools = Tools {
        layout,
        promtool: setup.promtool.path()?.to_path_buf(),
        lockstep: native.join("lockstep"),
    };
    let checked = tools.both("rules", "check", &named(&folder, &[&tests], ".yaml")?, true)?;
    let right = named(&tests, &[&wrong], ".test.yaml")?;
    let all = [right, named(&wrong, &[], ".test.yaml")?].concat();
    let tested = lanes::run(&all, |lane, test| {
        let step = format!("rules-{lane}");
        tools.both(&step, "test", &[test.to_owned()], !test.starts_with(&wrong))
    })?;
    Ok(checked.plus(tested))
}

struct Tools<'a> {
    layout: &'a Layout,
    promtool: PathBuf,
    lockstep: PathBuf,
}

impl Tools<'_> {
    /// Counts whether both tools accept the files or, if the files are wrong, both refuse them with exit code 1.
    fn both(&self, step: &str, action: &str, files: &[PathBuf], are_right: bool) -> Result<Count> {
        let mut count = Count::default();
        for (program, words) in [
            (&self.promtool, [action, "rules"]),
            (&self.lockstep, ["rules", action]),
        ] {
            let arguments = words.iter().map(OsStr::new).chain(files.iter().map(OsStr::new));
            let ended = Child::new(self.layout, step, program, LIMIT)
                .args(arguments)
                .end()?;
            let expected = if are_right { 0 } else { 1 };
            if ended.status.code() == Some(expected) {
                count.passed += 1;
                continue;
            }
            count.failed += 1;
            let what = format!(
                "`{} {}` of {} ended with {}, not with {expected}",
                program.display(),
                words.join(" "),
                files
                    .iter()
                    .map(|file| file.display().to_string())
                    .collect::<Vec<_>>()
                    .join(" "),
                ended.status
            );
            block(&what, &child::tail(&ended.log)?);
        }
        Ok(count)
    }
}

/// Returns the files below a folder whose name ends with `ending`; an error if there are none.
fn named(folder: &Path, without: &[&Path], ending: &str) -> Result<Vec<PathBuf>> {
    let without: Vec<PathBuf> = without.iter().map(|path| path.to_path_buf()).collect();
    let mut files = fingerprint::files(folder, &without)?;
    files.retain(|file| file.to_string_lossy().ends_with(ending));
    if files.is_empty() {
        bail!("no file {ending} in {}", folder.display());
    }
    Ok(files)
}
