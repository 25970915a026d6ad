//! Tiled products by the width of their tiles: the hidden values of a minibatch.
use super::{SIZE, either, heads, run_at, runs, table};
use crate::bench::paper::{Cell, Paper};
use crate::bench::timing::time_of_one;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::{Philox, Precision};
use chandlery_ops::core::uniform;
use chandlery_ops::layers::{Factors, TILE_WIDTHS, gemm_, tiled_product_};

/// Rows of the minibatch: the largest of the paper.
const BATCH: usize = 32;

/// Seconds of `W X̃ᵀ` by tiles of this width, or by the library's product.
fn measure(device: &Device, (repeats, seconds): (u32, f64), width: Option<usize>) -> Result<f64> {
    let (v, h) = SIZE.units();
    let of = |n: usize, stream| uniform((n, v), device, Philox::new(5, stream));
    let (weight, x) = (of(h, 0)?, of(BATCH, 1)?);
    let out = Tensor::zeros((h, BATCH), DType::F32, device)?;
    let across = x.t()?;
    let one = || match width {
        Some(width) => tiled_product_(&out, &weight, &x, width),
        None => gemm_(&out, &weight, &across, Factors::OVERWRITE, Precision::F32),
    };
    let calls = |n: usize| (0..n).try_for_each(|_| one().map_err(Into::into));
    Ok(time_of_one(device, repeats, (seconds, 3), calls)?.median)
}

/// The table.
pub(super) fn section(paper: &mut Paper<'_>) -> Result<()> {
    let runs = runs(paper);
    let places = paper.places()?;
    let mut all_heads = heads(["product"]);
    for place in &places {
        all_heads.extend([format!("{}, µs", place.name()), "of ours".to_owned()]);
    }
    let ours = places
        .iter()
        .map(|place| run_at(place, |device| measure(device, runs, None)))
        .collect::<Result<Vec<_>>>()?;
    let line = |name: String, seconds: &[f64]| {
        let cells = seconds.iter().zip(&ours);
        let cells = cells.flat_map(|(own, ours)| [Cell::number(1e6 * own, 1), Cell::factor(own / ours)]);
        std::iter::once(Cell::text(name)).chain(cells).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    for width in either(paper, &TILE_WIDTHS, &[8, 32]) {
        let seconds = places.iter().map(|place| run_at(place, |device| measure(device, runs, Some(width))));
        rows.push(line(format!("tiles of {width} × {width}"), &seconds.collect::<Result<Vec<_>>>()?));
    }
    rows.push(line("ours".to_owned(), &ours));
    let notes = vec![
        "The paper varied the width of its tiles (section 5.3) and prints no result of it.".to_owned(),
        "The product of pGet-hidden-values, 784 × 500 with 32 rows, in f32, without the sigmoid. Tiles: on a GPU a block of threads copies a tile of both \
         factors to shared memory and each thread sums an entry; on a CPU plain loops copy a tile and add it."
            .to_owned(),
        "Ours has no width to choose: tiles of its kernels (cuBLAS's, and those of the tensor cores) are sized for registers when they are compiled, and \
         one launch of many steps keeps all weights in registers, so that no tile of them is copied."
            .to_owned(),
    ];
    table(paper, "Tiled products by the width of a tile", &all_heads, rows, notes)
}
