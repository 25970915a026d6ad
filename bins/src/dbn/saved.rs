//! Saved models: which sub-command takes which, and what it says of the others.
//!
//! | model                     | written by                      | what takes it                                          |
//! |---------------------------|---------------------------------|--------------------------------------------------------|
//! | network, or one RBM       | `dbn train`, or the library     | every sub-command                                      |
//! | network with labels       | `dbn up-down`                   | `encode`, `evaluate`, `predict`, `reconstruct`, `sample` |
//! | autoencoder               | `dbn fine-tune --autoencode`    | `encode`, `evaluate`, `reconstruct`                    |
//! | classifier                | `dbn fine-tune --classify`      | `encode`, `evaluate`, `predict`                        |
use crate::program::{model_type, other_model};
use crate::rows::Reads;
use crate::sizes;
use anyhow::{Error, Result, anyhow, bail};
use candle::Device;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::feedforward::{Feedforward, Task};
use chandlery::labelled::LabelledDbn;
use chandlery::pretrained::ModelType;
use chandlery::rbm::Rbm;
use chandlery::{LoadOptions, Model};

/// A saved model.
pub enum Saved {
    /// A network trained layer by layer; a single RBM is a network of one layer.
    Plain(Dbn),
    /// A network with label units.
    Labelled(LabelledDbn),
    /// A fine-tuned network that tells classes apart.
    Classifier(Feedforward),
    /// A fine-tuned network that gives back what it reads.
    Autoencoder(Feedforward),
}

impl Saved {
    /// Loads whatever model of this program is in a folder or on the hub.
    ///
    /// # Errors
    /// When there is none or it cannot be read, or it is the model of another program.
    pub fn load(model: &str, device: &Device) -> Result<Self> {
        Ok(match model_type(model)? {
            ModelType::Dbn => Self::Plain(Dbn::from_pretrained(model, &LoadOptions::on(device))?),
            ModelType::Rbm => {
                let rbm = Rbm::from_pretrained(model, &LoadOptions::on(device))?;
                let (n_visible, n_hidden) = (rbm.config().n_visible, rbm.config().n_hidden);
                let config = DbnConfig {
                    layers: vec![rbm.config().clone()],
                    preparation: rbm.config().preparation.clone(),
                    ..DbnConfig::new(&[n_visible, n_hidden])
                };
                Self::Plain(Dbn::from_layers(config, vec![rbm])?)
            }
            ModelType::LabelledDbn => {
                Self::Labelled(LabelledDbn::from_pretrained(model, &LoadOptions::on(device))?)
            }
            ModelType::Feedforward => {
                let network = Feedforward::from_pretrained(model, &LoadOptions::on(device))?;
                match network.config().task {
                    Task::Classify => Self::Classifier(network),
                    Task::Autoencode { .. } => Self::Autoencoder(network),
                }
            }
            other => bail!("{model}: {}", other_model(other, "a deep belief network")),
        })
    }

    /// What it is, with the sizes of its layers.
    fn words(&self) -> String {
        match self {
            Self::Plain(dbn) => format!("a deep belief network, {}", sizes::of_network(dbn.config())),
            Self::Labelled(dbn) => format!("a network with labels, {}", sizes::of_labelled(dbn.config())),
            Self::Classifier(network) | Self::Autoencoder(network) => {
                let config = network.config();
                format!("a fine-tuned {}, {}", sizes::noun(config), sizes::of_fine_tuned(config))
            }
        }
    }

    /// The sub-commands that take it, of those that do not make another model of it.
    fn uses(&self) -> &'static [&'static str] {
        match self {
            Self::Plain(_) => &["encode", "evaluate", "reconstruct", "sample"],
            Self::Labelled(_) => &["encode", "evaluate", "predict", "reconstruct", "sample"],
            Self::Autoencoder(_) => &["encode", "evaluate", "reconstruct"],
            Self::Classifier(_) => &["encode", "evaluate", "predict"],
        }
    }

    /// The error of a sub-command that does not take it: what it is, and what to use.
    pub fn refused(&self, model: &str, command: &str) -> Error {
        let uses: Vec<String> = self.uses().iter().map(|using| format!("`dbn {using} {model}`")).collect();
        let uses = uses.join(", ");
        let instead = match command {
            "predict" => format!(
                "make a classifier of the network of `dbn train` with `dbn fine-tune --classify`, or use {uses}"
            ),
            _ => format!(
                "use {uses}, or `dbn {command}` with the network of `dbn train` that it was made from"
            ),
        };
        anyhow!("{model}: this is {}, which `dbn {command}` does not support; {instead}", self.words())
    }

    /// How it reads rows.
    pub fn reads(&self) -> Reads {
        match self {
            Self::Plain(dbn) => dbn.config().into(),
            Self::Labelled(dbn) => dbn.config().into(),
            Self::Classifier(network) | Self::Autoencoder(network) => network.config().into(),
        }
    }
}

/// Loads the network that a sub-command starts from, which must be a network of `dbn train` or a
/// single RBM.
///
/// # Errors
/// As [`Saved::load`], and when it is another model.
pub fn plain(model: &str, command: &str, device: &Device) -> Result<Dbn> {
    match Saved::load(model, device)? {
        Saved::Plain(dbn) => Ok(dbn),
        other => Err(other.refused(model, command)),
    }
}
