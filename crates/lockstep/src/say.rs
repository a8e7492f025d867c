//! Prints results and asks for confirmation. A closed output, as with `| head`, is not an error.

use std::fmt::Arguments;
use std::io::{ErrorKind, IsTerminal, Write};

use crate::failure::Failure;

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

/// Asks a question on the terminal. Returns the answer without the blanks around it.
pub(crate) fn ask(question: &str) -> Result<String, Failure> {
    eprint!("{question}");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

/// Asks for a confirmation. Without a terminal, `instead` is the error.
pub(crate) fn confirmed(question: &str, instead: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(instead.to_owned()));
    }
    let answer = ask(question)?;
    Ok(matches!(answer.as_str(), "y" | "Y" | "yes"))
}

/// Prints a value as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Failed(error.into()))?;
    line(format_args!("{text}"));
    Ok(())
}
