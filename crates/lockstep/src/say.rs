//! Prints results. A closed output, as with `| head`, is not an error.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// `println!` for results.
macro_rules! say {
    ($($part:tt)*) => { $crate::say::line(format_args!($($part)*)) };
}

/// Prints a line.
pub(crate) fn line(text: Arguments<'_>) {
    write(&format!("{text}\n"));
}

/// Prints a text unchanged. Exits with code 0 if the output is closed.
pub(crate) fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("error: the output cannot be written: {error}");
            std::process::exit(1);
        }
    }
}
