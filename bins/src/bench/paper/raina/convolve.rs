//! The convolution in the text of section 5.
use super::super::{Cell, Paper, Table};
use super::rows::headline;
use super::seconds_of_one;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::images::{ConvolutionShape, Padding, convolution_};
use std::time::Instant;

/// Images and filters.
const IMAGES: usize = 32;
const FILTERS: usize = 32;
/// What the paper says of its GPU, transfers included, beside convolution in C and FFTs in Matlab.
const PAPER: f64 = 100.;

fn shape() -> Result<ConvolutionShape> {
    Ok(ConvolutionShape::new((128, 128, 1), FILTERS, 16, Padding::Valid)?)
}

/// The maps of some images by plain loops in f32 on one thread, as C has it.
fn plain_loops(x: &[f32], w: &[f32], shape: ConvolutionShape) -> Vec<f32> {
    let ConvolutionShape { width, size, n_filters, .. } = shape;
    let (down, across) = (shape.out_height(), shape.out_width());
    let mut maps = vec![0f32; x.len() / shape.n_visible() * shape.n_hidden()];
    let images = x.chunks_exact(shape.n_visible()).zip(maps.chunks_exact_mut(shape.n_hidden()));
    for (image, maps) in images {
        for (o, filter) in w.chunks_exact(size * size).enumerate() {
            for i in 0..down {
                for j in 0..across {
                    let lines = filter.chunks_exact(size).enumerate();
                    maps[(i * across + j) * n_filters + o] = lines
                        .map(|(k, line)| {
                            let under = &image[(i + k) * width + j..][..size];
                            under.iter().zip(line).map(|(x, w)| x * w).sum::<f32>()
                        })
                        .sum();
                }
            }
        }
    }
    maps
}

/// Seconds with operands on the device; with operands copied from the host each time, on a GPU.
struct Times {
    resident: f64,
    transferred: Option<f64>,
}

fn ours(device: &Device, repeats: u32, x: &Tensor, w: &Tensor) -> Result<Times> {
    let shape = shape()?;
    let (here, filters) = (x.to_device(device)?, w.to_device(device)?);
    let maps = Tensor::zeros((IMAGES, shape.n_hidden()), DType::F32, device)?;
    let time = |call: &dyn Fn() -> candle::Result<()>| {
        seconds_of_one(device, repeats, |n| Ok((0..n).try_for_each(|_| call())?))
    };
    Ok(Times {
        resident: time(&|| convolution_(&maps, &here, &filters, shape))?,
        transferred: (!device.is_cpu())
            .then(|| time(&|| convolution_(&maps, &x.to_device(device)?, &w.to_device(device)?, shape)))
            .transpose()?,
    })
}

/// The table.
pub(super) fn convolution(paper: &mut Paper) -> Result<()> {
    if !paper.wants("convolution") {
        return Ok(());
    }
    let (shape, cpu, repeats) = (shape()?, Device::Cpu, paper.repeats());
    let x = normal((IMAGES, shape.n_visible()), &cpu, Philox::new(16, 0))?;
    let w = normal((FILTERS, shape.filter_len()), &cpu, Philox::new(16, 1))?;
    let some = if paper.quick() { 1 } else { 4 };
    let (few, filters) =
        (x.narrow(0, 0, some)?.flatten_all()?.to_vec1::<f32>()?, w.flatten_all()?.to_vec1()?);
    let start = Instant::now();
    std::hint::black_box(plain_loops(&few, &filters, shape));
    let plain = start.elapsed().as_secs_f64() * (IMAGES / some) as f64;
    let places = paper.places()?;
    let row = |name: String, seconds: Option<f64>| {
        vec![
            Cell::text(name),
            Cell::or_none(seconds, |s| Cell::number(1e3 * s, 3)),
            Cell::or_none(seconds, |s| Cell::factor(plain / s)),
        ]
    };
    let mut table = Table::new(
        "Section 5: a convolution of 32 images of 128x128 with 32 filters of 16x16",
        &["", "ms", "over plain loops"],
    );
    table.row(vec![Cell::text("paper: GTX 280 with transfers"), Cell::none(), Cell::factor(PAPER)]);
    table.row(row("plain loops, one thread".to_owned(), Some(plain)));
    let (mut same, mut best) = (None, None);
    for place in &places {
        let Times { resident, transferred } = place.run(|| ours(&place.device, repeats, &x, &w))?;
        table.row(row(format!("ours, {}", place.name()), Some(resident)));
        if transferred.is_some() {
            table.row(row(format!("ours, {} with transfers", place.name()), transferred));
        }
        let on_gpu = !place.device.is_cpu();
        (same, best) = (transferred.map(|s| plain / s), on_gpu.then_some(plain / resident));
    }
    table.note(
        "The paper says `over 100 times` as fast as convolution in C and as FFTs in Matlab, and gives no times.",
    );
    table.note(format!(
        "Plain loops are compiled as this program is; {some} of the 32 images, scaled to all. Transfers: images and filters to the GPU each time."
    ));
    paper.table(table)?;
    paper.headline(headline("Convolution with transfers: GPU over plain loops", PAPER, same, best));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chandlery_ops::images::convolution_reference;

    #[test]
    fn plain_loops_are_the_convolution() -> Result<()> {
        let shape = ConvolutionShape::new((9, 7, 1), 3, 4, Padding::Valid)?;
        let draw = |rows, columns, stream| normal((rows, columns), &Device::Cpu, Philox::new(5, stream));
        let (x, w) = (draw(2, shape.n_visible(), 0)?, draw(3, shape.filter_len(), 1)?);
        let want = convolution_reference(&x, &w, shape)?.flatten_all()?.to_vec1::<f32>()?;
        let got = plain_loops(&x.flatten_all()?.to_vec1()?, &w.flatten_all()?.to_vec1()?, shape);
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() < 1e-5 * want.abs().max(1.), "{got} for {want}");
        }
        Ok(())
    }
}
