//! The analysers against cases in text files: `testdata/diagnosis/*.test`.

mod cases;
mod large;
mod script;
mod world;
