//! Checks what the files of the repository must and must not contain.

use std::process::Command;

use crate::workspace::root;

/// Addresses of package registries, in halves so that this file does not contain them. The address of a mirror in a file would send readers
/// to a private network, or past their own mirror.
const REGISTRIES: [(&str, &str); 5] = [
    ("://registry", "."),
    ("://index", ".crates.io"),
    ("://static", ".crates.io"),
    ("pypi", ".org/simple"),
    ("files.python", "hosted.org"),
];

#[test]
fn no_file_names_a_package_registry() {
    for (path, text) in tracked_texts().iter().filter(|(path, _)| path != "Cargo.lock") {
        for (first, second) in REGISTRIES {
            let address = format!("{first}{second}");
            assert!(
                !text.contains(&address),
                "{path} contains the registry address {address}"
            );
        }
    }
}

#[test]
fn the_readme_gives_the_two_commands_and_ci_runs_the_one_it_gives() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks: Vec<_> = readme.split("```").skip(1).step_by(2).collect();
    for command in ["cargo xtask run", "cargo xtask test"] {
        assert!(
            blocks.iter().any(|block| block.contains(command)),
            "no command block of README.md has `{command}`"
        );
    }
    let ci = std::fs::read_to_string(root().join(".ci/run")).unwrap();
    assert!(
        ci.lines().any(|line| line.trim() == "exec cargo xtask test"),
        ".ci/run does something else than README says"
    );
}

/// Returns all text files that git tracks; none in an unpacked release without git.
fn tracked_texts() -> Vec<(String, String)> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    paths
        .filter_map(|path| Some((path.to_owned(), std::fs::read_to_string(root().join(path)).ok()?)))
        .collect()
}
