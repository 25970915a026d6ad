//! The model card of a run.
use super::args::Settings;
use crate::patch_rows::Rows;
use crate::session::card::scale_of;
use crate::session::{Card, Picture};
use anyhow::Result;
use chandlery::sparse_autoencoder::{CostParts, SparseAutoencoderConfig};

const TAGS: [&str; 3] = ["sparse-autoencoder", "feature-extraction", "unsupervised"];

/// The card of a model that was learned from `rows`.
pub fn of<'a>(
    config: &SparseAutoencoderConfig,
    rows: &Rows,
    settings: &Settings,
    iterations: usize,
    [before, after]: [&CostParts; 2],
    pictures: &'a [Picture],
) -> Result<Card<'a>> {
    let (v, h) = (config.n_visible, config.n_hidden);
    let scale = scale_of(&rows.split, &config.preparation)?;
    Ok(Card {
        tags: &TAGS,
        title: format!("Sparse autoencoder {v}-{h}-{v}"),
        learned: format!("Learned by L-BFGS on `{}`: {}.", rows.name, rows.words()),
        settings: format!(
            "{iterations} iterations, weight decay {}, sparsity weight {}, target {}",
            settings.cost.weight_decay, settings.cost.sparsity_weight, settings.cost.sparsity_target
        ),
        results: format!(
            "| over all rows | initial weights | this model |\n|---|---|---|\n\
             | cost | {:.4} | **{:.4}** |\n\
             | half the squared error | {:.4} | {:.4} |\n\
             | decay | {:.4} | {:.4} |\n\
             | divergence of the mean activations | {:.4} | {:.4} |\n\n\
             ![cost by iteration](curves.svg)",
            before.cost,
            after.cost,
            before.squared_error,
            after.squared_error,
            before.decay,
            after.decay,
            before.divergence,
            after.divergence
        ),
        pictures,
        rust: format!(
            "let model = chandlery::sparse_autoencoder::SparseAutoencoder::from_pretrained(\"this/folder\", &candle::Device::Cpu)?;\n\
             let features = model.forward(&rows)?; // rows: [m, {}], {scale}",
            config.n_inputs()
        ),
        files: "`model.safetensors` holds `weight` `[n_hidden, n_visible]` and `bias` `[n_hidden]`, a linear layer as it stands, and \
                `decoder_weight` `[n_visible, n_hidden]` and `visible_bias` `[n_visible]`, another."
            .to_owned(),
    })
}
