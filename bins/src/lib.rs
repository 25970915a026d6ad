//! What the command-line programs of Chandlery share, and the programs that are too long for one file.
//!
//! A program of this crate is: arguments in ([`clap`]), calls of the libraries `chandlery` and
//! `chandlery-datasets`, a report out. Progress goes to standard error and only to a terminal
//! ([`progress`]); results go to standard output ([`report`]) and to a folder of their own
//! ([`run_folder`]). Training commands begin, interrupt and resume a run alike ([`session`]).
pub mod arrays;
pub mod bench;
pub mod curves;
pub mod dbn;
pub mod device;
pub mod dictionary;
pub mod images;
pub mod interrupt;
pub mod options;
pub mod pictures;
pub mod progress;
pub mod raster;
pub mod report;
pub mod run_folder;
pub mod scatter;
pub mod session;
