//! The figures: a layout of digits, its images at their points, and what a kernel without tails
//! makes of it.
use super::data::digits;
use super::{SEED, best, table};
use crate::bench::paper::{Cell, Paper};
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::evaluation::layout::{NEIGHBOURS, SAMPLE, TRUST_NEIGHBOURS};
use chandlery::pictures::RgbImage;
use chandlery::pictures::scatter::discs::{Points, draw};
use chandlery::pictures::scatter::{Classes, thumbnails};
use chandlery::tsne::measure::{self, TrueDistances};
use chandlery::tsne::{Method, TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Philox};
use chandlery_datasets::ImageShape;
use image::imageops;

const SIDE: u32 = 900;
/// Degrees of freedom at which `(1 + d²/α)^−α` is near `exp(−d²)`: within 1 % where that is more
/// than a fifth.
const UNTAILED: f32 = 100.;

/// A layout, on its device and as it is drawn.
struct Made {
    layout: Tensor,
    positions: Vec<f32>,
    kl: f64,
}

fn lay_out(config: TsneConfig, rows: &Tensor) -> Result<Made> {
    let alpha = config.degrees_of_freedom;
    let mut run = TsneTrainer::new(config, Philox::new(SEED, 9), rows)?;
    run.fit()?;
    let layout = run.layout()?;
    let kl = measure::kl_of_affinities(run.affinities(), &layout, alpha)?;
    let positions = layout.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?;
    Ok(Made { layout, positions, kl })
}

/// The mean distance of the classes' centres over that of a point from its class's.
fn separation(positions: &[f32], classes: &Classes) -> f64 {
    let points = positions.as_chunks::<2>().0;
    let mut centres = vec![[0f64; 2]; classes.names.len()];
    let counts = classes.counts();
    for (point, &class) in points.iter().zip(&classes.of) {
        let centre = &mut centres[class as usize];
        for k in 0..2 {
            centre[k] += f64::from(point[k]) / counts[class as usize].max(1) as f64;
        }
    }
    let away = |a: [f64; 2], b: [f64; 2]| (a[0] - b[0]).hypot(a[1] - b[1]);
    let within = points.iter().zip(&classes.of);
    let within: f64 = within.map(|(p, &class)| away(p.map(f64::from), centres[class as usize])).sum();
    let pairs = (0..centres.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let (between, count) =
        pairs.fold((0., 0), |(sum, count), (a, b)| (sum + away(centres[a], centres[b]), count + 1));
    (between / f64::from(count.max(1))) / (within / points.len().max(1) as f64)
}

/// All that is wanted.
pub(super) fn run(paper: &mut Paper) -> Result<()> {
    let wanted = ["figure-3", "figure-4"].map(|id| paper.wants(id));
    if wanted.contains(&true) {
        layouts(paper, wanted)?;
    }
    if paper.wants("figure-7") { crowding(paper) } else { Ok(()) }
}

fn classes_of(labels: &Tensor) -> Result<Classes> {
    let labels = labels.to_vec1::<u32>()?;
    Ok(Classes::new(labels.len(), Some(&labels), None))
}

fn layouts(paper: &mut Paper, wanted: [bool; 2]) -> Result<()> {
    // Both are of one layout, whose time is that of the first.
    let open = ["figure-3", "figure-4"].into_iter().find(|id| paper.wants(id));
    let (rows, labels) = digits(if paper.quick() { 1000 } else { 6000 })?;
    let n = rows.dim(0)?;
    let config = if paper.quick() { TsneConfig { iterations: 250, ..best() } } else { best() };
    let Made { positions, .. } = lay_out(config, &rows.to_device(paper.device())?)?;
    let classes = classes_of(&labels)?;
    let points = Points { positions: &positions, n_dims: 2, classes: &classes };
    if wanted[0] {
        let picture = draw(&points, &format!("t-SNE of {n} digits"), SIDE)?;
        paper.picture("figure-3", "Digits by t-SNE, coloured by class, which it does not see.", &picture)?;
    }
    if wanted[1] && (open == Some("figure-4") || paper.wants("figure-4")) {
        let shape = ImageShape::grey(28, 28);
        let title = format!("t-SNE of {n} digits");
        let (picture, shown) = thumbnails::draw(&points, &rows, shape, &title, 2 * SIDE, 32)?;
        let caption = format!(
            "{shown} of {n} digits drawn at their points (`tsne --thumbnails`); the source's are \
                 photographs by features of AlexNet."
        );
        paper.picture("figure-4", &caption, &picture)?;
    }
    Ok(())
}

/// The kernel with tails beside one without.
fn crowding(paper: &mut Paper) -> Result<()> {
    let n = match (paper.quick(), paper.device().is_cuda()) {
        (true, _) => 500,
        (false, false) => 2000,
        (false, true) => 6000,
    };
    let (rows, labels) = digits(n)?;
    let (rows, classes) = (rows.to_device(paper.device())?, classes_of(&labels)?);
    let mut picture = RgbImage::new(2 * SIDE, SIDE);
    let mut lines = Vec::new();
    for (k, (name, degrees_of_freedom)) in
        [("without tails: SNE", UNTAILED), ("with tails: t-SNE", 1.)].into_iter().enumerate()
    {
        let config = TsneConfig { degrees_of_freedom, method: Some(Method::Exact), ..best() };
        let read = config.preparation.apply(&rows)?.to_dtype(DType::F32)?.contiguous()?;
        let metric = config.metric;
        let Made { layout, positions, kl } = lay_out(config, &rows)?;
        let points = Points { positions: &positions, n_dims: 2, classes: &classes };
        imageops::replace(&mut picture, &draw(&points, name, SIDE)?, i64::from(k as u32 * SIDE), 0);
        let trust =
            measure::trustworthiness(TrueDistances::Rows(&read, metric), &layout, TRUST_NEIGHBOURS, SAMPLE)?;
        lines.push(vec![
            Cell::text(name),
            Cell::number(degrees_of_freedom.into(), 0),
            Cell::number(kl, 3),
            Cell::number(trust, 4),
            Cell::number(100. * measure::knn_label_accuracy(&layout, &labels, NEIGHBOURS)?, 1),
            Cell::number(separation(&positions, &classes), 2),
        ]);
    }
    paper.picture(
        "figure-7",
        "Crowding: the same digits by a kernel without tails (left) and by t-SNE's (right).",
        &picture,
    )?;
    paper.table(table(
        "Figure 7: crowding",
        &["kernel", "α", "KL", "trust", "10-NN label, %", "separation"],
        lines,
        vec![
            format!(
                "{n} digits by all pairs; the kernel is (1 + d²/α)^−α, which is exp(−d²) for a large \
                 α, SNE's of 2002 with symmetric affinities. Each KL is of its own kernel."
            ),
            "separation: the mean distance between the centres of two classes over that of a point \
                 from its own."
                .to_owned(),
        ],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separation_is_the_distance_of_centres_over_that_within() {
        let classes = Classes::new(4, Some(&[0, 0, 1, 1]), None);
        let got = separation(&[-1., 0., 1., 0., -1., 8., 1., 8.], &classes);
        assert!((got - 8.).abs() < 1e-12, "{got}");
    }
}
