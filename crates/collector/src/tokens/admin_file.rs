//! DATA/admin.token: the admin token for commands on this machine. Mode 0600, created once.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::config::{ADMIN_TOKEN_CHARS_MIN, Secret};
use crate::error::StartError;

/// Reads the token, or creates one. Returns true with it if it was created.
pub(super) fn read_or_create(path: &Path) -> Result<(Secret, bool), StartError> {
    let data = |source| StartError::Data {
        path: path.to_owned(),
        source,
    };
    match File::open(path) {
        Ok(file) => read(file).map(|token| (token, false)).map_err(data),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create(path).map(|token| (token, true)).map_err(data)
        }
        Err(error) => Err(data(error)),
    }
}

fn read(file: File) -> io::Result<Secret> {
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
        tracing::warn!(
            mode = format!("{mode:o}"),
            "the admin token file was readable by others; its mode is now 0600"
        );
    }
    let mut text = String::new();
    file.take(1_024).read_to_string(&mut text)?;
    let token = text.trim();
    if token.len() < ADMIN_TOKEN_CHARS_MIN {
        let message = "it contains no usable admin token; remove the file to generate a new one";
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(Secret::new(token))
}

/// Written to another file and renamed, so that a crash leaves no incomplete token.
fn create(path: &Path) -> io::Result<Secret> {
    let token = super::random_secret("lsa_");
    let aside = path.with_extension("token.new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&aside)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    writeln!(file, "{}", token.expose())?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn the_token_is_made_once_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.token");
        let (made, created) = read_or_create(&path).unwrap();
        assert!(created);
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_or_create(&path).unwrap(), (made, false));
        assert_eq!(mode(), 0o600);
        std::fs::write(&path, "\n").unwrap();
        assert!(read_or_create(&path).is_err());
    }
}
