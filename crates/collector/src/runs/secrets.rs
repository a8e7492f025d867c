//! The values of runs' secrets: one file per run, readable by the collector's user only, separate from the database and its backups.
//!
//! ```text
//! DATA/secrets/          0700
//!   RUN.json             0600   name → value; removed when the run is old
//! ```

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use domain::ident::RunId;
use domain::run::secret::SecretValue;

/// The secrets of all runs.
pub(super) struct Secrets {
    root: PathBuf,
}

impl Secrets {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Stores the values of a run. If there are none, no file is written.
    pub(super) fn keep(&self, run: &RunId, values: &BTreeMap<String, SecretValue>) -> io::Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.path(run))?;
        file.write_all(&serde_json::to_vec(values)?)?;
        file.sync_all()
    }

    /// Returns the secrets of a run. The map is empty if the run has none, or if they were removed.
    pub(super) fn of(&self, run: &RunId) -> BTreeMap<String, SecretValue> {
        let Ok(bytes) = std::fs::read(self.path(run)) else {
            return BTreeMap::new();
        };
        serde_json::from_slice(&bytes).unwrap_or_else(|_| {
            tracing::error!(%run, "the file with the run's secrets cannot be parsed");
            BTreeMap::new()
        })
    }

    /// Returns the runs that have secrets.
    pub(super) fn runs(&self) -> Vec<RunId> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let run = |name: &str| RunId::new(name.strip_suffix(".json")?).ok();
        entries
            .filter_map(|entry| run(entry.file_name().to_str()?))
            .collect()
    }

    /// Removes the secrets of a run.
    pub(super) fn remove(&self, run: &RunId) {
        match std::fs::remove_file(self.path(run)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(%run, %error, "the secrets of an old run cannot be removed");
            }
            _ => {}
        }
    }

    fn path(&self, run: &RunId) -> PathBuf {
        self.root.join(format!("{run}.json"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn they_are_readable_by_one_user_and_removed_on_request() {
        let place = tempfile::tempdir().expect("a folder");
        let secrets = Secrets::new(place.path().join("secrets"));
        let run = RunId::new("r").expect("a name");
        let values = BTreeMap::from([("TOKEN".to_owned(), SecretValue::new("hunter2-hunter2"))]);
        secrets.keep(&run, &values).expect("keeps");
        let mode = |path: PathBuf| std::fs::metadata(path).expect("is there").permissions().mode() & 0o777;
        assert_eq!(mode(secrets.path(&run)), 0o600);
        assert_eq!(mode(secrets.root.clone()), 0o700);
        assert_eq!(secrets.of(&run), values);
        assert_eq!(secrets.runs(), std::slice::from_ref(&run));
        secrets.remove(&run);
        assert!(secrets.of(&run).is_empty() && secrets.runs().is_empty());
    }
}
