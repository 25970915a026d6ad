//! Autoencoders and stacks in folders. In this program an autoencoder is a stack of one.
use crate::program::{model_type, other_model};
use anyhow::{Result, bail};
use candle::Device;
use chandlery::dae::{Dae, DaeConfig, StackedDae, StackedDaeConfig};
use chandlery::pretrained::ModelType;
use chandlery::{LoadOptions, Model, Preparation};
use std::path::Path;

/// Loads the autoencoder or the stack in a folder or on the hub.
pub fn load(model: &str, device: &Device) -> Result<StackedDae> {
    match model_type(model)? {
        ModelType::StackedDae => Ok(StackedDae::from_pretrained(model, &LoadOptions::on(device))?),
        ModelType::Dae => stack_of(&Dae::from_pretrained(model, &LoadOptions::on(device))?),
        other => bail!("{model}: {}", other_model(other, "a denoising autoencoder")),
    }
}

/// A stack of one autoencoder.
fn stack_of(dae: &Dae) -> Result<StackedDae> {
    let DaeConfig { preparation, image, .. } = dae.config().clone();
    let layer = with(dae, Preparation::default(), None)?;
    let config = StackedDaeConfig { layers: vec![layer.config().clone()], preparation, image };
    Ok(StackedDae::from_layers(config, vec![layer])?)
}

/// Saves a stack of one as the autoencoder that it is, and others as stacks.
pub fn save(stack: &StackedDae, folder: &Path) -> Result<()> {
    let StackedDaeConfig { preparation, image, .. } = stack.config();
    match stack.layers() {
        [alone] => Ok(with(alone, preparation.clone(), *image)?.save_pretrained(folder)?),
        _ => Ok(stack.save_pretrained(folder)?),
    }
}

/// The same autoencoder with another preparation and shape of images.
fn with(
    dae: &Dae,
    preparation: Preparation,
    image: Option<chandlery_datasets::ImageShape>,
) -> candle::Result<Dae> {
    let config = DaeConfig { preparation, image, ..dae.config().clone() };
    let decoder = dae.decoder_weight().cloned();
    Dae::from_tensors(config, dae.weight().clone(), dae.bias().clone(), dae.visible_bias().clone(), decoder)
}

/// `784-500`: the sizes of a stack's layers, the input's first.
pub fn sizes(config: &StackedDaeConfig) -> String {
    let input = config.layers.first().map(|layer| layer.n_visible);
    let sizes = input.into_iter().chain(config.layers.iter().map(|layer| layer.n_hidden));
    sizes.map(|n| n.to_string()).collect::<Vec<_>>().join("-")
}
