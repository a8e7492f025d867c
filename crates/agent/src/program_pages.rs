//! Keeps what is resident small. Most of an agent's memory is pages of its own program: its loading, arguments and certificates touch
//! code and tables that are not needed again. Once all is running, those pages are let go of; what is still used comes back
//! from the page cache at its next use, which costs some hundred microseconds once.
//!
//! ```text
//! r--p  headers, relocations, constants     let go of: never written
//! r-xp  code                                let go of: never written
//! r--p  what the loader wrote, then locked  kept
//! rw-p  data                                kept
//! ```
//!
//! `unsafe` is here for one call, `madvise`.
#![allow(unsafe_code, reason = "letting go of pages has no safe form")]

use std::fs;
use std::ops::Range;
use std::path::Path;

use rustix::mm::{Advice, madvise};

/// Lets go of the pages of this program's code and constants. Trouble changes nothing, and is only logged.
pub(crate) fn release() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Ok(program) = fs::read_link("/proc/self/exe") else {
        return;
    };
    for range in unwritten_of(&program, &maps) {
        let (start, length) = (std::ptr::with_exposed_provenance_mut(range.start), range.len());
        // SAFETY: the range is a mapping of this program's file that nobody has written: position-independent code and what lies
        // in front of it are not changed by the loader. A page that is read again holds what it held.
        let released = unsafe { madvise(start, length, Advice::LinuxDontNeed) };
        if let Err(error) = released {
            tracing::debug!(%error, "the pages of the program cannot be let go of");
        }
    }
}

/// The mappings of a program up to its code. Read-only ones behind it were written when the program was loaded.
fn unwritten_of(program: &Path, maps: &str) -> Vec<Range<usize>> {
    let mappings: Vec<_> = maps.lines().filter_map(|line| mapping(program, line)).collect();
    let Some(code) = mappings.iter().rposition(|(rights, _)| *rights == "r-xp") else {
        return Vec::new();
    };
    let unwritten = mappings.into_iter().take(code + 1);
    unwritten
        .filter(|(rights, _)| matches!(*rights, "r--p" | "r-xp"))
        .map(|(_, range)| range)
        .collect()
}

/// Rights and place of a mapping of the program, from a line of `/proc/self/maps`.
fn mapping<'a>(program: &Path, line: &'a str) -> Option<(&'a str, Range<usize>)> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights) = (words.next()?, words.next()?);
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    (Path::new(words.nth(3)?) == program).then_some((rights, address(start)?..address(end)?))
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
7f000000-7f001000 r-xp 00000000 fe:00 13 /usr/lib/libc.so.6
7fff0000-7fff1000 r-xp 00000000 00:00 0 [vdso]
";

    #[test]
    fn only_what_nobody_wrote_is_let_go_of() {
        let unwritten = |program: &str| unwritten_of(Path::new(program), MAPS);
        assert_eq!(
            unwritten("/usr/bin/lockstep"),
            [0x55e0_a000..0x55e0_b000, 0x55e0_b000..0x55e0_f000]
        );
        assert!(unwritten("/usr/bin/other").is_empty());
    }

    /// What is resident of this program's code and constants, in KiB.
    fn resident_kib() -> u64 {
        let program = fs::read_link("/proc/self/exe").unwrap();
        let unwritten = unwritten_of(&program, &fs::read_to_string("/proc/self/maps").unwrap());
        let (mut counts, mut sum) = (false, 0);
        for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            if let Some((_, range)) = mapping(&program, line) {
                counts = unwritten.contains(&range);
            } else if let Some(kib) = line.strip_prefix("Rss:").filter(|_| std::mem::take(&mut counts)) {
                sum += kib.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap();
            }
        }
        sum
    }

    /// Makes all of this program's code resident.
    fn populate() {
        let program = fs::read_link("/proc/self/exe").unwrap();
        for range in unwritten_of(&program, &fs::read_to_string("/proc/self/maps").unwrap()) {
            let start = std::ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: the range is mapped, and its pages are only read.
            unsafe { madvise(start, range.len(), Advice::LinuxPopulateRead) }.unwrap();
        }
    }

    #[test]
    fn the_program_goes_on_with_less() {
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
