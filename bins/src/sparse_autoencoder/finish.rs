//! What a run leaves: the model, pictures, curves and the model card.
use super::args::Settings;
use crate::patch_rows::{Family, Input, write_filters};
use crate::report::Outcome;
use crate::rows::Rows;
use crate::run_folder::RunFolder;
use crate::session::card::scale_of;
use crate::session::{Card, Picture, Run, Trained};
use anyhow::Result;
use chandlery::Model;
use chandlery::pictures::curves::Panel;
use chandlery::sparse_autoencoder::{CostParts, SparseAutoencoder};
use serde_json::{Map, Value, json};

const TAGS: [&str; 3] = ["sparse-autoencoder", "feature-extraction", "unsupervised"];

/// What a training made.
pub struct Made {
    /// How long it was, in words: `400 iterations`.
    pub length: String,
    /// The same for programs, and what else is known of it.
    pub figures: Map<String, Value>,
    /// The curves of its metrics.
    pub panels: Vec<Panel>,
    /// Said after the cost, where it ended early.
    pub note: Option<String>,
}

/// Draws the input of norm 1 that activates each feature most.
pub fn filters(model: &SparseAutoencoder, folder: &RunFolder) -> Result<Option<Picture>> {
    write_filters(&model.maximal_inputs()?, model.shape(), folder, |n| {
        format!("the inputs of norm 1 that activate {n} features most; mid-grey is 0")
    })
}

/// Writes all of it.
pub fn finish<R: Run<Input = Input, Settings = Settings>>(
    run: &Trained<R>,
    rows: &Rows,
    model: &SparseAutoencoder,
    [before, after]: [&CostParts; 2],
    made: Made,
) -> Result<Outcome> {
    let (settings, config) = (&run.info.settings, model.config());
    run.folder.save_model("", |path| model.save_pretrained(path))?;
    run.draw_curves(&made.panels)?;
    let pictures: Vec<_> = filters(model, &run.folder)?.into_iter().collect();
    run.report.line(&format!(
        "cost {:.6} → {:.6}: half the squared error {:.6}, decay {:.6}, divergence {:.6}",
        before.cost, after.cost, after.squared_error, after.decay, after.divergence
    ))?;
    if let Some(note) = &made.note {
        run.report.line(note)?;
    }
    let (v, h) = (config.n_visible, config.n_hidden);
    let mut results = json!({
        "data": rows.name,
        "n_rows": run.info.n_rows,
        "n_visible": v,
        "n_hidden": h,
        "optimizer": settings.optimizer,
    });
    let costs = json!({
        "cost_start": before.cost,
        "cost": after.cost,
        "squared_error": after.squared_error,
        "decay": after.decay,
        "divergence": after.divergence,
    });
    if let (Some(results), Value::Object(costs)) = (results.as_object_mut(), costs) {
        results.extend(made.figures);
        results.extend(costs);
    }
    let card = Card {
        tags: &TAGS,
        title: format!("Sparse autoencoder {v}-{h}-{v}"),
        learned: format!(
            "Learned by {} on `{}`: {}.",
            settings.optimizer.words(),
            rows.name,
            rows.words()
        ),
        settings: format!(
            "{}, weight decay {}, sparsity weight {}, target {}",
            made.length,
            settings.cost.weight_decay,
            settings.cost.sparsity_weight,
            settings.cost.sparsity_target
        ),
        results: format!(
            "| over all rows | initial weights | this model |\n|---|---|---|\n\
             | cost | {:.4} | **{:.4}** |\n\
             | half the squared error | {:.4} | {:.4} |\n\
             | decay | {:.4} | {:.4} |\n\
             | divergence of the mean activations | {:.4} | {:.4} |\n\n\
             ![cost while it learned](curves.svg)",
            before.cost,
            after.cost,
            before.squared_error,
            after.squared_error,
            before.decay,
            after.decay,
            before.divergence,
            after.divergence
        ),
        pictures: &pictures,
        rust: format!(
            "use chandlery::{{Decode, Encode, Model}};\n\
             let model = chandlery::sparse_autoencoder::SparseAutoencoder::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let features = model.encode(&rows)?; // rows: [m, {}], {}",
            config.n_inputs(),
            scale_of(&rows.split, &config.preparation)?
        ),
        files: "`model.safetensors` holds `weight` `[n_hidden, n_visible]` and `bias` `[n_hidden]`, a linear layer as it stands, and \
                `decoder_weight` `[n_visible, n_hidden]` and `visible_bias` `[n_visible]`, another."
            .to_owned(),
    };
    run.finish(settings.seed, results, &card)
}
