//! Checks of what runs need: a Python interpreter, PyTorch in it, and NCCL.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

use super::check::Check;

/// The first import of PyTorch from a cold network disk takes long.
const IMPORT_WITHIN: Duration = Duration::from_secs(60);
/// The script reads versions only and initialises nothing. It reads NCCL's version from PyTorch, which includes its own NCCL.
const SCRIPT: &str = "
import json, sys
report = {'python': sys.version.split()[0]}
try:
    import torch
    report['torch'] = torch.__version__
    report['cuda'] = torch.version.cuda
    try:
        report['nccl'] = '.'.join(str(part) for part in torch.cuda.nccl.version())
    except Exception:
        pass
except Exception as error:
    report['error'] = f'{type(error).__name__}: {error}'
print(json.dumps(report))
";

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct PythonReport {
    python: String,
    torch: Option<String>,
    cuda: Option<String>,
    nccl: Option<String>,
    error: Option<String>,
}

pub(super) async fn checks(python: Option<&Path>) -> Vec<Check> {
    let interpreter = interpreter(python);
    match ask(&interpreter).await {
        Ok(report) => judge(&interpreter, &report),
        Err(why) => {
            let found = format!("{}: {why}", interpreter.display());
            let next = "needed only for runs on this node: install Python 3.10 or newer, or set its path with --python or LOCKSTEP_PYTHON";
            vec![if python.is_some() {
                Check::fails("python", found, next)
            } else {
                Check::absent("python", found, next)
            }]
        }
    }
}

/// Resolves the path as the agent does: an interpreter, or a virtual environment.
fn interpreter(python: Option<&Path>) -> PathBuf {
    match python {
        Some(path) if path.is_dir() => path.join("bin/python"),
        Some(path) => path.to_owned(),
        None => PathBuf::from("python3"),
    }
}

async fn ask(interpreter: &Path) -> Result<PythonReport, String> {
    let asked = Command::new(interpreter)
        .args(["-c", SCRIPT])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(IMPORT_WITHIN, asked).await;
    let output = output.map_err(|_| format!("no answer within {} s", IMPORT_WITHIN.as_secs()))?;
    let output = output.map_err(|error| error.to_string())?;
    // A library may print while it is imported. The script's output is the last line.
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().next_back().unwrap_or_default();
    serde_json::from_str(last).map_err(|_| format!("ended with {}", output.status))
}

fn judge(interpreter: &Path, report: &PythonReport) -> Vec<Check> {
    let mut checks = vec![Check::works(
        "python",
        format!("{} ({})", report.python, interpreter.display()),
    )];
    let Some(torch) = &report.torch else {
        let why = report.error.clone().unwrap_or_else(|| "not installed".to_owned());
        let next = format!(
            "needed only for runs on this node: {} -m pip install torch",
            interpreter.display()
        );
        checks.push(
            if why.starts_with("ModuleNotFoundError: No module named 'torch'") {
                Check::absent("torch", "not installed", next)
            } else {
                Check::fails("torch", why, "fix this error: runs need to import torch")
            },
        );
        return checks;
    };
    let cuda = report
        .cuda
        .as_ref()
        .map_or("CPU only".to_owned(), |cuda| format!("for CUDA {cuda}"));
    checks.push(Check::works("torch", format!("{torch}, {cuda}")));
    checks.push(match &report.nccl {
        Some(nccl) => Check::works("nccl", nccl.clone()),
        None => Check::absent(
            "nccl",
            "this PyTorch has no NCCL",
            "needed only for training on GPUs: install PyTorch with CUDA; Gloo works without NCCL",
        ),
    });
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::doctor::check::{State, named};

    fn judged(json: &str) -> Vec<Check> {
        let report = serde_json::from_str(json).expect("what the script prints");
        judge(Path::new("py"), &report)
    }

    #[test]
    fn pythons_report_becomes_checks() {
        let (works, absent) = (State::Works, State::Absent);
        let full = r#"{"python":"3.12.1","torch":"2.9.1","cuda":"12.8","nccl":"2.27.5"}"#;
        assert_eq!(
            named(&judged(full)),
            [("python", works), ("torch", works), ("nccl", works)]
        );
        let processors = r#"{"python":"3.12.1","torch":"2.9.1+cpu","cuda":null}"#;
        assert_eq!(
            named(&judged(processors)),
            [("python", works), ("torch", works), ("nccl", absent)]
        );
        let bare = r#"{"python":"3.12.1","error":"ModuleNotFoundError: No module named 'torch'"}"#;
        assert_eq!(named(&judged(bare)), [("python", works), ("torch", absent)]);
        let broken =
            r#"{"python":"3.12.1","error":"OSError: libcudart.so.12: cannot open shared object file"}"#;
        assert_eq!(
            named(&judged(broken)),
            [("python", works), ("torch", State::Fails)]
        );
    }

    #[tokio::test]
    async fn an_interpreter_that_was_named_must_be_there() {
        let named = checks(Some(Path::new("/nonexistent/python"))).await;
        assert_eq!((named.len(), named[0].state), (1, State::Fails), "{named:?}");
    }
}
