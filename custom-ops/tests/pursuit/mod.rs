//! The pursuits against their textbook forms, and the rules that they promise.
#![allow(clippy::unwrap_used)]
mod codes;
mod common;
mod errors;
mod forms;
mod masked;
mod nonnegative;
mod reference;
mod rules;
