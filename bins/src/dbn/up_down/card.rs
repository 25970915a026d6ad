//! The model card of a network with labels.
use super::UpDownSettings;
use super::measure::Evaluation;
use crate::rows::{Data, OfModel};
use crate::session::card::scale_of;
use crate::session::{Card, Picture};
use crate::sizes;
use anyhow::Result;
use chandlery::labelled::LabelledDbnConfig;
use chandlery_datasets::count;

/// The card of a network that was trained with labels on `data`.
pub fn of<'a>(
    config: &LabelledDbnConfig,
    input: &OfModel,
    data: &Data,
    settings: &UpDownSettings,
    evaluation: &Evaluation,
    pictures: &'a [Picture],
) -> Result<Card<'a>> {
    let scale = scale_of(&data.train, &config.preparation)?;
    Ok(Card {
        tags: &["deep-belief-network", "generative"],
        title: format!("Deep belief network with labels, {}", sizes::of_labelled(config)),
        learned: format!(
            "Started from `{}`, extended by {} label units and trained on `{}` ({}): first the top layer with the labels, then all \
             weights by the up-down algorithm.",
            input.model,
            config.n_classes,
            input.data.data,
            data.words()
        ),
        settings: format!(
            "{} of the top layer and {} of all layers{}, in minibatches of {}",
            count(settings.top_epochs, "epoch"),
            count(settings.epochs, "epoch"),
            settings.converge.words(),
            settings.batch
        ),
        results: format!(
            "| measured on {} {} | |\n|---|---|\n\
             | accuracy of classification by the lowest free energy of the top layer | **{:.2} %** |\n\
             | squared error of the reconstruction (recognition up, generation down), summed over inputs | {:.3} |",
            evaluation.n_rows,
            evaluation.measured_on,
            100. * evaluation.accuracy,
            evaluation.reconstruction_error
        ),
        pictures,
        rust: format!(
            "use chandlery::Model;\n\
             let dbn = chandlery::labelled::LabelledDbn::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let classes = dbn.predict(&rows)?; // rows: [batch, {}], {scale}\n\
             let sevens = dbn.sample(&labels, 1000, chandlery::Philox::new(0, 0))?; // labels: [n] u32, below {}",
            config.n_inputs(),
            config.n_classes
        ),
        files: "`recognition.N` and `generative.N` in `model.safetensors` load as `candle_nn::Linear` and `torch.nn.Linear`,\n\
                for the upward and the downward pass; unit means are the sigmoid of their outputs."
            .to_owned(),
    })
}
