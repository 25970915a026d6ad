//! The quality of a fine-tuned network, and of as many principal components for comparison.
use crate::progress::{Progress, Spinner};
use crate::ranks::Ranks;
use crate::rows::{Blocks, MeasuredOn};
use anyhow::{Result, bail};
use candle::{DType, Device, Tensor};
use chandlery::feedforward::{Feedforward, Task};
use chandlery::{Decode, Encode, Model};
use chandlery_datasets::preparation::{Moments, Pca};
use chandlery_datasets::{Split, count};
use serde::Serialize;

/// Inputs above which principal components are not sought: the solver's time grows with their cube.
const MOST_COMPONENT_INPUTS: usize = 2000;

/// Errors of a network on test rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Which rows these are figures of.
    pub measured_on: MeasuredOn,
    /// Share of rows whose most probable class is not the label, of a classifier.
    pub test_error: Option<f64>,
    /// Such rows.
    pub test_errors: Option<usize>,
    /// Mean squared error of the reconstruction, summed over the inputs, of an autoencoder.
    pub test_squared_error: Option<f64>,
    /// The same within the span of as many principal components of the training rows as the code
    /// has units.
    pub pca_squared_error: Option<f64>,
    /// Those components.
    pub pca_components: Option<usize>,
    /// Rows measured.
    pub n_test: usize,
}

impl Measured {
    /// The error of some rows that are on the device: a share for a classifier, a squared error for
    /// an autoencoder.
    pub fn error(model: &Feedforward, rows: &Tensor, labels: Option<&Tensor>) -> Result<f64> {
        match (model.config().task, labels) {
            (Task::Classify, Some(labels)) => Ok(model.errors(rows, labels)? as f64 / rows.dim(0)? as f64),
            (Task::Classify, None) => bail!("--classify: held-out and test rows must have labels, got none"),
            (Task::Autoencode { .. }, _) => Ok(model.reconstruction_error(rows)?),
        }
    }

    /// Measures `test`, of which ranks take blocks in turn; rank 0 goes on alone with the principal
    /// components, those of all rows in `train`, if there are any.
    pub fn of(
        ranks: &Ranks,
        model: &Feedforward,
        train: &[&Split],
        (test, measured_on): (&Split, MeasuredOn),
    ) -> Result<Self> {
        let device = model.device();
        let labels = test.labels_tensor(device)?;
        let mut sum = 0.;
        let mut blocks = Blocks::of_rank(ranks, test, model.config(), device)?;
        let bar = Progress::rows(test.n_samples() as u64, 0);
        bar.label("measuring".to_owned());
        while let Some(rows) = blocks.next()? {
            let n = rows.dim(0)?;
            let labels = labels.as_ref().map(|labels| labels.narrow(0, blocks.first(), n)).transpose()?;
            sum += Self::error(model, &rows, labels.as_ref())? * n as f64;
            bar.advance(n as u64);
        }
        drop(bar);
        let [sum] = ranks.sums([sum])?;
        ranks.first_goes_on();
        let error = sum / test.n_samples() as f64;
        let classify = model.config().task == Task::Classify;
        let components = model.config().layers[model.config().encoder_layers() - 1].n_outputs;
        let n_inputs = model.config().layers[0].n_inputs;
        let components = (!classify && n_inputs <= MOST_COMPONENT_INPUTS && !train.is_empty())
            .then_some(components.min(n_inputs));
        let pca = |n| {
            let _spinner = Spinner::new("principal components");
            principal_error(model, train, test, n)
        };
        Ok(Self {
            measured_on,
            test_error: classify.then_some(error),
            test_errors: classify.then_some(sum.round() as usize),
            test_squared_error: (!classify).then_some(error),
            pca_squared_error: components.map(pca).transpose()?,
            pca_components: components,
            n_test: test.n_samples(),
        })
    }

    /// The results as a line of text.
    pub fn words(&self) -> String {
        match (self.test_error, self.test_squared_error) {
            (Some(error), _) => format!(
                "error on {}: {:.2} %, {} of {}",
                self.measured_on,
                100. * error,
                self.test_errors.unwrap_or_default(),
                count(self.n_test, "row")
            ),
            (_, Some(error)) => {
                let pca = match (self.pca_squared_error, self.pca_components) {
                    (Some(pca), Some(n)) => {
                        format!("; with {} {pca:.3}", count(n, "principal component"))
                    }
                    _ => String::new(),
                };
                format!(
                    "squared error on {}: {error:.3} per row, over {}{pca}",
                    self.measured_on,
                    count(self.n_test, "row")
                )
            }
            _ => String::new(),
        }
    }
}

/// Mean squared error of test rows projected onto `n` principal components, of rows as the network
/// reads them.
fn principal_error(model: &Feedforward, train: &[&Split], test: &Split, n: usize) -> Result<f64> {
    let (config, device) = (model.config(), model.device());
    let mut moments = Moments::new(config.layers[0].n_inputs, device)?;
    for split in train {
        let mut blocks = Blocks::new(split, config, device)?;
        while let Some(rows) = blocks.next()? {
            moments.add(&model.prepare(&rows)?)?;
        }
    }
    let pca = Pca::from_moments(&moments, Some(n))?;
    let mut sum = 0.;
    let mut blocks = Blocks::new(test, config, device)?;
    while let Some(rows) = blocks.next()? {
        let rows = model.prepare(&rows)?;
        let within = pca.inverse(&pca.transform(&rows)?)?;
        sum += (rows - within)?.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    }
    Ok(sum / test.n_samples() as f64)
}

/// The codes of some rows in the plane, `[n, 2]` on the CPU, and what the axes are: the code's two
/// units, or its first two principal components. None for a code of one unit.
pub fn plane(model: &Feedforward, test: &Split) -> Result<Option<(Tensor, &'static str)>> {
    let mut blocks = Blocks::new(test, model.config(), model.device())?;
    let mut codes = Vec::new();
    while let Some(rows) = blocks.next()? {
        codes.push(model.encode(&rows)?.to_device(&Device::Cpu)?);
    }
    let codes = Tensor::cat(&codes, 0)?;
    match codes.dim(1)? {
        2 => Ok(Some((codes, "code unit"))),
        n if n > 2 && codes.dim(0)? > 1 => {
            let plane = Pca::fit(&codes, Some(2))?.transform(&codes)?;
            Ok(Some((plane, "principal component of the code")))
        }
        _ => Ok(None),
    }
}
