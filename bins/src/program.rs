//! Which program uses which model.
use crate::session::info::check_finished;
use anyhow::Result;
use chandlery::pretrained::{self, ModelType};

/// Which model a folder or a repository of the hub holds.
///
/// # Errors
/// When the folder is that of a run that is not finished, or holds no model; the message names it.
pub fn model_type(model: &str) -> Result<ModelType> {
    check_finished(model)?;
    Ok(pretrained::model_type(model)?)
}

/// What takes models of this type: a program by its sub-commands, or the library alone.
pub fn program_of(model: ModelType) -> &'static str {
    match model {
        ModelType::Rbm | ModelType::Dbn | ModelType::LabelledDbn | ModelType::Feedforward => "dbn",
        ModelType::Dictionary => "dictionary-learning",
        ModelType::Dae | ModelType::StackedDae => "dae",
        ModelType::SparseAutoencoder => "sparse-autoencoder",
        ModelType::SparseCoding => "sparse-coding",
        ModelType::Tsne => "tsne",
        ModelType::Softmax => "chandlery::softmax::Softmax",
    }
}

/// What is said of a model that a program does not take; `wanted` is what it takes.
pub fn other_model(model: ModelType, wanted: &str) -> String {
    format!("this is a model of type {model}, not {wanted}; use it with `{}`", program_of(model))
}
