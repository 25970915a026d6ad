//! Lists, decoding, statistics and updates of atoms against plain loops.
#![allow(clippy::expect_used)]
mod codes;
mod common;
mod rules;
mod statistics;
mod update;
