//! Token and keys of a workspace: a folder of the person's own, the only thing of a workspace that is secret.
//!
//! ```text
//! STATE/NAME/ 0700   jupyter.token          made once; 64 hexadecimal digits, no newline
//!                    authorized_keys        the public keys that SSH lets in
//!                    ssh_host_ed25519_key   made by the workspace at its first start
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::settings::Person;

const TOKEN: &str = "jupyter.token";
const AUTHORIZED_KEYS: &str = "authorized_keys";
/// Public keys are some hundred bytes; a file of more than this is something else.
const PUBLIC_KEYS_BYTES_MAX: u64 = 64 << 10;
/// Where `ssh-keygen` puts them, the better first.
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

/// Public keys, one a line, checked.
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

    /// Whether SSH lets anybody in.
    pub(super) fn lets_in(&self) -> bool {
        std::fs::metadata(self.folder.join(AUTHORIZED_KEYS)).is_ok_and(|file| file.len() > 0)
    }

    /// Makes what is missing, for this person. Gives the token where it is new.
    pub(super) fn prepare(
        &self,
        person: Person,
        public: Option<&PublicKeys>,
    ) -> anyhow::Result<Option<String>> {
        let cannot = || format!("cannot keep the workspace's keys in {}", self.folder.display());
        self.make_folder(person).with_context(cannot)?;
        if let Some(PublicKeys(keys)) = public {
            self.put(AUTHORIZED_KEYS, keys, person).with_context(cannot)?;
        }
        if self.token_file().symlink_metadata().is_ok() {
            return Ok(None);
        }
        let token: String = rand::random::<[u8; 32]>()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.put(TOKEN, &token, person).with_context(cannot)?;
        Ok(Some(token))
    }

    /// Takes all of it away.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.folder.display()))
            }
            _ => Ok(()),
        }
    }

    fn make_folder(&self, person: Person) -> std::io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        give(&File::open(&self.folder)?, person)
    }

    /// Written under another name first and renamed: the folder is the person's, and what is there may be a link by now.
    fn put(&self, name: &str, text: &str, person: Person) -> std::io::Result<()> {
        let partial = self.folder.join(format!("{name}.{:016x}", rand::random::<u64>()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(text.as_bytes())?;
        give(&file, person)?;
        file.sync_all()?;
        std::fs::rename(partial, self.folder.join(name))
    }
}

/// Only root can give away, and need not where it is theirs already.
fn give(file: &File, person: Person) -> std::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        fchown(file, Some(person.uid), Some(person.gid))?;
    }
    Ok(())
}

// === impl PublicKeys ===

impl PublicKeys {
    /// Of a file that was named, or the usual one; `None` where there is none.
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

    /// Lines as OpenSSH writes them: type, base64, comment. Without options, which would run or forbid something inside.
    fn parse(text: &str) -> Result<Self, String> {
        if text.contains("PRIVATE KEY") {
            return Err(
                "is a private key, which stays where it is; name the file beside it that ends in .pub".into(),
            );
        }
        let mut keys = String::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !is_public_key(line) {
                return Err(
                    "holds a line that is no public key; it looks like: ssh-ed25519 AAAA… name".into(),
                );
            }
            keys.push_str(line);
            keys.push('\n');
        }
        if keys.is_empty() {
            return Err("holds no public key; it looks like: ssh-ed25519 AAAA… name".into());
        }
        Ok(Self(keys))
    }
}

/// The second word says the first again: base64 of its length in four bytes and its letters, which begin with `AAAA`.
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
    fn public_keys_are_taken_and_nothing_else() {
        let two = format!("# mine\n{KEY}\n\n{KEY}\n");
        assert_eq!(PublicKeys::parse(&two).unwrap().0, format!("{KEY}\n{KEY}\n"));
        for (text, why) in [
            ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", "private key"),
            ("", "no public key"),
            ("# nothing\n", "no public key"),
            ("hello world", "is no public key"),
            (&format!("command=\"rm\" {KEY}"), "is no public key"),
            ("ssh-ed25519 AAAA", "is no public key"),
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
        let person = Person {
            uid: own.uid(),
            gid: own.gid(),
        };
        let token = keys.prepare(person, None).unwrap().unwrap();
        assert_eq!(token.len(), 64);
        assert!(!keys.lets_in());
        let public = PublicKeys::parse(KEY).unwrap();
        assert_eq!(
            keys.prepare(person, Some(&public)).unwrap(),
            None,
            "it was told already"
        );
        assert!(keys.lets_in());
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
        let person = Person {
            uid: own.uid(),
            gid: own.gid(),
        };
        keys.prepare(person, Some(&PublicKeys::parse(KEY).unwrap()))
            .unwrap();
        assert_eq!(std::fs::read_to_string(target).unwrap(), "as it was");
    }
}
