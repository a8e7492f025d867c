//! The token and the keys of a workspace. Their folder belongs to the user; these files are a workspace's only secrets.
//!
//! ```text
//! STATE/NAME/ 0700   jupyter.token          created once; 64 hexadecimal digits, no newline
//!                    authorized_keys        the public keys that SSH accepts
//!                    ssh_host_ed25519_key   created by the workspace at its first start
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::settings::UserIds;

const TOKEN: &str = "jupyter.token";
const AUTHORIZED_KEYS: &str = "authorized_keys";
/// Public keys have a few hundred bytes. A larger file is something else.
const PUBLIC_KEYS_BYTES_MAX: u64 = 64 << 10;
/// Where `ssh-keygen` writes public keys, in order of preference.
const USUAL_KEYS: [&str; 4] = [
    ".ssh/id_ed25519.pub",
    ".ssh/id_ed25519_sk.pub",
    ".ssh/id_ecdsa.pub",
    ".ssh/id_rsa.pub",
];

/// The folder of one workspace.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) folder: PathBuf,
}

/// Checked public keys, one per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublicKeys(String);

impl Keys {
    pub(super) fn of(state: &Path, workspace: &str) -> Self {
        Self {
            folder: state.join(workspace),
        }
    }

    pub(super) fn token_file(&self) -> PathBuf {
        self.folder.join(TOKEN)
    }

    /// Returns true if SSH accepts any key.
    pub(super) fn has_authorized_keys(&self) -> bool {
        std::fs::metadata(self.folder.join(AUTHORIZED_KEYS)).is_ok_and(|file| file.len() > 0)
    }

    /// Creates the missing files for this user. Returns the token if it is new.
    pub(super) fn prepare(
        &self,
        user: UserIds,
        public: Option<&PublicKeys>,
    ) -> anyhow::Result<Option<String>> {
        let cannot = || format!("cannot store the workspace's keys in {}", self.folder.display());
        self.make_folder(user).with_context(cannot)?;
        if let Some(PublicKeys(keys)) = public {
            self.put(AUTHORIZED_KEYS, keys, user).with_context(cannot)?;
        }
        if self.token_file().symlink_metadata().is_ok() {
            return Ok(None);
        }
        let token: String = rand::random::<[u8; 32]>()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.put(TOKEN, &token, user).with_context(cannot)?;
        Ok(Some(token))
    }

    /// Removes the folder.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.folder.display()))
            }
            _ => Ok(()),
        }
    }

    fn make_folder(&self, user: UserIds) -> std::io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        set_owner(&File::open(&self.folder)?, user)
    }

    /// Writes to a temporary name and renames it. The folder belongs to the user, so an existing file may be a link by now.
    fn put(&self, name: &str, text: &str, user: UserIds) -> std::io::Result<()> {
        let partial = self.folder.join(format!("{name}.{:016x}", rand::random::<u64>()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(text.as_bytes())?;
        set_owner(&file, user)?;
        file.sync_all()?;
        std::fs::rename(partial, self.folder.join(name))
    }
}

/// Changes the owner if this process is root. Otherwise the file already belongs to the user.
fn set_owner(file: &File, user: UserIds) -> std::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        fchown(file, Some(user.uid), Some(user.gid))?;
    }
    Ok(())
}

// === impl PublicKeys ===

impl PublicKeys {
    /// Reads the keys of the named file, or of the usual one. `None` if there is no usual file.
    pub(super) fn find(named: Option<&Path>) -> anyhow::Result<Option<Self>> {
        if let Some(path) = named {
            return Self::read(path).map(Some);
        }
        let home = dirs::home_dir().unwrap_or_default();
        let usual = USUAL_KEYS.iter().map(|name| home.join(name));
        let there = usual.into_iter().find(|path| path.is_file());
        there.map(|path| Self::read(&path)).transpose()
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let bytes = std::fs::metadata(path)
            .with_context(|| format!("cannot read {shown}; `ssh-keygen -t ed25519` makes a key"))?
            .len();
        anyhow::ensure!(
            bytes <= PUBLIC_KEYS_BYTES_MAX,
            "{shown} is too large for public keys"
        );
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        Self::parse(&text).map_err(|why| anyhow::anyhow!("{shown} {why}"))
    }

    /// Parses lines as OpenSSH writes them: type, base64, comment. Rejects options, because they could run or forbid something inside the
    /// workspace.
    fn parse(text: &str) -> Result<Self, String> {
        if text.contains("PRIVATE KEY") {
            return Err("is a private key; use the public key file beside it, which ends in .pub".into());
        }
        let mut keys = String::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !is_public_key(line) {
                return Err(
                    "contains a line that is not a public key; a key looks like: ssh-ed25519 AAAA… name"
                        .into(),
                );
            }
            keys.push_str(line);
            keys.push('\n');
        }
        if keys.is_empty() {
            return Err("contains no public key; a key looks like: ssh-ed25519 AAAA… name".into());
        }
        Ok(Self(keys))
    }
}

/// Returns true if the line is a public key. The second word repeats the type: it is base64 of the type's length in four bytes and its
/// letters, so it begins with `AAAA`.
fn is_public_key(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    let (Some(kind), Some(key)) = (words.next(), words.next()) else {
        return false;
    };
    let known = ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-sha2-"];
    let base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    known.iter().any(|start| kind.starts_with(start))
        && key.starts_with("AAAA")
        && key.len() >= 40
        && key.chars().all(base64)
        && !line.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKGBWt1bq6dW9v1Tj1W4c8rGmO2Yh3m0b0uJzv4aXk7P ann@laptop";

    #[test]
    fn only_public_keys_are_accepted() {
        let two = format!("# mine\n{KEY}\n\n{KEY}\n");
        assert_eq!(PublicKeys::parse(&two).unwrap().0, format!("{KEY}\n{KEY}\n"));
        for (text, why) in [
            ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", "private key"),
            ("", "no public key"),
            ("# nothing\n", "no public key"),
            ("hello world", "is not a public key"),
            (&format!("command=\"rm\" {KEY}"), "is not a public key"),
            ("ssh-ed25519 AAAA", "is not a public key"),
        ] {
            let error = PublicKeys::parse(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_token_is_made_once_and_only_its_owner_can_read_it() {
        let state = tempfile::tempdir().unwrap();
        let keys = Keys::of(&state.path().join("new"), "ann");
        let own = File::open(state.path()).unwrap().metadata().unwrap();
        let user = UserIds {
            uid: own.uid(),
            gid: own.gid(),
        };
        let token = keys.prepare(user, None).unwrap().unwrap();
        assert_eq!(token.len(), 64);
        assert!(!keys.has_authorized_keys());
        let public = PublicKeys::parse(KEY).unwrap();
        assert_eq!(
            keys.prepare(user, Some(&public)).unwrap(),
            None,
            "it was shown already"
        );
        assert!(keys.has_authorized_keys());
        assert_eq!(std::fs::read_to_string(keys.token_file()).unwrap(), token);

        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&keys.folder), 0o700);
        let files: Vec<_> = std::fs::read_dir(&keys.folder).unwrap().flatten().collect();
        assert_eq!(files.len(), 2, "{files:?}");
        assert!(files.iter().all(|file| mode(&file.path()) == 0o600), "{files:?}");

        keys.remove().unwrap();
        keys.remove().unwrap();
        assert!(!keys.folder.exists());
    }

    #[test]
    fn a_link_in_the_folder_is_replaced_and_not_followed() {
        let state = tempfile::tempdir().unwrap();
        let target = state.path().join("target");
        std::fs::write(&target, "as it was").unwrap();
        let keys = Keys::of(state.path(), "ann");
        std::fs::create_dir(&keys.folder).unwrap();
        std::os::unix::fs::symlink(&target, keys.folder.join(AUTHORIZED_KEYS)).unwrap();
        let own = std::fs::metadata(state.path()).unwrap();
        let user = UserIds {
            uid: own.uid(),
            gid: own.gid(),
        };
        keys.prepare(user, Some(&PublicKeys::parse(KEY).unwrap()))
            .unwrap();
        assert_eq!(std::fs::read_to_string(target).unwrap(), "as it was");
    }
}
