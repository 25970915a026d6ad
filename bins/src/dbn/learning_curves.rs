//! What the epochs of a run came to, and its learning curves.
use chandlery::dbn::DbnConfig;
use chandlery::pictures::curves::{Curve, Panel};
use serde::{Deserialize, Serialize};

/// What an epoch came to: a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Counted from 1, the lowest.
    pub layer: usize,
    /// Counted from 1 in each layer.
    pub epoch: usize,
    /// Mean over training rows of the squared error of the layer's own reconstruction, summed over
    /// its visible units.
    pub reconstruction_error: f64,
    /// The same over held-out rows; none where no rows are held out.
    pub held_out_reconstruction_error: Option<f64>,
    /// Mean free energy of held-out rows minus that of training rows, in nats.
    pub free_energy_gap: Option<f64>,
    /// Step size.
    pub learning_rate: f64,
    /// Share of the last step that was kept.
    pub momentum: f64,
    /// Training rows a second.
    pub rows_per_second: f64,
    /// Training time.
    pub seconds: f64,
}

/// Learning curves of each layer.
pub fn panels(reports: &[EpochReport], config: &DbnConfig) -> [Panel; 2] {
    let curve = |layer: usize, name: String, y: &dyn Fn(&EpochReport) -> Option<f64>| {
        let own = reports.iter().filter(|report| report.layer == layer);
        Curve::new(name, own.filter_map(|report| Some((report.epoch as f64, y(report)?))))
    };
    let (mut errors, mut gaps) = (Vec::new(), Vec::new());
    for (i, rbm) in config.layers.iter().enumerate() {
        let (layer, units) = (i + 1, rbm.n_visible as f64);
        let error = |r: &EpochReport| Some(r.reconstruction_error / units);
        let held_out = |r: &EpochReport| Some(r.held_out_reconstruction_error? / units);
        errors.push(curve(layer, format!("layer {layer}, training"), &error));
        errors.push(curve(layer, format!("layer {layer}, held-out"), &held_out));
        gaps.push(curve(layer, format!("layer {layer}"), &|r| r.free_energy_gap));
    }
    let of_input = "reconstruction of a layer's input";
    let of_gap = "free energy, held-out minus training rows";
    [
        Panel::new(of_input, "epoch", "squared error per visible unit", errors),
        Panel::new(of_gap, "epoch", "nats", gaps),
    ]
}
