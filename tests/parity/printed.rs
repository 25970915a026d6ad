//! The naive and the tiled kernel of the denoising autoencoder's paper: close to the step in f64,
//! and the bits of the CPU's product.
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::layers::{
    DenoisingParams, TILE_WIDTHS, naive_denoising_step_, naive_denoising_step_reference, tiled_product_,
};
use chandlery_tests::{assert_same_bits, devices};

#[test]
fn the_naive_form_is_a_step_of_a_minibatch_on_every_device() -> Result<()> {
    for device in devices()? {
        // Around a warp, and more features than a block has threads.
        for (v, h, batch) in [(1, 1, 1), (31, 7, 3), (33, 65, 40), (784, 500, 8), (1030, 20, 5)] {
            let bias_at = v * h + 5;
            let n = bias_at + v + h + 3;
            let params = |values| DenoisingParams {
                values,
                n_visible: v,
                n_hidden: h,
                bias_at,
                visible_bias_at: bias_at + h + 2,
            };
            let values = (normal(n, &Cpu, Philox::new(1, 0))? * 0.1)?;
            let of = |stream| uniform((batch, v), &Cpu, Philox::new(1, stream));
            let (x, noisy) = (of(1)?, of(2)?);
            let want = naive_denoising_step_reference(params(&values), &x, &noisy, 0.5)?;
            let there = values.to_device(&device)?.copy()?;
            let sums = Tensor::zeros(n, DType::F32, &device)?;
            let (x, noisy) = (x.to_device(&device)?, noisy.to_device(&device)?);
            naive_denoising_step_(params(&there), &sums, &x, &noisy, 0.5)?;
            let apart = (there.to_device(&Cpu)? - &want)?.abs()?.max_all()?.to_scalar::<f32>()?;
            // Sums of a thousand products in any order, 6e-8 of numbers around ten each.
            assert!(apart < 5e-5, "{v}-{h}, {batch} rows on {:?}: {apart} off", device.location());
            let left = sums.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(left == 0., "sums are zeros again, got {left} on {:?}", device.location());
        }
    }
    Ok(())
}

#[test]
fn tiled_products_are_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        for (rows, cols, depth) in [(1, 1, 1), (4, 3, 5), (33, 17, 31), (65, 32, 64), (500, 32, 784)] {
            let of = |n: usize, stream| normal((n, depth), &Cpu, Philox::new(2, stream));
            let (a, b) = (of(rows, 0)?, of(cols, 1)?);
            let want = Tensor::full(9f32, (rows, cols), &Cpu)?;
            tiled_product_(&want, &a, &b, TILE_WIDTHS[0])?;
            for width in TILE_WIDTHS {
                let out = Tensor::full(9f32, (rows, cols), &device)?;
                tiled_product_(&out, &a.to_device(&device)?, &b.to_device(&device)?, width)?;
                let what = format!("{rows}×{cols}×{depth}, width {width} on {:?}", device.location());
                assert_same_bits(&what, &out, &want)?;
            }
        }
    }
    Ok(())
}
