//! Checks of settings for a container runtime. Each error says what is wrong and what to write instead.

use super::Mount;

/// Maximum length of an image reference in bytes: more than a registry's host, a path and a digest need.
const IMAGE_BYTES_MAX: usize = 512;
/// Limits that `setrlimit` supports.
const ULIMITS: [&str; 15] = [
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
];
/// Options without a value. Every other option must have its value in the same word; otherwise it would take the next word as its value.
const SWITCHES: [&str; 5] = [
    "--privileged",
    "--read-only",
    "--no-hosts",
    "--oom-kill-disable",
    "--no-healthcheck",
];
/// Options that Lockstep sets itself, each with the field to use instead.
const OWN_OPTIONS: [(&str, &str); 28] = [
    ("--cidfile", "none"),
    ("--detach", "none (the watching process stays attached)"),
    ("--entrypoint", "none (the interpreter is started)"),
    ("--env", "env, or secrets"),
    ("--env-file", "env, or secrets"),
    ("--env-host", "env, or secrets"),
    ("--env-merge", "env, or secrets"),
    ("--gpus", "gpus"),
    ("--interactive", "none"),
    ("--ipc", "shm_size, which is used without this option"),
    ("--log-driver", "none (logs of ranks are kept with the run)"),
    ("--mount", "mounts"),
    ("--name", "none (the name is made from the run's id)"),
    (
        "--net",
        "none (ranks of several nodes connect through the network of the hosts)",
    ),
    (
        "--network",
        "none (ranks of several nodes connect through the network of the hosts)",
    ),
    ("--pid", "none (ranks are watched by their process ids)"),
    ("--pull", "none (preflight pulls missing images)"),
    ("--replace", "none"),
    ("--restart", "max_restarts"),
    ("--rm", "none (always set)"),
    ("--shm-size", "shm_size"),
    ("--sig-proxy", "none"),
    ("--tty", "none"),
    ("--ulimit", "ulimits"),
    ("--user", "user"),
    ("--userns", "none (the agent must be able to watch its ranks)"),
    ("--volume", "mounts"),
    ("--workdir", "workdir"),
];

/// Checks an image reference, like `pytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime`, with or without a digest.
///
/// # Errors
/// Returns what is wrong with it.
pub fn image(reference: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@+".contains(c);
    if reference.is_empty() {
        return Err("is empty; give an image, like pytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime".into());
    }
    if reference.len() > IMAGE_BYTES_MAX {
        return Err(format!("is longer than {IMAGE_BYTES_MAX} bytes"));
    }
    if !reference.starts_with(|c: char| c.is_ascii_alphanumeric()) || !reference.chars().all(allowed) {
        return Err(format!(
            "{reference:?} is not an image reference; use the form registry.example/name:tag"
        ));
    }
    Ok(())
}

/// Checks the name of a container or volume.
///
/// # Errors
/// Returns what is wrong with it.
pub fn name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let well_formed = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(allowed);
    if !well_formed || name.len() > 128 {
        return Err(format!(
            "{name:?} is not a valid name; use at most 128 letters, digits, '.', '_' or '-', starting with a letter or digit"
        ));
    }
    Ok(())
}

/// Parses `HOST:CONTAINER`, `HOST:CONTAINER:ro`, or `PATH` for the same path on the host and in the container. Both are absolute paths
/// without `..`; `HOST` may also be the name of a volume.
///
/// # Errors
/// Returns what is wrong with it.
pub fn mount(text: &str) -> Result<Mount, String> {
    let mut parts: Vec<&str> = text.split(':').collect();
    let read_only = match parts.last() {
        Some(&"ro") => true,
        Some(&"rw") => false,
        _ => {
            parts.push("rw");
            false
        }
    };
    let (source, target) = match parts[..] {
        [path, _] => (path, path),
        [source, target, _] => (source, target),
        _ => {
            return Err(format!(
                "{text:?} is not a mount; use the form /host/path:/container/path or /host/path:/container/path:ro"
            ));
        }
    };
    if !source.starts_with('/') {
        name(source).map_err(|_| format!("{source:?} is neither an absolute path nor a volume's name"))?;
    }
    if source.starts_with('/') {
        path(source)?;
    }
    path(target)?;
    if target == "/" {
        return Err("a mount at / hides the whole image; mount at a folder below / instead".into());
    }
    Ok(Mount {
        source: source.to_owned(),
        target: target.to_owned(),
        read_only,
    })
}

/// Checks that a path can be used in a mount.
///
/// # Errors
/// Returns what is wrong with it.
pub fn path(path: &str) -> Result<(), String> {
    if !path.starts_with('/') {
        return Err(format!("{path:?} is not an absolute path"));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("{path:?} contains ..; use the resolved path"));
    }
    if path.contains([':', ',', '\0', '\n', '"']) {
        return Err(format!("{path:?} contains a character that mounts do not allow"));
    }
    Ok(())
}

/// Checks `user` or `user:group`, given as names or numbers.
///
/// # Errors
/// Returns what is wrong with it.
pub fn user(user: &str) -> Result<(), String> {
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= 64
            && !part.starts_with('-')
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    let well_formed = match user.split_once(':') {
        Some((user, group)) => part(user) && part(group),
        None => part(user),
    };
    if well_formed {
        return Ok(());
    }
    Err(format!(
        "{user:?} is not a user; use a name or number, or user:group"
    ))
}

/// Checks `name=soft` or `name=soft:hard`; -1 means unlimited.
///
/// # Errors
/// Returns what is wrong with it.
pub fn ulimit(text: &str) -> Result<(), String> {
    let Some((name, values)) = text.split_once('=') else {
        return Err(format!(
            "{text:?} is not a limit; use a form like memlock=-1 or nofile=65536:65536"
        ));
    };
    if !ULIMITS.contains(&name) {
        return Err(format!(
            "unknown limit {name:?}; known limits: {}",
            ULIMITS.join(", ")
        ));
    }
    let number = |text: &str| text == "-1" || (text.len() <= 19 && text.parse::<u64>().is_ok());
    let parts: Vec<&str> = values.split(':').collect();
    if parts.len() > 2 || !parts.iter().copied().all(number) {
        return Err(format!(
            "{values:?} is not a value for {name}; use a number, -1 (unlimited), or soft:hard"
        ));
    }
    Ok(())
}

/// Checks a size of shared memory: a number with the unit `b`, `k`, `m` or `g`.
///
/// # Errors
/// Returns what is wrong with it.
pub fn memory_size(text: &str) -> Result<(), String> {
    let digits = text.trim_end_matches(['b', 'k', 'm', 'g', 'B', 'K', 'M', 'G']);
    let unit = text.len() - digits.len();
    if unit <= 1 && digits.len() <= 15 && digits.parse::<u64>().is_ok_and(|size| size > 0) {
        return Ok(());
    }
    Err(format!("{text:?} is not a size; use a form like 16g or 512m"))
}

/// Checks a GPU, given as its index or UUID.
///
/// # Errors
/// Returns what is wrong with it.
pub fn gpu(text: &str) -> Result<(), String> {
    let index = text.len() <= 3 && text.parse::<u16>().is_ok();
    let uuid = (text.starts_with("GPU-") || text.starts_with("MIG-"))
        && text.len() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if index || uuid {
        return Ok(());
    }
    Err(format!("{text:?} is not a GPU; use an index or UUID like GPU-…"))
}

/// Checks an additional option of `run`: one word, `--name=value` or a switch without a value. Options that have a field of their own are
/// rejected.
///
/// # Errors
/// Returns what is wrong with it, and which field to use.
pub fn option(word: &str) -> Result<(), String> {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    let letters = name.strip_prefix("--").unwrap_or_default();
    if letters.is_empty() || !letters.chars().all(|c| c.is_ascii_lowercase() || c == '-') {
        return Err(format!(
            "{word:?} is not an option; write each option as one word, like --cap-add=SYS_PTRACE"
        ));
    }
    if word.contains(['\0', '\n']) {
        return Err(format!("{name} contains a character that options do not allow"));
    }
    if let Some((_, place)) = OWN_OPTIONS.iter().find(|(own, _)| *own == name) {
        return Err(format!("{name} is set by Lockstep; use the field: {place}"));
    }
    if name == word && !SWITCHES.contains(&word) {
        return Err(format!("{name} needs its value in the same word: {name}=VALUE"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Check = fn(&str) -> Result<(), String>;

    #[test]
    fn what_people_write_passes_and_what_could_not_be_meant_does_not() {
        let mounted: Check = |text| mount(text).map(drop);
        let digest = format!("ghcr.io/a/b@sha256:{}", "0".repeat(64));
        let cases: [(Check, &[&str], &[&str]); 8] = [
            (
                image,
                &[
                    "alpine",
                    "localhost:5000/team/torch:2.7",
                    "pytorch/pytorch:2.7.0-cuda12.6",
                    &digest,
                ],
                &["", "-v/:/host", "a b", "a;b", "--privileged", "$(x)"],
            ),
            (name, &["lockstep-ddp-1.2.n1"], &["", "-x", ".x", "a b", "a/b"]),
            (
                mounted,
                &[
                    "/data",
                    "/data:/mnt",
                    "/data:/mnt:ro",
                    "/data:ro",
                    "code:/work",
                    "/a b:/c",
                ],
                &[
                    "",
                    "data",
                    "/a:/b:/c",
                    "/a:b",
                    "/a:/b:z",
                    "/a/../etc:/b",
                    "../a:/b",
                    "-x:/b",
                    "/a:/",
                    ":/b",
                ],
            ),
            (
                user,
                &["root", "1000", "1000:100", "ann:staff"],
                &["", "1:", ":1", "1:2:3", "-u", "a b"],
            ),
            (
                ulimit,
                &["memlock=-1", "stack=67108864", "nofile=1024:65536"],
                &["memlock", "core=unlimited", "what=1", "stack=1:2:3", "stack="],
            ),
            (
                memory_size,
                &["16g", "512m", "1073741824", "1K"],
                &["", "g", "0", "16gb", "-1g", "1.5g"],
            ),
            (
                gpu,
                &["0", "15", "GPU-11111111-2222-3333-4444-555555555555", "MIG-1"],
                &["", "all", "0,1", "-1", "GPU-1,2", "1\""],
            ),
            (
                option,
                &[
                    "--cap-add=SYS_PTRACE",
                    "--privileged",
                    "--cgroups=disabled",
                    "--security-opt=seccomp=unconfined",
                ],
                &[
                    "",
                    "-v",
                    "-v/:/h",
                    "--",
                    "--cap-add",
                    "--name=x",
                    "--env=A=b",
                    "-eA=b",
                    "--detach",
                    "--pid=host",
                    "alpine",
                    "--volume=/:/h",
                    "--rm=false",
                    "--label=a\nb",
                ],
            ),
        ];
        for (check, good, bad) in cases {
            for text in good {
                assert_eq!(check(text), Ok(()), "{text:?}");
            }
            for text in bad {
                assert!(check(text).is_err(), "{text:?}");
            }
        }
    }

    #[test]
    fn a_mount_is_read_as_it_is_written() {
        for text in ["/data:/mnt:ro", "/data:/mnt", "code:/work"] {
            assert_eq!(mount(text).expect(text).to_string(), text);
        }
        assert_eq!(mount("/data:ro").expect("a mount").to_string(), "/data:/data:ro");
    }

    #[test]
    fn an_option_that_is_ours_says_where_to_ask() {
        assert_eq!(
            option("--shm-size=1g").expect_err("ours"),
            "--shm-size is set by Lockstep; use the field: shm_size"
        );
    }
}
