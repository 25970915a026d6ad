//! The model card of a run.
use super::args::Settings;
use crate::patch_rows::Rows;
use crate::report::figure;
use crate::session::card::scale_of;
use crate::session::{Card, Picture};
use anyhow::Result;
use chandlery::sparse_coding::{Figures, SparseCodingConfig};
use chandlery_datasets::count;

const TAGS: [&str; 4] = ["sparse-coding", "lasso", "feature-extraction", "unsupervised"];

/// The card of a basis that was learned from `rows`; `before` is the mean objective during the first epoch.
pub fn of<'a>(
    config: &SparseCodingConfig,
    rows: &Rows,
    settings: &Settings,
    before: f64,
    after: &Figures,
    pictures: &'a [Picture],
) -> Result<Card<'a>> {
    let (n, p) = (config.n_atoms, config.n_features);
    let scale = scale_of(&rows.split, &config.preparation)?;
    Ok(Card {
        tags: &TAGS,
        title: format!("Basis of {} for sparse coding of {}", count(n, "atom"), count(p, "value")),
        learned: format!("Learned in minibatches of `{}`: {}.", rows.name, rows.words()),
        settings: format!(
            "{} in minibatches of {}, penalty {}",
            count(settings.epochs, "epoch"),
            settings.learn.batch,
            settings.penalty
        ),
        results: format!(
            "| mean over all rows | first epoch | this model |\n|---|---|---|\n\
             | objective | {} | **{}** |\n\
             | nonzero activations | | {:.2} % |\n\
             | largest relative duality gap | | {:.1e} |\n\n\
             ![objective and sparsity by epoch](curves.svg)",
            figure(before, 5),
            figure(after.objective, 5),
            100. * after.nonzero_fraction,
            after.max_relative_gap
        ),
        pictures,
        rust: format!(
            "let model = chandlery::sparse_coding::SparseCoding::from_pretrained(\"this/folder\", &candle::Device::Cpu)?;\n\
             let activations = model.forward(&rows)?; // rows: [m, {}], {scale}",
            config.n_inputs()
        ),
        files: "`model.safetensors` holds `basis` `[n_atoms, n_features]`, an atom in each row; `config.json` has the penalty `beta`. \
                Activations minimise `½‖x − aB‖² + beta Σ|a|` for a prepared row `x`."
            .to_owned(),
    })
}
