//! The command-line programs of Chandlery, and the code that they share.
//!
//! A program reads its arguments ([`clap`]), calls the libraries `chandlery` and `chandlery-datasets`, and writes a report.
//! Progress goes to standard error, as a bar on a terminal and else a line a minute ([`progress`]);
//! results go to standard output ([`report`]) and
//! to a run folder ([`run_folder`]). All training commands start, interrupt and resume a run in the same way ([`session`]).
// Both panic when their reader has gone; [`report`] has what does not.
#![warn(clippy::print_stderr, clippy::print_stdout)]
pub mod args;
pub mod arrays;
pub mod bench;
pub mod completions;
pub mod curves;
pub mod dae;
mod data;
pub mod dbn;
pub mod device;
pub mod dictionary;
mod features;
mod help;
pub mod images;
pub mod interrupt;
pub mod options;
pub mod patch_rows;
pub mod pictures;
mod plain;
pub mod precision;
pub mod program;
pub mod progress;
pub mod raster;
pub mod read_args;
mod readout;
pub mod report;
mod rows;
pub mod run_folder;
pub mod scatter;
mod self_taught;
pub mod session;
pub mod sparse_autoencoder;
pub mod sparse_coding;
pub mod tsne;
