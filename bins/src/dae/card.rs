//! The model card of a run.
use super::args::Settings;
use super::measure::Errors;
use super::saved;
use crate::options::DataArgs;
use crate::rows::Data;
use crate::session::card::scale_of;
use crate::session::{Card, Picture};
use anyhow::Result;
use chandlery::dae::StackedDaeConfig;
use chandlery_datasets::count;

const TAGS: [&str; 3] = ["denoising-autoencoder", "feature-extraction", "unsupervised"];

/// The card of a model that was trained on `data`.
pub fn of<'a>(
    stack: &StackedDaeConfig,
    input: &DataArgs,
    data: &Data,
    settings: &Settings,
    errors: &Errors,
    pictures: &'a [Picture],
) -> Result<Card<'a>> {
    let alone = stack.layers.len() == 1;
    let (title, model, prefix) = match alone {
        true => ("Denoising autoencoder", "Dae", ""),
        false => ("Stacked denoising autoencoder", "StackedDae", "layers.N."),
    };
    let scale = scale_of(&data.train, &stack.preparation)?;
    Ok(Card {
        tags: &TAGS,
        title: format!("{title} {}", saved::sizes(stack)),
        learned: format!(
            "Trained without labels{} to give back rows of `{}` from corrupted ones: {}.",
            if alone { "" } else { ", layer by layer," },
            input.data,
            data.words()
        ),
        settings: format!(
            "{} per layer{} in minibatches of {}, noise {}",
            count(settings.n_epochs(), "epoch"),
            settings.converge.words(),
            settings.n_batch(),
            settings.corruption.join(", ")
        ),
        results: results(data, settings, errors),
        pictures,
        rust: format!(
            "use chandlery::{{Encode, Model}};\n\
             let dae = chandlery::dae::{model}::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let features = dae.encode(&rows)?; // rows: [batch, {}], {scale}",
            stack.n_inputs()
        ),
        files: format!(
            "`{prefix}weight` and `{prefix}bias` in `model.safetensors` load as `candle_nn::Linear` and `torch.nn.Linear`."
        ),
    })
}

fn results(data: &Data, settings: &Settings, errors: &Errors) -> String {
    let (_, measured_on) = data.measured_on();
    format!(
        "| root mean square error on {} | |\n|---|---|\n\
         | rows with {} | {:.4} |\n\
         | what comes back of these | **{:.4}** |\n\
         | what comes back of clean rows | {:.4} |\n\n\
         ![learning curves](curves.svg)",
        measured_on.count_with_warning(errors.n_samples),
        settings.corruption.first().map_or("no noise", String::as_str),
        errors.rmse_of_noise,
        errors.rmse,
        errors.rmse_clean
    )
}
