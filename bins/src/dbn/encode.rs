//! The command `encode`: features of a data set to a file.
use super::saved::Saved;
use crate::args::used::{EncodeArgs, LayerChoice};
use crate::features::{Encoding, report_beside};
use crate::ranks;
use crate::report::Outcome;
use anyhow::{Result, ensure};
use candle::Tensor;
use chandlery::Layered;
use std::ops::RangeInclusive;

/// Writes features of every row of a split.
pub fn encode(args: &EncodeArgs) -> Result<Outcome> {
    let report = report_beside(args.of.common.json, &args.out)?;
    let (ranks, device) = ranks::join(&args.ranks, &args.of.common)?;
    let saved = Saved::load(&args.of.model.model, &device)?;
    let layers = Layers::of(&saved);
    let chosen = layers.chosen(args.layer, &args.of.model.model)?;
    let n_layers = layers.widths.len();
    let rows = args.of.open()?;
    let encoding = Encoding {
        out: &args.out,
        ranks: &ranks,
        rows: &rows,
        reads: saved.reads(),
        layers: (chosen.clone(), n_layers),
        width: chosen.clone().map(|layer| layers.widths[layer - 1]).sum(),
    };
    encoding.write(&report, &device, |rows, layer| features(&saved, rows, layer))
}

/// The layers of a model that have features, lowest first.
struct Layers {
    /// Units of each.
    widths: Vec<usize>,
    /// The one that is written when none is asked for, counted from 1; 0 where there is none.
    usual: usize,
}

impl Layers {
    /// The usual layer is the top one of a network; of one with labels the one that they stand
    /// beside, of an autoencoder its code, of a classifier the last one below its logits.
    fn of(saved: &Saved) -> Self {
        let (widths, usual): (Vec<usize>, _) = match saved {
            Saved::Plain(dbn) => {
                let layers = &dbn.config().layers;
                (layers.iter().map(|layer| layer.n_hidden).collect(), layers.len())
            }
            Saved::Labelled(dbn) => {
                let m = dbn.recognition().len();
                (dbn.config().sizes[1..=m].to_vec(), m)
            }
            Saved::Classifier(network) | Saved::Autoencoder(network) => {
                let layers = &network.config().layers;
                let below = usize::from(matches!(saved, Saved::Classifier(_)));
                let usual = network.config().encoder_layers() - below;
                (layers.iter().map(|layer| layer.n_outputs).collect(), usual)
            }
        };
        Self { widths, usual }
    }

    /// The layers to write, counted from 1.
    fn chosen(&self, asked: Option<LayerChoice>, model: &str) -> Result<RangeInclusive<usize>> {
        let n_layers = self.widths.len();
        ensure!(
            n_layers > 0,
            "{model}: this network has no layer below its labels; use `dbn encode` with the network of `dbn train` that it was made from"
        );
        let layer = match asked {
            Some(LayerChoice::One(layer)) => layer,
            Some(LayerChoice::All) | None => self.usual,
        };
        ensure!(layer > 0, "{model}: this classifier has no hidden layer; --layer 1 writes its logits");
        ensure!(layer <= n_layers, "--layer: must be between 1 and {n_layers} for this network, got {layer}");
        Ok(if asked == Some(LayerChoice::All) { 1..=layer } else { layer..=layer })
    }
}

/// What a layer, counted from 1, makes of rows.
fn features(saved: &Saved, rows: &Tensor, layer: usize) -> candle::Result<Tensor> {
    match saved {
        Saved::Plain(dbn) => dbn.features(rows, layer),
        Saved::Labelled(dbn) => dbn.features(rows, layer),
        Saved::Classifier(network) | Saved::Autoencoder(network) => network.features(rows, layer),
    }
}
