//! The code of a run from a git revision: `git = { repository = "…", revision = "…" }`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::field_error::FieldError;

/// The transports that git may use.
pub const PROTOCOLS: [&str; 4] = ["file", "http", "https", "ssh"];
/// Maximum length of a repository, in bytes: longer than any URL or name that git itself accepts.
const TEXT_BYTES_MAX: usize = 1_024;

/// A clean working copy that every node creates for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Checkout {
    /// An absolute path on the nodes, or a URL; `user@host:path` for SSH.
    pub repository: String,
    /// A commit, a tag or a branch.
    pub revision: String,
    /// Also check out the submodules.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub submodules: bool,
}

impl Checkout {
    /// Returns all errors, field by field. No message shows the repository, because the text may contain a password.
    #[must_use]
    pub fn problems(&self) -> Vec<FieldError> {
        let fields = [
            ("git.repository", check_repository(&self.repository)),
            ("git.revision", check_revision(&self.revision)),
        ];
        let problem =
            |(field, result): (&str, Result<(), String>)| Some(FieldError::new(field, result.err()?));
        fields.into_iter().filter_map(problem).collect()
    }
}

fn check_repository(text: &str) -> Result<(), String> {
    const WANTED: &str = "give an absolute path on the nodes, https://host/path, or ssh://git@host/path";
    if text.is_empty() {
        return Err(format!("is empty; {WANTED}"));
    }
    if text.len() > TEXT_BYTES_MAX || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(format!(
            "contains whitespace or control characters, or is longer than {TEXT_BYTES_MAX} bytes; {WANTED}"
        ));
    }
    if text.starts_with('/') {
        return Ok(());
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        if !PROTOCOLS.contains(&scheme) {
            return Err(format!("must begin with one of {}://", PROTOCOLS.join("://, ")));
        }
        let authority = rest.split('/').next().unwrap_or_default();
        let user = authority.rsplit_once('@').map(|(user, _)| user);
        let names_only_a_user = scheme == "ssh" && user.is_some_and(|user| !user.contains(':'));
        if user.is_some() && !names_only_a_user {
            return Err(
                "contains a user or a password; remove it, and give the agent's user a credential helper or an SSH key"
                    .into(),
            );
        }
        let host = authority.rsplit('@').next().unwrap_or_default();
        if host.starts_with('-') || (host.is_empty() && scheme != "file") {
            return Err(format!("has no host; {WANTED}"));
        }
        return Ok(());
    }
    // The form that scp uses.
    let well_formed = text.split_once(':').is_some_and(|(host, path)| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        host.starts_with(|c: char| c.is_ascii_alphanumeric())
            && host.chars().all(plain)
            && host.matches('@').count() <= 1
            && !host.contains("@-")
            && !path.is_empty()
            && !path.starts_with(['-', ':'])
            && !path.contains('@')
    });
    if well_formed {
        return Ok(());
    }
    Err(format!("is not a repository; {WANTED}"))
}

fn check_revision(text: &str) -> Result<(), String> {
    const WANTED: &str = "give a commit, a tag or a branch";
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._/-+@~^".contains(c);
    if text.is_empty() {
        return Err(format!("is empty; {WANTED}"));
    }
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if text.len() > 256 || !starts_well || !text.chars().all(allowed) || text.contains("..") {
        return Err(format!("{text:?} is not a revision; {WANTED}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_takes_passes_and_what_it_would_take_for_something_else_does_not() {
        for good in [
            "/srv/git/train.git",
            "https://github.com/a/b.git",
            "https://host:8443/a",
            "ssh://git@host:2222/a/b",
            "git@github.com:a/b.git",
            "host:a",
            "file:///srv/git/a",
        ] {
            assert_eq!(check_repository(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "a/b",
            "--upload-pack=x",
            "ext::sh -c x",
            "ext::x",
            "git://host/a",
            "https://user:pass@host/a",
            "https://token@host/a",
            "ssh://git:pass@host/a",
            "ssh://-oProxyCommand=x/a",
            "git:pass@host:a",
            "-x:a",
            "git@-x:a",
            "https:///a",
            "/a b\n",
        ] {
            let message = check_repository(bad).expect_err(bad);
            assert!(!message.contains("pass@"), "{message}");
        }
        for good in ["main", "v1.2", "feature/x", "0123abcd", "HEAD~2", "v1.0^"] {
            assert_eq!(check_revision(good), Ok(()), "{good}");
        }
        for bad in [
            "", "-x", "--all", "a..b", "a:b", "a b", "+a", "@{u}", "a\nb", "$(x)",
        ] {
            assert!(check_revision(bad).is_err(), "{bad}");
        }
    }
}
