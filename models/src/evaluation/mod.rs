//! What a trained model is worth: protocols that take rows with or without labels and give figures.
//!
//! | module | what |
//! |---|---|
//! | [`readout`] | a linear classifier on features, beside the same on the rows that they were made of |
//! | [`self_taught`] | features of unlabelled rows, where few rows of other classes have labels |
//! | [`likelihood`] | log-likelihoods of rows under a network of RBMs, with the partition function from both sides |
//! | [`recovery`] | whether the dictionary that signals were made of is found again |
//! | [`layout`] | how well a layout in the plane keeps what is near |
pub mod layout;
pub mod likelihood;
pub mod readout;
pub mod recovery;
pub mod self_taught;
