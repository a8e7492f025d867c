//! The container's image, as far as it is visible from inside. Only facts are reported; most runtimes provide none, and then there is no
//! value.
//!
//! ```text
//! LOCKSTEP_IMAGE                            set in a manifest: Kubernetes shows a pod its labels, but not its image
//! /run/.containerenv                        Podman, privileged: image="NAME" and imageid="SHA-256"
//! APPTAINER_CONTAINER, SINGULARITY_CONTAINER   the file of the image
//! ```
//! Docker, containerd and CRI-O do not provide the image's name or digest inside the container. Variables of the image itself, such as a
//! vendor's build number, describe its base image and not the running image, so they are not used.

use std::path::Path;

/// Maximum length of an image's name.
const TEXT_BYTES_MAX: usize = 512;
/// Maximum size of Podman's file, which has only a few lines.
const FILE_BYTES_MAX: usize = 64 << 10;

/// Returns the image of the container with this root folder and these variables.
pub(crate) fn image(root: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let told = variable("LOCKSTEP_IMAGE");
    let podman = || of_podman(&std::fs::read_to_string(root.join("run/.containerenv")).ok()?);
    let file = || variable("APPTAINER_CONTAINER").or_else(|| variable("SINGULARITY_CONTAINER"));
    told.filter(|text| is_name(text))
        .or_else(podman)
        .or_else(file)
        .filter(|text| is_name(text))
}

/// The id is the digest of the image's configuration. It identifies the image permanently on its machine; a name can be reassigned.
fn of_podman(text: &str) -> Option<String> {
    let text = text.get(..FILE_BYTES_MAX.min(text.len()))?;
    let value = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
            .filter(|value| !value.is_empty())
    };
    match (value("image"), value("imageid")) {
        (Some(name), Some(id)) => Some(format!("{name} (id sha256:{})", id.trim_start_matches("sha256:"))),
        (None, Some(id)) => Some(format!("id sha256:{}", id.trim_start_matches("sha256:"))),
        (name, None) => name,
    }
}

fn is_name(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn told(containerenv: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        if let Some(text) = containerenv {
            std::fs::create_dir(root.path().join("run")).unwrap();
            std::fs::write(root.path().join("run/.containerenv"), text).unwrap();
        }
        image(root.path(), &|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_image_is_read_from_the_environment_and_from_nothing_else() {
        const PODMAN: &str = "engine=\"podman-4.9\"\nname=\"a\"\nid=\"c0\"\nimage=\"quay.io/train:24\"\nimageid=\"5f3a\"\nrootless=1\n";
        const FILE: (&str, &str) = ("APPTAINER_CONTAINER", "/images/train.sif");
        const TOLD: (&str, &str) = ("LOCKSTEP_IMAGE", "registry/train@sha256:77");
        type Case<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)], Option<&'a str>);
        let cases: [Case<'_>; 7] = [
            (None, &[], None),
            (Some(""), &[], None),
            (Some(PODMAN), &[], Some("quay.io/train:24 (id sha256:5f3a)")),
            (Some("imageid=\"sha256:5f3a\""), &[], Some("id sha256:5f3a")),
            (None, &[FILE], Some("/images/train.sif")),
            (Some(PODMAN), &[FILE, TOLD], Some("registry/train@sha256:77")),
            (None, &[("LOCKSTEP_IMAGE", "a\nb")], None),
        ];
        for (containerenv, variables, expected) in cases {
            assert_eq!(
                told(containerenv, variables).as_deref(),
                expected,
                "{variables:?}"
            );
        }
    }
}
