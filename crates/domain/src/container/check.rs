//! What may be asked of a container runtime. Each check says what is wrong and what would be right.

use super::Mount;

/// The longest image reference: a registry's host, a path and a digest fit with much room.
const IMAGE_BYTES_MAX: usize = 512;
/// The limits that `setrlimit` knows.
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
/// Options without a value. Any other must bring its value in the same word, or it would swallow the next one.
const SWITCHES: [&str; 5] = [
    "--privileged",
    "--read-only",
    "--no-hosts",
    "--oom-kill-disable",
    "--no-healthcheck",
];
/// Options that Lockstep gives itself, each with the place where it is asked for.
const OWN_OPTIONS: [(&str, &str); 28] = [
    ("--cidfile", "no field"),
    ("--detach", "no field: the process that watches it stays with it"),
    ("--entrypoint", "no field: the interpreter is started"),
    ("--env", "env, or secrets"),
    ("--env-file", "env, or secrets"),
    ("--env-host", "env, or secrets"),
    ("--env-merge", "env, or secrets"),
    ("--gpus", "gpus"),
    ("--interactive", "no field"),
    ("--ipc", "shm_size, which is without it"),
    ("--log-driver", "no field: the ranks' logs are kept with the run"),
    ("--mount", "mounts"),
    ("--name", "no field: it is made from the run's id"),
    (
        "--net",
        "no field: ranks of several nodes meet on the machines' network",
    ),
    (
        "--network",
        "no field: ranks of several nodes meet on the machines' network",
    ),
    ("--pid", "no field: ranks are watched by their process ids"),
    ("--pull", "no field: preflight fetches what is missing"),
    ("--replace", "no field"),
    ("--restart", "max_restarts"),
    ("--rm", "no field: it is always given"),
    ("--shm-size", "shm_size"),
    ("--sig-proxy", "no field"),
    ("--tty", "no field"),
    ("--ulimit", "ulimits"),
    ("--user", "user"),
    ("--userns", "no field: the agent must be able to watch its ranks"),
    ("--volume", "mounts"),
    ("--workdir", "workdir"),
];

/// An image's reference, like `pytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime`, with or without a digest.
///
/// # Errors
/// What is wrong with it.
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
            "{reference:?} is no image; it looks like registry.example/name:tag"
        ));
    }
    Ok(())
}

/// A container's or volume's name.
///
/// # Errors
/// What is wrong with it.
pub fn name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let well_formed = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(allowed);
    if !well_formed || name.len() > 128 {
        return Err(format!(
            "{name:?} is no name; use at most 128 letters, digits, '.', '_' or '-', a letter or digit first"
        ));
    }
    Ok(())
}

/// `HOST:CONTAINER`, `HOST:CONTAINER:ro`, or `PATH` for the same path on both sides. Both are absolute, without `..`; the
/// host's side may also be a volume's name.
///
/// # Errors
/// What is wrong with it.
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
                "{text:?} is no mount; write /host/path:/container/path or …:ro"
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
        return Err("a mount over the container's / hides all of the image; mount a folder in it".into());
    }
    Ok(Mount {
        source: source.to_owned(),
        target: target.to_owned(),
        read_only,
    })
}

/// A path that a mount can carry.
///
/// # Errors
/// What is wrong with it.
pub fn path(path: &str) -> Result<(), String> {
    if !path.starts_with('/') {
        return Err(format!("{path:?} is not an absolute path"));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("{path:?} goes up by ..; write where it leads"));
    }
    if path.contains([':', ',', '\0', '\n', '"']) {
        return Err(format!("{path:?} holds a character that a mount cannot carry"));
    }
    Ok(())
}

/// `user` or `user:group`, names or numbers.
///
/// # Errors
/// What is wrong with it.
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
        "{user:?} is no user; write a name or number, or user:group"
    ))
}

/// `name=soft` or `name=soft:hard`; -1 is without limit.
///
/// # Errors
/// What is wrong with it.
pub fn ulimit(text: &str) -> Result<(), String> {
    let Some((name, values)) = text.split_once('=') else {
        return Err(format!(
            "{text:?} is no limit; write it like memlock=-1 or nofile=65536:65536"
        ));
    };
    if !ULIMITS.contains(&name) {
        return Err(format!(
            "there is no limit {name:?}; there is: {}",
            ULIMITS.join(", ")
        ));
    }
    let number = |text: &str| text == "-1" || (text.len() <= 19 && text.parse::<u64>().is_ok());
    let parts: Vec<&str> = values.split(':').collect();
    if parts.len() > 2 || !parts.iter().copied().all(number) {
        return Err(format!(
            "{values:?} is no value of {name}; write a number, -1, or soft:hard"
        ));
    }
    Ok(())
}

/// A size of shared memory: a number with `b`, `k`, `m` or `g`.
///
/// # Errors
/// What is wrong with it.
pub fn memory_size(text: &str) -> Result<(), String> {
    let digits = text.trim_end_matches(['b', 'k', 'm', 'g', 'B', 'K', 'M', 'G']);
    let unit = text.len() - digits.len();
    if unit <= 1 && digits.len() <= 15 && digits.parse::<u64>().is_ok_and(|size| size > 0) {
        return Ok(());
    }
    Err(format!("{text:?} is no size; write it like 16g or 512m"))
}

/// A GPU by its index or its UUID.
///
/// # Errors
/// What is wrong with it.
pub fn gpu(text: &str) -> Result<(), String> {
    let index = text.len() <= 3 && text.parse::<u16>().is_ok();
    let uuid = (text.starts_with("GPU-") || text.starts_with("MIG-"))
        && text.len() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if index || uuid {
        return Ok(());
    }
    Err(format!("{text:?} is no GPU; give an index, or a UUID like GPU-…"))
}

/// A further option of `run`: one word, `--name=value`, or a switch without a value. Not one that is asked for elsewhere.
///
/// # Errors
/// What is wrong with it, and where to ask for it.
pub fn option(word: &str) -> Result<(), String> {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    let letters = name.strip_prefix("--").unwrap_or_default();
    if letters.is_empty() || !letters.chars().all(|c| c.is_ascii_lowercase() || c == '-') {
        return Err(format!(
            "{word:?} is no option; write each as one word, like --cap-add=SYS_PTRACE"
        ));
    }
    if word.contains(['\0', '\n']) {
        return Err(format!("{name} holds a character that no option holds"));
    }
    if let Some((_, place)) = OWN_OPTIONS.iter().find(|(own, _)| *own == name) {
        return Err(format!("{name} is given by Lockstep; ask for it in: {place}"));
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
            "--shm-size is given by Lockstep; ask for it in: shm_size"
        );
    }
}
