//! The names of the pods on this node, which control groups do not contain. The kubelet stores the logs of each pod in a folder with this
//! name:
//!
//! ```text
//! /var/log/pods/NAMESPACE_NAME_UID      ml_trainer-0_0af1c9de-1b2c-4d5e-8f90-a1b2c3d4e5f6
//! ```
//! The list of folders therefore maps uids to names, without a client, token or socket. Namespaces and names contain no underscore.

use std::path::Path;

/// The maximum number of folders that are read. No node runs this many pods, including ended ones that are not cleaned up.
const PODS_MAX: usize = 4_096;

/// The name and namespace of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Returns the pod with this uid. Returns `None` outside of Kubernetes, and if the folder is not mounted in the agent's container.
pub(super) fn find(root: &Path, uid: &str) -> Option<Pod> {
    let folders = std::fs::read_dir(root.join("var/log/pods")).ok()?;
    let mut names = folders.take(PODS_MAX).flatten().map(|folder| folder.file_name());
    names.find_map(|name| pod(name.to_str()?, uid))
}

fn pod(folder: &str, uid: &str) -> Option<Pod> {
    let (names, _) = folder
        .rsplit_once('_')
        .filter(|(_, of)| !of.is_empty() && *of == uid)?;
    let (namespace, name) = names.split_once('_')?;
    let is_whole = !namespace.is_empty() && !name.is_empty() && !name.contains('_');
    is_whole.then(|| Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    const UID: &str = "0af1c9de-1b2c-4d5e-8f90-a1b2c3d4e5f6";

    #[test]
    fn a_uid_finds_its_folder_and_no_other() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(find(root.path(), UID), None, "no Kubernetes here");
        for folder in [
            "kube-system_kube-proxy-x7k2p_11111111-2222-3333-4444-555555555555",
            // A static pod: its uid is a hash of its file.
            "kube-system_etcd-n1_0123456789abcdef0123456789abcdef",
            &format!("ml-team_trainer-0.web_{UID}"),
            &format!("{UID}_no-name_"),
            &format!("_{UID}"),
            "rubbish",
        ] {
            std::fs::create_dir_all(root.path().join("var/log/pods").join(folder)).unwrap();
        }
        let named = |uid: &str| find(root.path(), uid).map(|pod| (pod.namespace, pod.name));
        let expected = |namespace: &str, name: &str| Some((namespace.to_owned(), name.to_owned()));
        assert_eq!(named(UID), expected("ml-team", "trainer-0.web"));
        assert_eq!(
            named("0123456789abcdef0123456789abcdef"),
            expected("kube-system", "etcd-n1")
        );
        assert_eq!(named("99999999-2222-3333-4444-555555555555"), None);
        assert_eq!(named(""), None);
    }
}
