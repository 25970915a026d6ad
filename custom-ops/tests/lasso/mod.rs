//! The lasso against its textbook form, and what it promises whatever the problem.
#![allow(clippy::unwrap_used)]
mod common;
mod edges;
mod errors;
mod solutions;
mod step;
