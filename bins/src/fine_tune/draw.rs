//! Pictures of a fine-tuned network: learning curves, reconstructions of test rows, their codes in
//! the plane.
use super::EpochReport;
use super::measure::plane;
use crate::reconstructions::{RECONSTRUCTIONS, draw_reconstructions, drawable};
use crate::rows::MeasuredOn;
use crate::run_folder::RunFolder;
use crate::session::Picture;
use crate::stages::{self, Stage};
use anyhow::Result;
use chandlery::Model;
use chandlery::feedforward::Feedforward;
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::pictures::scatter::{self, Class};
use chandlery_datasets::Split;

/// Test rows whose codes are shown, at most: more would hide each other.
const CODES: usize = 4000;

/// Draws what the network allows into a run folder.
pub fn pictures(
    model: &Feedforward,
    (test, of): (&Split, MeasuredOn),
    classify: bool,
    folder: &RunFolder,
) -> Result<Vec<Picture>> {
    let _stage = stages::enter(Stage::Pictures);
    let mut pictures = Vec::new();
    if classify {
        return Ok(pictures);
    }
    pictures.extend(reconstructions(model, test, of, folder)?);
    pictures.extend(codes(model, &test.take(CODES)?, of, folder)?);
    Ok(pictures)
}

/// Loss and error by epoch.
pub fn learning_curves(reports: &[EpochReport], classify: bool) -> [Panel; 2] {
    let curve = |name: &str, y: &dyn Fn(&EpochReport) -> Option<f64>| {
        Curve::new(name, reports.iter().filter_map(|report| Some((report.epoch as f64, y(report)?))))
    };
    let (scale, unit) =
        if classify { (100., "rows misclassified, %") } else { (1., "squared error per row") };
    let errors = vec![
        curve("training, with dropout", &|r| Some(scale * r.training_error)),
        curve("held-out", &|r| Some(scale * r.held_out_error?)),
    ];
    let loss = vec![curve("training", &|r| Some(r.loss))];
    [
        Panel::new("loss in training, with dropout", "epoch", "loss per row", loss),
        Panel::new("error", "epoch", unit, errors),
    ]
}

/// Test rows over what comes back from their codes; none when rows are no images that can be drawn.
fn reconstructions(
    model: &Feedforward,
    test: &Split,
    of: MeasuredOn,
    folder: &RunFolder,
) -> Result<Option<Picture>> {
    let Some(shape) = drawable(model.config()) else {
        return Ok(None);
    };
    let (device, path) = (model.device(), folder.file("reconstructions.png")?);
    let n = draw_reconstructions(model, &model.config().into(), test, shape, RECONSTRUCTIONS, device, &path)?;
    Ok(Some(Picture {
        file: "reconstructions.png".to_owned(),
        caption: format!("{}, with the reconstructions from their codes below each line", of.count(n)),
    }))
}

/// The codes of test rows as points, coloured by class where there are labels; none for a code of
/// one unit.
fn codes(model: &Feedforward, test: &Split, of: MeasuredOn, folder: &RunFolder) -> Result<Option<Picture>> {
    let Some((plane, axis)) = plane(model, test)? else {
        return Ok(None);
    };
    let points = plane.to_vec2::<f32>()?;
    let n_classes = test.n_classes().max(1);
    let mut classes: Vec<Class> = (0..n_classes)
        .map(|class| Class {
            name: if test.labels.is_some() { class.to_string() } else { "rows".to_owned() },
            points: Vec::new(),
        })
        .collect();
    for (i, point) in points.iter().enumerate() {
        let class = test.labels.as_deref().map_or(0, |labels| labels[i] as usize);
        if let (Some(class), &[x, y]) = (classes.get_mut(class), &point[..]) {
            class.points.push((f64::from(x), f64::from(y)));
        }
    }
    let n = model.config().layers[model.config().encoder_layers() - 1].n_outputs;
    let title = match n {
        2 => format!("codes of {}", of.count(points.len())),
        n => format!("codes of {}: first two principal components of {n} units", of.count(points.len())),
    };
    let labels = [1, 2].map(|i| format!("{axis} {i}"));
    folder.write("codes.svg", scatter::draw(&title, &labels[0], &labels[1], &classes)?.as_bytes())?;
    Ok(Some(Picture { file: "codes.svg".to_owned(), caption: title }))
}
