//! Tests of the analysers, most of them with cases in text files: `testdata/diagnosis/*.test`.

mod cases;
mod large;
mod late_answers;
mod script;
mod world;
