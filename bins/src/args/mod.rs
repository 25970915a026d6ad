//! Arguments that programs share, one definition of each.
//!
//! | module        | what                                                            |
//! |---------------|-----------------------------------------------------------------|
//! | [`prepare`]   | `--prepare`                                                     |
//! | [`used`]      | a saved model, the rows it is used on, and what is written      |
//! | [`fine_tune`] | the command `fine-tune` of `dbn` and `dae`                      |
//! | [`restore`]   | `denoise` and `inpaint` of `dictionary-learning` and `sparse-coding` |
//! | [`choices`]   | names of pursuits, update rules and starts of dictionaries      |
pub mod choices;
pub mod fine_tune;
pub mod prepare;
pub mod restore;
pub mod used;
