//! The style sheet: Tailwind collects the classes that the sources name; daisyUI provides themes and components.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::child::Child;
use crate::layout::Layout;
use crate::toolchain::npm;

const LIMIT: Duration = Duration::from_secs(60);

/// Compiles `web/style.css` into `web.css`.
pub(crate) fn run(layout: &Layout, modules: &Path, stage: &Path) -> Result<()> {
    let (input, output) = (layout.web().join("style.css"), stage.join("web.css"));
    Child::new(layout, "style", npm::node()?, LIMIT)
        .folder(&layout.web())
        // The packages are outside the checkout; imports and plug-ins are resolved here.
        .env("NODE_PATH", modules)
        .args([modules.join("@tailwindcss/cli/dist/index.mjs")])
        .args([
            Path::new("--input"),
            &input,
            Path::new("--output"),
            &output,
            Path::new("--minify"),
        ])
        .succeed()
        .map(drop)
}
