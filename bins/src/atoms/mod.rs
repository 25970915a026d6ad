//! Dictionaries and bases as several programs use them.
//!
//! | module | what |
//! |---|---|
//! | [`given`] | a dictionary that the command line names: a model, or a file |
//! | [`draw`] | atoms as a picture |
//! | [`summary`] | the fields that the JSON of every command of dictionaries has |
//! | [`card`] | what the cards of all dictionaries say |
pub mod card;
pub mod draw;
pub mod given;
pub mod summary;
