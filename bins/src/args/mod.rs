//! Arguments that programs share, one definition of each.
//!
//! | module        | what                                                            |
//! |---------------|-----------------------------------------------------------------|
//! | [`prepare`]   | `--prepare`                                                     |
//! | [`used`]      | a saved model, the rows it is used on, and what is written      |
//! | [`converge`]  | `--tolerance` and `--patience`                                  |
//! | [`fine_tune`] | the command `fine-tune` of `dbn` and `dae`                      |
//! | [`restore`]   | `denoise` and `inpaint` of `dictionary-learning` and `sparse-coding` |
pub mod converge;
pub mod fine_tune;
pub mod prepare;
pub mod restore;
pub mod used;
