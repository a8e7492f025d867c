//! Tests of the analysers with cases in text files: `testdata/diagnosis/*.test`.

mod cases;
mod large;
mod script;
mod world;
