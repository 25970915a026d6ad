//! The command-line programs of Chandlery, and the code that they share.
//!
//! A program reads its arguments ([`clap`]), calls the libraries `chandlery` and
//! `chandlery-datasets`, and writes a report. Progress goes to standard error, as a bar on a
//! terminal and else a line a minute ([`progress`]); results go to standard output ([`report`]) and
//! to a run folder ([`run_folder`]). All training commands start, interrupt and resume a run in the
//! same way ([`session`]). All say where their time went ([`stages`]).
// Both panic when their reader has gone; [`report`] has what does not.
#![warn(clippy::print_stderr, clippy::print_stdout)]
pub mod args;
pub mod arrays;
mod atoms;
pub mod bench;
mod choices;
pub mod completions;
pub mod dae;
pub mod dbn;
pub mod device;
pub mod dictionary;
mod features;
mod fine_tune;
mod help;
pub mod interrupt;
mod layer_arg;
mod layerwise;
mod numbers;
pub mod options;
mod out_folder;
pub mod patch_rows;
mod plain;
pub mod precision;
pub mod program;
pub mod programs;
pub mod progress;
pub mod ranks;
pub mod read_args;
mod readout;
mod reconstructions;
pub mod report;
mod restore;
mod rows;
pub mod run_folder;
mod self_taught;
pub mod session;
mod sizes;
pub mod sparse_autoencoder;
pub mod sparse_coding;
pub mod stages;
pub mod tsne;
