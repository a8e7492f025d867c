//! Reduces the agent's resident memory. Most of it is pages of its own program and of the system's libraries: loading, parsing arguments
//! and reading certificates use code and tables that are not needed again. When all parts run, the agent releases those pages. A page that
//! is still used comes back from the page cache at its next use, which costs a few hundred microseconds once.
//!
//! ```text
//! r--p  headers, relocations, constants             released: never written
//! r-xp  code                                        released: never written
//! r--p  written by the loader, then made read-only  kept
//! rw-p  data                                        kept
//! ```
//!
//! Libraries that are opened later, such as NVML, are not touched: the loader may be writing to them.
//!
//! `unsafe` is needed for one call, `madvise`.
#![allow(unsafe_code, reason = "there is no safe interface to release pages")]

use std::fs;
use std::ops::Range;
use std::path::Path;

use rustix::mm::{Advice, madvise};

/// The beginnings of the names of libraries that are loaded with the program. The names of glibc's libraries contained its version up to
/// 2.33.
const LOADED_WITH_IT: [&str; 7] = [
    "ld-2.",
    "ld-linux",
    "libc-2.",
    "libc.so",
    "libgcc_s.so",
    "libm-2.",
    "libm.so",
];

/// Releases the pages with code and constants of this program and of the libraries loaded with it. An error has no effect and is only
/// logged.
pub(crate) fn release() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Ok(program) = fs::read_link("/proc/self/exe") else {
        return;
    };
    for range in unwritten(&program, &maps) {
        let (start, length) = (std::ptr::with_exposed_provenance_mut(range.start), range.len());
        // SAFETY: the range is a mapping of a file that was not written: the loader does not change position-independent code and
        // the pages before it. A page that is read again has the same content.
        let released = unsafe { madvise(start, length, Advice::LinuxDontNeed) };
        if let Err(error) = released {
            tracing::debug!(%error, "cannot release pages of the program and its libraries");
        }
    }
}

/// Returns the mappings of the program and of each library loaded with it, up to the code. Read-only mappings after the code were written
/// when the file was loaded.
fn unwritten(program: &Path, maps: &str) -> Vec<Range<usize>> {
    let mappings: Vec<Mapping<'_>> = maps.lines().filter_map(Mapping::read).collect();
    let files = mappings.chunk_by(|one, next| one.file == next.file);
    let files = files.filter(|mappings| is_loaded_at_start(program, mappings[0].file));
    let up_to_code = files.filter_map(|mappings| {
        let code = mappings.iter().rposition(|mapping| mapping.rights == "r-xp")?;
        Some(&mappings[..=code])
    });
    up_to_code
        .flatten()
        .filter(|mapping| matches!(mapping.rights, "r--p" | "r-xp"))
        .map(|mapping| mapping.range.clone())
        .collect()
}

fn is_loaded_at_start(program: &Path, file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    file == program || name.is_some_and(|name| LOADED_WITH_IT.iter().any(|of_it| name.starts_with(of_it)))
}

/// One line of `/proc/self/maps` that has a file.
struct Mapping<'a> {
    rights: &'a str,
    range: Range<usize>,
    file: &'a Path,
}

impl<'a> Mapping<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (range, rights) = (words.next()?, words.next()?);
        let address = |text: &str| usize::from_str_radix(text, 16).ok();
        let (start, end) = range.split_once('-')?;
        Some(Self {
            rights,
            range: address(start)?..address(end)?,
            file: Path::new(words.nth(3)?),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    const MAPS: &str = "\
55e0a000-55e0b000 r--p 00000000 fe:00 12 /usr/bin/lockstep
55e0b000-55e0f000 r-xp 00001000 fe:00 12 /usr/bin/lockstep
55e0f000-55e10000 r--p 00005000 fe:00 12 /usr/bin/lockstep
55e10000-55e11000 rw-p 00006000 fe:00 12 /usr/bin/lockstep
7f000000-7f001000 r--p 00000000 fe:00 13 /usr/lib/libc.so.6
7f001000-7f002000 r-xp 00001000 fe:00 13 /usr/lib/libc.so.6
7f002000-7f003000 r--p 00002000 fe:00 13 /usr/lib/libc.so.6
7f004000-7f005000 r-xp 00000000 fe:00 14 /usr/lib/libnvidia-ml.so.1
7f005000-7f006000 rw-p 00000000 00:00 0
7fff0000-7fff1000 r-xp 00000000 00:00 0 [vdso]
";

    #[test]
    fn only_unwritten_mappings_are_released() {
        let libc = [0x7f00_0000..0x7f00_1000, 0x7f00_1000..0x7f00_2000];
        let own = [0x55e0_a000..0x55e0_b000, 0x55e0_b000..0x55e0_f000];
        let of = |program: &str| unwritten(Path::new(program), MAPS);
        assert_eq!(of("/usr/bin/lockstep"), [own, libc.clone()].concat());
        assert_eq!(of("/usr/bin/other"), libc);
    }

    /// Returns the resident size of the code and constants that can be released, in KiB.
    fn resident_kib() -> u64 {
        let program = fs::read_link("/proc/self/exe").unwrap();
        let counted = unwritten(&program, &fs::read_to_string("/proc/self/maps").unwrap());
        let (mut counts, mut sum) = (false, 0);
        for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            if let Some(mapping) = Mapping::read(line) {
                counts = counted.contains(&mapping.range);
            } else if let Some(kib) = line.strip_prefix("Rss:").filter(|_| std::mem::take(&mut counts)) {
                sum += kib.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap();
            }
        }
        sum
    }

    /// Makes all of these pages resident.
    fn populate() {
        let program = fs::read_link("/proc/self/exe").unwrap();
        for range in unwritten(&program, &fs::read_to_string("/proc/self/maps").unwrap()) {
            let start = std::ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: the range is mapped, and its pages are only read.
            unsafe { madvise(start, range.len(), Advice::LinuxPopulateRead) }.unwrap();
        }
    }

    #[test]
    fn the_program_continues_with_fewer_pages() {
        populate();
        let before = resident_kib();
        release();
        let after = resident_kib();
        assert!(after < before / 2, "{after} of {before} KiB are still resident");
        assert_eq!(
            format!("{:?}", (0..3).map(|n| n * n).collect::<Vec<_>>()),
            "[0, 1, 4]"
        );
    }
}
